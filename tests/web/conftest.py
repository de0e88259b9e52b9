"""The HTTP side, once without tokens (`site`) and once with (`guarded`), each on an empty ledger."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest_asyncio

from coordinator.embedded import EmbeddedNats, EmbeddedPostgres
from tests.support.ledger import database
from tests.support.servers import TandemServers
from tests.support.web import Web, web


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def web_database(postgres_server: EmbeddedPostgres, ledger_template: str) -> AsyncIterator[str]:
    async with database(postgres_server, ledger_template) as dsn:
        yield dsn


@pytest_asyncio.fixture(loop_scope="session")
async def web_dsn(web_database: str) -> str:
    """One database for all these tests, emptied for each: five times as quick as a new one."""
    connection = await asyncpg.connect(web_database)
    tables = await connection.fetchval(
        "SELECT string_agg(format('%I', tablename), ', ') FROM pg_tables"
        " WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
    )
    await connection.execute(f"TRUNCATE {tables}")
    await connection.close()
    return web_database


@pytest_asyncio.fixture(loop_scope="session")
async def site(nats_server: EmbeddedNats, web_dsn: str, tmp_path: Path) -> AsyncIterator[Web]:
    async with TandemServers(nats_server).open("coordinator") as bus, web(bus, web_dsn, tmp_path) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(nats_server: EmbeddedNats, web_dsn: str, tmp_path: Path) -> AsyncIterator[Web]:
    async with TandemServers(nats_server).open("coordinator") as bus, web(bus, web_dsn, tmp_path, tokens=True) as made:
        yield made
