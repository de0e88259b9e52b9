"""Indexes for what people look at: the list of jobs by its filters, what failed last, how the last day went."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.migrations.online import drop_index, make_index

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make them, in place of the list's index by state; half a minute for a million jobs, beside writers."""
    make_index("job_list_by_lane", "job", ["lane", "state", sa.text("created_at DESC"), "id"])
    drop_index("job_list_by_state")
    keyed, starts = sa.text("key IS NOT NULL"), {"key": "text_pattern_ops"}
    make_index("job_key", "job", ["key"], postgresql_where=keyed, postgresql_ops=starts)
    # Not through a pending list: one commit in thousands would pay for all of them.
    at_once: dict[str, Any] = {"postgresql_using": "gin", "postgresql_with": {"fastupdate": "off"}}
    make_index("job_labels", "job", ["labels"], postgresql_where=sa.text("labels <> '{}'"), **at_once)
    words = "to_tsvector('simple', ((error ->> 'code') || ' ') || (error ->> 'message'))"
    make_index("job_error", "job", [sa.text(words)], postgresql_where=sa.text("error IS NOT NULL"), **at_once)
    failed = sa.text("state = 'failed'")
    make_index("job_failed", "job", [sa.text("finished_at DESC"), "id"], postgresql_where=failed)
    # A few bytes for a thousand attempts, which stand in the order in which they were claimed; and no reason for an
    # attempt that ends to be written elsewhere than in its place.
    summed: dict[str, Any] = {"postgresql_using": "brin", "postgresql_with": {"autosummarize": "on"}}
    make_index("attempt_ended", "attempt", ["ended_at"], **summed)


def downgrade() -> None:
    """Read the whole list again."""
    op.drop_index("attempt_ended", table_name="attempt")
    for name in ("job_failed", "job_error", "job_labels", "job_key", "job_list_by_lane"):
        op.drop_index(name, table_name="job")
    op.create_index("job_list_by_state", "job", ["state", sa.text("created_at DESC"), "id"])
