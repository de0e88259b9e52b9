"""A world whose log goes into a file, as the coordinator's does in its own process."""

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from prometheus_client import Counter, Histogram

from coordinator.metrics import Metrics
from coordinator.metrics_state import Families, of_coordinator, of_hooks, of_ledger, of_workers
from shared import log
from tests.support.servers import TandemServers
from tests.support.world import World
from tests.support.world import world as open_world


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """Log as a program does, to this stream; loggers are not kept, so that other tests find theirs."""
    known = structlog.get_config()
    stream = io.StringIO()
    log.configure(json=True, stream=stream)
    structlog.configure(cache_logger_on_first_use=False)
    yield stream
    structlog.configure(**known)


@pytest_asyncio.fixture(loop_scope="session")
async def world(said: io.StringIO, servers: TandemServers, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(servers, ledger_dsn, tmp_path, log_file=tmp_path / "logs" / "coordinator.jsonl") as made:
        yield made


@pytest.fixture(scope="session")
def exported() -> dict[str, set[str]]:
    """Every metric that is told, with its labels: those of `metrics.py`, and the others by an example."""
    health = {
        "loops": {"reaper": {"rounds": 1, "failed": 0, "failures": 0}},
        "counts": {"callbacks_failed": {"timeout": 1}, "publications_failed": {"blog": 1}},
    }
    told = Families(
        of_coordinator(health, ready=True, ledger_up=True),
        of_workers({"ready": 1}),
        of_hooks({("blog", "taken"): 1}),
        of_ledger([{"lane": "article.any", "state": "pending", "jobs": 1, "paused": False, "age_s": 1.0}]),
    )
    found = {family.name: set(family.samples[0].labels) for family in told.collect()}
    counted = [one for one in vars(Metrics()).values() if isinstance(one, Counter | Histogram)]
    return found | {one.describe()[0].name: set(one._labelnames) for one in counted}
