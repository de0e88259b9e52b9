"""An index for the durations on record: the last results of a lane."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the index; about a second for a million results."""
    op.create_index(
        "job_done", "job", ["lane", sa.text("finished_at DESC")], postgresql_where=sa.text("result_epoch IS NOT NULL")
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_index("job_done", table_name="job")
