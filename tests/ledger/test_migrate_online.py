"""A ledger of the release before, full and at work, becomes this version's: writers go on, what broke off is mended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
import pytest_asyncio
from alembic import command
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from coordinator.embedded import EmbeddedPostgres
from coordinator.ledger.migrate import config, migrate
from coordinator.ledger.migrations.online import make_index
from tests.bench.filling import fill
from tests.ledger.test_migrations import catalog, engine
from tests.support.ledger import database
from tests.support.world import eventually_async

RELEASED = "0005"
_BEAT = "UPDATE job SET timeout_s = timeout_s + 1 WHERE state = 'pending'"
_INVALID = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
_DONE = "SELECT version_num FROM alembic_version"


@pytest_asyncio.fixture(loop_scope="session")
async def released(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with database(postgres_server, "template0") as dsn:
        async with engine(dsn).begin() as connection:
            await connection.run_sync(lambda sync: command.upgrade(config(sync), RELEASED))
        await fill(dsn, settled=400, pending=40)
        yield dsn


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def migrating(dsn: str) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(migrate(dsn), name="migrate")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_ledger_of_the_last_release_keeps_what_it_holds(released: str, ledger_dsn: str) -> None:
    async with connected(released) as connection:
        await connection.execute(
            "INSERT INTO operator_action (at, actor, action, subject) VALUES (now(), 'ann', 'pause', 'lane a.any')"
        )
        tables = ("job", "attempt", "rejected_result", "rejected_submission", "operator_action", "lane", "worker")
        before = {table: await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables}

        await migrate(released)

        assert {table: await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables} == before
        assert await connection.fetchval(_INVALID) == 0
    assert before["job"] == 440
    assert await catalog(released) == await catalog(ledger_dsn)


async def test_writers_go_on_while_an_index_waits_for_one_of_them(released: str) -> None:
    async with connected(released) as slow, connected(released) as writer, migrating(released) as task:
        held = slow.transaction()
        await held.start()
        await slow.execute("UPDATE job SET priority = 2 WHERE key = 'post-1'")
        await eventually_async(lambda: _some_index_waits(writer))

        for _ in range(20):
            await writer.execute(_BEAT, timeout=5)
        await writer.execute("UPDATE attempt SET heartbeats = heartbeats + 1", timeout=5)
        assert not task.done()

        await held.commit()
        async with asyncio.timeout(30):
            await task
        assert await writer.fetchval("SELECT priority FROM job WHERE key = 'post-1'") == 2
        assert await writer.fetchval(_INVALID) == 0


async def test_who_holds_a_table_that_is_to_change_does_not_make_others_wait_for_long(released: str) -> None:
    async with connected(released) as slow, connected(released) as writer, migrating(released) as task:
        action = "INSERT INTO operator_action (at, actor, action, subject) VALUES (now(), 'ann', 'pause', 'lane a.any')"
        held = slow.transaction()
        await held.start()
        await slow.execute(action)
        await eventually_async(lambda: _somebody_waits_for(writer, "operator_action"))

        await writer.execute(action, timeout=8)  # behind the ALTER TABLE until that gives up
        assert not task.done()

        await held.commit()
        async with asyncio.timeout(30):
            await task
        assert await writer.fetchval("SELECT count(*) FROM operator_action WHERE note IS NULL") == 2


async def test_an_index_that_was_left_half_made_is_made_again(released: str, ledger_dsn: str) -> None:
    async with connected(released) as slow, connected(released) as other:
        held = slow.transaction()
        await held.start()
        await slow.execute("UPDATE job SET priority = 2 WHERE key = 'post-1'")
        async with migrating(released):
            await eventually_async(lambda: _some_index_waits(other))
        await held.commit()
        assert await other.fetchval(_INVALID) == 1
        assert await other.fetchval(_DONE) < "0008"

        await asyncio.gather(migrate(released), migrate(released))

        assert await other.fetchval(_INVALID) == 0
    assert await catalog(released) == await catalog(ledger_dsn)


async def test_after_an_index_that_failed_nobody_waits_without_limit(released: str) -> None:
    def fail(connection: Connection) -> None:
        with Operations.context(MigrationContext.configure(connection)):
            make_index("no_such_index", "job", ["no_such_column"])

    limited = asyncpg.connect(released, server_settings={"lock_timeout": "1234ms"})
    made = create_async_engine("postgresql+asyncpg://", async_creator=lambda: limited, poolclass=NullPool)
    async with made.connect() as connection:
        with pytest.raises(DBAPIError, match="no_such_column"):
            await connection.run_sync(fail)
        await connection.rollback()
        assert await connection.scalar(text("SHOW lock_timeout")) == "1234ms"


async def _some_index_waits(connection: asyncpg.Connection) -> bool:
    return await connection.fetchval(_INVALID) == 1


async def _somebody_waits_for(connection: asyncpg.Connection, table: str) -> bool:
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = $1::regclass AND NOT granted"
    return bool(await connection.fetchval(waiting, table))
