"""Tokens that are made and revoked while the coordinator runs, and how often anybody may ask."""

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from coordinator.embedded import EmbeddedPostgres
from coordinator.init_certificates import make_authority, make_server
from coordinator.ledger.access_tokens import AccessTokens, TokenRow
from coordinator.ledger.migrate import create_database_if_missing, revision_of
from coordinator.service import running
from coordinator.settings import CoordinatorSettings
from coordinator.tokens import Tokens, make_token
from coordinator.web.access import Access, Caller, Refusal, Role
from coordinator.web.rates import Rates
from shared.client import Client, RefusedRequestError
from shared.errors import ConfigurationError
from tests.support.ledger import set_clock_offset
from tests.support.processes import UpProcess, tandem, tandem_up
from tests.support.servers import TandemServers
from tests.support.web import Web
from tests.support.world import eventually_async
from tests.web.conftest import guarded, site, web_database, web_dsn
from tests.web.test_login import log_in

__all__ = ["guarded", "site", "web_database", "web_dsn"]

ARTICLE = {"kind": "article", "spec": {"prompt": "x"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def up() -> AsyncIterator[UpProcess]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    async with tandem_up(folder / "data") as running_up:
        yield running_up
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="session")
async def store(ledger_pool: asyncpg.Pool) -> AccessTokens:
    return AccessTokens(ledger_pool)


def shown(access: Access, token: str) -> Caller | Refusal:
    return access.identify("GET", {"Authorization": f"Bearer {token}", "Host": "x"}, "192.0.2.1")


async def test_a_token_is_good_at_once_is_listed_and_is_revoked(up: UpProcess) -> None:
    where = ("--data", str(up.data))
    status, token, error = await tandem("tokens", "new", "publisher", "blog", *where)
    assert status == 0, error
    token_id = re.search(r"token ([0-9a-f]{8});", error)[1]

    async with Client(up.connection["http"], token.strip()) as client:
        sent = await client.submit(ARTICLE)
        assert (await client.job(sent.id)).source == "blog"
        status, out, _ = await tandem("tokens", "list", *where)
        assert out.splitlines()[0].split() == ["id", "role", "name", "last", "used"]
        assert f"{token_id}  publisher  blog" in out
        assert "-         admin      admin" in out
        assert token.strip() not in out
        status, out, error = await tandem("tokens", "revoke", token_id, *where)
        assert (status, out) == (0, f"publisher blog: token {token_id} revoked\n"), error
        with pytest.raises(RefusedRequestError, match="unknown token"):
            await client.submit(ARTICLE)
    assert (await tandem("tokens", "revoke", token_id, *where))[0] == 1


async def test_the_ledger_has_no_token_in_it(store: AccessTokens, ledger_pool: asyncpg.Pool) -> None:
    made = await make_token(store, Role.ADMIN, "ann", actor="test")

    assert made.token.startswith("tandem_")
    for row in await ledger_pool.fetch(
        "SELECT t::text FROM access_token AS t UNION SELECT o::text FROM operator_action o"
    ):
        assert made.token not in row[0]


async def test_what_one_coordinator_makes_and_revokes_the_others_learn(store: AccessTokens) -> None:
    first, second = Tokens(store, Access()), Tokens(store, Access())
    made = await first.make(Role.VIEWER, "wall", actor="ann")
    assert shown(first.access, made.token) == Caller("wall", Role.VIEWER)
    await second.once()
    assert shown(second.access, made.token) == Caller("wall", Role.VIEWER)

    assert await second.revoke(made.id, actor="ann") == ("viewer", "wall")

    await first.once()
    assert shown(first.access, made.token) == Refusal(401, "unknown token", is_guess=True)


async def test_a_round_that_read_before_a_revocation_is_not_learned_after_it(store: AccessTokens) -> None:
    held, go_on = asyncio.Event(), asyncio.Event()

    class Slow(AccessTokens):
        """Its first answer comes late."""

        async def good(self) -> tuple[list[TokenRow], bool]:
            found = await super().good()
            if not held.is_set():
                held.set()
                await go_on.wait()
            return found

    made = await make_token(store, Role.ADMIN, "ann", actor="ann")
    tokens = Tokens(Slow(store._pool), Access())
    round_ = asyncio.create_task(tokens.once())
    await held.wait()
    revoking = asyncio.create_task(tokens.revoke(made.id, actor="ann"))
    while await store.good() != ([], True):
        pass
    await asyncio.wait({revoking}, timeout=0.2)
    go_on.set()
    await asyncio.gather(round_, revoking)

    assert isinstance(shown(tokens.access, made.token), Refusal)


async def test_revoking_the_last_token_opens_nothing(store: AccessTokens) -> None:
    tokens = Tokens(store, Access())
    assert tokens.access.open
    made = await tokens.make(Role.ADMIN, "ann", actor="ann")
    await tokens.revoke(made.id, actor="ann")

    assert not tokens.access.open
    found = tokens.access.identify("GET", {"Host": "127.0.0.1"}, "127.0.0.1")
    assert isinstance(found, Refusal)


async def test_two_tokens_of_one_name_are_revoked_one_by_one(store: AccessTokens) -> None:
    tokens = Tokens(store, Access())
    old, new = [await tokens.make(Role.PUBLISHER, "blog", actor="ann") for _ in range(2)]

    await tokens.revoke(old.id, actor="ann")

    assert isinstance(shown(tokens.access, old.token), Refusal)
    assert shown(tokens.access, new.token) == Caller("blog", Role.PUBLISHER)


async def test_when_a_token_was_used_last_is_kept_to_the_minute(store: AccessTokens, ledger_pool: asyncpg.Pool) -> None:
    tokens = Tokens(store, Access())
    made = await tokens.make(Role.ADMIN, "ann", actor="ann")
    assert (await tokens.good())[0].last_used_at is None

    async def used_at() -> object:
        shown(tokens.access, made.token)
        await tokens.once()
        return (await tokens.good())[0].last_used_at

    first = await used_at()
    assert first is not None
    assert await used_at() == first
    await set_clock_offset(ledger_pool, 90)
    assert await used_at() > first
    assert not tokens.access.used


async def test_a_session_ends_with_the_token_that_it_began_with(guarded: Web) -> None:
    tokens = Tokens(AccessTokens(guarded.pool), guarded.context.access)
    made = await tokens.make(Role.ADMIN, "ann", actor="boss")
    assert (await log_in(guarded, made.token)).status == 303
    await guarded.call("GET", "/v1/workers")

    await tokens.revoke(made.id, actor="boss")

    await guarded.call("GET", "/v1/workers", expect=401)


async def test_the_first_token_is_made_in_the_ledger_itself_and_lets_listen_beyond(
    servers: TandemServers, ledger_dsn: str, tmp_path: Path
) -> None:
    config = tmp_path / "tandem.toml"
    identities = servers.nats.identities
    make_authority(tmp_path)
    make_server(tmp_path, "http", ["vps.example.org"])
    config.write_text(
        f'postgres = "{ledger_dsn}"\nnats = "{servers.nats.url}"\nnats_seed = "{identities.coordinator}"\n'
        f'nats_provisioner_seed = "{identities.provisioner}"\nhttp = "127.0.0.1:0"\nhttps = "0.0.0.0:0"\n'
        f'https_cert = "{tmp_path / "http.crt"}"\nhttps_key = "{tmp_path / "http.key"}"\n'
        'public_url = "https://vps.example.org"\n'
        f'secrets = "{tmp_path / "secrets"}"\nartifacts = "{tmp_path / "artifacts"}"\n'
    )
    settings = CoordinatorSettings.load(config)
    with pytest.raises(ConfigurationError, match="needs a token"):
        async with running(settings):
            pass

    status, out, error = await tandem("tokens", "new", "admin", "ann", "--json", "--config", str(config))

    assert status == 0, error
    made = json.loads(out)
    async with running(settings) as coordinator, Client(coordinator.url, made["token"]) as client:
        assert await client.workers() == []
        status, out, _ = await tandem("tokens", "revoke", made["id"], "--config", str(config))
        assert status == 0

        async def is_out() -> bool:
            try:
                await client.workers()
            except RefusedRequestError as refused:
                return refused.status == 401
            return False

        await eventually_async(is_out)


async def test_listing_tokens_leaves_the_schema_as_it_is(postgres_server: EmbeddedPostgres, tmp_path: Path) -> None:
    dsn, config = postgres_server.dsn_of("without_schema"), tmp_path / "tandem.toml"
    await create_database_if_missing(dsn)
    config.write_text(f'postgres = "{dsn}"\n')

    status, _, error = await tandem("tokens", "list", "--config", str(config))

    assert (status, "tandem migrate" in error) == (1, True), error
    assert await revision_of(dsn) is None


async def test_only_an_administrator_sees_and_makes_tokens(guarded: Web) -> None:
    body = {"role": "admin", "name": "me"}
    for who in ("viewer", "publisher"):
        await guarded.call("GET", "/v1/tokens", token=who, expect=403)
        await guarded.call("POST", "/v1/tokens", token=who, json=body, expect=403)
        await guarded.call("DELETE", "/v1/tokens/12345678", token=who, expect=403)


@pytest.mark.parametrize("name", ["", "Two Words", "x" * 64, "a/b"])
async def test_a_name_that_is_no_source_is_refused(up: UpProcess, name: str) -> None:
    status, _, error = await tandem("tokens", "new", "publisher", name, "--data", str(up.data))

    assert (status, "NAME" in error) == (2, True)


# ---- how often


async def test_a_token_that_asks_too_often_waits_and_disturbs_no_other(guarded: Web) -> None:
    object.__setattr__(guarded.context, "rates", Rates(per_s=0.1, burst=2))
    for _ in range(2):
        await guarded.call("GET", "/v1/workers", token="viewer")

    headers = {"Authorization": "Bearer t-viewer"}
    async with guarded.client.get("/v1/workers", headers=headers) as answer:
        body = await answer.json()
        assert (answer.status, body["error"]["code"]) == (429, "too_many_requests")
        assert 1 <= int(answer.headers["Retry-After"]) <= 10
    await guarded.call("GET", "/v1/workers", token="admin")


async def test_asking_for_what_a_token_does_not_allow_counts_too(guarded: Web) -> None:
    object.__setattr__(guarded.context, "rates", Rates(per_s=0.1, burst=2))
    for expected in (403, 403, 429):
        await guarded.call("GET", "/v1/tokens", token="viewer", expect=expected)


async def test_guessing_tokens_is_answered_429_and_the_right_one_passes(guarded: Web) -> None:
    async def guess(**headers: str) -> int:
        async with guarded.client.get("/v1/workers", headers={"Authorization": "Bearer no", **headers}) as answer:
            return answer.status

    found = [await guess() for _ in range(32)]
    assert set(found[:30]) == {401}
    assert found[-1] == 429
    await guarded.call("GET", "/v1/workers", token="viewer")
    assert await guess(**{"X-Forwarded-For": "203.0.113.7"}) == 401


async def test_logins_are_limited_whoever_tries(guarded: Web) -> None:
    for _ in range(10):
        assert (await log_in(guarded, "wrong")).status == 403

    refused = await log_in(guarded, "t-admin")

    assert refused.status == 429
    assert int(refused.headers["Retry-After"]) >= 1


async def test_a_login_that_works_costs_no_try(guarded: Web) -> None:
    for _ in range(12):
        assert (await log_in(guarded, "t-admin")).status == 303
