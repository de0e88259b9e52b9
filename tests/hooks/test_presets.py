"""Each CMS's own event becomes the jobs that it asks for, once, and what was written back asks for none."""

from typing import Any

import pytest

from tests.hooks.senders import SIGNED, body_of, changed, contentful
from tests.support.web import Web

JOBS = {
    "standard": ["article", "hero_image"],
    "wordpress": ["article", "hero_image"],
    "ghost": ["article"],
    "strapi": ["article"],
    "directus": ["article"],
    "contentful": ["article"],
}


async def send(site: Web, source: str, body: bytes, *, expect: int) -> Any:
    return await site.call("POST", f"/hooks/{source}", data=body, headers=SIGNED[source](body), expect=expect)


@pytest.mark.parametrize("source", JOBS)
async def test_an_event_becomes_its_jobs_however_often_it_is_fired(hooked: Web, source: str) -> None:
    first = await send(hooked, source, body_of(source), expect=202)
    again = await send(hooked, source, body_of(source), expect=200)

    assert [(job["name"], job["result"]) for job in first["jobs"]] == [(name, "created") for name in JOBS[source]]
    assert [(job["id"], job["result"]) for job in again["jobs"]] == [(job["id"], "same") for job in first["jobs"]]
    job = await hooked.call("GET", f"/v1/jobs/{first['jobs'][0]['id']}", token="admin")
    assert (job["source"], job["kind"], job["state"]) == (source, "article", "pending")
    assert "arbour" in job["spec"]["prompt"] or "Hafen" in job["spec"]["prompt"]
    assert job["labels"]["document"]


async def test_a_wordpress_post_is_named_to_the_publisher_and_read_as_it_was_written(hooked: Web) -> None:
    told = await send(hooked, "wordpress", body_of("wordpress"), expect=202)

    article, image = [await hooked.call("GET", f"/v1/jobs/{job['id']}", token="admin") for job in told["jobs"]]
    assert article["labels"] == {"wordpress_post": "98", "document": "98", "site": "http://blog.example"}
    assert 'Hafen — größer/kleiner "x" 港' in article["spec"]["prompt"]
    assert "Language: de_DE" in article["spec"]["prompt"]
    assert (image["kind"], image["spec"]["width"], image["labels"]["wordpress_post"]) == ("image", 1216, "98")


@pytest.mark.parametrize(
    ("source", "path", "value"),
    [
        ("standard", ["data", "topic"], "lighthouses"),
        ("wordpress", ["data", "title"], "Another harbour"),
        ("ghost", ["post", "current", "title"], "Another harbour"),
        ("strapi", ["entry", "title"], "Another harbour"),
        ("directus", ["item", "title"], "Another harbour"),
        ("contentful", ["fields", "title", "en-US"], "Another harbour"),
    ],
)
async def test_what_is_asked_for_anew_is_a_new_job(hooked: Web, source: str, path: list[str], value: str) -> None:
    first = await send(hooked, source, body_of(source), expect=202)
    second = await send(hooked, source, changed(source, *path, to=value), expect=202)

    assert second["jobs"][0]["id"] != first["jobs"][0]["id"]


@pytest.mark.parametrize(
    ("source", "path", "value"),
    [
        ("standard", ["data", "revision"], "2026-09-10T06:26:39Z"),
        ("wordpress", ["data", "modified_gmt"], "2026-11-29 20:50:41"),
        ("ghost", ["post", "current", "updated_at"], "2026-09-10T06:26:39.000Z"),
        ("ghost", ["post", "current", "html"], "<p>Notes, and a comma.</p>"),
        ("strapi", ["entry", "updatedAt"], "2026-09-10T06:26:39.000Z"),
        ("directus", ["event"], "articles.items.update"),
        ("contentful", ["sys", "revision"], 2),
    ],
)
async def test_a_save_that_changes_nothing_that_is_asked_for_is_the_same_job(
    hooked: Web, source: str, path: list[str], value: Any
) -> None:
    await send(hooked, source, body_of(source), expect=202)
    again = await send(hooked, source, changed(source, *path, to=value), expect=200)

    assert {job["result"] for job in again["jobs"]} == {"same"}


TAGS = [{"slug": "hash-tandem"}, {"slug": "hash-tandem-done"}]


@pytest.mark.parametrize(
    ("source", "path", "value"),
    [
        ("wordpress", ["data", "user"], "tandem"),
        ("ghost", ["post", "current", "tags"], TAGS),
        ("strapi", ["entry", "tandem_job"], "7f3a"),
        ("directus", ["user"], "7a6d2b2f-4020-4f5a-9a51-0d9e6a4c7f0b"),
        ("contentful", ["sys", "publishedBy", "sys", "id"], "tandem-user"),
    ],
)
async def test_what_we_wrote_back_does_not_come_round_again(
    hooked: Web, source: str, path: list[str], value: Any
) -> None:
    told = await send(hooked, source, changed(source, *path, to=value), expect=200)

    assert told == {"ignored": "own write-back"}
    await nothing_is_kept(hooked)


@pytest.mark.parametrize(
    ("source", "path", "value", "reason"),
    [
        ("standard", ["type"], "content.deleted", "not an event that counts here"),
        ("wordpress", ["data", "want"], [], "none of the jobs is asked for"),
        ("ghost", ["post", "current"], {}, "not an event that counts here"),
        ("ghost", ["post", "current", "tags"], [], "not tagged #tandem"),
        ("strapi", ["event"], "entry.update", "not an event that counts here"),
        ("directus", ["event"], "items.delete", "not an event that counts here"),
    ],
)
async def test_an_event_that_does_not_count_is_ignored_with_the_reason(
    hooked: Web, source: str, path: list[str], value: Any, reason: str
) -> None:
    told = await send(hooked, source, changed(source, *path, to=value), expect=200)

    assert told == {"ignored": reason}
    await nothing_is_kept(hooked)


async def test_a_contentful_topic_that_does_not_count_is_ignored(hooked: Web) -> None:
    body = body_of("contentful")
    headers = contentful(body, topic="ContentManagement.Entry.auto_save")

    assert "ignored" in await hooked.call("POST", "/hooks/contentful", data=body, headers=headers)


async def nothing_is_kept(site: Web) -> None:
    assert (await site.call("GET", "/v1/jobs", token="admin"))["jobs"] == []
    assert (await site.call("GET", "/v1/rejected", token="admin"))["submissions"] == []
