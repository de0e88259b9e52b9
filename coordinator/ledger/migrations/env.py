"""Alembic's entry: runs the versions on the connection that `migrate.py` hands over, inside its transaction."""

from alembic import context

from coordinator.ledger.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
