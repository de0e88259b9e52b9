"""The one way to Postgres: a pool, its JSON, the SQL files, and which errors mean that Postgres is away.

`ledger.py`, `queries.py` and `views.py` use it. No statement is written here or put together at run time: each stands
in its own file under `sql/`.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import orjson

from shared.errors import LedgerDownError

STATEMENT_S = 10.0
"""No statement may take longer; then Postgres counts as away."""

CONNECT_S = 5.0
"""Opening a connection, or waiting for a free one."""

_CLOSE_S = 5.0

_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shut down, killed, cancelled
    asyncpg.InsufficientResourcesError,  # disk full, too many connections
    asyncpg.ReadOnlySQLTransactionError,  # a standby
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,  # the database is not there (yet)
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


@functools.cache
def sql(name: str) -> str:
    """Return the statement in `sql/<name>.sql`."""
    return (files("coordinator.ledger") / "sql" / f"{name}.sql").read_text()


_IDLE_IN_TRANSACTION = "10s"
"""A coordinator that froze, or whose link went, in the middle of a commit must not keep its rows from the others."""


async def open_pool(dsn: str, *, min_size: int = 1, max_size: int = 8) -> asyncpg.Pool:
    """Open a pool whose jsonb values are Python values; the ledger's writer keeps one of its connections.

    Raises LedgerDownError if Postgres can't be reached; with `min_size` 0 it connects on first use.
    """
    with _socket_named(dsn), reaching():
        return await asyncpg.create_pool(
            dsn,
            min_size=min_size,
            max_size=max_size,
            timeout=CONNECT_S,
            command_timeout=STATEMENT_S,
            init=_prepare,
            reset=_leave_as_it_is,
            server_settings={
                "application_name": "tandem",
                "timezone": "UTC",
                "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION,
                "max_parallel_workers_per_gather": "0",  # a count of all jobs leaves the other cores to the writer
            },
        )


@contextmanager
def _socket_named(dsn: str) -> Iterator[None]:
    """Say of a socket that is not there which one it is; the system's error does not."""
    try:
        yield
    except LedgerDownError as error:
        query = parse_qs(urlsplit(dsn).query)
        folder, port = query.get("host", [""])[-1], query.get("port", ["5432"])[-1]
        if isinstance(error.__cause__, FileNotFoundError) and folder.startswith("/"):
            msg = f"Postgres is away: no such file: {folder}/.s.PGSQL.{port}"
            raise LedgerDownError(msg) from error
        raise


@asynccontextmanager
async def lent_pool(dsn: str, *, min_size: int = 1, max_size: int = 8) -> AsyncIterator[asyncpg.Pool]:
    """Lend a pool as `open_pool` makes it, and close it; what a Postgres that hangs still holds is dropped."""
    pool = await open_pool(dsn, min_size=min_size, max_size=max_size)
    try:
        yield pool
    finally:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await pool.close()
        finally:
            pool.terminate()


async def _prepare(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=_encode_jsonb, decoder=_decode_jsonb, format="binary"
    )


async def _leave_as_it_is(_: asyncpg.Connection) -> None:
    """Replace asyncpg's reset, a round trip after each statement: none here sets, locks or listens for a session.

    The ledger's writer does, but keeps its connection, and terminates it when it lets go.
    """


def _encode_jsonb(value: Any) -> bytes:
    """Encode for jsonb's binary form: a version byte, then JSON. jsonb can't hold NUL; it becomes U+FFFD."""
    text = orjson.dumps(value)
    if b"\\u0000" in text:
        text = orjson.dumps(_without_nul(value))
    return b"\x01" + text


def _decode_jsonb(stored: bytes) -> Any:
    return orjson.loads(memoryview(stored)[1:])


def _without_nul(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\x00", "\ufffd")
        case dict():
            return {_without_nul(k): _without_nul(v) for k, v in value.items()}
        case list() | tuple():
            return [_without_nul(v) for v in value]
        case _:
            return value


def is_away(error: BaseException) -> bool:
    """Say whether an error means that Postgres is away, not that a statement was wrong."""
    if isinstance(error, asyncpg.InterfaceError):  # a closed or broken connection; as a ValueError: a bad argument
        return not isinstance(error, ValueError)
    return isinstance(error, _AWAY)


@contextmanager
def reaching() -> Iterator[None]:
    """Turn the errors that mean that Postgres is away into LedgerDownError; the others pass."""
    try:
        yield
    except Exception as error:
        if is_away(error):
            raise down(error) from error
        raise


def down(error: BaseException) -> LedgerDownError:
    """Return the LedgerDownError for an error of the driver."""
    return LedgerDownError(f"Postgres is away: {type(error).__name__}: {error}")


async def fetch(pool: asyncpg.Pool, name: str, *args: Any) -> list[asyncpg.Record]:
    """Run `sql/<name>.sql` on a free connection and return its rows; LedgerDownError if Postgres is away."""
    with reaching():
        async with pool.acquire(timeout=CONNECT_S) as connection:
            rows: list[asyncpg.Record] = await connection.fetch(sql(name), *args)
            return rows
