"""Who is let in, and what an error looks like."""

import asyncio
import ssl
from base64 import b64encode
from typing import Any
from uuid import uuid4

import orjson
import pytest
from pydantic import SecretStr

from coordinator import workers
from coordinator.web import operations
from coordinator.web.access import Access, AccessToken, Caller, Refusal, Role, check_listen
from coordinator.web.app import Secured, make_app, serve
from shared.errors import ConfigurationError
from tests.support.web import TOKENS, Web

TOKEN = [AccessToken("boss", Role.ADMIN, SecretStr("t"))]
ARTICLE = {"kind": "article", "spec": {"prompt": "x"}}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_without_tokens_this_machine_may_be_listened_on(host: str) -> None:
    for encrypted in (True, False):
        check_listen(host, Access(), encrypted=encrypted)


BEYOND = ["0.0.0.0", "::", "", "192.0.2.7", "::ffff:192.0.2.7", "no-such-name.invalid"]


@pytest.mark.parametrize("host", BEYOND)
def test_without_tokens_nothing_else_may(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"needs a token|can't resolve"):
        check_listen(host, Access(), encrypted=True)


@pytest.mark.parametrize("host", BEYOND)
def test_without_tls_nothing_else_may_whatever_tokens_there_are(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"without TLS|can't resolve"):
        check_listen(host, Access(TOKEN), encrypted=False)


def test_with_tokens_and_tls_anything_may_be_listened_on() -> None:
    check_listen("0.0.0.0", Access(TOKEN), encrypted=True)


async def test_serving_checks_the_address_itself(site: Web) -> None:
    app, tls = make_app(site.context), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with pytest.raises(ConfigurationError, match=r"0\.0\.0\.0.*without TLS"):
        await serve(app, "0.0.0.0", 0)
    with pytest.raises(ConfigurationError, match=r"0\.0\.0\.0.*needs a token"):
        await serve(app, "127.0.0.1", 0, Secured("0.0.0.0", 0, tls))


@pytest.mark.parametrize(
    "tokens",
    [
        [AccessToken("Not A Name", Role.ADMIN, SecretStr("t"))],
        [AccessToken("boss", Role.ADMIN, SecretStr(""))],
        [AccessToken("a", Role.ADMIN, SecretStr("t")), AccessToken("b", Role.VIEWER, SecretStr("t"))],
    ],
)
def test_tokens_that_can_not_work_are_refused_at_start(tokens: list[AccessToken]) -> None:
    with pytest.raises(ConfigurationError):
        Access(tokens)


LOCAL = Caller("local", Role.ADMIN)


@pytest.mark.parametrize(
    ("method", "headers", "remote", "who"),
    [
        ("GET", {"Host": "127.0.0.1:8420"}, "127.0.0.1", LOCAL),
        ("GET", {"Host": "localhost"}, "::1", LOCAL),
        ("GET", {"Host": "[::1]:8420"}, "::ffff:127.0.0.1", LOCAL),
        ("POST", {"Host": "localhost:1", "Origin": "http://localhost:1"}, "::1", LOCAL),
        ("POST", {"Host": "localhost:1", "Origin": "https://evil.example"}, "::1", 403),
        ("POST", {"Host": "localhost:1", "Origin": "null"}, "::1", 403),
        ("POST", {"Host": "localhost:1", "Origin": "http://[x"}, "::1", 403),
        ("POST", {"Host": "localhost:1", "Sec-Fetch-Site": "cross-site"}, "::1", 403),
        ("POST", {"Host": "localhost:1", "Sec-Fetch-Site": "same-site"}, "::1", 403),
        ("GET", {"Host": "evil.example"}, "127.0.0.1", 403),  # rebound DNS
        ("GET", {"Host": "127.0.0.1.evil.example:8420"}, "127.0.0.1", 403),
        ("GET", {"Host": "localhost.evil.example"}, "127.0.0.1", 403),
        ("GET", {}, "127.0.0.1", 403),
        ("GET", {"Host": "127.0.0.1"}, "192.0.2.7", 403),
        ("GET", {"Host": "127.0.0.1"}, None, 403),
    ],
)
def test_without_tokens_only_this_machine_is_answered(
    method: str, headers: dict[str, str], remote: str | None, who: Caller | int
) -> None:
    found = Access().identify(method, headers, remote)
    assert (found.status if isinstance(found, Refusal) else found) == who


@pytest.mark.parametrize(
    ("method", "authorization", "who"),
    [
        ("GET", "Bearer t-viewer", "wall"),
        ("GET", "bearer  t-viewer", "wall"),
        ("GET", "Bearer t-viewe", None),
        ("GET", "Bearer t-viewerx", None),
        ("GET", "Bearer ", None),
        ("GET", "", None),
        ("GET", "Bearer t\udce4", None),
        ("GET", "Basic " + b64encode(b"x:t-viewer").decode(), "wall"),
        ("GET", "Basic !!!", None),
        ("POST", "Basic " + b64encode(b"x:t-admin").decode(), None),  # browsers send it by themselves: reads only
    ],
)
def test_a_token_says_who_it_is(method: str, authorization: str, who: str | None) -> None:
    found = Access(list(TOKENS.values())).identify(method, {"Authorization": authorization, "Host": "x"}, "192.0.2.1")
    assert (found.name if isinstance(found, Caller) else None) == who
    assert isinstance(found, Caller) or found.status == 401


READS = ["/v1/jobs", "/v1/workers", "/v1/lanes", "/v1/rejected", "/status", "/"]


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        *((None, "GET", path, 401) for path in READS),
        *(("viewer", "GET", path, 200) for path in READS),
        *(("admin", "GET", path, 200) for path in READS),
        *(("publisher", "GET", path, 200 if path in ("/v1/jobs", "/v1/rejected") else 403) for path in READS),
        *((None, "GET", path, 200) for path in ("/healthz", "/readyz")),
        ("viewer", "POST", "/v1/jobs", 403),
        ("publisher", "POST", "/v1/jobs", 201),
        ("admin", "POST", "/v1/jobs", 201),
        ("viewer", "POST", f"/v1/jobs/{uuid4()}/cancel", 403),
        ("publisher", "POST", "/v1/workers/mini/drain", 403),
        ("viewer", "POST", "/v1/lanes/article.any/pause", 403),
    ],
)
async def test_a_role_allows_what_it_says(guarded: Web, role: str | None, method: str, path: str, status: int) -> None:
    body = ARTICLE if path == "/v1/jobs" and method == "POST" else None
    answer = await guarded.call(method, path, token=role, expect=status, json=body)
    if status >= 400:
        assert answer["error"]["code"] == ("unauthorized" if status == 401 else "forbidden")


async def test_the_source_is_the_tokens_name(guarded: Web) -> None:
    job = await guarded.call("POST", "/v1/jobs", token="publisher", json=ARTICLE, expect=201)
    assert job["source"] == "blog"


async def test_a_publisher_sees_and_touches_only_its_own(guarded: Web) -> None:
    mine = await guarded.call("POST", "/v1/jobs", token="publisher", json=ARTICLE, expect=201)
    path = f"/v1/jobs/{mine['id']}"
    await guarded.call("GET", path, token="publisher")
    for method, tail in (
        ("GET", ""),
        ("GET", "/attempts"),
        ("GET", "/heartbeats"),
        ("GET", "/artifacts/x"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
    ):
        await guarded.call(method, path + tail, token="other", expect=404)
    assert (await guarded.call("GET", "/v1/jobs", token="other"))["jobs"] == []
    assert (await guarded.call("GET", path, token="admin"))["state"] == "pending"
    assert (await guarded.call("POST", path + "/cancel", token="publisher"))["state"] == "canceled"
    actor = await guarded.pool.fetchval("SELECT actor FROM operator_action")
    assert actor == "blog"


async def test_a_publisher_sees_only_refusals_of_its_own(guarded: Web) -> None:
    for source in ("blog", "shop"):
        await guarded.intake.queries.record_rejected_submission(source, "invalid", f"of {source}", [], b"\xff{")
    refused = (await guarded.call("GET", "/v1/rejected", token="publisher"))["submissions"]
    assert [(r["source"], r["reason"], r["body"]) for r in refused] == [("blog", "of blog", "\ufffd{")]
    assert len((await guarded.call("GET", "/v1/rejected", token="viewer"))["submissions"]) == 2


async def test_a_rebound_host_is_refused_on_the_socket(site: Web) -> None:
    error = await site.call("GET", "/v1/jobs", headers={"Host": "evil.example"}, expect=403)
    assert error["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/jobs/not-a-uuid", 404, "not_found"),
        ("DELETE", "/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/" + str(uuid4()) + "/cancel", 405, "method_not_allowed"),
    ],
)
async def test_errors_are_json(site: Web, method: str, path: str, status: int, code: str) -> None:
    async with site.client.request(method, path) as answer:
        assert answer.status == status
        assert answer.content_type == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Server"] == "tandem"
        assert (status == 405) == ("Allow" in answer.headers)
        error = (await answer.json())["error"]
    assert error["code"] == code
    assert error["faults"] == []


async def test_an_unforeseen_error_tells_nothing_of_the_inside(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        msg = "password=hunter2"
        raise RuntimeError(msg)

    monkeypatch.setattr("coordinator.ledger.views.lanes", broken)
    error = await site.call("GET", "/v1/lanes", expect=500)
    assert error["error"]["code"] == "internal_server_error"
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    "request_head",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: <script>\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(200)) + b"\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_a_json_400(site: Web, request_head: bytes) -> None:
    host, port = site.runner.addresses[0][:2]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request_head)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head.splitlines()[0]
    assert orjson.loads(body)["error"]["code"] == "bad_request"
    assert b"script" not in body


async def test_a_connection_without_a_request_is_closed(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.web.app._IDLE_S", 0.05)
    runner = await serve(make_app(site.context), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    writer.write(b"GET / HT")  # and then nothing
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
    await runner.cleanup()


async def test_ready_and_alive_are_two_questions(site: Web) -> None:
    assert await site.call("GET", "/healthz") == {"alive": True}
    assert await site.call("GET", "/readyz") == {"ready": True, "reasons": []}
    site.not_ready.append("not connected to NATS")
    assert await site.call("GET", "/readyz", expect=503) == {"ready": False, "reasons": ["not connected to NATS"]}
    assert await site.call("GET", "/healthz") == {"alive": True}


def test_away_means_three_rounds_everywhere() -> None:
    assert operations.MISSED_ROUNDS == workers.MISSED_ROUNDS
