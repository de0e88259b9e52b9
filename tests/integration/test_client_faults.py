"""The publisher's client when things go wrong: restarts, a proxy that answers for a coordinator, slow links."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from shared import client_wait
from shared.client import Client, RefusedRequestError, ResultMessage, Submitted
from shared.errors import ConfigurationError, TandemError, UnreachableError
from tests.support.puppet import WAIT_S
from tests.support.served import Handler, served
from tests.support.servers import eventually, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

ARTICLE = {"kind": "article", "spec": {"prompt": "A walk"}}
JOB_ID = UUID("01970000-0000-7000-8000-000000000001")
JOB = {
    "id": str(JOB_ID),
    "source": "blog",
    "kind": "article",
    "lane": "article.any",
    "state": "completed",
    "created_at": "2026-11-30T00:00:00Z",
    "result": {"text": "# Done"},
}


def answering(*answers: tuple[int, Any]) -> Handler:
    """Answer what is asked about the job by one after the other, the last one again and again; have no events."""
    left = list(answers)

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/v1/events":
            return web.Response(status=502, text="<h1>Bad Gateway</h1>")
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return (
            web.Response(status=status, text=body) if isinstance(body, str) else web.json_response(body, status=status)
        )

    return handler


def refusal(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": code, "faults": []}}


async def test_waiting_outlives_a_proxy_that_speaks_for_the_coordinator() -> None:
    away = ((502, "<h1>Bad Gateway</h1>"), (502, {"error": "bad gateway"}), (503, refusal("ledger_down")), (504, ""))
    async with served(answering(*away, (200, JOB))) as url, Client(url, "t") as client:
        job = await asyncio.wait_for(client.wait(JOB_ID), WAIT_S)
    assert job.result == {"text": "# Done"}


async def test_waiting_ends_at_once_where_only_a_person_can_help() -> None:
    for status in (401, 403, 404):
        async with served(answering((status, refusal("no")), (200, JOB))) as url, Client(url, "t") as client:
            with pytest.raises(RefusedRequestError) as refused:
                await asyncio.wait_for(client.wait(JOB_ID), WAIT_S)
        assert refused.value.status == status


async def test_a_job_that_was_taken_without_the_ledger_is_waited_for_until_it_is_admitted() -> None:
    answers = ((202, {"id": str(JOB_ID), "state": "queued"}), (404, refusal("not_found")), (404, refusal("not_found")))
    async with served(answering(*answers, (200, JOB))) as url, Client(url, "t") as client:
        sent = await client.submit(ARTICLE)
        job = await asyncio.wait_for(client.wait(str(sent.id)), WAIT_S)
    assert (sent.how, job.state) == ("queued", "completed")


async def test_once_it_was_admitted_it_is_like_any_other() -> None:
    answers = ((202, {"id": str(JOB_ID), "state": "queued"}), (200, JOB), (404, refusal("not_found")))
    async with served(answering(*answers)) as url, Client(url, "t") as client:
        sent = await client.submit(ARTICLE)
        await asyncio.wait_for(client.wait(sent.id), WAIT_S)
        with pytest.raises(RefusedRequestError):
            await asyncio.wait_for(client.wait(sent.id), WAIT_S)


async def test_however_many_wait_one_stream_wakes_each_for_its_own_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_wait, "_ASK_S", 3600.0)
    monkeypatch.setattr(client_wait, "_HEARING_S", 3600.0)
    jobs = [UUID(int=number) for number in range(150)]  # more than the connections of a session
    asked, states, over = Counter[str](), dict.fromkeys(map(str, jobs), "pending"), asyncio.Event()
    streams: list[web.StreamResponse] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/events":
            streams.append(web.StreamResponse())
            await streams[-1].prepare(request)
            await streams[-1].write(b": listening\n\n")
            await over.wait()
            return streams[-1]
        job_id = request.path.rpartition("/")[2]
        asked[job_id] += 1
        return web.json_response({**JOB, "id": job_id, "state": states[job_id]})

    async def completed(*done: UUID) -> None:
        for job_id in map(str, done):
            states[job_id] = "completed"
            await streams[0].write(b"event: completed\ndata: %b\n\n" % orjson.dumps({"job_id": job_id}))

    async with served(handler) as url, Client(url, "t") as client, asyncio.TaskGroup() as group:
        waits = [group.create_task(client.wait(job_id), name="wait") for job_id in jobs]
        await eventually(lambda: asked.total() == 2 * len(jobs))  # before events were heard, and once they are
        await completed(jobs[0])
        assert (await asyncio.wait_for(waits[0], WAIT_S)).id == jobs[0]
        await completed(*jobs[1:])
        await asyncio.wait_for(asyncio.gather(*waits), WAIT_S)
        over.set()
    assert set(asked.values()) == {3}
    assert len(streams) == 1


async def test_an_answer_that_does_not_come_is_unreachable() -> None:
    never = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    async with served(hang) as url, Client(url, "t", timeout_s=0.2) as client:
        with pytest.raises(UnreachableError, match=r"no answer from .* within 0\.2 s"):
            await client.submit(ARTICLE)
        never.set()


class MovedLoop(asyncio.SelectorEventLoop):
    """A loop on which time passes when a test says so, beside what passes by itself."""

    passed_s = 0.0

    def time(self) -> float:
        return super().time() + self.passed_s


def test_a_file_may_take_longer_than_an_answer_as_long_as_it_comes() -> None:
    async def read(loop: MovedLoop) -> bytes:
        taken = asyncio.Event()

        async def slowly(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(4):
                await response.write(b"part")
                await taken.wait()
                taken.clear()
            return response

        content = b""
        async with served(slowly) as url, Client(url, "t", timeout_s=60.0) as client:
            async for chunk in client.artifact(JOB_ID, "a.txt"):
                content += chunk
                loop.passed_s += 25.0
                taken.set()
        return content

    loop = MovedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(read(loop)) == b"part" * 4


async def test_a_file_that_is_cut_off_is_no_file() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"part")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with served(cut) as url, Client(url, "t") as client:
        with pytest.raises(UnreachableError):
            b"".join([chunk async for chunk in client.artifact(JOB_ID, "a.txt")])


async def test_what_is_no_json_and_who_is_no_tandem_fails_no_other_submission() -> None:
    created = {"id": str(JOB_ID), "state": "pending"}
    answers = ((200, "<h1>Welcome</h1>"), (200, ["Welcome"]), (502, {"error": "bad gateway"}), (201, created))
    async with served(answering(*answers)) as url, Client(url, "t") as client:
        outcomes = await client.submit_many([{**ARTICLE, "labels": {1}}, *[ARTICLE] * 4], at_once=1)
    unsent, *strange, refused, sent = outcomes
    assert isinstance(unsent, RefusedRequestError)
    assert unsent.status == 422
    for outcome in strange:
        assert isinstance(outcome, TandemError)
        assert "does not answer as a Tandem coordinator does" in str(outcome)
    assert isinstance(refused, RefusedRequestError)
    assert (refused.status, str(refused)) == (502, "HTTP 502")
    assert isinstance(sent, Submitted)


@pytest.mark.parametrize("token", ["two\nlines", "line\n", " t", "tökén", "\x00"])
def test_a_token_that_no_header_can_carry_is_refused_at_once(token: str) -> None:
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        Client("http://127.0.0.1:1", token)


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


async def restart(world: World) -> None:
    port = world.coordinator.url.rpartition(":")[2]
    await world.stop_coordinator()
    world.settings = world.settings.model_copy(update={"http": f"127.0.0.1:{port}"})
    await world.start_coordinator()


async def test_a_restart_in_the_middle_of_many_loses_none_that_is_submitted_again(world: World) -> None:
    submissions = [{**ARTICLE, "key": f"post-{number}"} for number in range(200)]
    async with Client(world.coordinator.url) as client:
        sending = asyncio.create_task(client.submit_many(submissions, at_once=4))
        await eventually_async(lambda: world.pool.fetchval("SELECT count(*) FROM job"))
        await restart(world)
        outcomes = await asyncio.wait_for(sending, WAIT_S)
        failed = [
            body for body, outcome in zip(submissions, outcomes, strict=True) if not isinstance(outcome, Submitted)
        ]
        again = await client.submit_many(failed)

    assert {type(outcome) for outcome in outcomes} <= {Submitted, UnreachableError, RefusedRequestError}
    assert all(isinstance(outcome, Submitted) for outcome in again)
    assert await world.pool.fetchval("SELECT count(*) FROM job") == 200


async def test_many_that_are_given_up_leave_nothing_behind(world: World) -> None:
    async with Client(world.coordinator.url) as client:
        sending = asyncio.create_task(client.submit_many([ARTICLE] * 200, at_once=2))
        await eventually_async(lambda: world.pool.fetchval("SELECT count(*) FROM job"))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        sent = await client.submit(ARTICLE)
        waiting = asyncio.create_task(client.wait(sent.id))
        await eventually(lambda: any(task.get_name() == "events heard" for task in asyncio.all_tasks()))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert not {task.get_name() for task in asyncio.all_tasks()} & {"submission", "events heard"}


async def test_results_go_on_when_the_coordinator_comes_back_and_one_that_was_dropped_comes_again(world: World) -> None:
    mini = await world.puppet("mini")
    world.servers.bus("publisher:local")
    seed = world.servers.nats.identities.publisher_seed("local")
    seen: list[UUID] = []

    async def read(client: Client, body: Callable[[ResultMessage], Awaitable[object]]) -> None:
        async with contextlib.aclosing(client.results()) as results:
            async for result in results:
                seen.append(result.job_id)
                await body(result)

    async def quick(_: ResultMessage) -> None:
        return None

    async def never(_: ResultMessage) -> None:
        await asyncio.Event().wait()

    async with Client(world.servers.nats.url, source="local", seed=seed) as client:
        dropped = await client.submit({**ARTICLE, "key": "a"})
        held = await mini.take()
        await held.report(result={"text": "# Done"})
        reading = asyncio.create_task(read(client, never))
        await eventually(lambda: seen == [dropped.id])
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        seen.clear()

        await restart(world)
        await world.reconnected(mini)
        reading = asyncio.create_task(read(client, quick))
        later = await client.submit({**ARTICLE, "key": "b"})
        held = await mini.take()
        await held.report(result={"text": "# Done"})
        await eventually(lambda: set(seen) == {dropped.id, later.id})
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    assert sorted(seen) == sorted({dropped.id, later.id})
