"""What people do gets a note."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column."""
    op.add_column("operator_action", sa.Column("note", sa.Text(), nullable=True))


def downgrade() -> None:
    """Forget the notes."""
    op.drop_column("operator_action", "note")
