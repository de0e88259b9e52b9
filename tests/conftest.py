"""Fixtures for all tests: real servers, and a leak check after each test."""

import asyncio
from collections.abc import AsyncIterator

import hypothesis  # noqa: F401 - its pytest plugin would import it while the summary is written, and fail
import pytest_asyncio

from tests.support.ledger import desk, ledger_dsn, ledger_pool, ledger_template
from tests.support.servers import nats_server, postgres_server, servers

__all__ = [
    "desk",
    "ledger_dsn",
    "ledger_pool",
    "ledger_template",
    "nats_server",
    "no_leaks",
    "postgres_server",
    "servers",
]


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def no_leaks() -> AsyncIterator[None]:
    """Fail a test that leaves a task behind."""
    before = asyncio.all_tasks()
    yield
    for _ in range(100):
        left = [task for task in asyncio.all_tasks() - before if not task.done() and task is not asyncio.current_task()]
        if not left:
            return
        await asyncio.sleep(0.01)  # tasks that were cancelled end in their own time
    assert not left, f"tasks left behind: {left}"
