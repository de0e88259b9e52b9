"""Brings a database to the schema of this version: `await migrate(dsn)`, by `tandem migrate` and at every start.

Idempotent, and safe with several at once: one migrates, under an advisory lock, the others wait. Safe beside
coordinators that work: each version is a transaction that waits for a lock no longer than others can wait behind it,
and tries again; what reads whole tables holds up nobody (`migrations/online.py`). What fails in between goes on from
there at the next start.

A schema that is of this version already, as at almost every start, is only looked at, with the patience of any other
statement: a start must not wait as long as a migration may take for a Postgres that went silent.
"""

import asyncio
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from coordinator.ledger.database import CONNECT_S, STATEMENT_S, down, is_away, reaching
from shared.errors import LedgerDownError

MIGRATE_S = 600.0
"""A migration of a big table may take minutes; so may waiting for another coordinator's."""

_LOCK_TIMEOUT = "2s"
"""Everybody who wants the table of a waiting ALTER TABLE waits behind it."""

_AGAIN_S = 0.2
_LOCK = 0x74616E64656D  # "tandem"
_MIGRATIONS = Path(__file__).parent / "migrations"


async def migrate(dsn: str) -> None:
    """Bring the database up to date; LedgerDownError if it can't be reached."""
    if missing_revisions(await revision_of(dsn)) == []:
        return
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: asyncpg.connect(
            dsn, timeout=CONNECT_S, command_timeout=MIGRATE_S, server_settings={"lock_timeout": _LOCK_TIMEOUT}
        ),
        poolclass=NullPool,
    )
    try:
        with reaching():
            async with asyncio.timeout(MIGRATE_S), engine.connect() as connection:
                await _until_alone(connection)
                while not await _is_upgraded(connection):  # noqa: ASYNC110 - nothing tells when a lock is free
                    await asyncio.sleep(_AGAIN_S)
    except PendingRollbackError as error:  # what SQLAlchemy makes of a connection that ended within its transaction
        msg = "Postgres is away: the connection ended in the middle of a migration"
        raise LedgerDownError(msg) from error
    except DBAPIError as error:
        said = _said(error)
        if said is not None and is_away(said):
            raise down(said) from error
        raise
    finally:
        await engine.dispose()


async def revision_of(dsn: str) -> str | None:
    """Return the schema that a database has; None if it has none. LedgerDownError if it can't be reached."""
    with reaching():
        connection = await asyncpg.connect(dsn, timeout=CONNECT_S, command_timeout=STATEMENT_S)
        try:
            if await connection.fetchval("SELECT to_regclass('alembic_version') IS NULL"):
                return None
            found: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
            return found
        finally:
            await connection.close(timeout=CONNECT_S)


def known_revisions() -> list[str]:
    """Return every schema that this version knows, the newest first."""
    return [one.revision for one in ScriptDirectory.from_config(config()).walk_revisions()]


def missing_revisions(now: str | None) -> list[tuple[str, str]] | None:
    """Return what `migrate` would do to a schema, in order: revision and its first line; None for a later version's."""
    steps: list[tuple[str, str]] = []
    for one in ScriptDirectory.from_config(config()).walk_revisions():
        if one.revision == now:
            return steps[::-1]
        steps.append((one.revision, (one.doc or "").partition("\n")[0]))
    return steps[::-1] if now is None else None


async def _until_alone(connection: AsyncConnection) -> None:
    """Wait until no other coordinator migrates; asks again and again, since an index waits for whoever waits here."""
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    while not await connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}):
        await connection.commit()
        await asyncio.sleep(_AGAIN_S)
    await connection.commit()
    await connection.execution_options(isolation_level="READ COMMITTED")


async def _is_upgraded(connection: AsyncConnection) -> bool:
    """Go on with what is still to do; False if somebody else's transaction was in the way of it."""
    try:
        await connection.run_sync(_upgrade)
    except DBAPIError as error:
        if not isinstance(_said(error), asyncpg.LockNotAvailableError | asyncpg.DeadlockDetectedError):
            raise
        await connection.rollback()
        return False
    await connection.commit()
    return True


def _upgrade(connection: Connection) -> None:
    command.upgrade(config(connection), "head")


def _said(error: DBAPIError) -> BaseException | None:
    """Return the driver's own error."""
    return error.orig.__cause__ if error.orig else None


def config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; `migrations/env.py` takes the connection from it."""
    made = Config()
    made.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    if connection is not None:
        made.attributes["connection"] = connection
    return made


async def create_database_if_missing(dsn: str) -> bool:
    """Create the database that the dsn names, by way of `postgres` on the same server; True if it was missing."""
    name = database_of(dsn)
    with reaching():
        connection = await asyncpg.connect(dsn, database="postgres", timeout=CONNECT_S, command_timeout=MIGRATE_S)
        try:
            if await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", name):
                return False
            statement = await connection.fetchval("SELECT format('CREATE DATABASE %I', $1::text)", name)
            await connection.execute(statement)
        except (asyncpg.DuplicateDatabaseError, asyncpg.UniqueViolationError):
            return False  # another was quicker
        finally:
            await connection.close(timeout=CONNECT_S)
    return True


def database_of(dsn: str) -> str:
    """Return the name of the database in a dsn; ValueError if it names none."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    name = unquote(parts.path.removeprefix("/")) or next(iter(query.get("dbname", query.get("database", []))), "")
    if not name:
        msg = "the dsn names no database"
        raise ValueError(msg)
    return name
