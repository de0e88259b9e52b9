"""A database that goes away while the schema is looked at: said as it is, whatever library noticed it."""

import asyncio

import pytest

from coordinator.ledger import migrate as migrating
from coordinator.ledger.migrate import migrate
from shared.errors import LedgerDownError
from tests.support.ledger import database
from tests.support.proxy import proxied

_WAITING = """SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@pytest.mark.parametrize("size", [1, 50, 300, 500])
async def test_a_connection_that_ends_in_the_middle_means_that_postgres_is_away(ledger_dsn, size):
    async with proxied(ledger_dsn) as (proxy, dsn):
        proxy.cut_after(size)
        with pytest.raises(LedgerDownError, match="Postgres is away"):
            await migrate(dsn)
        assert proxy.cuts == 1


@pytest.mark.parametrize("size", [800, 5_000, 10_000, 15_000, 18_000, 20_000, 22_000])
async def test_so_does_one_that_ends_in_the_middle_of_a_migration(postgres_server, size):
    async with database(postgres_server, "template0") as empty, proxied(empty) as (proxy, dsn):
        proxy.cut_after(size)
        with pytest.raises(LedgerDownError, match="Postgres is away"):
            await migrate(dsn)
        assert proxy.cuts == 1


async def test_a_start_does_not_wait_for_a_silent_connection_as_long_as_a_migration_may_take(
    ledger_dsn, ledger_pool, monkeypatch
):
    """A coordinator that waits there neither serves nor ends, and nobody starts it again."""
    monkeypatch.setattr(migrating, "STATEMENT_S", 0.5)
    async with proxied(ledger_dsn) as (proxy, dsn):
        async with ledger_pool.acquire() as other, other.transaction():
            await other.execute("LOCK TABLE alembic_version")
            start = asyncio.create_task(migrate(dsn))
            while not await ledger_pool.fetchval(_WAITING):
                assert not start.done()
                await asyncio.sleep(0.01)
            proxy.black_hole()
        with pytest.raises(LedgerDownError, match="TimeoutError"):
            await start
