"""What people do gets a note; the list of jobs gets indexes for what people filter by."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column, and the indexes in place of the list's by state; some seconds for a million jobs."""
    op.add_column("operator_action", sa.Column("note", sa.Text(), nullable=True))
    op.create_index("job_list_by_lane", "job", ["lane", "state", sa.text("created_at DESC"), "id"])
    op.drop_index("job_list_by_state", table_name="job")
    keyed, starts = sa.text("key IS NOT NULL"), {"key": "text_pattern_ops"}
    op.create_index("job_key", "job", ["key"], postgresql_where=keyed, postgresql_ops=starts)
    # Not through a pending list: one commit in thousands would pay for all of them.
    at_once: dict[str, Any] = {"postgresql_using": "gin", "postgresql_with": {"fastupdate": "off"}}
    op.create_index("job_labels", "job", ["labels"], postgresql_where=sa.text("labels <> '{}'"), **at_once)
    words = "to_tsvector('simple', ((error ->> 'code') || ' ') || (error ->> 'message'))"
    op.create_index("job_error", "job", [sa.text(words)], postgresql_where=sa.text("error IS NOT NULL"), **at_once)


def downgrade() -> None:
    """Forget the notes."""
    op.drop_index("job_error", table_name="job")
    op.drop_index("job_labels", table_name="job")
    op.drop_index("job_key", table_name="job")
    op.create_index("job_list_by_state", "job", ["state", sa.text("created_at DESC"), "id"])
    op.drop_index("job_list_by_lane", table_name="job")
    op.drop_column("operator_action", "note")
