"""Three NATS servers (`replicas = 3`): one is killed while jobs run, and comes back; nothing is lost or doubled."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator.artifacts import FolderStore
from coordinator.audit import Limits, look
from coordinator.ledger.database import open_pool
from shared.streams import STREAMS, stored_message
from tests.support.agents import agent
from tests.support.servers import TandemServers
from tests.support.three_servers import ThreeServers, three_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

JOBS_A_ROUND = 8
SETTLED_S = 100.0


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(tmp_path: Path) -> AsyncIterator[ThreeServers]:
    async with three_servers(tmp_path) as made:
        yield made


async def leader(world: World, stream: str) -> str:
    found = await world.coordinator.bus.api(f"STREAM.INFO.{stream}")
    return str(found["cluster"]["leader"])


async def submitted(world: World, count: int, first: int) -> list[str]:
    made = [
        await world.submit(key=f"post-{number}", spec={"prompt": "A walk", "simulate": {"seconds": 0.5}})
        for number in range(first, first + count)
    ]
    return [one["id"] for one in made]


async def all_settled(world: World, jobs: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def settled() -> bool:
        found[:] = [await world.job(job_id) for job_id in jobs]
        return all(job["state"] in ("completed", "failed", "canceled") for job in found)

    await eventually_async(settled, within_s=SETTLED_S)
    return found


async def results_of(world: World) -> dict[str, int]:
    """Count the messages of each job in RESULTS."""
    counts: dict[str, int] = {}
    seq = 1
    async with world.servers.open("coordinator") as bus:
        while message := await stored_message(bus, "RESULTS", seq=seq, next_by_subj="tandem.result.>"):
            job_id = message.subject.rpartition(".")[2]
            counts[job_id] = counts.get(job_id, 0) + 1
            seq = message.seq + 1
    return counts


@pytest.mark.timeout(400)
async def test_a_killed_server_costs_nothing(cluster: ThreeServers, ledger_dsn: str, tmp_path: Path) -> None:
    servers = TandemServers(cluster)  # type: ignore[arg-type] # stands where one server would
    order = random.Random(6)
    settings = {"replicas": 3, "reconcile_s": 1.0, "reaper_s": 0.5, "presence_s": 1.0}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(open_world(servers, ledger_dsn, tmp_path / "c", **settings))
        await cluster.agreed(streams=True)
        for worker in ("mini", "book"):
            await stack.enter_async_context(agent(servers, worker, tmp_path / "agents"))
        jobs = await submitted(world, JOBS_A_ROUND, first=0)

        victims = [cluster.named(await leader(world, "WORK")), order.choice(("one", "two", "three"))]
        for number, victim in enumerate(victims, start=1):
            cluster.kill(victim)
            jobs += await submitted(world, JOBS_A_ROUND, first=number * JOBS_A_ROUND)
            await all_settled(world, jobs[: JOBS_A_ROUND * number])
            cluster.start(victim)
            await cluster.agreed(streams=True)

        found = await all_settled(world, jobs)
        assert [(job["id"], job["state"], job["error"]) for job in found if job["state"] != "completed"] == []
        rows = await world.pool.fetch(
            "SELECT job_id, count(*) FILTER (WHERE outcome = 'completed') AS done FROM attempt GROUP BY job_id"
        )
        assert {str(row["job_id"]): row["done"] for row in rows} == dict.fromkeys(jobs, 1)

        async def all_out() -> bool:
            return len(await results_of(world)) == len(jobs)

        await eventually_async(all_out, within_s=SETTLED_S)
        assert await results_of(world) == dict.fromkeys(jobs, 1)
        assert await audited(world) == []


async def audited(world: World) -> list[object]:
    store = FolderStore(world.settings.artifacts)
    try:
        async with await open_pool(world.dsn, max_size=3) as pool, world.servers.open("coordinator") as bus:
            return list((await look(pool, bus, store, Limits())).breaches)
    finally:
        store.close()


async def test_the_setting_alone_replicates_streams_that_were_there(
    cluster: ThreeServers, ledger_dsn: str, tmp_path: Path
) -> None:
    servers = TandemServers(cluster)  # type: ignore[arg-type]
    for replicas in (1, 3):
        async with open_world(servers, ledger_dsn, tmp_path / "c", replicas=replicas) as world:
            await world.submit(key="the same", expect=201 if replicas == 1 else 200)

            async def replicated(world: World = world, replicas: int = replicas) -> bool:
                bus = world.coordinator.bus
                infos = [await bus.api(f"STREAM.INFO.{stream}") for stream in STREAMS]
                return {info["config"]["num_replicas"] for info in infos} == {replicas}

            await eventually_async(replicated)
    await cluster.agreed(streams=True)
