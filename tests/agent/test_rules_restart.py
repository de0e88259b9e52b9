"""An agent that finds its own unfinished work when it starts, and whom a rule or a word forbids to go on with it."""

import asyncio
import time
import uuid

import pytest

from agent.executors.base import RunnableJob
from agent.journal import Journal
from agent.leases import Leases
from shared.bus import Bus
from shared.rules import Rules
from shared.wire import Granted, GrantedJob, Upload
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import TTL_S, agent, settings_for
from tests.support.servers import eventually


class Adopting(StringExecutor):
    """Its work goes on without the agent, until it is told to stop it."""

    def __init__(self):
        super().__init__()
        self.abandoned = []

    async def abandon(self, job_id, epoch):
        self.abandoned.append((job_id, epoch))


class Slow(Adopting):
    """It never gets as far as its own work, as one that waits for the GPU."""

    async def run(self, _job, _progress):
        self.started += 1
        await asyncio.Event().wait()


@pytest.fixture
async def left(far, servers, tmp_path):
    """Return the id of a job that a killed process had begun, and the settings of the next one."""
    settings = settings_for(servers, "mini", tmp_path / "mini", rules=never(), rules_s=0.05, presence_timeout_s=0.2)
    job_id = uuid.uuid4()
    far.jobs[str(job_id)] = {"id": str(job_id), "kind": "article", "model": None, "spec": {}, "epoch": 1}
    settings.data.mkdir()
    journal = Journal(settings.data / "journal")
    journal.load()
    granted = Granted(
        epoch=1,
        attempt=1,
        lease_ttl_s=TTL_S,
        heartbeat_s=1,
        deadline_s=600,
        upload=Upload(url=far.url, token="t"),
        job=GrantedJob(id=job_id, kind="article", spec={}),
    )
    leases = Leases(Bus("nats://127.0.0.1:1", name="never opened"), "mini", "dead", time.monotonic, timeout_s=1)
    attempt = leases.open(granted, "", time.monotonic())
    job = RunnableJob(
        id=str(job_id), epoch=1, attempt=1, kind="article", model=None, spec={}, labels={}, open_workspace=None
    )
    await journal.keep(attempt, job, Adopting())
    return str(job_id), settings


def never():
    """Return rules that forbid now, whatever the time."""
    minute = (int(time.time()) // 60 + 720) % 1440
    return Rules(hours=(f"{minute // 60:02}:{minute % 60:02}-{(minute + 1) % 1440 // 60:02}:{(minute + 1) % 60:02}",),
                 time_zone="UTC", stops=frozenset({"hours"}))  # fmt: skip


@pytest.mark.parametrize("kind", [Adopting, Slow])
async def test_work_found_again_outside_hours_is_ended_and_given_back(far, left, kind):
    job_id, settings = left
    executor, far.answer_presence = kind(), False
    async with agent(settings, executor, wait_ready=False) as mini:
        await eventually(lambda: len(far.presences) > 1)
        assert far.presences[-1]["facts"]["not_pulling"] == "outside_hours"
        assert [busy["job_id"] for busy in far.presences[-1]["busy"]] == [job_id]
        far.answer_presence = True
        report = await far.report()
        assert (report["job_id"], report["epoch"], report["outcome"]) == (job_id, 1, "released")
        assert (await mini.end()).how == "released"
    assert executor.abandoned == [(job_id, 1)]


async def test_whose_rules_count_is_known_when_the_coordinator_has_answered(far, left):
    _, settings = left
    executor, far.rules = Adopting(), {}
    async with agent(settings, executor):
        (await executor.next()).finish()
        assert (await far.report())["outcome"] == "completed"
    assert executor.abandoned == []


async def test_work_found_again_is_ended_when_it_is_revoked_before_the_first_answer(far, left):
    job_id, settings = left
    executor, far.answer_presence = Adopting(), False
    async with agent(settings, executor, wait_ready=False) as mini:
        await eventually(lambda: far.presences)
        await far.say(type="revoke", job_id=job_id, epoch=1, reason="canceled")
        assert (await mini.end()).how == "lost"
        assert not mini.ready.is_set()
    assert executor.abandoned == [(job_id, 1)]
