"""Silences are counted apart from losses; processes that were replaced are known."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; with constant defaults that takes no time, however long the table is."""
    op.add_column("job", sa.Column("silences", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("worker", sa.Column("retired", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False))


def downgrade() -> None:
    """Forget both; what was counted as silence is not counted at all."""
    op.drop_column("worker", "retired")
    op.drop_column("job", "silences")
