"""Fault 16: SIGTERM at any moment of a job's life.

An agent that is told to end finishes its job if it can within `drain_limit_s`, and else gives it back. Whenever that
word comes (before the pull, between pull and claim, in the middle, while the result is on its way), no epoch is
executed twice, no attempt is charged, and each job completes exactly once, if need be on another agent.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import pytest_asyncio

from agent.executors.base import Product, ProductFile, Progress, RunnableJob
from shared.states import WorkerState
from shared.wire import Capability
from tests.support.agent_executor import StringExecutor
from tests.support.agent_processes import agent_process
from tests.support.agent_program import KIND
from tests.support.agent_world import WAIT_S, RunningAgent, agent, settings_for
from tests.support.ledger import seeded
from tests.support.servers import eventually, own_servers
from tests.support.world import World
from tests.support.world import world as open_world

OFFSETS = 50
AT_ONCE = 10
LIFE_S = 0.6
"""About how long one of these jobs takes from its submission to its verdict."""

PATIENT_S, IMPATIENT_S = 60.0, 0.0
RELEASE_LIMIT_S = 30.0
ENDLESS_S = 3600.0
PROCESSES = 3


class Moment(StrEnum):
    """What an agent has seen of its job before the word comes; a random time later it does."""

    SUBMITTED = "submitted"  # nothing: it may have pulled or claimed by then, or not
    BEGUN = "begun"  # its generator is at work; if the agent is impatient, it would be for ever
    MADE = "made"  # its generator is done, the result is on its way
    COMPLETED = "completed"  # the ledger has the result; the agent may not know


class Logged:
    """An executor that notes each start in a log that all agents share, and then takes `seconds`."""

    name: ClassVar[str] = "logged"

    def __init__(self, log: list[tuple[str, int, str]], worker: str, model: str, seconds: float) -> None:
        self.log = log
        self.worker = worker
        self.model = model
        self.seconds = seconds
        self.begun, self.made = asyncio.Event(), asyncio.Event()

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        return cls(**table)

    def capabilities(self) -> list[Capability]:
        return [Capability(kind=KIND, models=[self.model], executor=self.name)]

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        self.log.append((job.id, job.epoch, self.worker))
        progress.stage("generating_text")
        self.begun.set()
        await asyncio.sleep(self.seconds)
        path = job.workspace / "a.txt"
        path.write_text("words")
        self.made.set()
        return Product(result={"text": "words"}, files=[ProductFile(path=path, media_type="text/plain")])


@dataclass(frozen=True)
class Trial:
    """One job with an agent of its own, told to end `offset_s` after a moment of the job's life."""

    number: int
    moment: Moment
    seconds: float
    offset_s: float
    drain_limit_s: float

    @property
    def worker(self) -> str:
        return f"mac-{self.number:02}"

    @property
    def model(self) -> str:
        return f"m{self.number:02}"


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    """A world that makes offers anew which a drained agent pulled and could not claim any more."""
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, unclaimed_s=1.0) as made:
        yield made


@pytest.mark.fault(16)
async def test_jobs_of_agents_that_end_at_any_moment_run_once_an_epoch_and_complete_once(
    world: World, tmp_path: Path
) -> None:
    log: list[tuple[str, int, str]] = []
    with seeded() as rng:
        trials = [_trial(number, rng) for number in range(OFFSETS)]
        for trial in trials:
            world.servers.nats.identities.add_agent(trial.worker)
        await _known(world, "keeper")
        jobs = await _run_all(world, tmp_path, trials, log)
        early = {trial for trial, job_id in jobs.items() if (await world.job(job_id))["state"] != "completed"}
        assert early >= {trial for trial in trials if trial.seconds == ENDLESS_S}
        assert not early & {trial for trial in trials if trial.moment is Moment.COMPLETED}

        keeper = Logged(log, "keeper", "*", 0.0)
        async with agent(settings_for(world.servers, "keeper", tmp_path / "keeper", slots=8), keeper):
            seen = {trial: await world.until(job_id, "completed") for trial, job_id in jobs.items()}

    assert not [start for start, times in Counter((j, e) for j, e, _ in log).items() if times > 1]
    for trial, job in seen.items():
        outcomes = [attempt["outcome"] for attempt in job["attempts"]]
        assert outcomes == ["released"] * (len(outcomes) - 1) + ["completed"], (trial, outcomes)
        assert (job["attempt"], job["lease_losses"], job["silences"]) == (0, 0, 0), trial
        began_here = (job["id"], 1, trial.worker) in log
        if trial.drain_limit_s == PATIENT_S and began_here:
            assert outcomes == ["completed"], trial
    await _published_once(world, OFFSETS)


@pytest.mark.fault(16)
async def test_a_drain_waits_for_a_job_that_ends_within_its_limit(world: World, tmp_path: Path) -> None:
    strings = StringExecutor((KIND,))
    await _known(world, "mac-00")
    async with agent(settings_for(world.servers, "mac-00", tmp_path, drain_limit_s=PATIENT_S), strings) as mac:
        job = await world.submit(KIND, spec={})
        generation = await strings.next()
        mac.stop.set()
        rows = world.coordinator.directory.rows
        await eventually(lambda: rows["mac-00"].presence.state is WorkerState.DRAINING)
        assert not generation.cancelled.is_set()
        generation.finish()
        await _ended(mac)

    assert [a["outcome"] for a in (await world.until(job["id"], "completed"))["attempts"]] == ["completed"]


@pytest.mark.fault(16)
async def test_a_drain_releases_a_job_that_goes_on_at_its_limit(world: World, tmp_path: Path) -> None:
    strings = StringExecutor((KIND,))
    await _known(world, "mac-00")
    settings = settings_for(
        world.servers, "mac-00", tmp_path, drain_limit_s=IMPATIENT_S, release_limit_s=RELEASE_LIMIT_S
    )
    async with agent(settings, strings) as mac:
        job = await world.submit(KIND, spec={})
        generation = await strings.next()
        mac.stop.set()
        await _ended(mac)
        assert generation.cancelled.is_set()

    seen = await world.job(job["id"])
    assert (seen["state"], [a["outcome"] for a in seen["attempts"]]) == ("pending", ["released"])


@pytest.mark.fault(16)
async def test_processes_end_well_at_any_moment(world: World, tmp_path: Path) -> None:
    with seeded() as rng:
        offsets = [rng.uniform(0, LIFE_S) for _ in range(PROCESSES)]
        jobs, doomed = [], []
        for number, offset_s in enumerate(offsets):
            async with agent_process(world, f"mac-{number}", tmp_path, release_limit_s=RELEASE_LIMIT_S) as mac:
                submitted = await world.submit(KIND, spec={"do": "finish", "file": True})
                asyncio.get_running_loop().call_later(offset_s, mac.process.terminate)
                assert await mac.ended() == 0, mac.log.read_text()
            jobs.append(submitted["id"])
            doomed.append(mac)
        async with agent_process(world, "keeper", tmp_path) as keeper:
            seen = [await world.until(job_id, "completed") for job_id in jobs]
    starts = Counter((start.job_id, start.epoch) for mac in (*doomed, keeper) for start in mac.starts)
    assert set(starts.values()) == {1}
    assert [(job["attempt"], job["lease_losses"], job["silences"]) for job in seen] == [(0, 0, 0)] * PROCESSES
    assert [path for mac in doomed for path in mac.spooled] == []
    await _published_once(world, PROCESSES)


def _trial(number: int, rng: random.Random) -> Trial:
    """Return a trial; every moment comes with both kinds of patience, the rest is random."""
    turn, which = divmod(number, len(Moment))
    moment, patient = list(Moment)[which], turn % 2 == 0
    seconds = ENDLESS_S if moment is Moment.BEGUN and not patient else rng.uniform(0, LIFE_S / 2)
    return Trial(
        number,
        moment=moment,
        seconds=seconds,
        offset_s=rng.uniform(0, LIFE_S if moment is Moment.SUBMITTED else LIFE_S / 4),
        drain_limit_s=PATIENT_S if patient else IMPATIENT_S,
    )


async def _run_all(
    world: World, folder: Path, trials: list[Trial], log: list[tuple[str, int, str]]
) -> dict[Trial, str]:
    """Run every trial to its agent's end, several at once; return their jobs."""
    jobs: dict[Trial, str] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(trial: Trial) -> None:
        async with gate:
            settings = settings_for(
                world.servers,
                trial.worker,
                folder / trial.worker,
                drain_limit_s=trial.drain_limit_s,
                release_limit_s=RELEASE_LIMIT_S,
            )
            executor = Logged(log, trial.worker, trial.model, trial.seconds)
            async with agent(settings, executor) as mac:
                jobs[trial] = (await world.submit(KIND, model=trial.model, spec={}))["id"]
                await _reached(world, trial, jobs[trial], executor)
                asyncio.get_running_loop().call_later(trial.offset_s, mac.stop.set)
                await _ended(mac)
            assert mac.spool == []

    async with asyncio.TaskGroup() as tasks:
        for trial in trials:
            tasks.create_task(one(trial))
    return jobs


async def _reached(world: World, trial: Trial, job_id: str, executor: Logged) -> None:
    """Wait for the trial's moment."""
    match trial.moment:
        case Moment.SUBMITTED:
            pass
        case Moment.BEGUN:
            await eventually(executor.begun.is_set)
        case Moment.MADE:
            await eventually(executor.made.is_set)
        case Moment.COMPLETED:
            await world.until(job_id, "completed")


async def _known(world: World, worker: str) -> None:
    """Make an identity; the server knows it by the end."""
    async with world.servers.open(f"agent:{worker}"):
        pass


async def _ended(mac: RunningAgent) -> None:
    async with asyncio.timeout(RELEASE_LIMIT_S + WAIT_S):
        await mac.task


async def _published_once(world: World, jobs: int) -> None:
    await world.coordinator.results.once()
    info = await world.coordinator.bus.api("STREAM.INFO.RESULTS", {"subjects_filter": ">"})
    assert list(info["state"]["subjects"].values()) == [1] * jobs
