"""What is published in a CMS, step by step, and the sites where that has to wait."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"

_INSTANT = sa.TIMESTAMP(timezone=True)


def upgrade() -> None:
    """Make the tables, empty: jobs that were completed before are not published now."""
    op.create_table(
        "publication",
        sa.Column("job_id", sa.UUID(), primary_key=True, nullable=False),
        sa.Column("epoch", sa.Integer(), primary_key=True, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("post", sa.Text(), nullable=True),
        sa.Column("asked_at", _INSTANT, nullable=False),
        sa.Column("since", _INSTANT, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("next_at", _INSTANT, nullable=True),
        sa.Column("tried_at", _INSTANT, nullable=True),
        sa.Column("published_at", _INSTANT, nullable=True),
        sa.Column("failed_at", _INSTANT, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("steps", JSONB(), nullable=False, server_default=sa.text("'{}'")),
        sa.CheckConstraint("num_nonnulls(next_at, published_at, failed_at) = 1", name="publication_one_end"),
    )
    op.create_index("publication_due", "publication", ["next_at"], postgresql_where=sa.text("next_at IS NOT NULL"))
    op.create_index(
        "publication_undone",
        "publication",
        [sa.text("since DESC"), "job_id"],
        postgresql_where=sa.text("published_at IS NULL"),
    )
    op.create_index("publication_of_post", "publication", ["source", "post", "kind", "asked_at"])
    op.create_table(
        "paused_site",
        sa.Column("source", sa.Text(), primary_key=True, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", _INSTANT, nullable=False),
        sa.Column("check_at", _INSTANT, nullable=False),
    )


def downgrade() -> None:
    """Forget what was published; the CMS keeps it."""
    op.drop_table("paused_site")
    op.drop_table("publication")
