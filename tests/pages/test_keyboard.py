"""Everything can be done without a mouse: by Tab, Enter and Space alone."""

from playwright.async_api import Locator, Page, expect

from tests.pages.test_jobs import failed
from tests.support.browser import BrowserPage
from tests.support.world import World

MOST_STOPS = 60


async def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until the wanted element has the focus, and shows that it has."""
    for _ in range(MOST_STOPS):
        await page.keyboard.press("Tab")
        if await wanted.evaluate("element => element === document.activeElement"):
            assert await wanted.evaluate("element => getComputedStyle(element).outlineStyle") != "none"
            return
    msg = f"not reached by {MOST_STOPS} stops: {wanted}"
    raise AssertionError(msg)


async def test_a_job_is_canceled_with_a_note(world: World, browser_page: BrowserPage) -> None:
    job = await world.submit(key="post-812")
    page = await browser_page()
    await tab_to(page, page.get_by_role("link", name="Jobs", exact=True))
    await page.keyboard.press("Enter")
    await tab_to(page, page.get_by_role("link", name="post-812"))
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/jobs/{job['id']}")
    action = page.locator("details.action.in-pending", has_text="Cancel this job")
    await tab_to(page, action.locator("summary"))
    await page.keyboard.press("Enter")
    await tab_to(page, action.get_by_label("Note"))
    await page.keyboard.type("Nobody wants it.")
    await tab_to(page, action.get_by_role("button"))
    await page.keyboard.press("Enter")
    await expect(page.locator("#job-state")).to_contain_text("canceled")
    assert [one["note"] for one in (await world.job(job["id"]))["actions"]] == ["Nobody wants it."]


async def test_a_selection_is_run_again(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    job_id = await failed(world, mini)
    page = await browser_page()
    await page.goto("/jobs")
    await tab_to(page, page.get_by_role("checkbox"))
    await page.keyboard.press("Space")
    await tab_to(page, page.locator("summary", has_text="With the chosen jobs"))
    await page.keyboard.press("Enter")
    await tab_to(page, page.get_by_role("button", name="Start the chosen anew"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="Started anew: 1 job.")).to_be_visible()
    assert (await world.job(job_id))["state"] == "pending"


async def test_a_worker_is_paused_and_the_first_answer_is_no(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    page = await browser_page()
    await page.goto("/workers")
    pause, dialog = page.get_by_role("button", name="Pause mini"), page.get_by_role("dialog", name="Pause mini?")
    await tab_to(page, pause)
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("button", name="No, leave it")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(dialog).to_be_hidden()
    await expect(pause).to_be_focused()
    await page.keyboard.press("Enter")
    await tab_to(page, dialog.get_by_role("button", name="Pause", exact=True))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="mini is told to pause.")).to_be_visible()
    await mini.hears("pause")


async def test_a_result_is_approved_and_one_logs_out(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(review=True)
    await (await mini.take()).report()
    await world.until(job["id"], "awaiting_review")
    page = await browser_page()
    await page.goto("/review")
    await tab_to(page, page.get_by_role("button", name="Approve"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No result awaits review.")).to_be_visible()
    assert (await world.job(job["id"]))["state"] == "completed"
    await tab_to(page, page.get_by_role("button", name="Log out"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
