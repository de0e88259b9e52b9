"""The cadence of heartbeats, by a clock that the test moves; what goes over a real server is in tests/agent."""

import asyncio
import uuid

import pytest

from agent.heartbeat import BODY, Heartbeats
from agent.leases import Leases, StopKind
from shared.bus import Bus, BusDown
from shared.wire import Granted, GrantedJob, Upload


class Clock:
    def __init__(self):
        self.time = 1000.0

    def now(self):
        return self.time


class Line:
    """Where heartbeats go; `hold` keeps one on its way, `down` refuses it."""

    def __init__(self):
        self.sent = []
        self.hold = None
        self.down = False
        self.most = self.under_way = 0

    async def publish(self, subject, data=b"", *, headers=None):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.down:
                raise BusDown("not connected")
            if self.hold is not None:
                await self.hold.wait()
            self.sent.append((subject, data, headers))
        finally:
            self.under_way -= 1


@pytest.fixture
async def world():
    clock, line = Clock(), Line()
    leases = Leases(Bus("nats://127.0.0.1:1", name="never opened"), "mini", "process", clock.now, timeout_s=1)
    granted = Granted(
        epoch=3,
        attempt=1,
        lease_ttl_s=90,
        heartbeat_s=30,
        deadline_s=600,
        upload=Upload(url="http://here", token="t"),
        job=GrantedJob(id=uuid.uuid4(), kind="article", spec={}),
    )
    attempt = leases.open(granted, "$JS.ACK.WORK.c.1.2.3.4.5", clock.now())
    return clock, line, leases, attempt, Heartbeats(line.publish, leases, "mini", "process", clock.now)


async def test_one_soon_after_the_start_then_every_heartbeat_s(world):
    clock, line, _, attempt, heartbeats = world
    attempt.stage("generating_text")
    for _ in range(1000):
        await heartbeats.once()
        clock.time += 0.125
    assert [headers["Tandem-Elapsed"] for _, _, headers in line.sent] == ["0.5", "30.5", "60.5", "90.5", "120.5"]
    assert {(subject, data) for subject, data, _ in line.sent} == {("$JS.ACK.WORK.c.1.2.3.4.5", BODY)}
    assert line.sent[0][2]["Tandem-Epoch"] == "3"


async def test_a_new_stage_is_told_soon_but_never_more_than_one_a_second(world):
    clock, line, _, attempt, heartbeats = world
    for number in range(50):
        attempt.stage(f"stage_{number}")
        await heartbeats.once()
        clock.time += 0.1
    assert 5 <= len(line.sent) <= 6
    clock.time += 1
    await heartbeats.once()
    assert line.sent[-1][2]["Tandem-Stage"] == "stage_49"


async def test_a_line_that_fails_is_tried_again_in_a_second_and_loses_no_lease(world):
    clock, line, _, attempt, heartbeats = world
    line.down = True
    for _ in range(50):
        assert await heartbeats.once() == 0
        clock.time += 0.1
    assert not attempt.stopped.done()
    line.down = False
    clock.time += 1
    assert await heartbeats.once() == 1


async def test_one_is_in_flight_at_a_time(world):
    clock, line, _, attempt, heartbeats = world
    line.hold = asyncio.Event()
    clock.time += 1
    first = asyncio.create_task(heartbeats.once())
    await asyncio.sleep(0)
    attempt.stage("upscaling")
    clock.time += 40
    line.hold.set()
    await first
    await heartbeats.once()
    assert (len(line.sent), line.most) == (2, 1)


async def test_nothing_is_sent_for_a_lease_that_is_lost_or_closed(world):
    clock, line, leases, attempt, heartbeats = world
    attempt.stop(StopKind.LOST, "stale")
    assert await heartbeats.once() == 0
    leases.close(attempt)
    clock.time += 100
    assert await heartbeats.once() == 0
    assert line.sent == []


async def test_a_deadline_passes_by_the_clock_that_runs_on_in_sleep(world):
    clock, _, _, attempt, heartbeats = world
    clock.time += 599
    await heartbeats.once()
    assert not attempt.stopped.done()
    clock.time += 1
    await heartbeats.once()
    assert attempt.stopped.result().kind is StopKind.DEADLINE
    assert not attempt.lost.done()


async def test_a_deadline_does_not_stop_what_is_already_done(world):
    clock, _, leases, attempt, heartbeats = world
    leases.deliver(attempt)
    clock.time += 10_000
    await heartbeats.once()
    attempt.stop(StopKind.LOST, "deadline")
    assert not attempt.stopped.done()
    assert not attempt.lost.done()


async def test_a_job_of_milliseconds_costs_no_heartbeat(world):
    clock, line, leases, attempt, heartbeats = world
    attempt.stage("generating_text")
    await heartbeats.once()
    clock.time += 0.4
    attempt.stage("finalizing")
    await heartbeats.once()
    leases.close(attempt)
    clock.time += 60
    await heartbeats.once()
    assert line.sent == []
