"""Sessions: what a cookie allows, when it ends, and that no other site can use it."""

import re
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest
from pydantic import SecretStr

from coordinator.web.access import SESSION_S, Access, AccessToken, Caller, Refusal, Role
from coordinator.web.app import make_app, serve
from coordinator.web.html import own_path
from coordinator.web.sessions import session_key
from shared.errors import ConfigurationError
from tests.support.web import TOKENS, Web

PAGE = {"Accept": "text/html"}
KEY = bytes(32)


async def log_in(site: Web, token: str, **more: str) -> aiohttp.ClientResponse:
    """Log in as a browser does; the client keeps the cookie."""
    page = await site.call("GET", "/login")
    form = {"csrf": csrf_of(page), "token": token, **more}
    return await site.client.post("/login", data=form, allow_redirects=False)


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


async def test_a_session_reads_everything_and_its_forms_act(guarded: Web) -> None:
    answer = await log_in(guarded, "t-admin", next="/workers?x=1")
    assert (answer.status, answer.headers["Location"]) == (303, "/workers?x=1")
    said = answer.headers["Set-Cookie"]
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said
    assert "Secure" not in said
    await guarded.call("GET", "/v1/workers")
    await guarded.intake.queries.set_lane_paused("article.any", paused=False, actor="x")
    await guarded.call("POST", "/v1/jobs", token="admin", json={"kind": "article", "spec": {"prompt": "x"}}, expect=201)
    page = await guarded.call("GET", "/workers")
    form = {"csrf": csrf_of(page), "back": "/workers"}
    async with guarded.client.post("/lanes/article.any/pause", data=form, allow_redirects=False) as done:
        assert (done.status, done.headers["Location"]) == (303, "/workers")
    assert guarded.orders == [("article.any", True, "boss")]
    assert "article.any is paused." in await guarded.call("GET", "/workers")
    assert "article.any is paused." not in await guarded.call("GET", "/workers")  # said once


async def test_a_program_changes_nothing_with_a_cookie(guarded: Web) -> None:
    await log_in(guarded, "t-admin")
    await guarded.call("POST", "/v1/jobs", json={"kind": "article", "spec": {"prompt": "x"}}, expect=401)


@pytest.mark.parametrize("csrf", ["", "0" * 64, "ä" * 64, None])
async def test_a_form_without_the_sessions_token_is_refused(guarded: Web, csrf: str | None) -> None:
    await log_in(guarded, "t-admin")
    form = {} if csrf is None else {"csrf": csrf}
    error = await guarded.call("POST", "/lanes/article.any/pause", data=form, expect=403)
    assert error["error"]["code"] == "foreign_form"
    assert guarded.orders == []


async def test_another_sessions_form_token_is_refused(guarded: Web) -> None:
    before = csrf_of(await guarded.call("GET", "/login"))
    await log_in(guarded, "t-admin")
    await guarded.call("POST", "/lanes/article.any/pause", data={"csrf": before}, expect=403)


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize("path", ["/login", "/logout", "/workers/mini/drain"])
async def test_a_form_of_another_site_is_refused(guarded: Web, path: str, headers: dict[str, str]) -> None:
    await log_in(guarded, "t-admin")
    page = await guarded.call("GET", "/workers")
    form = {"csrf": csrf_of(page), "token": "t-admin"}
    await guarded.call("POST", path, data=form, headers=headers, expect=403)


@pytest.mark.parametrize("token", ["", "t-admi", "t-blog", "t\x00"])
async def test_no_session_for_nobodys_or_a_publishers_token(guarded: Web, token: str) -> None:
    answer = await log_in(guarded, token)
    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers
    await guarded.call("GET", "/v1/workers", expect=401)


async def test_too_many_wrong_tokens_from_one_address_have_to_wait(guarded: Web) -> None:
    for _ in range(10):
        assert (await log_in(guarded, "guess")).status == 403
    for token in ("guess", "t-admin"):
        answer = await log_in(guarded, token)
        assert answer.status == 429
        assert 0 < int(answer.headers["Retry-After"]) <= 60
        assert "Set-Cookie" not in answer.headers
        assert "try again in" in await answer.text()
    await guarded.call("GET", "/v1/workers", token="admin")  # programs are not concerned


async def test_a_browser_is_led_to_the_login_and_a_program_gets_401(guarded: Web) -> None:
    async with guarded.client.get("/jobs?state=failed", headers=PAGE, allow_redirects=False) as answer:
        assert answer.status == 303
        assert answer.headers["Location"] == "/login?next=%2Fjobs%3Fstate%3Dfailed"
    async with guarded.client.get("/jobs") as answer:
        assert answer.status == 401
        assert "Basic" in answer.headers["WWW-Authenticate"]
    async with guarded.client.get("/live/overview", headers={"Sec-Fetch-Mode": "cors"}) as answer:
        assert answer.status == 401
        assert "Basic" not in answer.headers["WWW-Authenticate"]  # the browser would ask the reader
    async with guarded.client.get("/jobs", headers={**PAGE, "Sec-Fetch-Site": "cross-site"}) as answer:
        assert answer.status == 200
        assert 'content="0;url=/jobs"' in await answer.text()


async def test_logging_out_ends_the_session_for_whoever_kept_its_cookie(guarded: Web) -> None:
    await log_in(guarded, "t-viewer")
    [kept] = [cookie.value for cookie in guarded.client.cookie_jar if cookie.key == "tandem_session"]
    page = await guarded.call("GET", "/workers")
    await guarded.call("POST", "/logout", data={"csrf": csrf_of(page)}, expect=200)
    await guarded.call("GET", "/v1/workers", expect=401)
    await guarded.call("GET", "/v1/workers", headers={"Cookie": f"tandem_session={kept}"}, expect=401)


async def test_over_https_the_cookie_never_goes_without_it(guarded: Web) -> None:
    context = replace(guarded.context, base_url="https://tandem.example")
    runner = await serve(make_app(context), "127.0.0.1", 0)
    async with aiohttp.ClientSession(runner.url) as client:
        headers = {"Host": "tandem.example"}
        async with client.get("/login", headers=headers) as answer:
            form = {"csrf": csrf_of(await answer.text()), "token": "t-admin"}
        async with client.post("/login", headers=headers, data=form, allow_redirects=False) as answer:
            assert "Secure" in answer.headers["Set-Cookie"]
    await runner.cleanup()


def who(access: Access, session: str | None) -> str | int:
    found = access.identify("GET", {"Host": "x"}, "192.0.2.1", session)
    return found.name if isinstance(found, Caller) else found.status


def session_for(access: Access, token: str) -> str:
    found = access.log_in(token)
    assert found is not None
    return found[1]


def test_a_session_ends_with_its_token_and_with_time() -> None:
    now = 1000.0
    tokens = list(TOKENS.values())
    access = Access(tokens, KEY, lambda: now)
    session = session_for(access, "t-admin")
    assert who(access, session) == "boss"
    assert who(Access(tokens, KEY, lambda: now), session) == "boss"  # another coordinator with the same key
    assert who(Access(tokens, bytes(31) + b"x", lambda: now), session) == 401
    changed = [AccessToken("boss", Role.ADMIN, SecretStr("t-new")), *tokens[1:]]
    assert who(Access(changed, KEY, lambda: now), session) == 401
    demoted = [AccessToken("boss", Role.VIEWER, SecretStr("t-admin")), *tokens[1:]]
    assert who(Access(demoted, KEY, lambda: now), session) == 401
    now += SESSION_S + 1
    assert who(access, session) == 401


def test_no_part_of_a_session_can_be_changed() -> None:
    access = Access(list(TOKENS.values()), KEY)
    ends_at, role, name, seal = session_for(access, "t-viewer").split(".")
    assert who(access, f"{ends_at}.{role}.{name}.{seal}") == "wall"
    for forged in (
        f"{int(ends_at) + 1}.{role}.{name}.{seal}",
        f"{ends_at}.admin.{name}.{seal}",
        f"{ends_at}.admin.boss.{seal}",
        f"{ends_at}.{role}.{name}.{seal[:-1]}0{seal[-1]}",
        f"{ends_at}.{role}.{name}.{'0' * 64}",
        f"{ends_at}.{role}.{name}",
        f"{ends_at}.{role}.{name}.{seal}.",
        "ä.b.c.d",
        "",
    ):
        assert who(access, forged) == 401, forged


def test_a_token_that_is_presented_counts_before_the_session() -> None:
    access = Access(list(TOKENS.values()), KEY)
    session = session_for(access, "t-admin")
    found = access.identify("GET", {"Host": "x", "Authorization": "Bearer wrong"}, "192.0.2.1", session)
    assert isinstance(found, Refusal)


@pytest.mark.parametrize(
    ("asked", "path"),
    [("/jobs?x=1", "/jobs?x=1"), ("//evil.example", "/"), ("/\\evil.example", "/"), ("https://evil.example", "/"),
     ("/a\nSet-Cookie: x", "/"), ("", "/")],
)  # fmt: skip
def test_one_is_only_sent_to_our_own_pages(asked: str, path: str) -> None:
    assert own_path(asked, "/") == path


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "session.key"
    made = session_key(path)
    assert len(made) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert session_key(path) == made
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        session_key(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(ConfigurationError, match="32 bytes"):
        session_key(path)


async def test_a_form_in_a_charset_that_nobody_knows_is_refused(guarded: Web) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=nonsense"}
    await guarded.call("POST", "/login", headers=headers, data=b"token=x", expect=400)


async def test_after_the_login_one_comes_to_no_address_that_only_takes_forms(guarded: Web) -> None:
    path = f"/jobs/{UUID(int=1)}/cancel"
    async with guarded.client.post(path, headers=PAGE, allow_redirects=False) as answer:
        assert answer.headers["Location"] == "/login?next=%2F"
