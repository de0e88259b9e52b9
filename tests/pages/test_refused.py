"""What does not get out, callbacks, publications and sites: seen on the overview, and set going again by a person."""

from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from coordinator.web.html import short
from tests.callbacks.publishing import made, picture, until, wordpress
from tests.callbacks.receiver import Receiver, receiving, status
from tests.support.browser import SETTINGS, TOKENS, BrowserPage
from tests.support.fake_wordpress import PASSWORD, FakeWordPress, fake_wordpress
from tests.support.servers import own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[FakeWordPress]:
    async with fake_wordpress() as made_site:
        yield made_site


@pytest_asyncio.fixture(loop_scope="session")
async def world(browser: Browser, site: FakeWordPress, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    """A coordinator that publishes what `admin` submits at `site`, and may call this machine back."""
    outward = {"callback_allow": {ip_network("127.0.0.0/8")}, "wordpress": {"admin": wordpress(site)["local"]}}
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, **SETTINGS, **outward) as made_world:
        made_world.http.headers["Authorization"] = f"Bearer {TOKENS['admin']}"
        yield made_world


@pytest_asyncio.fixture(loop_scope="session")
async def receiver(world: World) -> AsyncIterator[Receiver]:
    async with receiving() as made_receiver:
        made_receiver.secret = (world.settings.secrets / "callback.key").read_text().strip()
        yield made_receiver


async def undelivered(world: World, receiver: Receiver) -> str:
    """Have a receiver say that it wants no callback; return the job's id."""
    receiver.answers.append(status(410))
    job = await world.submit(callback_url=receiver.url)
    await world.act(job["id"], "cancel")

    async def given_up() -> bool:
        async with world.http.get("/v1/callbacks") as answer:
            return bool((await answer.json())["undelivered"])

    await eventually_async(given_up)
    return str(job["id"])


async def unpublished(world: World, site: FakeWordPress, post: int) -> str:
    """Have the site refuse an image; return the job's id."""
    site.media_troubles.append("denied")
    job_id = await made(world, post, images={"hero.png": picture()})
    await until(world, job_id, "failed_at")
    return job_id


async def say_yes(page: Page, button: str, yes: str) -> None:
    await page.get_by_role("button", name=button).click()
    await page.get_by_role("dialog").get_by_role("button", name=yes, exact=True).click()


async def actions(world: World) -> list[tuple[str, str, UUID]]:
    rows = await world.pool.fetch("SELECT actor, action, job_id FROM operator_action WHERE action <> 'cancel'")
    return [tuple(row) for row in rows]


async def test_a_callback_that_was_given_up_is_seen_and_sent_again(
    world: World, receiver: Receiver, browser_page: BrowserPage
) -> None:
    page = await browser_page()
    await expect(page.locator("#summary")).to_be_visible()
    await expect(page.locator("#held-back")).to_be_hidden()
    job_id = await undelivered(world, receiver)
    await page.get_by_role("link", name="1 callback undelivered").click()
    await expect(page.locator("#undelivered").get_by_role("row").filter(has_text=short(job_id))).to_contain_text("410")
    await say_yes(page, f"Send again job {short(job_id)}", "Send again")
    await expect(page.get_by_role("status").filter(has_text="The callback is sent again.")).to_be_visible()
    await expect(page.locator("#undelivered")).to_contain_text("None was given up.")
    assert page.url.endswith("/refused")
    await page.goto("/")
    await expect(page.locator("#held-back")).to_be_hidden()

    async def told() -> bool:
        return receiver.ids == [f"{job_id}:0"] * 2

    await eventually_async(told)
    assert await actions(world) == [("admin", "callback", UUID(job_id))]


async def test_a_jobs_page_sends_its_callback_again_and_shows_how_that_goes(
    world: World, receiver: Receiver, browser_page: BrowserPage
) -> None:
    job_id = await undelivered(world, receiver)
    page = await browser_page()
    await page.goto(f"/jobs/{job_id}")
    await expect(page.locator("#job-outward")).to_contain_text("given up")
    await say_yes(page, f"Send again job {short(job_id)}", "Send again")
    await expect(page.get_by_role("status").filter(has_text="The callback is sent again.")).to_be_visible()
    assert page.url.endswith(job_id)
    await expect(page.locator("#job-outward")).to_contain_text("delivered")
    await expect(page.locator("#job-people")).to_contain_text("admin, callback")


async def test_without_script_a_callback_is_sent_again_too(
    world: World, receiver: Receiver, browser_page: BrowserPage
) -> None:
    job_id = await undelivered(world, receiver)
    page = await browser_page(javascript=False)
    await page.goto("/refused")
    await page.get_by_role("button", name=f"Send again job {short(job_id)}").click()
    await expect(
        page.get_by_role("heading", name=f"Send the last callback of job {short(job_id)} again?")
    ).to_be_visible()
    await page.get_by_role("button", name="Send again", exact=True).click()
    await expect(page.get_by_role("heading", name="Refused, and not delivered")).to_be_visible()
    await expect(page.locator("#undelivered")).to_contain_text("None was given up.")


async def test_a_result_that_was_not_published_is_published_again(
    world: World, site: FakeWordPress, browser_page: BrowserPage
) -> None:
    post = site.draft()
    job_id = await unpublished(world, site, post)
    page = await browser_page()
    await page.get_by_role("link", name="1 result not published").click()
    row = page.locator("#unpublished").get_by_role("row").filter(has_text=short(job_id))
    await expect(row).to_contain_text("failed")
    await expect(row).to_contain_text("403 rest_cannot_edit")
    await say_yes(page, f"Publish again job {short(job_id)}", "Publish again")
    await expect(page.get_by_role("status").filter(has_text="It is published again.")).to_be_visible()
    await expect(page.locator("#unpublished")).to_contain_text("All that was to be published is.")
    assert "harbour" in site.posts[post]["content"]["raw"]
    assert await actions(world) == [("admin", "publish", UUID(job_id))]


async def test_a_paused_site_says_why_and_is_checked_by_hand(
    world: World, site: FakeWordPress, browser_page: BrowserPage
) -> None:
    site.users["tandem"].password = "another"
    job_id = await made(world, site.draft())
    page = await browser_page()
    paused = page.locator("#held-back li").filter(has_text="Site of admin paused")
    await expect(paused).to_contain_text("does not let 'tandem' in: 401")
    await paused.get_by_role("link").click()
    await expect(page.locator("#sites")).to_contain_text("does not let 'tandem' in: 401")
    site.users["tandem"].password = PASSWORD
    await say_yes(page, "Check site admin", "Check site")
    await expect(page.get_by_role("status").filter(has_text="The site of admin is being checked.")).to_be_visible()
    await expect(page.locator("#sites")).to_be_hidden()
    await until(world, job_id)


async def test_a_viewer_sees_it_all_and_can_set_nothing_going(
    world: World, site: FakeWordPress, receiver: Receiver, browser_page: BrowserPage
) -> None:
    jobs = [await undelivered(world, receiver), await unpublished(world, site, site.draft())]
    await world.pool.execute("INSERT INTO paused_site VALUES ('admin', 'wrong password', now(), now() + '1 day')")
    page = await browser_page(role="viewer")
    for said in ("Site of admin paused", "1 result not published", "1 callback undelivered"):
        await expect(page.locator("#held-back")).to_contain_text(said)
    await page.goto("/refused")
    for job_id in jobs:
        await expect(page.locator("#main").get_by_role("row").filter(has_text=short(job_id))).to_be_visible()
    await expect(page.locator("#main button")).to_have_count(0)
    csrf = await page.locator("#log-out [name=csrf]").get_attribute("value")
    for where in (f"/jobs/{jobs[0]}/callback", f"/jobs/{jobs[1]}/publication", "/sites/admin/check"):
        for method in ("GET", "POST"):
            answer = await page.request.fetch(where, method=method, form={"csrf": csrf or ""})
            assert answer.status == 403, (method, where)
    assert await actions(world) == []


@pytest.mark.parametrize("role", ["admin", "viewer"])
async def test_a_script_in_what_another_server_said_stays_text(
    world: World, browser_page: BrowserPage, role: str
) -> None:
    await world.pool.execute("INSERT INTO paused_site VALUES ('admin', $1, now(), now() + '1 day')", EVIL)
    await world.pool.execute(
        "INSERT INTO publication (job_id, epoch, source, kind, post, asked_at, since, failed_at, error)"
        " VALUES ($1, 1, 'admin', 'article', $2, now(), now(), now(), $2)",
        uuid4(),
        EVIL,
    )
    await world.pool.execute(
        "INSERT INTO callback (job_id, epoch, state, webhook_id, source, url, host, body, since, given_up_at, error)"
        " VALUES ($1, 1, 'completed', 'x', 'admin', $2, 'x', '', now(), now(), $2)",
        uuid4(),
        EVIL,
    )
    page = await browser_page(role=role)
    spoken: list[str] = []
    page.on("dialog", lambda dialog: spoken.append(dialog.message))
    await expect(page.locator("#held-back")).to_contain_text("<script>")
    await page.goto("/refused")
    for part in ("#sites", "#unpublished", "#undelivered"):
        await expect(page.locator(part)).to_contain_text("<script>")
    assert await page.locator("#main script, #main [onerror], #main img").count() == 0
    assert not spoken
