"""Draining, pausing and resuming by hand: asked once more, done, recorded, and seen at once."""

from pathlib import Path

from playwright.async_api import expect

from tests.support.browser import BrowserPage, picture
from tests.support.world import World


async def test_an_admin_drains_a_worker_and_takes_it_back(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    page = await browser_page()
    await page.goto("/workers")
    await page.get_by_role("button", name="Drain mini").click()
    dialog = page.get_by_role("dialog", name="Drain mini?")
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await page.get_by_role("button", name="Drain mini").click()
    await dialog.get_by_role("button", name="No, leave it").click()
    await expect(dialog).to_be_hidden()
    assert await _actions(world) == []

    await page.get_by_role("button", name="Drain mini").click()
    await dialog.get_by_role("button", name="Drain", exact=True).click()
    await expect(page.get_by_role("status")).to_have_text("mini is told to drain.")
    assert (await mini.hears("drain"))["type"] == "drain"
    await expect(page.locator("#workers")).to_contain_text("draining")
    await page.get_by_role("button", name="Resume mini").click()
    await page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    await expect(page.locator("#workers .pill")).to_have_text("ready")
    assert await _actions(world) == [("admin", "draining", "worker mini"), ("admin", "ready", "worker mini")]


async def test_without_script_the_question_is_a_page(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    page = await browser_page(javascript=False)
    await page.goto("/workers")
    await page.get_by_role("button", name="Pause mini").click()
    await expect(page.get_by_role("heading", name="Pause mini?")).to_be_visible()
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.get_by_role("status")).to_have_text("mini is told to pause.")
    await mini.hears("pause")
    await expect(page.locator("#workers .pill")).to_have_text("paused")


async def test_an_admin_says_when_a_worker_works(world: World, browser_page: BrowserPage, tmp_path: Path) -> None:
    mini = await world.puppet("mini", facts={"rules": {"on_mains": True, "by": "settings"}})
    page = await browser_page()
    await page.goto("/workers")
    await page.get_by_role("button", name="Rules of mini").click()
    await expect(page.get_by_role("heading", name="When mini works")).to_be_visible()
    await expect(page.get_by_label("Not on battery")).to_be_checked()
    await page.get_by_label("Hours", exact=False).first.fill("whenever")
    await page.get_by_role("button", name="Go on").click()
    await expect(page.locator("#hours")).to_have_attribute("aria-invalid", "true")
    await expect(page.locator("#fault-hours")).to_contain_text("as in mon-fri or sat,sun")
    await picture(page, "rules", tmp_path)
    await page.locator("#hours").fill("mon-fri 22:00-07:00\nsat,sun")
    await page.get_by_role("group", name="Give running jobs back").get_by_label("its hours are over").check()
    await page.get_by_role("button", name="Go on").click()
    await expect(page.get_by_role("heading", name="Shall mini work by these rules?")).to_be_visible()
    await page.get_by_role("button", name="Tell it").click()
    await expect(page.get_by_role("status").first).to_contain_text("mini is told its rules")
    told = (await mini.announce())["rules"]
    assert told == {"hours": ["mon-fri 22:00-07:00", "sat,sun"], "on_mains": True, "stops": ["hours"]}

    await page.get_by_role("button", name="Rules of mini").click()
    await page.get_by_role("button", name="Use its own rules mini").click()
    await page.get_by_role("dialog").get_by_role("button", name="Its own rules", exact=True).click()
    await expect(page.get_by_role("status").first).to_contain_text("mini works by its own rules again")
    assert "rules" not in await mini.announce()
    assert await _actions(world) == [("admin", "rules", "worker mini")] * 2


async def test_a_lane_is_paused_and_resumed(world: World, browser_page: BrowserPage) -> None:
    await world.submit()
    page = await browser_page()
    await page.goto("/workers")
    for order, after in (("Pause", "Resume"), ("Resume", "Pause")):
        await page.get_by_role("button", name=f"{order} article.any").click()
        await page.get_by_role("dialog").get_by_role("button", name=order, exact=True).click()
        await expect(page.get_by_role("status")).to_have_text(f"article.any is {order.lower()}d.")
        await expect(page.get_by_role("button", name=f"{after} article.any")).to_be_visible()
    assert await _actions(world) == [("admin", "pause", "lane article.any"), ("admin", "resume", "lane article.any")]


async def _actions(world: World) -> list[tuple[str, str, str]]:
    return [
        tuple(row) for row in await world.pool.fetch("SELECT actor, action, subject FROM operator_action ORDER BY id")
    ]
