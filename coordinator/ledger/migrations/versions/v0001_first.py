"""The ledger as it was first made."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make everything."""
    # The ledger's clock. All SQL asks it and never now(), so that tests can move the time for every process at once.
    op.execute("CREATE FUNCTION tandem_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now()'")
    op.create_table(
        "artifact",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("stored_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("linked", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint("size >= 0", name="artifact_size_positive"),
        sa.PrimaryKeyConstraint("job_id", "epoch", "name"),
    )
    op.create_index("artifact_sha256", "artifact", ["sha256"])
    op.create_index("artifact_unlinked", "artifact", ["stored_at"], postgresql_where=sa.text("NOT linked"))
    op.create_table(
        "attempt",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=True),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("claimed_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("deadline_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("ended_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.Column("result_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("progress", sa.Double(), nullable=True),
        sa.Column("heartbeats", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("heartbeat_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("elapsed_s", sa.Double(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("settings", postgresql.JSONB(), nullable=True),
        sa.Column("stages", postgresql.JSONB(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('canceled', 'closed', 'completed', 'failed', 'lease_expired', 'released')",
            name="attempt_outcome_known",
        ),
        sa.CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name="attempt_ended_with_its_outcome"),
        sa.CheckConstraint("epoch >= 1 AND number >= 1", name="attempt_counts_from_one"),
        sa.PrimaryKeyConstraint("job_id", "epoch"),
    )
    op.create_index("attempt_worker", "attempt", ["worker", sa.text("claimed_at DESC")])
    op.create_table(
        "heartbeat",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("progress", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("heartbeat_job", "heartbeat", ["job_id", "at"])
    op.create_table(
        "job",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column("labels", postgresql.JSONB(), nullable=False),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("timeout_s", sa.Double(), nullable=False),
        sa.Column("review", sa.Boolean(), nullable=False),
        sa.Column("run_after", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_losses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("excluded", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("offered_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("offered_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("spent_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.Column("result", postgresql.JSONB(), nullable=True),
        sa.Column("result_epoch", sa.Integer(), nullable=True),
        sa.Column("result_model", sa.Text(), nullable=True),
        sa.Column("unpublished", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("published_epoch", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "(state = 'processing') = (worker IS NOT NULL) AND (state = 'processing') = (lease_expires_at IS NOT NULL)",
            name="job_lease_exactly_while_processing",
        ),
        sa.CheckConstraint(
            "(state IN ('awaiting_review', 'canceled', 'completed', 'failed')) = (finished_at IS NOT NULL)",
            name="job_finished_exactly_when_settled",
        ),
        sa.CheckConstraint(
            "NOT unpublished OR state IN ('awaiting_review', 'canceled', 'completed', 'failed')",
            name="job_publishes_only_when_settled",
        ),
        sa.CheckConstraint(
            "epoch >= 0 AND attempt >= 0 AND lease_losses >= 0 AND (epoch > 0 OR state <> 'processing')",
            name="job_counts_from_zero",
        ),
        sa.CheckConstraint(
            "offered_at IS NULL OR state IN ('pending', 'processing')", name="job_offered_only_while_live"
        ),
        sa.CheckConstraint(
            "result_epoch IS NOT NULL OR (result IS NULL AND result_model IS NULL"
            " AND state NOT IN ('completed', 'awaiting_review'))",
            name="job_result_has_its_epoch",
        ),
        sa.CheckConstraint(
            "result_epoch IS NULL OR state NOT IN ('pending', 'processing')", name="job_no_result_while_live"
        ),
        sa.CheckConstraint(
            "state IN ('awaiting_review', 'canceled', 'completed', 'failed', 'pending', 'processing')",
            name="job_state_known",
        ),
        sa.CheckConstraint("max_attempts >= 1 AND timeout_s > 0", name="job_limits_positive"),
        sa.CheckConstraint("priority BETWEEN 0 AND 3", name="job_priority_known"),
        sa.CheckConstraint("spent_seq <= offered_seq", name="job_spent_is_no_newer_than_offered"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "job_backlog",
        "job",
        ["lane", sa.text("priority DESC"), "run_after", "id"],
        postgresql_where=sa.text("state = 'pending' AND offered_at IS NULL"),
    )
    op.create_index("job_holder", "job", ["worker"], postgresql_where=sa.text("state = 'processing'"))
    op.create_index("job_list", "job", [sa.text("created_at DESC"), "id"])
    op.create_index("job_list_by_state", "job", ["state", sa.text("created_at DESC"), "id"])
    op.create_index(
        "job_offered", "job", ["lane"], postgresql_where=sa.text("state = 'pending' AND offered_at IS NOT NULL")
    )
    op.create_index("job_outbox", "job", ["finished_at", "id"], postgresql_where=sa.text("unpublished"))
    op.create_index("job_processing", "job", ["id"], postgresql_where=sa.text("state = 'processing'"))
    op.create_table(
        "lane",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "operator_action",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("operator_action_at", "operator_action", [sa.text("at DESC"), "id"])
    op.create_index(
        "operator_action_job", "operator_action", ["job_id"], postgresql_where=sa.text("job_id IS NOT NULL")
    )
    op.create_table(
        "rejected_result",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("current_epoch", sa.Integer(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("report", postgresql.JSONB(), nullable=False),
        sa.CheckConstraint("verdict IN ('duplicate', 'rejected', 'stale')", name="rejected_result_verdict"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("rejected_result_at", "rejected_result", [sa.text("at DESC"), "id"])
    op.create_index("rejected_result_job", "rejected_result", ["job_id"])
    op.create_table(
        "rejected_submission",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("faults", postgresql.JSONB(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("rejected_submission_at", "rejected_submission", [sa.text("at DESC"), "id"])
    op.create_table(
        "worker",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("nkey", sa.Text(), nullable=True),
        sa.Column("instance", sa.Text(), nullable=True),
        sa.Column("first_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("seen_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("presence", postgresql.JSONB(), nullable=True),
        sa.Column("wanted", sa.Text(), server_default=sa.text("'ready'"), nullable=False),
        sa.CheckConstraint("wanted IN ('draining', 'paused', 'ready')", name="worker_wanted_known"),
        sa.PrimaryKeyConstraint("name"),
    )
    # A heartbeat rewrites a job's and an attempt's row in place if their page has room. Both tables keep few live rows
    # that change often beside many that never change again: vacuum must not wait for a share of the whole.
    for table in ("job", "attempt"):
        op.execute(
            f"ALTER TABLE {table} SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01,"
            " autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02)"
        )


def downgrade() -> None:
    """Remove everything."""
    for table in (
        "artifact",
        "attempt",
        "heartbeat",
        "job",
        "lane",
        "operator_action",
        "rejected_result",
        "rejected_submission",
        "worker",
    ):
        op.drop_table(table)
    op.execute("DROP FUNCTION tandem_now()")
