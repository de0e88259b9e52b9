"""What failed last is found by an index."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the index, over failed jobs only."""
    op.create_index(
        "job_failed", "job", [sa.text("finished_at DESC"), "id"], postgresql_where=sa.text("state = 'failed'")
    )


def downgrade() -> None:
    """Read the whole list again."""
    op.drop_index("job_failed", table_name="job")
