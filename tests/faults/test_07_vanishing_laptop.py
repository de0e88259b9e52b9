"""Fault 7: a laptop vanishes mid-job, five times, with the default limits.

A lid that closes is not the job's fault. The lease lapses, and no attempt is charged, nor a lost worker; the job waits
while nobody is there that could do it, and goes on when the laptop is back: in the same epoch if it still has the job,
in a new one if it does not.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import WAIT_S, agent, settings_for
from tests.support.proxy import Proxy
from tests.support.puppet import puppet
from tests.support.world import World, eventually_async

TIMES = 5
PAST_THE_TTL_S = 91
FOR_LONG_S = 6 * 3600
WEEK_S = 7 * 86400


@pytest.mark.fault(7)
async def test_a_laptop_that_comes_back_each_time_goes_on_with_its_job(world: World, tmp_path: Path) -> None:
    strings = StringExecutor()
    async with world.servers.open("agent:macbook"):
        pass  # the server knows the identity by now
    async with Proxy("127.0.0.1", world.servers.nats.port) as link:
        settings = settings_for(world.servers, "macbook", tmp_path, nats=f"nats://127.0.0.1:{link.port}")
        async with agent(settings, strings) as macbook:
            job = await world.submit(timeout_s=WEEK_S)
            generation = await strings.next()
            for times in range(1, TIMES + 1):
                await eventually_async(lambda times=times: _beats(world, job["id"], times))
                link.black_hole()
                await _waits(world, job["id"], silences=1)

                link.heal()
                link.cut()  # what fell into the hole; else the server's pings would have to find out
                await world.until(job["id"], "processing")
                generation.progress.stage(f"stage_{times}")  # a new stage is told at once

            generation.finish()
            await asyncio.wait_for(macbook.end(), WAIT_S)
    seen = await world.until(job["id"], "completed")
    assert [(a["epoch"], a["outcome"]) for a in seen["attempts"]] == [(1, "completed")]
    assert (seen["attempt"], seen["lease_losses"], seen["silences"]) == (0, 0, 0)
    assert strings.started == 1


@pytest.mark.fault(7)
async def test_a_job_that_its_laptop_lost_each_time_is_taken_again(world: World) -> None:
    async with puppet(world.servers, "macbook") as macbook:
        job = await world.submit(timeout_s=WEEK_S)
        for times in range(1, TIMES + 1):
            await macbook.announce()
            held = await macbook.take()
            assert held.epoch == times
            await held.beat()
            await eventually_async(lambda: _beats(world, job["id"], 1))
            await _waits(world, job["id"], silences=times)
        await macbook.announce()
        held = await macbook.take()
        await held.report()
        await held.verdict("accepted")
    seen = await world.until(job["id"], "completed")
    assert [a["outcome"] for a in seen["attempts"]] == ["lease_expired"] * TIMES + ["completed"]
    assert (seen["attempt"], seen["lease_losses"], held.grant["attempt"]) == (0, 0, 1)


async def _waits(world: World, job_id: str, *, silences: int) -> None:
    """Let the lease run out, and much time pass; the job waits, with nothing charged but the silence."""
    for seconds in (PAST_THE_TTL_S, FOR_LONG_S):
        await world.pass_time(seconds)
        await world.coordinator.reconciler.once()
        seen = await world.job(job_id)
        assert (seen["state"], seen["attempt"], seen["lease_losses"]) == ("pending", 0, 0)
        assert seen["silences"] == silences


async def _beats(world: World, job_id: str, least: int) -> bool:
    attempts: list[Any] = (await world.job(job_id))["attempts"]
    return attempts[-1]["outcome"] is None and attempts[-1]["heartbeats"] >= least
