"""Who may join, and who may ask: invitations of workers, tokens, restores."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_INSTANT = sa.TIMESTAMP(timezone=True)


def upgrade() -> None:
    """Make the tables, empty."""
    op.create_table(
        "invitation",
        sa.Column("worker", sa.Text(), primary_key=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("made_at", _INSTANT, nullable=False),
        sa.Column("expires_at", _INSTANT, nullable=False),
        sa.Column("public_key", sa.Text(), nullable=True),
        sa.Column("used_at", _INSTANT, nullable=True),
        sa.CheckConstraint("(public_key IS NULL) = (used_at IS NULL)", name="invitation_used_by_a_key"),
    )
    op.create_index("invitation_id", "invitation", ["id"], unique=True)
    op.create_table(
        "access_token",
        sa.Column("id", sa.Text(), primary_key=True, nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("made_at", _INSTANT, nullable=False),
        sa.Column("last_used_at", _INSTANT, nullable=True),
        sa.Column("revoked_at", _INSTANT, nullable=True),
        sa.CheckConstraint("role IN ('admin', 'publisher', 'viewer')", name="access_token_role_known"),
    )
    op.create_index("access_token_digest", "access_token", ["digest"], unique=True)
    op.create_table(
        "restored",
        sa.Column("epoch_floor", sa.Integer(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("made_at", _INSTANT, nullable=False),
        if_not_exists=True,  # a restore of an older backup makes it first: restored_table.sql
    )
    op.add_column("artifact", sa.Column("trimmed_at", _INSTANT, nullable=True))


def downgrade() -> None:
    """Forget the tokens and the invitations; who has joined stays."""
    op.drop_column("artifact", "trimmed_at")
    op.drop_table("restored")
    op.drop_table("access_token")
    op.drop_table("invitation")
