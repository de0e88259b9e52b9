"""Debian's Chromium, driven by Playwright: a page of the admin side as a person with a role sees it.

Whatever a page logs as an error, above all what the Content-Security-Policy refused, fails the test that opened it.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

TOKENS = {"admin": "t-admin", "viewer": "t-viewer", "publisher": "t-publisher"}
SETTINGS: dict[str, Any] = {"tokens": {f"{role}:{role}": token for role, token in TOKENS.items()}}
"""Of a coordinator whose pages are looked at: the tokens' names are their roles."""

Role: TypeAlias = Literal["admin", "viewer"]
BrowserPage: TypeAlias = Callable[..., Awaitable[Page]]
"""browser_page(role="admin" | "viewer" | None, width=1440, dark=False, javascript=True) -> a page, logged in, at /."""

_PATIENCE_MS = 30_000.0
_HEIGHT = 900


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run the browser; the test fails with the way to install it if there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("these tests need Chromium: .ci/packages (as root)", pytrace=False)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def pages(browser: Browser, url: str) -> AsyncIterator[BrowserPage]:
    """Lend what opens pages of the coordinator at `url`, each with cookies of its own."""
    complaints: list[str] = []
    async with AsyncExitStack() as stack:

        async def open_page(
            *, role: Role | None = "admin", width: int = 1440, dark: bool = False, javascript: bool = True
        ) -> Page:
            context = await browser.new_context(
                base_url=url,
                viewport={"width": width, "height": _HEIGHT},
                color_scheme="dark" if dark else "light",
                java_script_enabled=javascript,
                locale="en-GB",
                timezone_id="UTC",
            )
            stack.push_async_callback(_closed, context)
            context.set_default_timeout(_PATIENCE_MS)
            page = await context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: _note(complaints, message))
            await page.goto("/")
            if role is not None:
                await log_in(page, TOKENS[role])
            return page

        yield open_page
    assert not complaints, complaints


async def log_in(page: Page, token: str) -> None:
    """Fill in the login, and wait for the page that it leads to."""
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(lambda url: "/login" not in url)


async def picture(page: Page, name: str, otherwise: Path) -> Path:
    """Take a picture of the whole page into the folder that PICTURES names, else `otherwise`."""
    folder = Path(os.environ.get("PICTURES") or otherwise)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    await page.screenshot(path=path, full_page=True)
    return path


async def _closed(context: BrowserContext) -> None:
    await context.close()


def _note(complaints: list[str], message: ConsoleMessage) -> None:
    is_answer = message.text.startswith("Failed to load resource")  # a 403 that the test asked for
    if message.type == "error" and not is_answer:
        complaints.append(message.text)
