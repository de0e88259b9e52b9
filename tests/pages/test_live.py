"""Live pages over a real bus: what one coordinator does is seen at another, and a page comes back by itself."""

from playwright.async_api import expect

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


async def test_a_page_finds_the_coordinator_again_after_its_restart(world: World, browser_page: BrowserPage) -> None:
    page = await browser_page()
    await expect(page.locator("#running")).to_contain_text("Nothing runs.")
    address = world.coordinator.url.removeprefix("http://")
    world.settings = world.settings.model_copy(update={"http": address})
    await world.stop_coordinator()
    await expect(page.locator("#link")).to_have_text("not live: connecting again")
    await world.start_coordinator()
    await expect(page.locator("#link")).to_be_hidden()
