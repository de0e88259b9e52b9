"""A whole Tandem of today."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.servers import own_servers
from tests.support.world import World
from tests.support.world import world as open_world


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, presence_s=0.5) as made:
        yield made
