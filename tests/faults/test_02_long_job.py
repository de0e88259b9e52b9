"""Fault 2: a job that takes long. As long as its heartbeats go on, however many ttls pass, it keeps its first epoch.

Forty-five minutes on the ledger's clock, in steps of one heartbeat, the reaper looking at each; ttl 60 s.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.servers import eventually, own_servers
from tests.support.world import World
from tests.support.world import world as open_world

TTL_S, HEARTBEAT_S = 60.0, 20.0
LONG_S = 45 * 60.0

pytestmark = pytest.mark.fault(2)


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    times = {"lease_ttl_s": TTL_S, "heartbeat_s": HEARTBEAT_S}
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, **times) as made:
        yield made


@pytest.mark.parametrize("lost", [0, 1], ids=["every beat arrives", "every other beat is lost"])
async def test_heartbeats_keep_a_job_of_45_minutes_in_its_first_epoch(world: World, lost: int) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit(timeout_s=2 * LONG_S)
    held = await mini.take()
    step_s = (1 + lost) * HEARTBEAT_S
    steps = int(LONG_S / step_s)

    for step in range(1, steps + 1):
        await world.pass_time(step_s)
        await held.beat()
        await eventually(lambda beats=step: world.coordinator.heartbeats.taken == beats)
        await world.coordinator.reaper.once()

    seen = await world.job(job["id"])
    assert (seen["state"], seen["epoch"], seen["lease_losses"], seen["silences"]) == ("processing", 1, 0, 0)
    assert [(a["epoch"], a["outcome"]) for a in seen["attempts"]] == [(1, None)]
    assert world.coordinator.reaper.expired == 0
    assert await macbook.try_pull() is None
    await held.report()
    await held.verdict("accepted")
    assert (await world.job(job["id"]))["state"] == "completed"


async def test_the_same_job_is_given_up_one_ttl_after_its_last_heartbeat(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(timeout_s=2 * LONG_S)
    held = await mini.take()
    for step in range(1, 11):
        await world.pass_time(HEARTBEAT_S)
        await held.beat()
        await eventually(lambda beats=step: world.coordinator.heartbeats.taken == beats)

    await world.pass_time(TTL_S - 1)
    assert (await world.job(job["id"]))["state"] == "processing"
    await world.pass_time(2)

    assert (await world.job(job["id"]))["state"] == "pending"
