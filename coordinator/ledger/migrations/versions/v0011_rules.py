"""Workers can be told their rules."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column; without a default, so no row is written."""
    op.add_column("worker", sa.Column("rules", JSONB(), nullable=True))


def downgrade() -> None:
    """Have each agent's own rules count."""
    op.drop_column("worker", "rules")
