"""Alembic migrations of the ledger; run by `coordinator.ledger.migrate` alone."""
