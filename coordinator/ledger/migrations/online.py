"""Indexes that are made and dropped beside writers who go on: CREATE and DROP INDEX CONCURRENTLY.

Neither runs in a transaction. What was done before it in the same version stays done if it fails, so a version that
uses these does nothing else, and can be run again: an index that was left half made is dropped first, one that is whole
is left alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from alembic import op

_BROKEN = sa.text(
    "SELECT true FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
    " WHERE relname = :name AND relnamespace = current_schema()::regnamespace AND NOT indisvalid"
)


def make_index(name: str, table: str, columns: list[Any], **options: Any) -> None:
    """Make an index; `options` as `op.create_index` takes them."""
    with _beside():
        if op.get_bind().scalar(_BROKEN, {"name": name}):
            op.drop_index(name, postgresql_concurrently=True)
        op.create_index(name, table, columns, postgresql_concurrently=True, if_not_exists=True, **options)


def drop_index(name: str) -> None:
    """Drop an index, if it is there."""
    with _beside():
        op.drop_index(name, postgresql_concurrently=True, if_exists=True)


@contextmanager
def _beside() -> Iterator[None]:
    """Leave the transaction, and wait as long as others' transactions last: who waits here blocks nobody."""
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        try:
            yield
        except sa.exc.DBAPIError:
            with suppress(sa.exc.SQLAlchemyError):  # the connection may be lost: that is said by what is raised
                op.execute("RESET lock_timeout")
            raise
        op.execute("RESET lock_timeout")
