from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import asyncpg
import pytest_asyncio

from tests.crash.failpoint_rig import LIVELY, Rig, free_port
from tests.support.servers import own_servers
from tests.support.world import World


@pytest_asyncio.fixture(loop_scope="session")
async def rig(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[Rig]:
    """A world of its own without a coordinator: the test starts one, or one that dies."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(own_servers())
        pool = await asyncpg.create_pool(ledger_dsn, min_size=0, max_size=2)
        stack.callback(pool.terminate)
        http = f"127.0.0.1:{free_port()}"
        world = World(servers, ledger_dsn, pool, tmp_path, stack, **LIVELY, http=http)
        world.http = await stack.enter_async_context(aiohttp.ClientSession(f"http://{http}"))
        stack.push_async_callback(world.stop_coordinator)
        yield Rig(world, tmp_path)
