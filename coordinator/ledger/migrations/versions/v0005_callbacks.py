"""What a settled job's `callback_url` is told, and how that goes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_INSTANT = sa.TIMESTAMP(timezone=True)


def upgrade() -> None:
    """Make the table, empty: jobs that were settled before are told nothing now."""
    op.create_table(
        "callback",
        sa.Column("job_id", sa.UUID(), primary_key=True, nullable=False),
        sa.Column("epoch", sa.Integer(), primary_key=True, nullable=False),
        sa.Column("state", sa.Text(), primary_key=True, nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("since", _INSTANT, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("next_at", _INSTANT, nullable=True),
        sa.Column("tried_at", _INSTANT, nullable=True),
        sa.Column("delivered_at", _INSTANT, nullable=True),
        sa.Column("given_up_at", _INSTANT, nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("num_nonnulls(next_at, delivered_at, given_up_at) = 1", name="callback_one_end"),
    )
    op.create_index("callback_due", "callback", ["next_at"], postgresql_where=sa.text("next_at IS NOT NULL"))
    op.create_index(
        "callback_given_up",
        "callback",
        [sa.text("given_up_at DESC"), "job_id"],
        postgresql_where=sa.text("given_up_at IS NOT NULL"),
    )


def downgrade() -> None:
    """Forget what was told, and what is still to be."""
    op.drop_table("callback")
