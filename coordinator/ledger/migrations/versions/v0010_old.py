"""Indexes by which retention finds what is old: settled jobs, files, bodies of callbacks."""

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.migrations.online import make_index

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make them; some seconds for a million jobs, beside writers."""
    settled = "finished_at IS NOT NULL AND state <> 'awaiting_review' AND NOT unpublished"
    make_index("job_settled", "job", ["finished_at", "id"], postgresql_where=sa.text(settled))
    kept = sa.text("linked AND trimmed_at IS NULL")
    make_index("artifact_kept", "artifact", ["stored_at"], postgresql_where=kept)
    ended, with_body = sa.text("coalesce(delivered_at, given_up_at)"), "next_at IS NULL AND octet_length(body) > 0"
    make_index("callback_kept", "callback", [ended], postgresql_where=sa.text(with_body))


def downgrade() -> None:
    """Keep everything for ever."""
    op.drop_index("callback_kept", table_name="callback")
    op.drop_index("artifact_kept", table_name="artifact")
    op.drop_index("job_settled", table_name="job")
