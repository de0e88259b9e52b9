"""What people do with jobs in a browser: watch one, call it off, run several again, review, submit; and a script in
whatever a job brings stays text."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.callbacks.publishing import picture as drawing
from tests.support.browser import BrowserPage, picture
from tests.support.puppet import Puppet
from tests.support.world import World, eventually_async

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
expect.set_options(timeout=30_000)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


async def answer(page: Page, name: str, yes: str, note: str = "") -> None:
    """Open an action, maybe give a reason, and say yes."""
    action = page.locator("details.action", has=page.get_by_text(f"{name}…"))
    await action.locator("summary").click()
    if note:
        await action.get_by_label("Note").fill(note)
    await action.get_by_role("button", name=yes).click()


async def failed(world: World, worker: Puppet) -> str:
    job = await world.submit()
    held = await worker.take()
    await held.fail("permanent", "bad_prompt")
    await world.until(job["id"], "failed")
    return str(job["id"])


async def generates(world: World, job_id: str) -> None:
    """Wait until the ledger knows that it does: heartbeats are one-way."""

    async def look() -> bool:
        return bool((await world.job(job_id))["stage"] == "generating_text")

    await eventually_async(look)


async def broken_after_a_while(world: World, mini: Puppet) -> str:
    """Have a job lapse on one worker, fail on another, and its first worker report late; return its id."""
    book = await world.puppet("book")
    where = "https://shop.example/told"
    job = await world.submit(key="post-77", labels={"post": "77", "language": "de"}, callback_url=where)
    late = await mini.take()
    await late.beat("loading_model")
    await world.move_clock(20)
    await late.beat("generating_text", **{"Tandem-Progress": "0.3"})
    await generates(world, job["id"])
    await world.pass_time(131)
    await book.announce()
    held = await book.take()
    await held.beat("loading_model")
    await world.move_clock(15)
    await held.beat("generating_text")
    await generates(world, job["id"])
    await world.move_clock(41)
    await late.report()
    await late.verdict("stale")
    error = {"code": "empty_answer", "message": "the model ended without a word " * 6, "class": "permanent",
             "detail": {"executor": "ollama", "stop": "length"}}  # fmt: skip
    await held.report("failed", error=error)
    await held.verdict("accepted")
    await mini.announce()
    await world.until(job["id"], "failed")
    return str(job["id"])


async def reviewed(world: World, worker: Puppet, text: str, image: bytes = PIXEL) -> str:
    job = await world.submit(review=True)
    held = await worker.take()
    file = await held.upload("cover.png", image, "image/png")
    await held.report(result={"text": text}, artifacts=[file])
    await world.until(job["id"], "awaiting_review")
    return str(job["id"])


async def test_a_jobs_page_follows_it_live(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(key="post-812")
    page = await browser_page()
    await page.goto(f"/jobs/{job['id']}")
    stands = page.locator("#job-state h2")
    await expect(stands).to_contain_text("pending")
    await expect(page.get_by_text("Cancel…")).to_be_visible()
    await expect(page.get_by_text("Start anew…")).to_be_hidden()
    held = await mini.take()
    await held.beat("loading_model")
    await expect(stands).to_contain_text("on mini, loading model")
    await held.beat("generating_text", **{"Tandem-Progress": "0.42"})
    await expect(stands).to_contain_text("generating text 42")
    await expect(page.locator(".timeline-drawing .stage-generating_text")).not_to_have_count(0)
    await held.report(result={"text": "# The bees\n\nThey *hum*."})
    await expect(stands).to_contain_text("completed")
    await expect(page.locator("#job-output h1", has_text="The bees")).to_be_visible()
    await expect(page.get_by_text("Cancel…")).to_be_hidden()
    await expect(page.get_by_text("Start anew…")).to_be_visible()


async def test_a_job_is_found_called_off_and_run_again(world: World, browser_page: BrowserPage) -> None:
    job = await world.submit(key="post-812", labels={"post": "812"})
    await world.submit(key="post-900")
    page = await browser_page()
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_label("Text").fill("post-8")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("link", name="post-900")).to_have_count(0)
    await page.get_by_role("link", name="post-812").click()
    await answer(page, "Cancel", "Cancel this job", "Nobody wants it.")
    await expect(page.get_by_role("status").filter(has_text="Canceled.")).to_be_visible()
    await expect(page.locator("#job-state")).to_contain_text("canceled")
    await expect(page.get_by_text("Nobody wants it.")).to_be_visible()
    await answer(page, "Start anew", "Start anew this job")
    await expect(page.locator("#job-state")).to_contain_text("pending")
    await answer(page, "Change priority", "Change priority")
    assert (await world.job(job["id"]))["priority"] == "low", "the first that it has not yet"
    actions = [(a["actor"], a["action"], a["note"]) for a in (await world.job(job["id"]))["actions"]]
    assert actions == [
        ("admin", "cancel", "Nobody wants it."),
        ("admin", "retry", None),
        ("admin", "priority low", None),
    ]


async def test_a_selection_is_run_again(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    broken = [await failed(world, mini) for _ in range(3)]
    page = await browser_page(width=390)
    await page.goto("/jobs?state=failed")
    for job_id in broken[:2]:
        await page.locator(f'input[value="{job_id}"]').check()
    await page.get_by_text("With the chosen jobs…").click()
    await page.get_by_role("button", name="Start the chosen anew").click()
    await expect(page.get_by_role("status").filter(has_text="Started anew: 2 jobs.")).to_be_visible()
    await expect(page.get_by_role("checkbox")).to_have_count(1)
    assert [(await world.job(one))["state"] for one in broken] == ["pending", "pending", "failed"]


async def test_results_are_reviewed_one_after_the_other(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    jobs = [await reviewed(world, mini, text) for text in ("About bees.", "About wasps.", "About ants.")]
    page = await browser_page()
    await page.get_by_role("link", name="Review", exact=True).click()
    await expect(page.locator(".result")).to_contain_text("About bees.")
    assert await page.locator(".result img").evaluate("async image => (await image.decode(), image.naturalWidth)") == 1
    text, image = [await page.locator(f".result {one}").bounding_box() for one in (".result-text", "img")]
    assert text is not None
    assert image is not None
    assert image["x"] >= text["x"] + text["width"], "side by side"
    await page.get_by_label("Note").fill("Good.")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator(".result")).to_contain_text("About wasps.")
    await page.get_by_role("button", name="Reject, run it again").click()
    await expect(page.locator(".result")).to_contain_text("About ants.")
    await page.get_by_role("button", name="Reject for good").click()
    await expect(page.get_by_text("No result awaits review.")).to_be_visible()
    assert [(await world.job(one))["state"] for one in jobs] == ["completed", "pending", "canceled"]
    assert [a["note"] for a in (await world.job(jobs[0]))["actions"]] == ["Good."]


async def test_a_verdict_is_on_the_result_that_the_open_page_shows(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    job_id = await reviewed(world, mini, "About bees.")
    page = await browser_page()
    await page.goto(f"/jobs/{job_id}")
    await expect(page.locator(".result")).to_contain_text("About bees.")
    await world.act(job_id, "retry")
    held = await mini.take()
    await held.report(result={"text": "About wasps."})
    await expect(page.locator(".result")).to_contain_text("About wasps.")
    assert await page.locator('input[name="epoch"]').evaluate_all("all => all.map(one => one.value)") == ["2", "2"]
    await answer(page, "Approve", "Approve this job")
    await expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
    assert (await world.job(job_id))["state"] == "completed"


async def test_a_job_is_submitted_by_form(world: World, browser_page: BrowserPage) -> None:
    page = await browser_page()
    await page.get_by_role("link", name="Submit", exact=True).click()
    await page.get_by_label("Prompt").fill("Write about bees.")
    await page.get_by_label("Options").fill('{"seed": "x"}')
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator("#fault-options")).to_contain_text("seed")
    await expect(page.get_by_label("Prompt")).to_have_value("Write about bees.")
    await page.get_by_label("Options").fill('{"seed": 42}')
    await page.get_by_label("Priority").select_option("urgent")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator("#job-state")).to_contain_text("pending")
    job = await world.job(page.url.rpartition("/")[2])
    assert (job["source"], job["priority"]) == ("admin", "urgent")
    assert job["spec"] == {"prompt": "Write about bees.", "options": {"seed": 42}}


async def test_a_script_in_whatever_a_job_brings_stays_text(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    spoken: list[str] = []
    job = await world.submit(key=EVIL, labels={EVIL: EVIL}, spec={"prompt": EVIL}, review=True)
    held = await mini.take()
    await held.beat("generating_text", **{"Tandem-Detail": "<script>alert(3)</script>"})
    files = [
        await held.upload("a.md", EVIL.encode()),
        await held.upload("<b>.svg", b"<svg onload='alert(4)'/>", "image/svg+xml"),
    ]
    await held.report(result={"text": EVIL, EVIL: EVIL}, settings={EVIL: EVIL}, artifacts=files)
    await world.until(job["id"], "awaiting_review")
    broken = await world.submit()
    held = await mini.take()
    await held.report("failed", error={"code": "broken", "message": EVIL, "class": "permanent", "detail": {EVIL: EVIL}})
    await world.until(broken["id"], "failed")
    page = await browser_page()
    page.on("dialog", lambda dialog: spoken.append(dialog.message))
    for path in (f"/jobs/{job['id']}", f"/jobs/{broken['id']}", "/review", "/jobs", "/jobs?text=%3Cscript%3Ealert(5)"):
        await page.goto(path)
        await expect(page.locator("#main")).to_contain_text("script>alert" if "?" not in path else "No such job")
        assert await page.locator("#main script, #main [onerror], #main [onload], #main img[src=x]").count() == 0
    assert not spoken


async def test_a_viewer_sees_everything_and_no_button(world: World, browser_page: BrowserPage) -> None:
    job = await world.submit(key="post-812")
    page = await browser_page(role="viewer")
    for path in ("/jobs", f"/jobs/{job['id']}", "/review"):
        await page.goto(path)
        await expect(page.locator("#main h1")).to_be_visible()
        await expect(page.locator("#main form:not(.filters) button, #main input[type=checkbox]")).to_have_count(0)
    for path in ("/submit", f"/jobs/{job['id']}/cancel"):
        response = await page.request.post(path, form={"csrf": ""})
        assert response.status == 403
    assert (await world.job(job["id"]))["state"] == "pending"


async def test_a_job_that_is_not_there_is_said_on_a_page(browser_page: BrowserPage) -> None:
    page = await browser_page()
    response = await page.goto("/jobs/00000000-0000-0000-0000-000000000000")
    assert response is not None
    assert response.status == 404
    await expect(page.locator("#main")).to_contain_text("no job 00000000")


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_the_pages_fit(
    world: World, browser_page: BrowserPage, tmp_path: Path, width: int, *, dark: bool
) -> None:
    mini = await world.puppet("mini")
    text = "# The quiet work of bees\n\nThey *hum*.\n\n- pollen\n- nectar\n\n" + "Long. " * 200
    done = await reviewed(world, mini, text, drawing(size=384))
    broken = await broken_after_a_while(world, mini)
    running = await world.submit(key="post-900-rev-12-with-a-key-that-is-rather-long", model=None)
    held = await mini.take()
    await held.beat("generating_text", **{"Tandem-Progress": "0.42"})
    page = await browser_page(width=width, dark=dark)
    paths: dict[str, Any] = {
        "jobs": "/jobs",
        "job": f"/jobs/{done}",
        "running": f"/jobs/{running['id']}",
        "failed": f"/jobs/{broken}",
        "faults": "/jobs?label=nonsense&state=done",
        "submit": "/submit",
        "review": "/review",
    }
    for name, path in paths.items():
        await page.goto(path)
        await expect(page.locator("#main h1").first).to_be_visible()
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} scrolls sideways by {wide} px"
        await picture(page, f"{name}-{width}-{'dark' if dark else 'light'}", tmp_path)
