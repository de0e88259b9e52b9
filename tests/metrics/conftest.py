"""A world whose log goes into a file, as the coordinator's does in its own process."""

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

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
