"""Fault 14: agents whose clocks are an hour off, a coordinator whose clock is set back ten minutes, Postgres's too.

Leases, order and the page go by Postgres's clock alone, so the first two change nothing. When Postgres's own clock is
set back, nobody loses a lease and nothing runs twice; every lease is an ordinary one again, what was due is due, and no
age on the page is below zero. Only what waits out a backoff waits until the clock has caught up.
"""

import ast
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uuid_utils.compat

import agent as agent_package
from agent.host import Clock
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import agent, settings_for
from tests.support.puppet import Held, Puppet
from tests.support.servers import eventually
from tests.support.world import World

HOUR_S = 3600.0
BACK_S = 600.0
EXCEPT = (
    *("agent/executors/", "coordinator/publishing/wordpress.py"),  # generators and sites speak of times of day
    *("coordinator/artifact_s3", "coordinator/callbacks.py"),  # S3 and receivers want requests dated
    "coordinator/web/hooks.py",  # and senders date theirs
    "agent/journal.py",  # what outlasts a reboot has no other clock; the ledger judges the attempt
    "coordinator/web/access.py",  # a session outlasts its coordinator
    *("shared/log_file.py", "coordinator/log_lines.py"),  # log lines are dated by the machine that writes them
    *("coordinator/cli_watch", "coordinator/web/html.py"),  # an instant of today is shown without its date
    "agent/rule_watch.py",  # hours of the day are those of the Mac's own clock
    *("agent/doctor_machine.py", "agent/sntp.py", "coordinator/doctor"),  # a clock is held against others
    *("coordinator/backup.py", "coordinator/cli_backup.py"),  # a backup says of when it is
    "coordinator/init_certificates.py",  # so do certificates
)
"""Who may: no lease, order or age on a page depends on any of them."""
WALL_CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}

pytestmark = pytest.mark.fault(14)


class OffClock(Clock):
    """The clock of a machine whose time was never set right."""

    def __init__(self, off_s: float) -> None:
        super().__init__()
        self._off_s = off_s

    def now(self) -> float:
        return super().now() + self._off_s

    def awake(self) -> float:
        return super().awake() + self._off_s


def set_wall_clock(monkeypatch: pytest.MonkeyPatch, off_s: float) -> None:
    """Set this process's wall clock, which the ids of jobs without a key begin with, so much ahead."""
    wall, uuid7 = time.time, uuid_utils.compat.uuid7
    monkeypatch.setattr(time, "time", lambda: wall() + off_s)
    monkeypatch.setattr(time, "time_ns", lambda: int((wall() + off_s) * 1e9))
    monkeypatch.setattr(uuid_utils.compat, "uuid7", lambda: UUID(int=uuid7().int + (int(off_s * 1000) << 80)))


def test_nothing_that_leases_order_or_page_depend_on_asks_a_wall_clock() -> None:
    """It would be the first thing to go wrong; Postgres's clock and monotonic ones are all that is needed."""
    root = Path(agent_package.__file__).parent.parent
    asked = [
        line
        for package in ("agent", "coordinator", "shared")
        for path in sorted((root / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in WALL_CLOCKS
        and not (line := f"{path.relative_to(root)}:{node.lineno}").startswith(EXCEPT)
    ]
    assert asked == []


# -------------------------------------------------------------------------------------------------------- agents


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S], ids=["ahead", "behind"])
async def test_a_job_of_an_agent_an_hour_off_is_held_beaten_and_completed_at_the_ledgers_times(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    await _known(world, "mini")
    began = await _ledger_now(world)
    set_wall_clock(monkeypatch, off_s)
    strings = StringExecutor()
    settings = settings_for(world.servers, "mini", tmp_path / "mini")
    async with agent(settings, strings, clock=OffClock(off_s)):
        job = await world.submit()
        generation = await strings.next()
        await eventually(lambda: world.coordinator.heartbeats.taken == 1)
        await world.pass_time(80)
        assert (await world.job(job["id"]))["state"] == "processing"
        assert 0 <= (await _shown_running(world))["heartbeat_age_s"] < 90
        generation.finish()
        seen = await world.until(job["id"], "completed")

    assert (seen["epoch"], seen["attempt"], seen["lease_losses"], seen["silences"]) == (1, 0, 0, 0)
    row = await world.pool.fetchrow(
        "SELECT created_at, claimed_at, heartbeat_at, ended_at, finished_at FROM job JOIN attempt ON job.id = job_id"
    )
    times = [began, *row, await _ledger_now(world)]
    assert times == sorted(times)


async def test_the_lease_of_a_silent_agent_an_hour_off_ends_when_every_lease_does(world: World, tmp_path: Path) -> None:
    await _known(world, "mini")
    macbook = await world.puppet("macbook", slots=0)
    strings = StringExecutor()
    settings = settings_for(world.servers, "mini", tmp_path / "mini")
    async with agent(settings, strings, clock=OffClock(HOUR_S)) as mini:
        job = await world.submit()
        generation = await strings.next()
        await eventually(lambda: world.coordinator.heartbeats.taken == 1)

        await world.pass_time(89)
        assert (await world.job(job["id"]))["state"] == "processing"
        await world.pass_time(2)
        assert (await world.job(job["id"]))["state"] == "pending"
        held = await macbook.take()

        generation.finish()
        end = await mini.end()
        assert (end.verdict or end.reason) == "stale"  # the verdict, or the revoke that came before it
    assert (held.job_id, held.epoch) == (job["id"], 2)


# --------------------------------------------------------------------------------------------------- coordinators


async def test_a_coordinators_clock_set_back_changes_neither_order_nor_leases(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook", slots=0)
    running = await world.submit()
    silent = await mini.take()
    await _lane(world, "pause")  # so that all wait, and one round decides in which order they go out
    before = [(await world.submit())["id"] for _ in range(5)]
    set_wall_clock(monkeypatch, -BACK_S)
    after = [(await world.submit())["id"] for _ in range(5)]
    assert max(after) < min(before), "the ids must be those of an earlier time"

    assert [job["id"] for job in await _listed(world)] == [*reversed(after), *reversed(before), running["id"]]
    await _lane(world, "resume")
    taken = [(await macbook.take()).job_id for _ in range(10)]
    assert taken == [*before, *after]
    await world.pass_time(89)
    assert (await silent.ask())["lease"] == "held"
    await world.pass_time(91)
    assert (await world.job(running["id"]))["state"] == "pending"
    await _pages_are_right(world)


# ------------------------------------------------------------------------------------------------------- Postgres


async def test_postgres_set_back_takes_no_lease_and_one_beat_makes_it_an_ordinary_one_again(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook", slots=0)
    job = await world.submit()
    held = await mini.take()
    await held.beat()
    await eventually(lambda: world.coordinator.heartbeats.taken == 1)

    await world.pass_time(-BACK_S)
    await _pages_are_right(world)
    for beats in range(2, 12):
        await held.beat()
        await eventually(lambda most=beats: world.coordinator.heartbeats.taken == most)
        assert 0 < (await world.job(job["id"]))["lease_left_s"] <= 90
        await world.pass_time(30)
    seen = await world.job(job["id"])
    assert (seen["state"], seen["epoch"], seen["lease_losses"], seen["silences"]) == ("processing", 1, 0, 0)
    await _pages_are_right(world)

    await world.pass_time(61)  # ninety-one since its last beat
    assert (await world.job(job["id"]))["state"] == "pending"
    await world.pass_time(BACK_S)
    world.coordinator.dispatcher.wake()
    assert (await macbook.take()).epoch == 2


async def test_what_was_due_is_due_after_postgres_was_set_back_and_a_silent_lease_ends_in_time(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook", slots=0)
    await world.submit()
    silent = await mini.take()
    await world.submit()
    failed = await mini.take()
    await failed.fail("transient")
    before = [(await world.submit())["id"] for _ in range(5)]

    await world.pass_time(-BACK_S)
    after = [(await world.submit())["id"] for _ in range(5)]
    await _pages_are_right(world)
    first = await _do(macbook, 10)
    await world.pass_time(91)
    again = await _do(macbook, 1)
    await world.pass_time(BACK_S)
    world.coordinator.dispatcher.wake()
    last = await _do(macbook, 1)

    assert set(first) == {*before, *after}
    assert (again, last) == ([silent.job_id], [failed.job_id])
    assert world.coordinator.reaper.set_back == 1
    assert {(job["state"], job["epoch"]) for job in await _listed(world)} == {("completed", 1), ("completed", 2)}
    await _pages_are_right(world)


async def _known(world: World, worker: str) -> None:
    """Make a worker's identity; when this returns, the server knows it."""
    async with world.servers.open(f"agent:{worker}"):
        pass


async def _do(puppet: Puppet, count: int) -> list[str]:
    """Do so many; an offer whose time has not come by the clock of now is denied, and comes again."""
    done: list[str] = []
    while len(done) < count:
        offer = await puppet.pull()
        answer = await puppet.claim(offer)
        if answer["verdict"] == "denied":
            assert answer["reason"] == "not_due"
            continue
        held = Held(puppet, offer, answer)
        await held.report()
        await held.verdict("accepted")
        done.append(held.job_id)
    return done


async def _lane(world: World, order: str) -> None:
    """Pause or resume the lane; when this returns, the dispatcher knows."""
    async with world.http.post(f"/v1/lanes/article.any/{order}") as answer:
        assert answer.status == 200, await answer.text()
    await eventually(lambda: world.coordinator.dispatcher.is_paused("article.any") == (order == "pause"))


async def _ledger_now(world: World) -> Any:
    return await world.pool.fetchval("SELECT tandem_now()")


async def _listed(world: World) -> Sequence[dict[str, Any]]:
    async with world.http.get("/v1/jobs") as answer:
        jobs: list[dict[str, Any]] = (await answer.json())["jobs"]
        return jobs


async def _status(world: World) -> dict[str, Any]:
    async with world.http.get("/status") as answer:
        assert answer.status == 200
        body: dict[str, Any] = await answer.json()
        return body


async def _shown_running(world: World) -> dict[str, Any]:
    [running] = (await _status(world))["running"]
    assert isinstance(running, dict)
    return running


async def _pages_are_right(world: World) -> None:
    """Page, status and lists answer, and no age or duration is below zero."""
    status = await _status(world)
    ages = [run[name] for run in status["running"] for name in ("since_s", "heartbeat_age_s")]
    ages += [worker["seen_age_s"] for worker in status["workers"]]
    ages += [lane["waits_s"] for lane in status["lanes"]]
    for job in await _listed(world):
        ages.append(job["duration_s"])
        one = await world.job(job["id"])
        ages += [one[name] for name in ("duration_s", "age_s", "heartbeat_age_s")]
    assert [age for age in ages if age is not None and age < 0] == []
    async with world.http.get("/") as answer:
        assert answer.status == 200
        assert "<td>-" not in await answer.text()
