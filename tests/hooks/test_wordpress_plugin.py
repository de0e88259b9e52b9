"""The WordPress plugin as it is, under php-cli with stand-ins for WordPress, against a real coordinator's endpoint."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web as http
from aiohttp.test_utils import TestServer

from tests.hooks.senders import WHSEC, WHSEC_NEW
from tests.support.web import Web

STUBS = Path(__file__).parent / "wordpress_stubs.php"
SAVE: dict[str, Any] = {"do": "save"}
RUN: dict[str, Any] = {"do": "run"}
PRESS: dict[str, Any] = {"do": "press"}
PAUSES_S = [60, 300, 1800, 7200, 21600, 43200, 86400]

pytestmark = [
    pytest.mark.skipif(shutil.which("php") is None, reason="needs php-cli (.ci/packages installs it)"),
    pytest.mark.parametrize("source", ["wordpress"]),
]


async def wordpress(
    url: str, *steps: dict[str, Any], secret: str = WHSEC, scheduler: str = "cron", **constants: Any
) -> dict[str, Any]:
    """Run the plugin through these steps; return what was sent, and what is on the schedule."""
    given = {"TANDEM_HOOK_URL": url, "TANDEM_HOOK_SECRET": secret, **constants}
    script = orjson.dumps({"scheduler": scheduler, "constants": given, "steps": steps})
    php = await asyncio.create_subprocess_exec(
        "php",
        "-d",
        "display_errors=stderr",
        str(STUBS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, wrong = await asyncio.wait_for(php.communicate(script), 60)
    assert (php.returncode, wrong) == (0, b""), f"{said!r} {wrong!r}"
    told: dict[str, Any] = orjson.loads(said)
    return told


def endpoint(site: Web) -> str:
    return f"{site.runner.url}/hooks/wordpress"


@pytest.mark.parametrize("scheduler", ["cron", "action-scheduler"])
async def test_a_published_post_becomes_jobs_from_a_later_action(hooked: Web, source: str, scheduler: str) -> None:
    saved = await wordpress(endpoint(hooked), SAVE, scheduler=scheduler)
    assert saved["sent"] == []
    assert [one["by"] for one in saved["queue"]] == ["async" if scheduler == "action-scheduler" else "cron"]

    told = await wordpress(endpoint(hooked), SAVE, RUN, scheduler=scheduler)

    assert [one["status"] for one in told["sent"]] == [202]
    assert told["queue"] == []
    assert told["meta"] == {"98": {"_tandem_hook": "asked"}}
    article, image = told["sent"][0]["answer"]["jobs"]
    assert (article["name"], image["name"]) == ("article", "hero_image")
    job = await hooked.call("GET", f"/v1/jobs/{article['id']}", token="admin")
    assert 'Hafen & "Kai" — größer/kleiner 港' in job["spec"]["prompt"]
    assert job["labels"] == {"wordpress_post": "98", "document": "98", "site": "http://blog.example"}


async def test_two_requests_for_the_same_are_one_job(hooked: Web, source: str) -> None:
    told = await wordpress(endpoint(hooked), SAVE, SAVE, RUN, RUN)

    first, second = told["sent"]
    assert (first["status"], second["status"]) == (202, 200)
    assert first["id"] != second["id"]
    assert [job["id"] for job in first["answer"]["jobs"]] == [job["id"] for job in second["answer"]["jobs"]]


FULL = {"post_content": "<!-- wp:paragraph --><p>Written.</p><!-- /wp:paragraph -->"}
QUIET: dict[str, list[dict[str, Any]]] = {
    "a draft": [{**SAVE, "post": {"post_status": "draft"}}],
    "a save of what is public": [{**SAVE, "before": {}}],
    "a revision": [{**SAVE, "post": {"post_type": "revision", "post_status": "publish"}}],
    "a page": [{**SAVE, "post": {"post_type": "page"}}],
    "our write-back": [{"do": "set", "values": {"app": True}}, SAVE],
    "a post that lacks nothing": [{"do": "set", "values": {"thumbs": [98]}}, {**SAVE, "post": FULL}],
}


@pytest.mark.parametrize("what", QUIET)
async def test_nothing_is_asked_for(hooked: Web, source: str, what: str) -> None:
    told = await wordpress(endpoint(hooked), *QUIET[what])

    assert (told["queue"], told["sent"]) == ([], [])


async def test_nothing_is_asked_for_by_an_autosave_or_without_a_set_up(hooked: Web, source: str) -> None:
    assert (await wordpress(endpoint(hooked), SAVE, DOING_AUTOSAVE=True))["queue"] == []


async def test_only_what_the_post_lacks_is_asked_for(hooked: Web, source: str) -> None:
    told = await wordpress(endpoint(hooked), {**SAVE, "post": FULL, "before": {"post_status": "future"}}, RUN)

    assert orjson.loads(told["sent"][0]["body"])["data"]["want"] == ["hero_image"]
    assert [job["name"] for job in told["sent"][0]["answer"]["jobs"]] == ["hero_image"]


async def test_what_was_made_meanwhile_is_not_asked_for(hooked: Web, source: str) -> None:
    filled = [{"do": "set", "values": {"thumbs": [98]}}, {**SAVE, "post": FULL, "before": {}}]
    trashed = [{**SAVE, "post": {"post_status": "trash"}, "before": {}}]

    for meanwhile in (filled, trashed):
        told = await wordpress(endpoint(hooked), SAVE, *meanwhile, RUN)
        assert (told["queue"], told["sent"]) == ([], [])


@pytest.mark.parametrize("scheduler", ["cron", "action-scheduler"])
async def test_a_request_that_is_not_taken_is_sent_again_with_growing_pauses(
    hooked: Web, source: str, scheduler: str
) -> None:
    pauses: list[int] = []
    for tries in range(1, 9):
        told = await wordpress(endpoint(hooked), SAVE, *[RUN] * tries, secret=WHSEC_NEW, scheduler=scheduler)
        pauses += [one["in_s"] for one in told["queue"]]

    assert [one["status"] for one in told["sent"]] == [401] * 8
    assert len({one["id"] for one in told["sent"]}) == 1
    assert pauses == pytest.approx(PAUSES_S, abs=30)
    assert told["meta"]["98"]["_tandem_hook"].startswith("try 8: 401")


async def test_without_an_answer_it_is_sent_again(hooked: Web, source: str) -> None:
    told = await wordpress("http://127.0.0.1:9/hooks/wordpress", SAVE, RUN)

    assert [one["status"] for one in told["sent"]] == [0]
    assert told["queue"][0]["args"][-1] == 2


async def test_a_try_that_dies_is_made_up_for(hooked: Web, source: str) -> None:
    dying = [SAVE, {"do": "set", "values": {"dies": True}}, RUN, {"do": "set", "values": {"dies": False}}, RUN]
    told = await wordpress(endpoint(hooked), *dying)

    assert [one["status"] for one in told["sent"]] == [202]
    assert told["queue"] == []


@pytest.mark.parametrize(
    ("status", "headers", "in_s"),
    [
        (503, {"Retry-After": "4000"}, 4000),
        (503, {}, 60),
        (302, {"Location": "/"}, 60),
        (422, {}, None),
        (410, {}, None),
    ],
)
async def test_the_answer_says_whether_and_when_it_is_sent_again(
    source: str, status: int, headers: dict[str, str], in_s: int | None
) -> None:
    async def answer(_: http.Request) -> http.Response:
        return http.Response(status=status, headers=headers, text="{}")

    app = http.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(app, host="127.0.0.1") as server:
        told = await wordpress(str(server.make_url("/hooks/wordpress")), SAVE, RUN)

    assert [one["status"] for one in told["sent"]] == [status]
    assert [one["in_s"] for one in told["queue"]] == ([] if in_s is None else [pytest.approx(in_s, abs=30)])


async def test_the_button_asks_for_a_draft(hooked: Web, source: str) -> None:
    told = await wordpress(endpoint(hooked), {**SAVE, "post": {"post_status": "draft"}}, PRESS, RUN)

    assert told["redirect"].endswith("tandem_hook=asked")
    assert orjson.loads(told["sent"][0]["body"])["data"]["cause"] == "button"
    assert told["sent"][0]["status"] == 202


async def test_the_button_says_when_there_is_nothing_to_ask_for(hooked: Web, source: str) -> None:
    steps = [{"do": "set", "values": {"thumbs": [98]}}, {**SAVE, "post": FULL}, PRESS]
    told = await wordpress(endpoint(hooked), *steps)

    assert told["redirect"].endswith("tandem_hook=nothing")
    assert told["queue"] == []


async def test_the_button_is_for_those_who_may_edit_and_came_by_it(hooked: Web, source: str) -> None:
    draft = {**SAVE, "post": {"post_status": "draft"}}
    forbidden = await wordpress(endpoint(hooked), draft, {"do": "set", "values": {"may": False}}, PRESS)
    forged = await wordpress(endpoint(hooked), draft, {**PRESS, "get": {"_wpnonce": "guessed"}})

    assert (forbidden["redirect"], forbidden["queue"]) == ("died: no button", [])
    assert (forged["redirect"], forged["queue"]) == ("died: nonce", [])
