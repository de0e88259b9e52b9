"""Fault 15: the machine sleeps: its monotonic clock stands still for ten ttls, and it wakes.

Before the agent sends one byte of a file it asks whether the lease is still its own, whatever it was in the middle of.
A dark wake of two seconds claims nothing, not even what a pull from before the sleep brings. None of this waits for
the sleep watch's round, which may come seconds after the wake: here it never comes.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent.executors.base import ProductFile
from agent.runner import How
from shared.streams import consumer_info
from tests.support.agent_executor import Generation, StringExecutor
from tests.support.agent_world import TTL_S, WAIT_S, Coordinator, ManualClock, RunningAgent, agent, settings_for
from tests.support.agent_world import coordinator as foreign_coordinator
from tests.support.servers import TandemServers, eventually
from tests.support.world import eventually_async

GRACE_S = 60.0


@dataclass
class Sleeper:
    """An agent on a machine that the test puts to sleep, and the coordinator that it talks to."""

    far: Coordinator
    agent: RunningAgent
    strings: StringExecutor
    clock: ManualClock
    asked: list[int] = field(default_factory=list)  # for each lease question: how many uploads had begun by then
    lease: dict[str, Any] = field(default_factory=lambda: {"lease": "held", "ttl_s": TTL_S})

    def sleep(self, seconds: float = 10 * TTL_S) -> None:
        self.clock.asleep_s += seconds
        self.clock.moved_s += seconds

    def answer_lease(self, _: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(len(self.far.upload_requests))
        return self.lease

    async def running(self) -> Generation:
        await self.far.offer()
        return await self.strings.next()


@pytest_asyncio.fixture(loop_scope="session")
async def sleeper(servers: TandemServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sleeper]:
    monkeypatch.setattr("agent.service.WATCH_S", 3600.0)
    strings, clock = StringExecutor(), ManualClock()
    async with foreign_coordinator(servers) as far:
        far.deadline_s = 3600
        settings = settings_for(servers, "mini", tmp_path, wake_grace_s=GRACE_S)
        async with agent(settings, strings, clock=clock) as running:
            made = Sleeper(far, running, strings, clock)
            far.answer_lease = made.answer_lease
            yield made


@pytest.mark.fault(15)
async def test_a_result_finished_on_waking_is_uploaded_only_after_the_lease_was_asked_about(sleeper: Sleeper) -> None:
    generation = await sleeper.running()
    sleeper.sleep()
    generation.finish(files=files_of(generation, "a.txt"))

    assert (await sleeper.agent.end()).how is How.COMPLETED
    assert sleeper.asked[0] == 0
    assert sleeper.far.uploads == {"a.txt": b"words"}


@pytest.mark.fault(15)
async def test_nothing_is_uploaded_after_a_sleep_when_the_lease_was_lost(sleeper: Sleeper) -> None:
    generation = await sleeper.running()
    sleeper.sleep()
    sleeper.lease = {"lease": "lost", "reason": "stale"}
    generation.finish(files=files_of(generation, "a.txt"))

    assert (await sleeper.agent.end()).how is How.LOST
    assert sleeper.far.upload_requests == []
    assert sleeper.far.all_reports == []
    await sleeper.agent.spool_is_empty()


@pytest.mark.fault(15)
async def test_an_upload_that_the_sleep_broke_is_not_begun_again_without_asking(sleeper: Sleeper) -> None:
    generation = await sleeper.running()
    sleeper.far.uploads_go.clear()
    generation.finish(files=files_of(generation, "a.txt"))
    await asyncio.wait_for(sleeper.far.upload_started.wait(), WAIT_S)

    sleeper.sleep()
    sleeper.lease = {"lease": "lost", "reason": "stale"}
    sleeper.far.upload_statuses = [503]
    sleeper.far.uploads_go.set()

    assert (await sleeper.agent.end()).how is How.LOST
    assert (len(sleeper.far.upload_requests), sleeper.asked) == (1, [0, 1])
    assert sleeper.far.uploads == {}


@pytest.mark.fault(15)
async def test_the_next_file_is_not_begun_after_a_sleep_without_asking(sleeper: Sleeper) -> None:
    generation = await sleeper.running()
    sleeper.far.uploads_go.clear()
    generation.finish(files=files_of(generation, "a.txt", "b.txt"))
    await asyncio.wait_for(sleeper.far.upload_started.wait(), WAIT_S)

    sleeper.sleep()
    sleeper.lease = {"lease": "lost", "reason": "stale"}
    sleeper.far.uploads_go.set()

    assert (await sleeper.agent.end()).how is How.LOST
    assert sleeper.far.uploads == {"a.txt": b"words"}
    assert len(sleeper.far.upload_requests) == 1


@pytest.mark.fault(15)
async def test_a_two_second_wake_claims_nothing(sleeper: Sleeper) -> None:
    far = sleeper.far
    await eventually_async(lambda: _consumer_has(far, num_waiting=1))
    sleeper.sleep()
    await far.offer()  # the pull from before the sleep brings it
    await eventually_async(lambda: _consumer_has(far, num_ack_pending=1))
    await _announced(far, "just_woken")
    sleeper.clock.moved_s += 2
    sleeper.sleep()
    await far.offer()
    await _announced(far, "just_woken")
    assert (far.claims, sleeper.strings.started) == ([], 0)


def files_of(generation: Generation, *names: str) -> list[ProductFile]:
    """Write files that the generation returns."""
    for name in names:
        (generation.job.workspace / name).write_text("words")
    return [ProductFile(path=generation.job.workspace / name, media_type="text/plain") for name in names]


async def _announced(far: Coordinator, reason: str) -> None:
    """Wait for two announcements, begun from now on, that say why nothing is pulled."""
    heard = len(far.presences)
    await eventually(lambda: len(far.presences) >= heard + 3)
    assert {said["facts"]["not_pulling"] for said in far.presences[heard + 1 :]} == {reason}


async def _consumer_has(far: Coordinator, **expected: int) -> bool:
    info = await consumer_info(far.bus, "WORK", "article--any")
    return info is not None and expected.items() <= info.items()
