"""Fault 10: the way to the coordinator is slow, full, or leads nowhere while a job runs.

Heartbeats don't pile up (one is in flight at a time, and none of those that were due meanwhile is made up for), and a
call that fails says nothing about the lease: the generator works on, and its result counts.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.heartbeat import Heartbeats
from agent.leases import Attempt, Leases
from shared import subjects
from shared.bus import Bus, BusError, Message
from shared.loops import Loop
from shared.wire import Granted, GrantedJob, Upload
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import Coordinator, ManualClock, agent, coordinator, settings_for
from tests.support.proxy import Proxy
from tests.support.servers import TandemServers, eventually

HEARTBEAT_S = 30.0
ATTEMPTS = 5
CHUNK = b"x" * 512 * 1024
MORE_CHUNKS = 100

pytestmark = pytest.mark.fault(10)


# ------------------------------------------------------------------------------------------ heartbeats on a real bus


class Line:
    """The bus's `publish`, counted."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.begun = self.under_way = self.most = self.failed = 0

    async def publish(self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None) -> None:
        self.begun += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self._bus.publish(subject, data, headers=headers)
        except (BusError, asyncio.CancelledError):
            self.failed += 1
            raise
        finally:
            self.under_way -= 1


class Beating:
    """An agent's heartbeats over a proxy, by a clock that the test moves; `heard` is what the coordinators get."""

    def __init__(self, bus: Bus, proxy: Proxy) -> None:
        self.bus = bus
        self.proxy = proxy
        self.time = 1000.0
        self.line = Line(bus)
        self.heard: list[Message] = []
        leases = Leases(bus, "mini", "process", lambda: self.time, timeout_s=1)
        self.attempts = [_open(leases, number, self.time) for number in range(ATTEMPTS)]
        self.loop = Loop(
            "heartbeats", Heartbeats(self.line.publish, leases, "mini", "process", lambda: self.time).once, 0.01
        )

    async def beat(self) -> None:
        """Let one heartbeat become due for each attempt, and wait until all are heard."""
        before = len(self.heard)
        self.time += HEARTBEAT_S
        await eventually(lambda: len(self.heard) == before + ATTEMPTS)


def _open(leases: Leases, number: int, at: float) -> Attempt:
    granted = Granted(
        epoch=1,
        attempt=1,
        lease_ttl_s=90,
        heartbeat_s=HEARTBEAT_S,
        deadline_s=1e9,
        upload=Upload(url="http://here", token="t"),
        job=GrantedJob(id=uuid.uuid4(), kind="article", spec={}),
    )
    return leases.open(granted, f"$JS.ACK.WORK.article--any.1.{number + 1}.1.1.0", at)


@pytest.fixture
async def beating(servers: TandemServers) -> AsyncIterator[Beating]:
    host, port = servers.nats.url.removeprefix("nats://").split(":")
    async with servers.open("agent:mini"):
        pass  # the server knows the identity by now
    async with (
        Proxy(host, int(port)) as proxy,
        servers.open("coordinator") as far,
        servers.open("agent:mini", url=f"nats://127.0.0.1:{proxy.port}", ping_interval_s=1.0, stuck_s=0.2) as bus,
    ):
        made = Beating(bus, proxy)
        await far.subscribe(subjects.HEARTBEATS, made.heard.append)
        running = asyncio.create_task(made.loop.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_on_a_line_that_takes_nothing_more_one_beat_waits_and_none_is_made_up_for(beating: Beating) -> None:
    await beating.beat()
    beating.proxy.black_hole(swallow=False)
    filling = await _fill(beating.bus)
    heard, connections = len(beating.heard), beating.bus.connections

    beating.time += HEARTBEAT_S
    await eventually(lambda: beating.line.under_way == 1)
    beating.time += 20 * HEARTBEAT_S  # twenty more become due while it waits
    await eventually(lambda: beating.line.failed > 0)
    beating.proxy.heal()
    await asyncio.gather(*filling, return_exceptions=True)
    await eventually(lambda: beating.bus.connections == connections + 1)
    beating.time += HEARTBEAT_S  # a beat that the kernel's buffers still took seemed sent, and is due again only now
    await eventually(lambda: len(beating.heard) >= heard + ATTEMPTS)

    assert beating.line.most == 1
    await _goes_on(beating, heard)


async def test_on_a_line_that_swallows_everything_no_lease_is_lost_and_none_is_made_up_for(beating: Beating) -> None:
    await beating.beat()
    beating.proxy.black_hole()
    heard, connections = len(beating.heard), beating.bus.connections

    for _ in range(20):
        begun = beating.line.begun
        beating.time += HEARTBEAT_S
        await eventually(lambda before=begun: beating.line.begun >= before + ATTEMPTS)
    await eventually(lambda: not beating.bus.connected)
    beating.proxy.heal()
    await eventually(lambda: beating.bus.connections == connections + 1)
    beating.time += HEARTBEAT_S  # the swallowed ones seemed sent
    await eventually(lambda: len(beating.heard) >= heard + ATTEMPTS)

    assert beating.line.most == 1
    await _goes_on(beating, heard)


async def _fill(bus: Bus) -> list[asyncio.Task[None]]:
    """Send until nothing more goes in, and have more wait for it than any buffer on the way could still take."""
    sending: list[asyncio.Task[None]] = []

    def send() -> None:
        sending.append(asyncio.create_task(bus.publish("$JS.ACK.WORK.article--any.1.99.1.1.0", CHUNK)))

    while not sending or sending[-1].done():
        send()
        await asyncio.sleep(0)
        assert len(sending) < 1000, "the line takes everything"
    for _ in range(MORE_CHUNKS):
        send()
    return sending


async def _goes_on(beating: Beating, heard: int) -> None:
    """Check that each attempt was heard of exactly once since, that none is given up, and that beats go on."""
    beats = [message for message in beating.heard[heard:] if message.data == b"+WPI"]
    assert len({message.subject for message in beats}) == len(beats) == ATTEMPTS
    assert not any(attempt.stopped.done() or attempt.lost.done() for attempt in beating.attempts)
    await beating.beat()


# ------------------------------------------------------------------------------------------------- a whole agent


@pytest.fixture
async def far(servers: TandemServers) -> AsyncIterator[Coordinator]:
    async with coordinator(servers) as made:
        yield made


@asynccontextmanager
async def _behind_a_proxy(servers: TandemServers, data: Path, **more: Any) -> AsyncIterator[tuple[Any, Proxy, Any]]:
    host, port = servers.nats.url.removeprefix("nats://").split(":")
    strings, clock = StringExecutor(), ManualClock()
    async with Proxy(host, int(port)) as proxy:
        settings = settings_for(servers, "mini", data, nats=f"nats://127.0.0.1:{proxy.port}", **more)
        async with agent(settings, strings, clock=clock) as mini:
            yield (mini, strings), proxy, clock


async def test_questions_that_are_never_answered_cost_no_lease(
    servers: TandemServers, far: Coordinator, tmp_path: Path
) -> None:
    far.answer_lease = lambda _: None
    async with _behind_a_proxy(servers, tmp_path) as ((mini, strings), proxy, _):
        job_id = await far.offer()
        generation = await strings.next()
        for round_ in range(1, 4):
            proxy.cut()
            await eventually(lambda most=round_: len(far.questions) >= 2 * most)

        assert not generation.cancelled.is_set()
        generation.finish()
        report = await far.report()
        assert (report["job_id"], report["epoch"], report["outcome"]) == (job_id, 1, "completed")
        assert (await mini.end()).verdict == "accepted"
        assert far.alien_acks() == []


async def test_answers_that_come_after_the_patience_for_them_cost_no_lease(
    servers: TandemServers, far: Coordinator, tmp_path: Path
) -> None:
    async with _behind_a_proxy(servers, tmp_path, lease_timeout_s=0.2) as ((mini, strings), proxy, _):
        job_id = await far.offer()
        generation = await strings.next()
        proxy.delay_s = 0.25  # there and back: longer than a question waits
        proxy.cut()
        await eventually(lambda: len(far.questions) >= 3)

        assert not generation.cancelled.is_set()
        proxy.delay_s = 0.0
        generation.finish()
        report = await far.report()
        assert (report["job_id"], report["epoch"], report["outcome"]) == (job_id, 1, "completed")
        assert (await mini.end()).verdict == "accepted"


async def test_after_a_long_cut_one_beat_comes_and_not_those_of_the_time_before(
    servers: TandemServers, far: Coordinator, tmp_path: Path
) -> None:
    far.heartbeat_s, far.deadline_s = 300.0, 6000.0  # none becomes due but by the moved clock
    async with _behind_a_proxy(servers, tmp_path) as ((mini, strings), proxy, clock):
        job_id = await far.offer()
        generation = await strings.next()
        await eventually(lambda: far.beats_of(job_id))
        proxy.refuse()
        proxy.cut()
        for _ in range(10):
            tried = proxy.accepted
            clock.moved_s += far.heartbeat_s
            await eventually(lambda before=tried: proxy.accepted > before)
        heard = len(far.beats_of(job_id))
        proxy.refuse(refusing=False)
        await eventually(lambda: len(far.beats_of(job_id)) > heard)
        await far.bus.flush()

        assert len(far.beats_of(job_id)) == heard + 1
        assert not generation.cancelled.is_set()
        generation.finish()
        assert (await far.report())["outcome"] == "completed"
        assert (await mini.end()).verdict == "accepted"
