"""What a job made comes to the post that asked for it: each image once, the text once, whatever goes wrong."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr

from coordinator.callbacks import GIVEN_UP_S
from coordinator.ledger.publications import Publications
from coordinator.publishing.publisher import CHECK_S, TAKEN_S, Publisher
from coordinator.service import running
from tests.callbacks.publishing import all_published, anew, idle, made, picture, publishing, told, tried, until
from tests.support.fake_wordpress import PASSWORD, FakeWordPress
from tests.support.world import World, eventually_async

Rig = tuple[World, FakeWordPress]


@pytest_asyncio.fixture(loop_scope="session")
async def rig(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with publishing(ledger_dsn, tmp_path, status="publish") as made_rig:
        yield made_rig


# ---- when all goes well


async def test_an_article_and_its_image_come_to_the_post_that_asked(rig: Rig) -> None:
    world, site = rig
    post = site.draft()
    hero = picture()
    job_id = await made(world, post, images={"hero.png": hero})
    found = await until(world, job_id)
    (media,) = site.media.values()
    assert site.contents[media["id"]] == hero
    assert (media["post"], media["slug"][:43]) == (post, f"tandem-{job_id}")
    assert site.updates == [
        {
            "content": "<h1>Harbour</h1>\n<p>The <em>harbour</em> at dawn.</p>\n"
            f'<p><img src="{media["source_url"]}" alt="boats"></p>\n',
            "status": "publish",
            "featured_media": media["id"],
        }
    ]
    steps = {name.partition(":")[0]: step["id"] for name, step in found["steps"].items() if "id" in step}
    assert steps == {"media": media["id"], "post": post}
    assert (found["attempts"], found["error"]) == (1, None)
    job = await world.job(job_id)
    assert [one["post"] for one in job["publications"]] == [str(post)]
    assert await undone(world) == {"unpublished": [], "paused": []}
    async with world.http.get("/status") as answer:
        health = (await answer.json())["health"]
    assert health["counts"]["publications_done"] == 1
    assert health["publishing"] == {
        "local": {"published": 1, "failed": 0, "given_up": 0, "trying": False, "paused": None}
    }


async def test_an_image_alone_becomes_the_posts_featured_one(rig: Rig) -> None:
    world, site = rig
    post = site.draft()
    await until(world, await made(world, post, text=None, images={"b.png": picture("red"), "a.png": picture("blue")}))
    assert site.updates == [{"featured_media": min(site.media)}]  # the first by name was uploaded first
    assert len(site.media) == 2


async def test_only_what_is_completed_is_published(rig: Rig) -> None:
    world, site = rig
    gone = await world.submit(labels={"wordpress_post": str(site.draft())})
    await world.act(gone["id"], "cancel")
    reviewed = await made(world, site.draft(), review=True)
    await world.until(reviewed, "awaiting_review")
    await world.coordinator.results.once()
    assert await told(world, reviewed) is None
    await world.act(reviewed, "approve")
    await until(world, reviewed)
    assert await told(world, gone["id"]) is None
    assert len(site.updates) == 1


async def test_results_that_go_out_again_are_published_once(rig: Rig) -> None:
    world, site = rig
    job_id = await made(world, site.draft())
    await until(world, job_id)
    await world.coordinator.queries.republish(3600)  # as after a loss of RESULTS
    await world.coordinator.results.once()
    await world.coordinator.publisher.once()
    assert len(site.updates) == 1


async def test_what_was_completed_before_its_source_had_a_site_is_not_published(rig: Rig) -> None:
    world, site = rig
    world.coordinator.results.publishing = ()
    job_id = await made(world, site.draft())
    await eventually_async(lambda: _out(world, job_id))
    world.coordinator.results.publishing = ("local",)
    await world.coordinator.queries.republish(3600)
    await world.coordinator.results.once()
    assert await told(world, job_id) is None


async def _out(world: World, job_id: str) -> bool:
    return not (await world.job(job_id))["unpublished"]


@pytest.mark.parametrize("post", [None, "12; DROP", "../users/1"])
async def test_a_job_that_names_no_post_is_told_so(rig: Rig, post: Any) -> None:
    world, site = rig
    found = await until(world, await made(world, post), "failed_at")
    assert "wordpress_post" in found["error"]
    assert [one["error"] for one in (await undone(world))["unpublished"]] == [found["error"]]
    assert site.updates == []


async def test_a_result_without_text_or_image_is_told_so(rig: Rig) -> None:
    world, site = rig
    found = await until(world, await made(world, site.draft(), text=None), "failed_at")
    assert found["error"].startswith("nothing to publish")


# ---- when it does not


@pytest.mark.parametrize(
    "trouble",
    ["stored, then dropped", "dropped", "fatal", "hash mismatch", "bad gateway", "busy", "warning"],
)
async def test_an_image_is_on_the_site_once_whatever_its_upload_met(rig: Rig, trouble: Any) -> None:
    world, site = rig
    site.media_troubles.append(trouble)
    hero = picture()
    await until(world, await made(world, site.draft(), images={"hero.png": hero}))
    assert list(site.contents.values()) == [hero]
    (media,) = site.media.values()
    assert media["missing_image_sizes"] == []
    assert [update["featured_media"] for update in site.updates] == [media["id"]]
    stored = trouble in ("stored, then dropped", "fatal", "warning")
    assert site.uploads == (1 if stored else 2)


@pytest.mark.parametrize("trouble", ["stored, then dropped", "dropped", "fatal", "busy"])
async def test_an_update_that_went_wrong_is_done_again_without_the_images(rig: Rig, trouble: Any) -> None:
    world, site = rig
    site.post_troubles.append(trouble)
    post = site.draft()
    await until(world, await made(world, post, images={"hero.png": picture()}))
    assert site.uploads == len(site.media) == 1
    assert site.posts[post]["featured_media"] in site.media
    assert len({str(update) for update in site.updates}) == 1


async def test_a_site_that_asks_for_time_gets_it(rig: Rig) -> None:
    world, site = rig
    site.post_troubles.append("busy")  # Retry-After: 120
    job_id = await made(world, site.draft())
    found = await tried(world, job_id)
    assert found["error"] == "503"
    await world.move_clock(60)
    await world.coordinator.publisher.once()
    assert (await told(world, job_id) or {})["attempts"] == 1
    await world.move_clock(61)
    await world.coordinator.publisher.once()
    await until(world, job_id)


async def test_a_site_in_maintenance_is_waited_for(rig: Rig) -> None:
    world, site = rig
    site.mood = "maintenance"
    job_id = await made(world, site.draft())
    assert (await tried(world, job_id))["error"].startswith("503 wp_die")
    site.mood = "well"
    await until(world, job_id)


async def test_a_site_without_room_for_smaller_sizes_goes_without_them(rig: Rig) -> None:
    world, site = rig
    site.media_troubles.append("fatal")
    site.finish_troubles = 99
    post = site.draft()
    await until(world, await made(world, post, images={"hero.png": picture()}))
    assert site.uploads == len(site.media) == 1
    assert site.finish_troubles == 96
    assert site.posts[post]["featured_media"] in site.media


async def test_what_never_gets_whole_is_given_up_after_a_few_tries(rig: Rig) -> None:
    world, site = rig
    site.media_troubles += ["hash mismatch"] * 99
    found = await until(world, await made(world, site.draft(), images={"hero.png": picture()}), "failed_at")
    assert found["error"].startswith("412 rest_upload_hash_mismatch")
    assert site.uploads == 4
    assert site.updates == []


async def test_an_image_that_is_too_large_is_sent_once_more_and_smaller(rig: Rig) -> None:
    world, site = rig
    site.media_troubles.append("too large")
    await until(world, await made(world, site.draft(), images={"hero.png": picture(size=600)}))
    assert [(one["mime_type"], one["source_url"][-4:]) for one in site.media.values()] == [("image/jpeg", ".jpg")]
    assert site.uploads == 2


async def test_only_one_image_at_a_time_is_made_smaller(rig: Rig) -> None:
    world, site = rig
    site.media_troubles.append("too large")
    async with world.coordinator.publisher._shrinking:
        job_id = await made(world, site.draft(), images={"hero.png": picture(size=600)})
        await eventually_async(lambda: _waits(world.coordinator.publisher._shrinking))
        assert site.uploads == 1
    await until(world, job_id)
    assert site.uploads == 2


async def _waits(lock: asyncio.Lock) -> bool:
    return bool(lock._waiters)  # type: ignore[attr-defined]


async def test_an_image_that_stays_too_large_is_given_up(rig: Rig) -> None:
    world, site = rig
    site.media_troubles += ["too large", "too large"]
    found = await until(world, await made(world, site.draft(), images={"hero.png": picture(size=600)}), "failed_at")
    assert found["error"] == "413: the web server takes no file of this size"


@pytest.mark.parametrize(("trouble", "lost"), [("no featured media", "featured_media"), ("filtered", "content")])
async def test_what_a_site_did_not_keep_is_told(rig: Rig, trouble: Any, lost: str) -> None:
    world, site = rig
    site.post_troubles.append(trouble)
    found = await until(world, await made(world, site.draft(), images={"hero.png": picture()}), "failed_at")
    assert f"did not keep: {lost}" in found["error"]


async def test_a_post_in_the_trash_gets_nothing(rig: Rig) -> None:
    world, site = rig
    found = await until(
        world, await made(world, site.draft(status="trash"), images={"hero.png": picture()}), "failed_at"
    )
    assert found["error"].endswith("is in the trash")
    assert (site.uploads, site.updates) == (0, [])


async def test_a_person_has_it_published_again_and_nothing_is_doubled(rig: Rig) -> None:
    world, site = rig
    post = site.draft(status="trash")
    job_id = await made(world, post, images={"hero.png": picture()})
    await until(world, job_id, "failed_at")
    site.posts[post]["status"] = "draft"
    async with world.http.post(f"/v1/jobs/{job_id}/publications/again") as answer:
        assert answer.status == 200
    await until(world, job_id)
    assert site.uploads == len(site.media) == 1
    assert [one["action"] for one in (await world.job(job_id))["actions"]] == ["publish"]
    never = await world.submit()
    async with world.http.post(f"/v1/jobs/{never['id']}/publications/again") as answer:
        assert answer.status == 409


async def test_a_job_that_is_done_anew_is_publishedanew(rig: Rig) -> None:
    world, site = rig
    post = site.draft()
    job_id = await made(world, post, text="First")
    await until(world, job_id)
    await anew(world, job_id, "Second")
    await eventually_async(lambda: all_published(world, job_id, 2))
    assert [update["content"] for update in site.updates] == ["<p>First</p>\n", "<p>Second</p>\n"]


async def test_an_older_text_does_not_overwrite_a_newer_one(rig: Rig) -> None:
    world, site = rig
    post = site.draft()
    site.post_troubles.append("dropped")
    older = await made(world, post, text="Older")
    await tried(world, older)
    newer = await made(world, post, text="Newer")
    await until(world, newer)
    assert (await until(world, older, "failed_at"))["error"].startswith("superseded")
    assert site.posts[post]["content"]["raw"] == "<p>Newer</p>\n"


# ---- who lets us in


async def test_a_post_that_refuses_us_stops_no_other(rig: Rig) -> None:
    world, site = rig
    site.media_troubles.append("denied")
    refused = await made(world, site.draft(), images={"hero.png": picture()})
    found = await until(world, refused, "failed_at")
    assert found["error"].startswith("403 rest_cannot_edit")
    await until(world, await made(world, site.draft()))
    assert (await until(world, await made(world, 99999), "failed_at"))["error"].startswith("404 rest_post_invalid_id")


async def test_a_site_that_refuses_the_user_is_paused_with_the_reason_until_it_is_mended(rig: Rig) -> None:
    world, site = rig
    site.users["tandem"].password = "another"
    job_id = await made(world, site.draft())
    await eventually_async(lambda: _paused(world))
    await eventually_async(lambda: idle(world))
    asked = len(site.asked)
    other = await made(world, site.draft())
    await eventually_async(lambda: _waiting(world, [other, job_id]))
    await world.move_clock(CHECK_S / 2)
    await world.coordinator.publisher.once()
    assert len(site.asked) == asked
    assert "does not let 'tandem' in: 401 rest_not_logged_in" in (await undone(world))["paused"][0]["reason"]
    await world.move_clock(3 * 24 * 3600)  # it takes them a while; nothing is given up meanwhile
    site.users["tandem"].password = PASSWORD
    async with world.http.post("/v1/publications/local/check") as answer:
        assert answer.status == 200
    await until(world, job_id)
    await until(world, other)
    async with world.http.post("/v1/publications/local/check") as answer:
        assert answer.status == 409


async def undone(world: World) -> dict[str, Any]:
    async with world.http.get("/v1/publications") as answer:
        assert answer.status == 200
        found: dict[str, Any] = await answer.json()
        return found


async def _paused(world: World) -> bool:
    return bool((await undone(world))["paused"])


async def _waiting(world: World, jobs: list[str]) -> bool:
    return [one["job_id"] for one in (await undone(world))["unpublished"]] == jobs


async def test_a_paused_site_goes_on_by_itself_once_it_is_mended(rig: Rig) -> None:
    world, site = rig
    site.drops_authorization = True
    job_id = await made(world, site.draft())
    await eventually_async(lambda: _paused(world))
    site.drops_authorization = False
    await world.move_clock(CHECK_S)
    await world.coordinator.publisher.once()
    await until(world, job_id)


async def test_a_user_who_may_too_little_is_seen_before_the_first_job(rig: Rig) -> None:
    world, site = rig
    site.users["tandem"].capabilities = ("upload_files", "edit_posts")
    await world.stop_coordinator()
    await world.start_coordinator()
    await eventually_async(lambda: _paused(world))
    reason = (await undone(world))["paused"][0]["reason"]
    assert reason.endswith("'tandem' may not edit_others_posts, publish_posts; make it an editor")
    assert site.asked.count("POST /wp/v2/media") == 0


# ---- where it is


async def test_plain_permalinks_are_found_out(rig: Rig) -> None:
    world, site = rig
    await until(world, await made(world, site.draft()))
    site.mood = "plain permalinks"  # in the middle of it
    await until(world, await made(world, site.draft(), images={"hero.png": picture()}))
    assert len(site.updates) == 2
    assert len(site.media) == 1


async def test_a_home_page_for_an_answer_is_no_success(rig: Rig) -> None:
    world, site = rig
    site.mood = "all is home"
    job_id = await made(world, site.draft())
    found = await tried(world, job_id)
    assert "301" in found["error"] or "without JSON" in found["error"]
    assert found["published_at"] is None
    site.mood = "well"
    await until(world, job_id)


async def test_a_site_that_moved_is_paused_and_the_password_not_sent_on(rig: Rig) -> None:
    world, site = rig
    site.mood = "moved"
    await world.stop_coordinator()
    await world.start_coordinator()
    await eventually_async(lambda: _paused(world))
    assert "redirects to https://www.blog.example/" in (await undone(world))["paused"][0]["reason"]


# ---- several coordinators


@pytest.mark.parametrize("root", ["https://blog.example:99999/wp-json/", "https://[::1/wp-json/"])
async def test_a_site_that_names_an_address_that_is_none_is_paused_with_the_reason(rig: Rig, root: str) -> None:
    world, site = rig
    site.link = f'<{root}>; rel="https://api.w.org/"'
    await world.stop_coordinator()
    await world.start_coordinator()
    await eventually_async(lambda: _paused(world))
    assert root in (await undone(world))["paused"][0]["reason"]


async def test_what_nobody_foresaw_is_in_the_ledger_and_given_up_in_time(rig: Rig) -> None:
    world, site = rig
    nested: list[Any] = []
    for _ in range(300):  # deeper than JSON is written
        nested = [nested]
    job_id = await made(world, site.draft(link=nested))
    found = await tried(world, job_id)
    assert found["error"].startswith("broke: ")
    assert found["next_at"] is not None
    await world.move_clock(GIVEN_UP_S)
    assert (await until(world, job_id, "failed_at"))["error"].startswith("broke: ")


async def test_what_a_site_says_is_stored_without_nul(rig: Rig) -> None:
    world, _ = rig
    assert await Publications(world.pool).pause("local", "no\x00", CHECK_S)
    assert (await undone(world))["paused"][0]["reason"] == "no\ufffd"


@pytest.mark.parametrize("others", [True, False])
async def test_a_site_that_is_gone_from_the_settings_is_paused_no_more(rig: Rig, others: bool) -> None:  # noqa: FBT001
    world, _ = rig
    await world.pool.execute("INSERT INTO paused_site VALUES ('gone', 'wrong password', now(), now() + '1 day')")
    publisher = Publisher(
        Publications(world.pool), world.coordinator.store, world.coordinator.publisher.sites if others else {}
    )
    try:
        await publisher.once()
        assert not await _paused(world)
    finally:
        await publisher.close()


async def test_two_coordinators_publish_once(rig: Rig) -> None:
    world, site = rig
    async with running(world.settings.model_copy(update={"http": "127.0.0.1:0"})) as other:
        jobs = [await made(world, site.draft(), images={"hero.png": picture(str(n))}) for n in range(4)]
        for job_id in jobs:
            await eventually_async(partial(_is_published, world, job_id))  # `until` would move time
        assert site.uploads == len(site.media) == len(site.updates) == 4
        assert (world.coordinator.publisher.published + other.publisher.published).total() == 4


async def _is_published(world: World, job_id: str) -> bool:
    one = await told(world, job_id)
    return one is not None and one["published_at"] is not None


async def test_a_try_that_was_stopped_does_nothing_beside_the_one_that_took_over(rig: Rig) -> None:
    world, site = rig
    site.holds_look_up = asyncio.Event()
    job_id = await made(world, site.draft(), images={"hero.png": picture()})
    await site.holding.wait()  # it knows of no image there, and sleeps
    held, site.holds_look_up = site.holds_look_up, None
    async with running(world.settings.model_copy(update={"http": "127.0.0.1:0"})) as other:
        await world.move_clock(TAKEN_S + 1)

        async def published() -> bool:
            await other.publisher.once()
            return bool(other.publisher.published)

        await eventually_async(published)
        held.set()
        await eventually_async(lambda: idle(world))
    assert site.uploads == len(site.media) == len(site.updates) == 1
    assert (await told(world, job_id) or {})["attempts"] == 2


async def test_who_sees_and_does_what(rig: Rig) -> None:
    world, _ = rig
    job_id = (await world.submit())["id"]
    await world.stop_coordinator()
    world.settings = world.settings.model_copy(
        update={"tokens": {f"{role}:{name}": SecretStr(name * 8) for role, name in WHO}}
    )
    await world.start_coordinator()
    expected = {
        ("GET", "/v1/publications"): (200, 200, 200),
        ("POST", "/v1/publications/local/check"): (409, 403, 403),
        ("GET", "/v1/jobs/{}/publications"): (200, 200, 404),
        ("POST", "/v1/jobs/{}/publications/again"): (409, 403, 404),
    }
    for (method, path), statuses in expected.items():
        for (_, name), status in zip(WHO, statuses, strict=True):
            headers = {"Authorization": f"Bearer {name * 8}"}
            async with world.http.request(method, path.format(job_id), headers=headers) as answer:
                assert answer.status == status, (method, path, name)


WHO = (("admin", "boss"), ("viewer", "eyes"), ("publisher", "else"))
