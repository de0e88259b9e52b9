"""Fixtures for the agent's tests: a foreign coordinator for the worker `mini`."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.agent_world import Coordinator, coordinator
from tests.support.servers import TandemServers


@pytest_asyncio.fixture(loop_scope="session", name="far")
async def foreign_coordinator(servers: TandemServers) -> AsyncIterator[Coordinator]:
    async with coordinator(servers) as made:
        yield made
