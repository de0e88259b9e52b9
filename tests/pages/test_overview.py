"""The overview as an admin sees it: a job passes its stages live; what waits, failed and came late says why."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import BrowserPage, picture
from tests.support.puppet import Puppet
from tests.support.world import World

expect.set_options(timeout=30_000)

FACTS = {"power": "on mains", "memory_free_bytes": 9.2e9, "memory_bytes": 24e9, "load": 1.4, "disk_free_bytes": 312e9}


async def test_an_admin_watches_a_job_pass_its_stages(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    page = await browser_page()
    running, counts = page.locator("#running"), page.locator("#summary")
    await expect(running).to_contain_text("Nothing runs.")

    await world.submit(key="post-812")
    await expect(page.locator("#waiting")).to_contain_text("about to start; free: mini")
    held = await mini.take()
    await expect(running.get_by_role("row").filter(has_text="post-812")).to_contain_text("claimed")
    await held.beat("loading_model")
    await expect(running).to_contain_text("loading model")
    await held.beat("generating_text", **{"Tandem-Progress": "0.42"})
    await expect(running).to_contain_text("generating text 42 %")
    await expect(running.locator(".progress .fill")).to_have_attribute("width", "42.0")
    await held.report()
    await held.verdict("accepted")
    await expect(running).to_contain_text("Nothing runs.")
    await expect(counts.get_by_role("listitem").filter(has_text="completed")).to_contain_text("1")


async def test_the_lease_bar_shrinks_and_a_heartbeat_fills_it(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    page = await browser_page()
    lease = page.locator("#running .lease")
    full = await _width(page)
    await page.wait_for_function(
        "full => Number(document.querySelector('#running .lease .fill').getAttribute('width')) < full", arg=full
    )
    await world.move_clock(70)
    await expect(lease).to_have_class(re.compile("short"))
    await held.beat()
    await expect(lease).not_to_have_class(re.compile("short"))
    assert await _width(page) > 66


async def test_what_waits_says_why(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini", models=("llama3.1:8b",))
    await world.submit(model="phi4")
    await world.submit(model="llama3.1:8b", run_after="2999-01-01T00:00:00Z")
    await world.submit("image", model="flux")
    page = await browser_page()
    waiting = page.locator("#waiting")
    await expect(waiting.get_by_role("row").filter(has_text="article.phi4")).to_contain_text("no capable worker")
    await expect(waiting.get_by_role("row").filter(has_text="llama3-1-8b")).to_contain_text("none is due")
    await world.submit()
    held = await mini.take()
    await mini.announce(models=("llama3.1:8b",), busy=[(held.job_id, held.epoch)])
    await world.submit()
    await expect(waiting.get_by_role("row").filter(has_text="article.any")).to_contain_text("all busy: mini")
    await world.http.post("/v1/lanes/article.any/pause")
    await expect(waiting.get_by_role("row").filter(has_text="article.any")).to_contain_text("paused")


async def test_what_failed_and_what_came_late_say_why(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    book = await world.puppet("book")
    await world.submit(key="bad")
    await (await mini.take()).fail("permanent", "bad_prompt")
    await world.submit(key="slow")
    late = await mini.take()
    await world.pass_time(100)
    await book.announce()
    await book.take()
    await world.move_clock(41)
    await late.report()
    page = await browser_page()
    await expect(page.locator("#failed")).to_contain_text(re.compile(r"bad.*bad_prompt it broke", re.DOTALL))
    what_came_late = re.compile(r"stale epoch 1, current 2, 4\d s late")
    await expect(page.locator("#late")).to_contain_text(what_came_late)
    await page.locator("#late").get_by_role("link", name="job").click()
    await expect(page.locator("#job-attempts")).to_contain_text(what_came_late)


async def test_macs_say_what_they_are(world: World, browser_page: BrowserPage) -> None:
    await world.puppet("mini", models=("llama3.1:8b", "phi4"), warm=["phi4"], facts=FACTS)
    await world.puppet("book", facts={"not_pulling": "on battery"})
    page = await browser_page()
    mini, book = (page.locator("#macs > ul > li").filter(has_text=name) for name in ("mini", "book"))
    await expect(mini).to_contain_text("no lane that it serves has work")
    await expect(mini.locator(".warm")).to_have_text("phi4 (loaded)")
    await expect(mini.locator(".facts")).to_have_text(
        re.compile(r"on mains\s*8.6 GiB of 22.4 GiB free\s*load 1.4\s*312 GB disk free")
    )
    await expect(book).to_contain_text("on battery")


async def test_without_script_the_page_says_the_same_and_reloads(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    await world.submit(key="post-812")
    held = await mini.take()
    page = await browser_page(javascript=False)
    await expect(page.locator("#running")).to_contain_text("post-812")
    await held.report()
    await held.verdict("accepted")
    await expect(page.locator("#running")).to_contain_text("Nothing runs.")


async def test_what_is_open_and_focused_stays_so(world: World, browser_page: BrowserPage) -> None:
    mini = await world.puppet("mini")
    await world.submit(key="first")
    await mini.take()
    page = await browser_page()
    link = page.locator("#running a").filter(has_text="first")
    await link.focus()
    await world.submit(key="second")
    await mini.take()
    await expect(page.locator("#running tbody tr")).to_have_count(2)
    await expect(link).to_be_focused()


async def test_a_script_in_a_key_or_a_model_stays_text(world: World, browser_page: BrowserPage) -> None:
    evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    mini = await world.puppet("mini", host=evil, warm=[evil], models=("*", evil), facts={"power": evil})
    job = await world.submit(key=evil[:200])
    held = await mini.take()
    await held.beat(evil[:64])
    page = await browser_page()
    await expect(page.locator("#running")).to_contain_text("<script>")
    await held.report("failed", error={"code": "x", "message": evil, "class": "permanent"})
    await world.until(job["id"], "failed")
    await expect(page.locator("#failed")).to_contain_text("<script>")
    await page.goto("/workers")
    await expect(page.locator("#workers")).to_contain_text("<script>")
    assert "owned" not in await page.title()


async def test_by_keyboard_the_first_stop_skips_to_the_content(world: World, browser_page: BrowserPage) -> None:
    page = await browser_page()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_the_pages_fit(
    world: World, browser_page: BrowserPage, tmp_path: Path, width: int, *, dark: bool
) -> None:
    await fill(world)
    page = await browser_page(role=None, width=width, dark=dark)
    await _take(page, "login", width, tmp_path, dark=dark)
    page = await browser_page(width=width, dark=dark)
    for name, path in (("overview", "/"), ("workers", "/workers"), ("refused", "/refused")):
        await page.goto(path)
        await _take(page, name, width, tmp_path, dark=dark)
    await page.goto("/workers")
    await page.get_by_role("button", name="Drain mini").click()
    await _take(page, "dialog", width, tmp_path, dark=dark)
    for name, path in (("confirm", "/workers/mini/drain"), ("error", "/jobs/00000000-0000-0000-0000-000000000000")):
        await page.goto(path)
        await _take(page, name, width, tmp_path, dark=dark)


async def _take(page: Page, name: str, width: int, folder: Path, *, dark: bool) -> None:
    wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{name} scrolls sideways by {wide} px"
    await picture(page, f"{name}-{width}-{'dark' if dark else 'light'}", folder)


async def _width(page: Page) -> float:
    return float(await page.locator("#running .lease .fill").get_attribute("width") or "nan")


async def fill(world: World) -> None:
    """Bring about something of everything that the pages show."""
    said = {"models": ("llama3.1:8b", "*"), "warm": ["llama3.1:8b"], "facts": FACTS, "slots": 2}
    mini = await world.puppet("mini", kinds=("article", "image"), **said)
    book = await world.puppet("book", models=("qwen3:14b",), facts={**FACTS, "not_pulling": "on battery"})
    air = await world.puppet("air", models=("llama3.1:8b", "phi4"))
    await world.puppet("studio-in-the-back-room", models=("llama3.1:70b", "qwen3:32b", "flux-dev", "sdxl", "wan"))
    await world.http.post("/v1/workers/air/pause")
    for number in range(3):
        await world.submit(key=f"post-{810 + number}")
        held = await mini.take()
        if number == 1:
            await held.fail("permanent", "bad_prompt")
        else:
            await held.report()
            await held.verdict("accepted")
    await world.submit("image", key="hero-812")
    late = await mini.take("image.any")
    await world.pass_time(131)
    again = await _return(world, mini, book, said)
    await air.announce(models=("llama3.1:8b", "phi4"), facts=FACTS)
    await world.move_clock(41)
    await late.report()
    await late.verdict("stale")
    await world.submit(key="post-820")
    first = await mini.take()
    busy = [(one.job_id, one.epoch) for one in (first, again)]
    await mini.announce(kinds=("article", "image"), busy=busy, **said)
    await first.beat("generating_text", **{"Tandem-Progress": "0.42"})
    await again.beat("loading_model")
    await book.announce(models=("qwen3:14b",), facts={**FACTS, "power": "battery 62 %", "not_pulling": "on battery"})
    for key in ("post-830", "post-831"):
        await world.submit(key=key, model="qwen3:14b")
    await world.submit(key="post-840", kind="video", model="wan", expect=422)
    await world.submit(key="post-821")
    await world.submit("image", key="later", model="flux", run_after="2999-01-01T00:00:00Z")
    await world.submit(expect=422, spec={"promt": "typo"})
    await _hold_back(world)


async def _hold_back(world: World) -> None:
    why = "https://blog.example does not let 'tandem' in: 401 rest_not_logged_in: You are not currently logged in."
    await world.pool.execute("INSERT INTO paused_site VALUES ('blog', $1, now(), now() + '10 min')", why)
    for failed, error in ((True, "404 rest_post_invalid_id: Invalid post ID."), (False, "503: busy"), (False, None)):
        await world.pool.execute(
            "INSERT INTO publication (job_id, epoch, source, kind, post, asked_at, since, failed_at, next_at, error)"
            " VALUES (gen_random_uuid(), 1, 'blog', 'article', '812', now(), now(), $1, $2, $3)",
            datetime.now(UTC) if failed else None,
            None if failed else datetime.now(UTC),
            error,
        )
    await world.pool.execute(
        "INSERT INTO callback (job_id, epoch, state, webhook_id, source, url, host, body, since, given_up_at, error,"
        " attempts) VALUES (gen_random_uuid(), 1, 'completed', 'x', 'shop', $1, 'x', '', now(), now(), $2, 31)",
        "https://shop.example/hooks/content/generated/articles?tenant=4711",
        "unreachable: Cannot connect to host shop.example:443 ssl:default [Connection refused]",
    )


async def _return(world: World, mini: Puppet, book: Puppet, said: dict[str, object]) -> object:
    await mini.announce(kinds=("article", "image"), **said)
    await book.announce(models=("qwen3:14b",), facts=FACTS)
    return await mini.take("image.any")
