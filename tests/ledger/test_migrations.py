"""The migrations make exactly what the tables declare, once, however many run them."""

import asyncio

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from coordinator.embedded import EmbeddedPostgres
from coordinator.ledger.migrate import config, create_database_if_missing, database_of, migrate
from coordinator.ledger.tables import metadata
from shared.errors import LedgerDownError
from tests.support.ledger import database

_CATALOG = """
SELECT 'constraint' AS what, conrelid::regclass::text || '.' || conname AS name, pg_get_constraintdef(oid) AS definition
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'column', table_name || '.' || column_name,
    concat_ws(' ', data_type, is_nullable, column_default, is_identity)
FROM information_schema.columns WHERE table_schema = 'public'
"""


def engine(dsn: str):
    return create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn), poolclass=NullPool)


async def catalog(dsn: str) -> dict[tuple[str, str], str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(_CATALOG)
    finally:
        await connection.close()
    return {(r["what"], r["name"]): r["definition"] for r in rows if "alembic_version" not in r["name"]}


async def test_alembic_finds_nothing_to_change(ledger_dsn: str) -> None:
    async with engine(ledger_dsn).connect() as connection:
        differences = await connection.run_sync(
            lambda sync: compare_metadata(
                MigrationContext.configure(sync, opts={"compare_server_default": True}), metadata
            )
        )
    assert differences == []


async def test_checks_and_partial_indexes_are_those_that_the_tables_declare(
    postgres_server: EmbeddedPostgres, ledger_dsn: str
) -> None:
    """Alembic compares neither CHECKs nor the WHERE of an index."""
    async with database(postgres_server, "template0") as declared:
        async with engine(declared).begin() as connection:
            await connection.run_sync(metadata.create_all)
        by_tables = await catalog(declared)
    by_migrations = await catalog(ledger_dsn)
    assert by_migrations == by_tables
    assert len(by_tables) > 100


async def test_migrating_again_changes_nothing(ledger_dsn: str) -> None:
    before = await catalog(ledger_dsn)
    await migrate(ledger_dsn)
    assert await catalog(ledger_dsn) == before


async def test_two_at_once_make_one_schema(postgres_server: EmbeddedPostgres, ledger_dsn: str) -> None:
    async with database(postgres_server, "template0") as dsn:
        await asyncio.gather(*(migrate(dsn) for _ in range(4)))
        assert await catalog(dsn) == await catalog(ledger_dsn)


async def test_a_downgrade_leaves_nothing(postgres_server: EmbeddedPostgres) -> None:
    from alembic import command  # noqa: PLC0415 - operators never downgrade; only this test does

    async with database(postgres_server, "template0") as dsn:
        await migrate(dsn)
        async with engine(dsn).begin() as connection:
            await connection.run_sync(lambda sync: command.downgrade(config(sync), "base"))
        assert await catalog(dsn) == {}


async def test_a_missing_database_is_made_once(postgres_server: EmbeddedPostgres) -> None:
    dsn = postgres_server.dsn_of("quite-new")
    made = await asyncio.gather(*(create_database_if_missing(dsn) for _ in range(3)))
    assert sum(made) == 1
    await migrate(dsn)


def test_a_dsn_without_a_database_is_refused() -> None:
    assert database_of("postgresql://tandem@/?host=/run/postgresql&dbname=ledger") == "ledger"
    with pytest.raises(ValueError, match="names no database"):
        database_of("postgresql://tandem@127.0.0.1:5432")


async def test_an_unreachable_server_is_a_ledger_that_is_down(unused_tcp_port: int) -> None:
    with pytest.raises(LedgerDownError):
        await migrate(f"postgresql://tandem@127.0.0.1:{unused_tcp_port}/tandem")
