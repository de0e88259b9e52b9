"""The HTTP side with sources, on an empty ledger."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.embedded import EmbeddedNats
from coordinator.hooks.config import load
from tests.hooks.senders import SOURCES
from tests.support.servers import TandemServers
from tests.support.web import Web, web
from tests.web.conftest import web_database, web_dsn

__all__ = ["Open", "hooked", "open_hooks", "web_database", "web_dsn"]

Open = Callable[[str], AbstractAsyncContextManager[Web]]
"""Serves with the sources of a file's text."""


@pytest_asyncio.fixture(loop_scope="session")
async def open_hooks(nats_server: EmbeddedNats, web_dsn: str, tmp_path: Path) -> Open:
    @asynccontextmanager
    async def opened(text: str) -> AsyncIterator[Web]:
        file = tmp_path / "sources.toml"
        file.write_text(text)
        async with (
            TandemServers(nats_server).open("coordinator") as bus,
            web(bus, web_dsn, tmp_path, tokens=True, sources=load(file)) as site,
        ):
            yield site

    return opened


@pytest_asyncio.fixture(loop_scope="session")
async def hooked(open_hooks: Open, request: pytest.FixtureRequest) -> AsyncIterator[Web]:
    """Every preset, as a source of its name; of a test that is about one `source` only that: each is a process."""
    only = getattr(request.node, "callspec", None) and request.node.callspec.params.get("source")
    tables = SOURCES.split("\n\n")
    async with open_hooks("\n".join(text for text in tables if only is None or f"[sources.{only}]" in text)) as site:
        yield site
