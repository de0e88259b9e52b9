"""Jobs may name several models; a worker's failures before an operator's resume count no more."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns, and the index of waiting jobs that have a choice; it reads the table once, a second or so."""
    op.add_column("job", sa.Column("models", sa.ARRAY(sa.Text()), nullable=True))
    op.add_column("worker", sa.Column("resumed_at", sa.TIMESTAMP(timezone=True), nullable=True))
    choices = "state = 'pending' AND models IS NOT NULL"
    op.create_index("job_choices", "job", ["lane", "id"], postgresql_where=sa.text(choices))
    op.create_index("job_refused", "job", ["id"], postgresql_where=sa.text(f"{choices} AND excluded <> '{{}}'"))


def downgrade() -> None:
    """Forget both; a job that had a choice keeps the model that it has."""
    op.drop_index("job_refused", "job")
    op.drop_index("job_choices", "job")
    op.drop_column("worker", "resumed_at")
    op.drop_column("job", "models")
