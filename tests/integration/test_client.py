"""The publisher's client, over HTTP and over NATS, and the examples of docs/client.md as they stand there."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest
import pytest_asyncio

from shared.client import Client, RefusedRequestError, ResultMessage, Submitted
from shared.errors import ConfigurationError, UnreachableError
from shared.ids import job_id_of
from shared.wire import ResultMessage as WireResult
from tests.support.agents import agent
from tests.support.puppet import WAIT_S, Puppet
from tests.support.servers import TandemServers, eventually, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

ARTICLE = {"kind": "article", "spec": {"prompt": "A walk"}}


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


def over_http(world: World) -> Client:
    return Client(world.coordinator.url)


def over_nats(servers: TandemServers, source: str = "local", **options: Any) -> Client:
    servers.bus(f"publisher:{source}")  # makes the identity
    return Client(servers.nats.url, source=source, seed=servers.nats.identities.publisher_seed(source), **options)


async def finish(puppet: Puppet, text: str = "# Done") -> str:
    """Do the next job; return its id."""
    held = await puppet.take()
    await puppet.report(held.job_id, held.epoch, result={"text": text})
    await puppet.hears("verdict", job_id=held.job_id, verdict="accepted")
    return held.job_id


# ---- over HTTP


async def test_a_job_is_submitted_and_waited_for(world: World) -> None:
    mini = await world.puppet("mini")
    async with over_http(world) as client:
        sent = await client.submit({**ARTICLE, "key": "post-1"})
        waiting = asyncio.create_task(client.wait(sent.id))
        await finish(mini)
        job = await asyncio.wait_for(waiting, WAIT_S)
        again = await client.submit({**ARTICLE, "key": "post-1"})

    assert (job.id, job.state, job.result) == (sent.id, "completed", {"text": "# Done"})
    assert (sent.how, again.how, again.id) == ("created", "same", sent.id)


async def test_waiting_outlives_a_restart_of_the_coordinator(world: World) -> None:
    mini = await world.puppet("mini")
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(over_http(world))
        sent = await client.submit(ARTICLE)
        port = int(world.coordinator.url.rpartition(":")[2])
        waiting = asyncio.create_task(client.wait(sent.id))
        await eventually(lambda: world.coordinator.url != "" and not waiting.done())
        await world.stop_coordinator()
        world.settings = world.settings.model_copy(update={"http": f"127.0.0.1:{port}"})
        await world.start_coordinator()
        await finish(mini)
        job = await asyncio.wait_for(waiting, WAIT_S)

    assert job.state == "completed"


async def test_events_tell_what_happens_to_a_job(world: World) -> None:
    mini = await world.puppet("mini")
    async with over_http(world) as client:
        sent, other = await client.submit(ARTICLE), await client.submit(ARTICLE)
        seen: list[tuple[UUID, str]] = []

        async def listen() -> None:
            async for event in client.events(sent.id):
                seen.append((event.job_id, event.type))
                if event.type == "completed":
                    return

        async def heard() -> bool:
            for job_id in (other.id, sent.id):
                await client.cancel(job_id)
                await client.retry(job_id)
            return bool(seen)

        listening = asyncio.create_task(listen())
        await eventually_async(heard)
        while await finish(mini) != str(sent.id):
            continue
        await asyncio.wait_for(listening, WAIT_S)

    assert {job_id for job_id, _ in seen} == {sent.id}
    assert seen[-1] == (sent.id, "completed")


async def test_many_are_submitted_in_order_and_one_that_is_refused_fails_no_other(world: World) -> None:
    async with over_http(world) as client:
        outcomes = await client.submit_many(
            [
                {**ARTICLE, "key": "a"},
                {"kind": "article", "spec": {"prompt": "", "promt": "typo"}},
                {**ARTICLE, "key": "b"},
            ],
            at_once=2,
        )

    first, refused, last = outcomes
    assert isinstance(first, Submitted)
    assert isinstance(last, Submitted)
    assert (first.id, last.id) == (job_id_of("local", "a"), job_id_of("local", "b"))
    assert isinstance(refused, RefusedRequestError)
    assert refused.status == 422
    assert [fault.field for fault in refused.faults] == ["spec.prompt", "spec.promt"]


async def test_a_server_that_is_not_there_is_an_outcome_of_each() -> None:
    async with Client("http://127.0.0.1:1") as client:
        outcomes = await client.submit_many([ARTICLE, ARTICLE])
    assert [type(outcome) for outcome in outcomes] == [UnreachableError, UnreachableError]


async def test_what_only_one_transport_has_is_refused_by_the_other(servers: TandemServers) -> None:
    async with Client("http://127.0.0.1:1") as http, over_nats(servers) as nats:
        with pytest.raises(ConfigurationError, match="results come over NATS"):
            http.results()
        with pytest.raises(ConfigurationError, match="over HTTP only"):
            await nats.wait(job_id_of("local", "a"))


@pytest.mark.parametrize("url", ["ftp://here", "here:8420", "http://", "http://[::1", "https://u:secret@[bad", ""])
def test_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="that is not an http") as refused:
        Client(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://vps.example.org", "nats://192.168.1.10:4222", "nats://u:p@vps.example.org"])
def test_a_way_without_tls_off_this_machine_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not encrypted") as refused:
        Client(url, "token", source="blog")
    assert "u:p" not in str(refused.value)
    Client(url.replace("://", "s://"), "token", source="blog")


def test_tls_that_is_demanded_of_nats_is_enough() -> None:
    tls = ssl.create_default_context()
    Client("nats://vps.example.org", source="blog", tls=tls)
    with pytest.raises(ConfigurationError, match="is not encrypted"):
        Client("http://vps.example.org", "token", tls=tls)


def test_nats_needs_a_source() -> None:
    with pytest.raises(ConfigurationError, match="source"):
        Client("nats://127.0.0.1:4222", source="Not A Name")


# ---- over NATS


async def test_a_submission_over_nats_has_the_id_that_the_client_said(world: World) -> None:
    async with over_nats(world.servers) as client:
        keyed = await client.submit({**ARTICLE, "key": "post-1"})
        free = await client.submit(ARTICLE)

    for sent in (keyed, free):
        await eventually_async(lambda id_=sent.id: world.pool.fetchval("SELECT true FROM job WHERE id = $1", id_))
    assert keyed.id == job_id_of("local", "post-1")
    assert {keyed.how, free.how} == {"queued"}


async def test_a_malformed_submission_is_refused_before_it_is_sent(servers: TandemServers) -> None:
    async with over_nats(servers) as client:
        with pytest.raises(RefusedRequestError) as refused:
            await client.submit({"kind": "image", "spec": {"prompt": "x", "width": 65}})
    assert [fault.field for fault in refused.value.faults] == ["spec.width"]


async def test_an_identity_without_the_right_is_told_so(servers: TandemServers) -> None:
    servers.bus("publisher:blog")
    await servers.nats.reloaded()
    seed = servers.nats.identities.publisher_seed("blog")
    async with Client(servers.nats.url, source="local", seed=seed) as client:
        with pytest.raises(RefusedRequestError) as refused:
            await client.submit(ARTICLE)
    assert refused.value.status == 403


async def test_nats_that_is_not_there_is_unreachable(servers: TandemServers) -> None:
    seed = servers.nats.identities.publisher_seed("local")
    async with Client("nats://127.0.0.1:1", source="local", seed=seed, timeout_s=0.2) as client:
        with pytest.raises(UnreachableError, match="repeat it with the same key"):
            await client.submit({**ARTICLE, "key": "a"})


async def test_results_come_once_each_is_dealt_with(world: World) -> None:
    mini = await world.puppet("mini")
    async with over_nats(world.servers) as client:
        for number in range(3):
            await client.submit({**ARTICLE, "key": f"post-{number}"})
        for number in range(3):
            await finish(mini, f"# {number}")
        seen: list[ResultMessage] = []
        async with contextlib.aclosing(client.results()) as results:
            async with asyncio.timeout(WAIT_S):
                async for result in results:
                    seen.append(result)
                    if len(seen) == 3:
                        break

    assert {result.job_id for result in seen} == {job_id_of("local", f"post-{number}") for number in range(3)}
    assert {result.state for result in seen} == {"completed"}
    assert await waiting_results(world) == 1  # the one whose loop was left


async def test_a_result_whose_body_failed_comes_again(world: World) -> None:
    mini = await world.puppet("mini")
    async with over_nats(world.servers) as client:
        sent = await client.submit(ARTICLE)
        await finish(mini)
        with pytest.raises(ZeroDivisionError):
            await first_of(client, lambda _: 1 // 0)
        again = await first_of(client, lambda result: result)

    assert again.job_id == sent.id


async def test_results_go_on_when_nats_comes_back(world: World) -> None:
    mini = await world.puppet("mini")
    async with over_nats(world.servers) as client:
        seen: list[UUID] = []

        async def read() -> None:
            async for result in client.results():
                seen.append(result.job_id)  # noqa: PERF401 - it never ends

        reading = asyncio.create_task(read())
        first = await client.submit({**ARTICLE, "key": "a"})
        await finish(mini)
        await eventually(lambda: first.id in seen)
        await world.servers.nats.restart()
        await world.reconnected(mini)
        second = await client.submit({**ARTICLE, "key": "b"})
        await finish(mini)
        await eventually(lambda: second.id in seen)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    assert set(seen) == {first.id, second.id}


async def test_an_unreadable_result_stops_nobody(world: World) -> None:
    mini = await world.puppet("mini")
    await world.coordinator.bus.js_publish("tandem.result.local.article.x", b"{}")
    async with over_nats(world.servers) as client:
        sent = await client.submit(ARTICLE)
        await finish(mini)
        assert (await first_of(client, lambda result: result)).job_id == sent.id


async def waiting_results(world: World) -> int:
    """Return how many results the source has not acknowledged."""
    info = await world.coordinator.bus.api("CONSUMER.INFO.RESULTS.results-local")
    return int(info["num_pending"] + info["num_ack_pending"])


async def first_of(client: Client, body: Any) -> Any:
    """Return what the loop's body makes of the first result."""
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(client.results()) as results:
        async for result in results:
            return body(result)
    raise AssertionError


# ---- docs/client.md


def examples() -> dict[str, Any]:
    """Run every block of the page, in one module."""
    page = Path(__file__).parents[2] / "docs" / "client.md"
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, "docs/client.md", "exec"), names)  # our own words
    return names


async def test_the_examples_over_http_run(world: World, tmp_path: Path) -> None:
    page, url = examples(), world.coordinator.url
    async with agent(world.servers, "mini", tmp_path):
        text = await page["one_article"](url, "")
        sent, refused = await page["a_gallery"](url, "", ["A boat", ""])
        async with Client(url) as client:
            job = await client.wait(sent[0].id)
            content = await page["content_of"](client, job.id, job.artifacts[0])

    assert text.startswith("#")
    assert content.startswith(b"\x89PNG")
    assert len(refused) == 1
    assert "spec.prompt" in refused[0]


async def test_the_examples_over_nats_run(world: World) -> None:
    page, mini = examples(), await world.puppet("mini")
    world.servers.bus("publisher:local")
    seed = world.servers.nats.identities.publisher_seed("local")
    seen: list[WireResult] = []

    async def publish(result: WireResult) -> str:
        seen.append(result)
        await page["store"](result)
        return "enough"

    running = asyncio.create_task(page["publish_all"](world.servers.nats.url, "local", seed, publish))
    await finish(mini)
    await asyncio.wait_for(running, WAIT_S)

    assert [result.key for result in seen] == ["post-813"]
    assert orjson.loads(seen[0].model_dump_json())["state"] == "completed"
