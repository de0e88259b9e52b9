"""A whole Tandem with tokens, and a browser that looks at it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from tests.support.browser import SETTINGS, TOKENS, BrowserPage, chromium, pages
from tests.support.servers import own_servers
from tests.support.world import World
from tests.support.world import world as open_world


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def world(browser: Browser, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    """A coordinator with the tokens of `tests.support.browser`; what the world itself asks, it asks as admin."""
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, **SETTINGS) as made:
        made.http.headers["Authorization"] = f"Bearer {TOKENS['admin']}"
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def browser_page(browser: Browser, world: World) -> AsyncIterator[BrowserPage]:
    """Opens pages: see `tests.support.browser.BrowserPage`."""
    async with pages(browser, world.coordinator.url) as open_page:
        yield open_page
