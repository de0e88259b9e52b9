"""Callbacks: a settled job is told to its callback_url until that takes it; nothing lost, nothing that leads inside."""

import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
import pytest_asyncio
from aiohttp import web
from pydantic import SecretStr

from coordinator.addresses import is_allowed, refused_host
from coordinator.callback_secrets import CallbackSecrets
from coordinator.callbacks import (
    AT_ONCE,
    GIVEN_UP_S,
    PER_HOST,
    TAKEN_S,
    Callbacks,
    RefusedAddressError,
    pause_s,
)
from coordinator.ledger.queries import Queries
from coordinator.retry_after import asked_s
from coordinator.service import running
from shared.errors import ConfigurationError
from tests.callbacks.receiver import Receiver, hang, receiving, status
from tests.support.servers import eventually, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

LOCAL = frozenset({ip_network("127.0.0.0/8")})


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, callback_allow=LOCAL) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def receiver(world: World) -> AsyncIterator[Receiver]:
    async with receiving() as made:
        made.secret = (world.settings.secrets / "callback.key").read_text().strip()
        yield made


async def told(world: World, job_id: str) -> list[dict[str, Any]]:
    async with world.http.get(f"/v1/jobs/{job_id}/callbacks") as answer:
        assert answer.status == 200
        return (await answer.json())["callbacks"]


async def until(world: World, job_id: str, end: str) -> dict[str, Any]:
    """Return the job's newest callback once it has come to this end: next_at, delivered_at, given_up_at."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        found[:] = await told(world, job_id)
        return bool(found) and found[-1][end] is not None and (end != "next_at" or found[-1]["error"] is not None)

    await eventually_async(look)
    return found[-1]


async def settled(world: World, url: str, **more: Any) -> str:
    """Submit a job with this callback_url and cancel it; return its id."""
    job = await world.submit(callback_url=url, **more)
    await world.act(job["id"], "cancel")
    return job["id"]


async def test_a_result_is_told_as_results_has_it_and_signed(world: World, receiver: Receiver) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(callback_url=receiver.url, key="post-1", labels={"post": "1"})
    held = await mini.take()
    await held.report(result={"text": "Färöer"})
    found = await until(world, job["id"], "delivered_at")
    ((webhook_id, body),) = receiver.heard
    assert webhook_id == found["webhook_id"] == f"{job['id']}:1"
    assert (body["state"], body["result"], body["labels"]) == ("completed", {"text": "Färöer"}, {"post": "1"})
    async with world.servers.open("publisher:local") as publisher:
        message = await publisher.pull_one("RESULTS", "results-local", expires_s=10)
    assert message is not None
    assert orjson.loads(message.data) == body
    assert (found["attempts"], found["status"], found["error"]) == (1, 204, None)
    async with world.http.get(f"/v1/jobs/{job['id']}") as answer:
        assert [one["webhook_id"] for one in (await answer.json())["callbacks"]] == [webhook_id]


async def test_each_state_that_a_job_settles_in_is_told_once(world: World, receiver: Receiver) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(callback_url=receiver.url, review=True)
    await (await mini.take()).report()
    await until(world, job["id"], "delivered_at")
    await world.act(job["id"], "approve")
    await eventually_async(lambda: _heard(receiver, 2))
    assert [body["state"] for _, body in receiver.heard] == ["awaiting_review", "completed"]
    assert receiver.ids == [f"{job['id']}:1", f"{job['id']}:1:completed"]
    await world.coordinator.queries.republish(3600)  # as after a loss of RESULTS
    await world.coordinator.results.once()
    await world.coordinator.callbacks.once()
    assert len(await told(world, job["id"])) == len(receiver.heard) == 2


async def _heard(receiver: Receiver, many: int) -> bool:
    return len(receiver.heard) >= many


async def test_a_job_without_a_callback_url_tells_nobody(world: World) -> None:
    job = await world.submit()
    await world.act(job["id"], "cancel")
    await world.coordinator.results.once()
    assert await told(world, job["id"]) == []
    async with world.http.post(f"/v1/jobs/{job['id']}/callbacks/again") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (409, "no_callback")


@pytest.mark.parametrize("code", [400, 404, 500, 503])
async def test_what_is_not_taken_is_sent_again_after_a_growing_pause(
    world: World, receiver: Receiver, code: int
) -> None:
    receiver.answers += [status(code), status(code)]
    job_id = await settled(world, receiver.url)
    first = await until(world, job_id, "next_at")
    assert (first["attempts"], first["status"], first["error"]) == (1, code, f"status: {code}")
    for _ in range(2):
        await world.move_clock(20)
        await world.coordinator.callbacks.once()
        await eventually_async(lambda: _idle(world))
    found = await until(world, job_id, "delivered_at")
    assert found["attempts"] == 3
    assert receiver.ids == [f"{job_id}:0"] * 3


async def _idle(world: World) -> bool:
    return not world.coordinator.callbacks._running


async def test_a_redirect_is_not_followed(world: World, receiver: Receiver) -> None:
    async with receiving() as inside:
        receiver.answers.append(status(307, Location=inside.url))
        job_id = await settled(world, receiver.url)
        found = await until(world, job_id, "next_at")
        assert found["error"] == "redirect: 307; redirects are not followed"
        assert inside.heard == []


async def test_who_is_gone_is_not_asked_again(world: World, receiver: Receiver) -> None:
    receiver.answers.append(status(410))
    job_id = await settled(world, receiver.url)
    assert (await until(world, job_id, "given_up_at"))["attempts"] == 1


async def test_after_a_day_it_is_given_up_listed_and_sent_again_by_a_person(world: World, receiver: Receiver) -> None:
    receiver.answers += [status(500), status(500)]
    job_id = await settled(world, receiver.url)
    await until(world, job_id, "next_at")
    await world.move_clock(GIVEN_UP_S)
    await world.coordinator.callbacks.once()
    await until(world, job_id, "given_up_at")
    async with world.http.get("/v1/callbacks") as answer:
        assert [one["job_id"] for one in (await answer.json())["undelivered"]] == [job_id]
    async with world.http.get(f"/jobs/{job_id}") as answer:
        page = await answer.text()
    assert receiver.url in page
    assert "given up" in page
    async with world.http.post(f"/v1/jobs/{job_id}/callbacks/again") as answer:
        assert answer.status == 200
    found = await until(world, job_id, "delivered_at")
    assert found["attempts"] == 1
    async with world.http.get(f"/v1/jobs/{job_id}") as answer:
        assert [one["action"] for one in (await answer.json())["actions"]] == ["cancel", "callback"]


async def test_a_receiver_that_hangs_costs_its_time_and_delays_no_other(world: World, receiver: Receiver) -> None:
    receiver.answers += [hang] * (2 * PER_HOST)
    for _ in range(2 * PER_HOST):
        await settled(world, receiver.url)
    await eventually_async(lambda: _heard(receiver, PER_HOST))
    async with receiving() as other:
        other.secret = receiver.secret
        await until(world, await settled(world, other.url), "delivered_at")
    assert len(receiver.heard) == PER_HOST < AT_ONCE


async def test_a_try_ends_after_its_limit(world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.callbacks.LIMIT_S", 0.2)
    receiver.answers.append(hang)
    found = await until(world, await settled(world, receiver.url), "next_at")
    assert found["error"] == "timeout: no answer within 0.2 s"


async def test_what_a_dead_coordinator_had_taken_is_sent_by_another(world: World, receiver: Receiver) -> None:
    receiver.answers.append(hang)
    job_id = await settled(world, receiver.url)
    await eventually_async(lambda: _heard(receiver, 1))
    await world.stop_coordinator()
    await world.start_coordinator()
    await world.coordinator.callbacks.once()
    assert len(receiver.heard) == 1  # it may still be under way
    await world.move_clock(TAKEN_S)
    await world.coordinator.callbacks.once()
    await until(world, job_id, "delivered_at")
    assert receiver.ids == [f"{job_id}:0"] * 2


async def test_two_coordinators_never_send_the_same_at_once(world: World, receiver: Receiver, tmp_path: Path) -> None:
    second = world.settings.model_copy(update={"http": "127.0.0.1:0"})
    async with running(second) as other:
        jobs = [await settled(world, receiver.url) for _ in range(20)]
        for job_id in jobs:
            await until(world, job_id, "delivered_at")
        assert sorted(receiver.ids) == sorted(f"{job_id}:0" for job_id in jobs)
        both = (world.coordinator.callbacks, other.callbacks)
        await eventually(lambda: sum(one.delivered for one in both) == 20)  # counted once it is noted


async def test_the_receiver_of_the_docs_takes_it(world: World, receiver: Receiver, capsys: Any) -> None:
    """The example of docs/callbacks.md, as it stands there but for the secret and an address to listen on."""
    text = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code.replace("whsec_...", receiver.secret), "docs/callbacks.md", "exec"), names)  # our own words
    runner = web.AppRunner(names["app"], access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/told"
        job_id = await settled(world, url)
        assert (await until(world, job_id, "delivered_at"))["status"] == 204
        assert names["taken"] == {f"{job_id}:0"}
        assert f"{job_id} canceled" in capsys.readouterr().out
        async with aiohttp.ClientSession() as stranger, stranger.post(url, data=b"{}") as answer:
            assert answer.status == 401
    finally:
        await runner.cleanup()


# ---- where it may go


@pytest_asyncio.fixture(loop_scope="session")
async def strict(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    """A coordinator that may call back public addresses only, as is usual."""
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    "host", ["127.0.0.1:80", "localhost:1", "[::1]", "10.0.0.8", "169.254.169.254", "[::ffff:192.168.0.1]", "0.0.0.0"]
)
async def test_an_address_inside_is_refused_at_the_door(strict: World, host: str) -> None:
    answer = await strict.submit(callback_url=f"http://{host}/", expect=422)
    assert [fault["field"] for fault in answer["error"]["faults"]] == ["callback_url"]


async def test_a_name_that_leads_inside_is_refused_when_the_connection_is_made(
    strict: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the name meant when the submission came: what counts is the address that is connected to."""
    ask = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **more: Any) -> Any:
        return ask("127.0.0.1" if host == "blog.example" else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with receiving() as inside:
        job_id = await settled(strict, f"http://blog.example:{inside.port}/told")
        found = await until(strict, job_id, "next_at")
        assert found["error"] == "address: 127.0.0.1 is not a public address, and callback_allow does not name it"
        assert inside.heard == []


@pytest.mark.parametrize(
    ("url", "networks", "refused"),
    [
        ("http://93.184.216.34/", [], "would be told without TLS"),
        ("https://93.184.216.34/", [], None),
        ("http://93.184.216.34/", ["93.184.216.0/24"], None),
        ("http://127.0.0.1/", [], "is not a public address"),
        ("https://127.0.0.1/", [], "is not a public address"),
        ("http://127.0.0.1/", ["127.0.0.0/8"], None),
    ],
)
async def test_without_tls_a_callback_goes_only_where_the_settings_say(
    ledger_pool: Any, url: str, networks: list[str], refused: str | None
) -> None:
    callbacks = Callbacks(Queries(ledger_pool), lambda _: "", [ip_network(network) for network in networks])
    session = callbacks._open(url)
    make = session.connector._socket_factory
    where = (socket.AF_INET, socket.SOCK_STREAM, 0, "", (urlsplit(url).hostname, 80))
    if refused is None:
        make(where).close()
    else:
        with pytest.raises(RefusedAddressError, match=refused):
            make(where)
    await callbacks.close()


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("192.168.1.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("0.0.0.0", False),
        ("::1", False),
        ("fd00::1", False),
        ("fe80::1", False),
        ("ff0e::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("2002:0a00:0001::1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("64:ff9b:1::a00:1", False),
        ("::127.0.0.1", False),
        ("fec0::1", False),
        ("192.0.0.8", False),
    ],
)
def test_only_public_addresses_are_called_back(address: str, allowed: bool) -> None:  # noqa: FBT001
    assert is_allowed(ip_address(address), ()) is allowed


def test_a_network_that_is_named_may_be_called_back() -> None:
    assert is_allowed(ip_address("10.1.2.3"), [ip_network("10.1.0.0/16")])
    assert is_allowed(ip_address("::ffff:10.1.2.3"), [ip_network("10.1.0.0/16")])
    assert not is_allowed(ip_address("10.2.2.3"), [ip_network("10.1.0.0/16")])
    assert refused_host("LOCALHOST.", ())
    assert not refused_host("localhost", LOCAL)
    assert not refused_host("blog.example", ())


# ---- pauses, secrets


def test_pauses_grow_threefold_up_to_an_hour() -> None:
    assert [round(pause_s(n, 0)) for n in range(1, 9)] == [5, 15, 45, 135, 405, 1215, 3600, 3600]
    assert (pause_s(1, -1), pause_s(1, 1), pause_s(10**9, 0)) == (4, 6, 3600)
    assert pause_s(1, 0, 60) == 60
    assert pause_s(3, 0, 1) == 45
    assert pause_s(1, 0, 10**9) == 3600


def test_a_receiver_may_ask_for_a_pause_in_seconds_or_until_a_date() -> None:
    now = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
    assert asked_s("120", now) == 120
    assert asked_s("Mon, 30 Nov 2026 12:01:00 GMT", now) == 60
    assert asked_s("soon", now) is asked_s(None, now) is None
    assert asked_s("Mon, 30 Nov 2026 12:01:00 +9999999999999999", now) is None


def test_a_source_may_have_a_secret_of_its_own(tmp_path: Path) -> None:
    own = SecretStr("whsec_" + "b" * 32)
    secrets = CallbackSecrets.load_or_create(tmp_path / "s" / "callback.key", {"blog": own})
    assert secrets.of("blog") == own.get_secret_value()
    assert secrets.of("shop") == (tmp_path / "s" / "callback.key").read_text().strip()
    again = CallbackSecrets.load_or_create(tmp_path / "s" / "callback.key", {})
    assert again.of("blog") == again.of("shop") == secrets.of("shop")


@pytest.mark.parametrize("secret", ["", "whsec_", "secret", "whsec_ä", "YWJj"])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, secret: str) -> None:
    with pytest.raises(ConfigurationError, match="callback secret of blog"):
        CallbackSecrets.load_or_create(tmp_path / "callback.key", {"blog": SecretStr(secret)})


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "callback.key"
    CallbackSecrets.load_or_create(path, {})
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        CallbackSecrets.load_or_create(path, {})
