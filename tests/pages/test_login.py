"""Logging in and out with a browser, and what a viewer may not."""

from playwright.async_api import expect

from tests.support.browser import TOKENS, BrowserPage, log_in
from tests.support.world import World


async def test_who_is_not_logged_in_comes_to_the_login_and_then_where_they_wanted(
    world: World, browser_page: BrowserPage
) -> None:
    page = await browser_page(role=None)
    await page.goto("/workers")
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    await expect(page.get_by_label("Token")).to_be_focused()
    await page.get_by_label("Token").fill("nonsense")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("Nobody has this token.")
    await page.get_by_label("Token").fill(TOKENS["publisher"])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("publisher's token")
    await log_in(page, TOKENS["viewer"])
    await expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    await expect(page.locator(".who")).to_contain_text("viewer")
    [cookie] = [one for one in await page.context.cookies() if one["name"] == "tandem_session"]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)


async def test_after_logging_out_nothing_is_shown_and_live_pages_end(world: World, browser_page: BrowserPage) -> None:
    page = await browser_page()
    other = await page.context.new_page()
    await other.goto("/")
    await expect(other.locator("#macs")).to_be_visible()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("status")).to_have_text("Logged out.")
    await expect(other.get_by_role("heading", name="Log in")).to_be_visible()
    await page.goto("/")
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_a_link_from_elsewhere_needs_no_second_login(world: World, browser_page: BrowserPage) -> None:
    page = await browser_page()
    here = page.url
    await page.goto("data:text/html,elsewhere")
    await page.evaluate("url => { location.href = url }", f"{here}workers")
    await expect(page.get_by_role("heading", name="Workers")).to_be_visible()


async def test_a_viewer_sees_no_buttons_and_gets_403(world: World, browser_page: BrowserPage) -> None:
    await world.puppet("mini")
    await world.submit()
    page = await browser_page(role="viewer")
    await page.goto("/workers")
    await expect(page.locator("#workers")).to_contain_text("mini")
    await expect(page.locator("#lanes")).to_contain_text("article.any")
    assert await page.locator("main button").count() == 0
    assert await page.get_by_role("link", name="Submit").count() == 0
    answer = await page.goto("/workers/mini/drain")
    assert answer is not None
    assert answer.status == 403
    await expect(page.get_by_role("heading", name="Forbidden")).to_be_visible()
    for where in ("/workers/mini/drain", "/lanes/article.any/pause"):
        sent = await page.evaluate("where => fetch(where, {method: 'POST'}).then(answer => answer.status)", where)
        assert sent == 403
    assert await world.pool.fetchval("SELECT count(*) FROM operator_action") == 0
