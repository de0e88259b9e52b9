"""An error that no table knows, through the whole system: once more on another worker, then the job has failed."""

from contextlib import AsyncExitStack

import pytest_asyncio

from tests.support.agents import agent
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_server import Script, running
from tests.support.servers import own_servers
from tests.support.world import eventually_async
from tests.support.world import world as open_world

NEVER_SEEN = Script(status=418, error={"error": "something that nobody has seen"})
MACS = ("mini", "macbook", "studio")


@pytest_asyncio.fixture(loop_scope="session", name="world")
async def own_world(ledger_dsn, tmp_path):
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, retry_base_s=1) as made:
        yield made


async def charged(world, job_id):
    """Return the workers of the attempts that were charged, and not passed on by one that had met the error."""
    async with world.http.get(f"/v1/jobs/{job_id}/attempts") as answer:
        attempts = (await answer.json())["attempts"]
    return [one["worker"] for one in attempts if one["error"]["class"] in {"transient", "permanent"}]


async def test_the_unknown_is_tried_on_two_workers_of_three(world, tmp_path):
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(running(FakeOllama())) for _ in MACS]
        for name, server in zip(MACS, servers, strict=True):
            server.usual = NEVER_SEEN
            table = {"url": server.url, "retry_s": 0.05, "look_s": 0.05, "probe_s": 0, "models": ["tiny"]}
            await stack.enter_async_context(agent(world.servers, name, tmp_path, executors={"ollama": table}))
        job = await world.submit("article", model="tiny", spec={"prompt": "Three sentences."}, max_attempts=9)

        async def failed() -> bool:
            state = (await world.job(job["id"]))["state"]
            if state == "pending":  # while it runs its lease would suffer
                await world.move_clock(60)  # past the backoff
            return state == "failed"

        await eventually_async(failed)
        tried = await charged(world, job["id"])
        assert len(tried) == len(set(tried)) == 2
        assert sorted(len(server.requests) for server in servers) == [0, 1, 1]
