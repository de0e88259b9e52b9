"""Fault 18: an idle agent freezes with its pull open, and swallows the next offer.

The server hands the offer to the frozen agent's pull, and nobody claims it. While an agent is free that could take it,
an offer that lies for `unclaimed_s` is made anew, and runs there. When the frozen one wakes it claims what it was
handed, is denied, and runs nothing of it.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.agent_processes import AgentProcess, agent_process, offers_out, pulls_open
from tests.support.agent_program import KIND
from tests.support.world import World, eventually_async

UNCLAIMED_S = 15.0
TICK_S = 1.0
LONG_PULL_S = 10.0
FIRST, SECOND = 0, 5


@pytest_asyncio.fixture(loop_scope="session")
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.mark.fault(18)
@pytest.mark.parametrize("idle_already", [True, False], ids=["another-is-idle", "another-joins"])
async def test_what_a_frozen_agent_swallowed_starts_elsewhere_and_never_there(
    world: World, tmp_path: Path, stack: AsyncExitStack, *, idle_already: bool
) -> None:
    macbook = await stack.enter_async_context(
        agent_process(world, "macbook", tmp_path, rank=FIRST, linger_s=LONG_PULL_S)
    )
    await eventually_async(lambda: _is(pulls_open, world, 1))
    if idle_already:
        mini = await _join(world, tmp_path, stack)
    await macbook.frozen()
    done = tmp_path / "done"
    job = await world.submit(KIND, spec={"do": "wait", "until": str(done)})
    await eventually_async(lambda: _is(offers_out, world, 1))
    if not idle_already:
        mini = await _join(world, tmp_path, stack)
    assert mini.starts == []

    await world.move_clock(UNCLAIMED_S + TICK_S)
    world.coordinator.dispatcher.wake()
    await mini.began(job["id"])
    assert world.coordinator.dispatcher.unclaimed == 1

    macbook.thaw()
    later = await world.submit(KIND, spec={"do": "finish"})  # the frozen one takes it when it is done with the first
    await macbook.began(later["id"])
    await world.until(later["id"], "completed")
    done.touch()
    seen = await world.until(job["id"], "completed")

    assert [start.job_id for start in macbook.starts] == [later["id"]]
    assert [(start.job_id, start.epoch) for start in mini.starts] == [(job["id"], 1)]
    assert [(attempt["worker"], attempt["outcome"]) for attempt in seen["attempts"]] == [("mini", "completed")]


async def _join(world: World, folder: Path, stack: AsyncExitStack) -> AgentProcess:
    return await stack.enter_async_context(agent_process(world, "mini", folder, rank=SECOND))


async def _is(count, world: World, expected: int) -> bool:
    return await count(world) == expected
