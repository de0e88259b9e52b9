"""Live pages over a real bus: what one coordinator does is seen at another, and a page comes back by itself."""

import pytest
from playwright.async_api import expect

from coordinator.web import live_hub
from tests.support.browser import BrowserPage
from tests.support.world import World


async def test_the_live_feed_tells_programs_what_happens(world: World) -> None:
    async with world.http.get("/v1/events") as events:
        assert (await events.content.readline()).startswith(b": listening")
        job = await world.submit()
        await events.content.readuntil(b"event: pending\n")
        said = await events.content.readline()
    assert job["id"].encode() in said
    assert b'"source":"admin"' in said


@pytest.mark.parametrize(
    ("taken", "free"), [("/v1/events", "/live/overview"), ("/live/overview", "/v1/events")], ids=["events", "pages"]
)
async def test_pages_and_events_take_no_stream_from_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch, taken: str, free: str
) -> None:
    monkeypatch.setattr(live_hub, "MOST_STREAMS", 1)
    async with world.http.get(taken), world.http.get(taken) as refused, world.http.get(free) as answer:
        assert (refused.status, answer.status) == (503, 200)


async def test_a_page_finds_the_coordinator_again_after_its_restart(world: World, browser_page: BrowserPage) -> None:
    page = await browser_page()
    await expect(page.locator("#running")).to_contain_text("Nothing runs.")
    address = world.coordinator.url.removeprefix("http://")
    world.settings = world.settings.model_copy(update={"http": address})
    await world.stop_coordinator()
    await expect(page.locator("#link")).to_have_text("not live: connecting again")
    await world.start_coordinator()
    await expect(page.locator("#link")).to_be_hidden()
