"""Fault 6: a job takes its agent's whole process along, each time it is claimed.

Each death is one lease loss, however the process lived until then, and at `max_lease_losses` the job fails, saying so.
Whatever starts the agent again (launchd, here the test) meets the deadly job no more, and the queue behind it moves.
"""

import asyncio
from pathlib import Path

import pytest

from tests.support.agent_processes import PATIENCE_S, AgentProcess, agent_process
from tests.support.agent_program import KIND
from tests.support.world import World, eventually_async

LIMIT = 5
"""The default `max_lease_losses`."""

BEHIND = 3


@pytest.mark.fault(6)
@pytest.mark.parametrize("beats_first", [False, True], ids=["at-once", "after-a-heartbeat"])
async def test_a_job_that_kills_each_agent_fails_and_the_queue_moves(
    world: World, tmp_path: Path, *, beats_first: bool
) -> None:
    now = tmp_path / "now"
    async with agent_process(world, "macbook", tmp_path) as macbook:
        deadly = await world.submit(KIND, spec={"do": "die", "until": str(now) if beats_first else ""})
        behind = [await world.submit(KIND, spec={"do": "finish"}) for _ in range(BEHIND)]
        await macbook.began(deadly["id"])
        if beats_first:
            await eventually_async(lambda: _was_heard(world, deadly["id"]))
            now.touch()
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(_keep(world, macbook), name="keeper")
            await eventually_async(lambda: _is(world, deadly["id"], "failed"), within_s=PATIENCE_S)
            failed, seen = await world.job(deadly["id"]), [await world.until(job["id"], "completed") for job in behind]
            keeper.cancel()

        epochs = [start.epoch for start in macbook.starts if start.job_id == deadly["id"]]
        assert epochs == list(range(1, LIMIT + 1))
        assert len(macbook.starts) == LIMIT + BEHIND
    assert (failed["error"]["code"], failed["error"]["class"]) == ("worker_lost", "permanent")
    assert failed["error"]["message"].startswith(f"worker lost × {LIMIT}")  # noqa: RUF001 - the sign for times
    assert (failed["attempt"], failed["lease_losses"], len(failed["attempts"])) == (0, LIMIT, LIMIT)
    assert [(job["epoch"], job["lease_losses"]) for job in seen] == [(1, 0)] * BEHIND


async def _keep(world: World, agent: AgentProcess) -> None:
    while True:
        await agent.ended()
        await agent.restarted(world)


async def _is(world: World, job_id: str, state: str) -> bool:
    return bool((await world.job(job_id))["state"] == state)


async def _was_heard(world: World, job_id: str) -> bool:
    return (await world.job(job_id))["attempts"][0]["heartbeats"] > 0
