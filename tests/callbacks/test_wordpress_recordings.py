"""The false WordPress answers as the real one did, and what the real one said is judged as the publisher needs it."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from coordinator.publishing.article import is_same
from coordinator.publishing.verdicts import (
    AgainError,
    Answer,
    DeniedError,
    FailedError,
    MovedError,
    PublishingError,
    TooLargeError,
    content_of,
)
from tests.support.fake_wordpress import PASSWORD, Account, FakeWordPress, fake_wordpress

FOLDER = Path(__file__).parents[1] / "recordings" / "wordpress"
NOW = datetime(2026, 11, 29, 21, tzinfo=UTC)


def step(case: str, number: int) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((FOLDER / f"{case}.json").read_bytes())["steps"][number]
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[FakeWordPress]:
    async with fake_wordpress() as made:
        made.users |= {
            "sub1": Account(6, PASSWORD, ()),
            "contrib1": Account(5, PASSWORD, ("edit_posts",)),
            "author2": Account(4, PASSWORD, ("upload_files", "edit_posts", "publish_posts")),
        }
        made.draft(), made.draft()
        for number in (13, 46, 51):
            made.posts[number] = made.posts[5] | {"id": number}
        yield made


def body_of(request: dict[str, Any]) -> bytes | None:
    if "json" in request:
        return orjson.dumps(request["json"])
    if "body" not in request:
        return None
    size = int(re.match(r"<(\d+) bytes", request["body"])[1])
    kind = request["headers"].get("Content-Type", "image/png")
    start = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff"}.get(kind, b"{x")
    return (start + bytes(size))[:size]


def headers_of(request: dict[str, Any], body: bytes | None) -> dict[str, str]:
    made = dict(request["headers"])
    found = re.fullmatch(r"Basic base64\((\w+):<(.*)>\)", made.get("Authorization", ""))
    if found:
        password = PASSWORD if found[2].startswith("application") else "wrong"
        made["Authorization"] = "Basic " + base64.b64encode(f"{found[1]}:{password}".encode()).decode()
    if "Content-MD5" in made and made["Content-MD5"] in request["body"]:
        made["Content-MD5"] = hashlib.md5(body or b"").hexdigest()
    return made


CASES = [
    *[("auth-ok", number) for number in range(3)],
    *[("auth-wrong-password", number) for number in range(4)],
    *[("media-upload-ok", number) for number in (0, 1)],
    *[("media-bad-requests", number) for number in (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14, 18, 19, 21)],
    *[("media-lookup", number) for number in (1, 6, 10)],
    *[("media-php-fatal", number) for number in (7, 8)],
    *[("post-update", number) for number in (0, 2)],
    *[("post-errors", number) for number in (0, 5, 6, 7, 8, 9, 10, 11, 12, 13)],
    ("post-update", 10),
    ("permalinks-plain", 0),
    ("permalinks-plain", 1),
]


@pytest.mark.parametrize(("case", "number"), CASES)
async def test_the_double_answers_as_the_real_one(site: FakeWordPress, case: str, number: int) -> None:
    if case == "media-php-fatal":
        site.media[38] = {"id": 38, "slug": "tandem-fatal"}
    if case == "post-update":
        site.media[45] = {"id": 45, "slug": "hero"}
    await compare(site, step(case, number))


@pytest.mark.parametrize(
    ("mood", "case", "numbers"),
    [
        ("maintenance", "site-down", (0, 1, 2)),
        ("no database", "site-down", (3, 4)),
        ("plain permalinks", "permalinks-plain", (3, 4, 5, 6, 7, 8, 9)),
    ],
)
async def test_a_site_in_another_mood(site: FakeWordPress, mood: Any, case: str, numbers: tuple[int, ...]) -> None:
    site.mood = mood
    for number in numbers:
        await compare(site, step(case, number))


@pytest.mark.parametrize(("case", "number"), [("media-php-fatal", 0), ("media-php-fatal-accept-json", 0)])
async def test_a_fatal_error_in_an_upload(site: FakeWordPress, case: str, number: int) -> None:
    site.media_troubles.append("fatal")
    await compare(site, step(case, number))
    assert [one["missing_image_sizes"] for one in site.media.values()] == [["thumbnail", "medium_large"]]


async def test_a_post_in_the_trash_and_an_image_that_is_not_there(site: FakeWordPress) -> None:
    told = [
        await compare(site, step("post-errors", 7)),
        await compare(site, step("media-lookup", 1)),
    ]
    assert told[0]["featured_media"] == step("post-errors", 7)["response"]["json"]["featured_media"] == 0
    assert told[1] == step("media-lookup", 1)["response"]["json"] == []
    site.posts[51]["status"] = "trash"
    (recorded,) = [one for one in _steps("post-errors") if one.get("note") == "a post in the trash"]
    assert (await compare(site, recorded))["status"] == recorded["response"]["json"]["status"] == "trash"


def _steps(case: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads((FOLDER / f"{case}.json").read_bytes())["steps"]
    return found


async def compare(site: FakeWordPress, recorded: dict[str, Any]) -> Any:
    """Send the recorded request; hold the answer's status, headers that matter, code and keys against the recording."""
    request, expected = recorded["request"], recorded["response"]
    body = body_of(request)
    async with aiohttp.ClientSession(skip_auto_headers=["Content-Type", "Accept"]) as session:
        url = site.url + request["path"]
        async with session.request(
            request["method"], url, data=body, headers=headers_of(request, body), allow_redirects=False
        ) as answer:
            raw = await answer.read()
    assert answer.status == expected["status"], raw
    for name in ("X-WP-Upload-Attachment-ID", "Retry-After", "Location"):
        assert (name in answer.headers) is (name.lower() in expected["headers"]), name
    if "rest_route" in expected["headers"].get("link", "") and request["path"] == "/":
        assert "rest_route" in answer.headers["Link"]
    if "json" not in expected:
        assert "html" in answer.content_type
        return None
    said = orjson.loads(raw)
    if isinstance(expected["json"], list):
        assert len(said) == len(expected["json"])
        return said
    assert said.get("code") == expected["json"].get("code")
    assert set(expected["json"]) - {"additional_data"} <= set(said) | {"additional_errors"}
    if "capabilities" in said:
        assert said["capabilities"] == expected["json"]["capabilities"]
    return said


# ---- what the real answers mean


def judged(recorded: dict[str, Any]) -> PublishingError | None:
    response = recorded["response"]
    body = orjson.dumps(response["json"]) if "json" in response else b"<!DOCTYPE html><html></html>"
    headers = {
        name.title().replace("Wp", "WP").replace("Id", "ID"): value for name, value in response["headers"].items()
    }
    try:
        content_of(Answer(response["status"], headers, body), NOW)
    except PublishingError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("case", "number", "verdict"),
    [
        ("auth-ok", 0, None),
        ("auth-wrong-password", 0, DeniedError),
        ("auth-wrong-password", 3, DeniedError),
        ("media-upload-ok", 1, None),
        *[("media-bad-requests", number, FailedError) for number in (0, 1, 2, 4, 5)],
        *[("media-bad-requests", number, AgainError) for number in (6, 7, 8)],  # 412
        *[("media-bad-requests", number, FailedError) for number in (10, 11, 12, 15)],  # a file type
        *[("media-bad-requests", number, DeniedError) for number in (18, 19, 20, 21)],
        ("media-lookup", 1, None),
        ("media-lookup", 10, DeniedError),
        ("media-php-fatal", 0, AgainError),
        ("media-php-fatal", 8, FailedError),
        ("permalinks-plain", 3, MovedError),
        ("permalinks-plain", 4, MovedError),  # 200, and a page
        ("permalinks-plain", 10, MovedError),
        ("post-errors", 0, FailedError),
        ("post-errors", 2, DeniedError),
        ("post-errors", 9, FailedError),
        ("site-down", 2, AgainError),
        ("site-down", 4, AgainError),
    ],
)
def test_verdicts_on_recorded_answers(case: str, number: int, verdict: type[PublishingError] | None) -> None:
    assert type(judged(step(case, number))) is (verdict or type(None))


def test_the_pauses_that_answers_ask_for() -> None:
    down, mismatch, fatal = (
        judged(step(*at)) for at in (("site-down", 2), ("media-bad-requests", 6), ("site-down", 4))
    )
    assert isinstance(down, AgainError)
    assert isinstance(mismatch, AgainError)
    assert isinstance(fatal, AgainError)
    assert (down.after_s, down.few) == (600, False)
    assert mismatch.few
    assert fatal.after_s == 60
    for header, after_s in (("Sun, 29 Nov 2026 21:01:00 GMT", 60), ("99999999", 3600), ("soon", 0)):
        with pytest.raises(AgainError) as raised:
            content_of(Answer(503, {"Retry-After": header}, b""), NOW)
        assert raised.value.after_s == after_s


def test_a_long_answer_is_read_once() -> None:
    answer = Answer(200, {}, b'<b>Warning</b>{"id": 7}')
    assert content_of(answer, NOW) is answer.json


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (413, b"<html>", TooLargeError),
        (502, b"<html>", AgainError),
        (504, b"", AgainError),
        (429, b"", AgainError),
        (404, b"<html>", MovedError),
        (201, b'<br />\n<b>Warning</b>: POST too long\n{"id":5}', None),
        (201, b'<b>Warning</b>: {"half', MovedError),
        (204, b"", FailedError),
    ],
)
def test_verdicts_on_what_web_servers_say(status: int, body: bytes, verdict: type[PublishingError] | None) -> None:
    error = None
    try:
        content_of(Answer(status, {}, body), NOW)
    except PublishingError as raised:
        error = raised
    assert type(error) is (verdict or type(None))


def test_what_a_site_dropped_is_seen_and_what_it_wrote_its_own_way_is_not() -> None:
    (filtered,) = [one for one in _steps("post-errors") if one["request"].get("json", {}).get("title") == "Filtered"]
    (kept,) = [one for one in _steps("post-update") if one.get("note") == "another content"]
    sent = kept["request"]["json"]["content"]
    assert is_same(sent, kept["response"]["json"]["content"]["raw"])
    assert is_same("<p>a<br>b &amp; c</p>\n<hr>", "<p>a<br />b &amp; c</p> <hr />\r\n")
    assert not is_same("<p>a <strong>b</strong></p>", filtered["response"]["json"]["content"]["raw"])
    assert not is_same("<p>a <strong>b</strong></p>", "<p>a b</p>")
