"""The story's order, and the world in which each chapter plays."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.servers import own_servers
from tests.support.world import World
from tests.support.world import world as open_world

STORY = (
    "test_one_job",
    "test_two_agents",
    "test_lease_expires",
    "test_comes_back_in_time",
    "test_comes_back_too_late",
    "test_result_sent_twice",
    "test_errors",
    "test_limits",
    "test_cancel_while_running",
    "test_drain",
    "test_coordinator_restarts",
    "test_nats_restarts",
    "test_nats_disk_wiped",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.parent == Path(__file__).parent]
    rest = [item for item in items if item not in mine]
    items[:] = [*sorted(mine, key=lambda item: STORY.index(item.path.stem)), *rest]


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made
