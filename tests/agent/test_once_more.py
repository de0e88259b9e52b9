"""What is tried once more counts for the job, not for each worker: through the whole system, with several Macs."""

from contextlib import AsyncExitStack, asynccontextmanager

import pytest_asyncio

from tests.support.agents import agent
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_server import Script, running
from tests.support.servers import own_servers
from tests.support.world import eventually_async
from tests.support.world import world as open_world

NEVER_SEEN = Script(status=418, error={"error": "something that nobody has seen"})
NO_JSON = Script(words=("no", " JSON"))
EMPTY = Script(words=())
MACS = ("mini", "macbook", "studio")


@pytest_asyncio.fixture(loop_scope="session", name="world")
async def own_world(ledger_dsn, tmp_path):
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, retry_base_s=1) as made:
        yield made


@asynccontextmanager
async def mac(world, name, folder, script):
    """Run an agent whose Ollama always answers like that."""
    async with running(FakeOllama()) as server:
        server.usual = script
        table = {"url": server.url, "retry_s": 0.05, "look_s": 0.05, "probe_s": 0, "models": ["tiny"]}
        async with agent(world.servers, name, folder, executors={"ollama": table}):
            yield server


async def ended(world, job_id):
    """Return the job once it has failed, however often its backoff must pass."""

    async def failed():
        state = (await world.job(job_id))["state"]
        if state == "pending":  # while it runs its lease would suffer
            await world.move_clock(60)
        return state == "failed"

    await eventually_async(failed)
    return await world.job(job_id)


async def charged(world, job_id):
    """Return the attempts that were charged, and not passed on by a worker that had met the error."""
    async with world.http.get(f"/v1/jobs/{job_id}/attempts") as answer:
        attempts = (await answer.json())["attempts"]
    return [one for one in attempts if one["error"] and one["error"]["class"] in {"transient", "permanent"}]


async def told(world, job_id, count):
    """Return once so many attempts are charged."""

    async def look():
        return len(await charged(world, job_id)) == count

    await eventually_async(look)


async def test_the_unknown_is_tried_on_two_workers_of_three(world, tmp_path):
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(mac(world, name, tmp_path, NEVER_SEEN)) for name in MACS]
        job = await world.submit("article", model="tiny", spec={"prompt": "Three sentences."}, max_attempts=9)
        await ended(world, job["id"])
        tried = [one["worker"] for one in await charged(world, job["id"])]
        assert len(tried) == len(set(tried)) == 2
        assert sorted(len(server.requests) for server in servers) == [0, 1, 1]


async def once_each(world, tmp_path, script, spec):
    """Let one worker try a job, stop it, let another try it; return the job and its charged attempts."""
    async with mac(world, "mini", tmp_path, script) as first:
        job = await world.submit("article", model="tiny", spec=spec, max_attempts=5)
        await told(world, job["id"], 1)
    async with mac(world, "macbook", tmp_path, script) as second:
        found = await ended(world, job["id"])
    assert (len(first.real), len(second.real)) == (1, 1)
    return found, [(one["worker"], one["error"]["class"]) for one in await charged(world, job["id"])]


async def test_a_bad_answer_on_one_worker_and_another_fails_the_job(world, tmp_path):
    job, tried = await once_each(world, tmp_path, NO_JSON, {"prompt": "A list.", "format": "json"})
    assert tried == [("mini", "transient"), ("macbook", "permanent")]
    assert (job["error"]["code"], job["attempt"]) == ("bad_answer", 2)


async def test_an_empty_answer_on_one_worker_and_another_fails_the_job(world, tmp_path):
    job, tried = await once_each(world, tmp_path, EMPTY, {"prompt": "Three sentences."})
    assert tried == [("mini", "transient"), ("macbook", "permanent")]
    assert job["error"]["code"] == "empty"


async def test_a_person_s_retry_begins_with_nothing_charged(world, tmp_path):
    async with mac(world, "mini", tmp_path, NO_JSON) as server:
        job = await world.submit("article", model="tiny", spec={"prompt": "A list.", "format": "json"}, max_attempts=5)
        await ended(world, job["id"])
        await world.act(job["id"], "retry")
        await ended(world, job["id"])
        assert len(server.real) == 4
        assert [one["error"]["class"] for one in await charged(world, job["id"])] == ["transient", "permanent"] * 2
