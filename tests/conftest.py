"""Fixtures for all tests: real servers, and a leak check after each test."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TextIO

import hypothesis  # noqa: F401 - its pytest plugin would import it while the summary is written, and fail
import pytest
import pytest_asyncio

from shared import log
from tests.support.ledger import desk, ledger_dsn, ledger_pool, ledger_template
from tests.support.servers import nats_server, postgres_server, servers

__all__ = [
    "commands_set_up_no_logs",
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


@pytest.fixture(autouse=True)
def commands_set_up_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a command that a test carries out in this process from setting up logs: they would outlive its stderr."""
    set_up = log.configure

    def configure(*, stream: TextIO | None = None, **how: Any) -> None:
        if stream is not None:
            set_up(stream=stream, **how)

    monkeypatch.setattr(log, "configure", configure)
