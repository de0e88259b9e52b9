"""An agent is told to stop: what it has is finished or given back, and nobody is charged."""

from pathlib import Path

from tests.support.agents import agent
from tests.support.world import World


async def test_a_short_job_is_finished_before_the_agent_ends(world: World, tmp_path: Path) -> None:
    async with agent(world.servers, "mini", tmp_path) as mini:
        job = await world.submit(spec={"prompt": "Short", "simulate": {"seconds": 0.3}})
        await world.until(job["id"], "processing")
        await mini.drain()

    assert (await world.until(job["id"], "completed"))["epoch"] == 1


async def test_a_long_job_is_released_and_taken_by_another_with_no_attempt_charged(
    world: World, tmp_path: Path
) -> None:
    async with agent(world.servers, "macbook", tmp_path, drain_limit_s=0.1) as macbook:
        job = await world.submit(spec={"prompt": "Long", "simulate": {"seconds": 3600}})
        await world.until(job["id"], "processing")
        await macbook.drain()

    seen = await world.job(job["id"])
    assert (seen["attempt"], seen["lease_losses"]) == (0, 0)
    assert seen["attempts"][0]["outcome"] == "released"
    held = await (await world.puppet("mini")).take()
    assert (held.job_id, held.epoch, held.grant["attempt"]) == (job["id"], 2, 1)


async def test_a_drained_worker_takes_nothing_more(world: World) -> None:
    mini = await world.puppet("mini")
    async with world.http.post("/v1/workers/mini/drain") as answer:
        assert answer.status == 200
    assert (await mini.hears("drain"))["type"] == "drain"
    await world.submit()

    claim = await mini.claim(await mini.pull())

    assert (claim["verdict"], claim["reason"]) == ("denied", "paused")
    assert (await mini.announce())["state"] == "draining"
