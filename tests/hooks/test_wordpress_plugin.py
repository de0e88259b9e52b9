"""The WordPress plugin as it is, under php-cli with stand-ins for WordPress, against a real coordinator's endpoint."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web as http
from aiohttp.test_utils import TestServer

from coordinator.publishing.article import is_empty
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
    given = {name: value for name, value in given.items() if value is not None}
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


async def test_nothing_is_asked_for_by_an_autosave(hooked: Web, source: str) -> None:
    assert (await wordpress(endpoint(hooked), SAVE, DOING_AUTOSAVE=True))["queue"] == []


@pytest.mark.parametrize("secret", [None, "", "whsec_", "whsec_c2hvcnQ=", WHSEC.removeprefix("whsec_"), "whsec_!!!"])
async def test_without_a_proper_set_up_nothing_is_sent_and_an_admin_is_told(source: str, secret: Any) -> None:
    left = ["98", "publish", "author1", "msg_1", 1]  # on the schedule from before
    notice = {"do": "fire", "hook": "admin_notices"}
    set_up = {"do": "set", "values": {"queue": [{"by": "cron", "in_s": 0, "hook": "tandem_hook_send", "args": left}]}}
    told = await wordpress("http://127.0.0.1:9/", SAVE, set_up, RUN, notice, secret=secret)
    assert (told["sent"], [one["args"][-1] for one in told["queue"]]) == ([], [2])
    assert "TANDEM_HOOK_SECRET must be" in told["said"] or "must be defined" in told["said"]

    others = await wordpress("http://127.0.0.1:9/", {"do": "set", "values": {"may": False}}, notice, secret=secret)
    assert others["said"] == ""


HOLDING = {
    "": True,
    "<!-- wp:paragraph -->\n<p>&nbsp;</p>\n<!-- /wp:paragraph -->": True,
    "<!-- wp:heading --><h2></h2><!-- /wp:heading -->": True,
    "<p>à</p>": False,
    '<p><img src="a.png"></p>': False,
    "<!-- wp:latest-posts /-->": False,
    "[gallery]": False,
}


@pytest.mark.parametrize("content", HOLDING)
async def test_a_text_is_asked_for_where_there_is_nothing_to_miss(source: str, content: str) -> None:
    told = await wordpress("http://127.0.0.1:9/", {**SAVE, "post": {"post_content": content}}, {"do": "body"})

    assert ("article" in told["want"]) is HOLDING[content]
    assert is_empty(content) is HOLDING[content]  # what the publisher takes for empty


async def test_deactivated_it_sends_nothing_more_and_deleted_it_leaves_nothing(hooked: Web, source: str) -> None:
    steps: list[dict[str, Any]] = [
        {"do": "fire", "hook": "activate"},
        {**SAVE, "post": {"post_status": "draft"}},
        PRESS,
        RUN,
        PRESS,
        {"do": "fire", "hook": "deactivate"},
    ]
    for scheduler in ("cron", "action-scheduler"):
        off = await wordpress(endpoint(hooked), *steps, scheduler=scheduler)
        assert (off["queue"], list(off["meta"])) == ([], ["98"])
    gone = await wordpress(endpoint(hooked), *steps, {"do": "fire", "hook": "uninstall"})
    assert gone["meta"] == {}


async def test_what_a_receiver_says_is_shown_as_text(source: str) -> None:
    async def answer(_: http.Request) -> http.Response:
        return http.Response(status=500, text='"><script>alert(1)</script> \\ "quoted" ' + "港" * 400)

    app = http.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    box = {"do": "fire", "hook": "post_submitbox_misc_actions", "posts": [98]}
    async with TestServer(app, host="127.0.0.1") as server:
        told = await wordpress(str(server.make_url("/")), SAVE, RUN, box, {"do": "set", "values": {"may": False}}, box)

    kept = told["meta"]["98"]["_tandem_hook"]
    assert kept.startswith('try 1: 500 "> \\ "quoted" 港')
    assert len(kept) < 330
    assert told["said"].count("Ask Tandem") == 1  # not for whoever may not edit
    assert "<script" not in told["said"]
    assert 'title="Last time: try 1: 500 &quot;&gt; ' in told["said"]


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
