"""Caffeinate: as long as a lease can be held, and no longer."""

import asyncio
import uuid
from contextlib import asynccontextmanager

import psutil
import pytest

from agent import mac
from agent.awake import Awake
from agent.gate import Gate
from agent.leases import Leases, StopKind
from shared.bus import Bus
from shared.wire import Granted, GrantedJob, Upload
from tests.support.comfyui_rig import Time
from tests.support.fake_mac import FakeMac
from tests.support.servers import eventually

TTL_S = 90
SOON_S = 0.3
"""Long enough for several looks."""


@pytest.fixture(name="tools")
def tools_on_path(tmp_path, monkeypatch):
    tools = FakeMac(tmp_path / "mac")
    monkeypatch.setenv("PATH", tools.path)
    return tools


class World:
    """Leases and a gate without an agent; the link is up and the coordinator answers."""

    def __init__(self):
        self.time = Time()
        self.leases = Leases(Bus("nats://127.0.0.1:1", name="never opened"), "mini", "process", self.time, timeout_s=1)
        self.gate = Gate(self.time, lambda: True, connected=True, answered=True)
        self.awake = Awake(self.leases, self.gate, self.time, lambda: TTL_S, look_s=0.05)
        self.leases.on_change = self.awake.look

    def attempt(self):
        granted = Granted(
            epoch=1,
            attempt=1,
            lease_ttl_s=TTL_S,
            heartbeat_s=30,
            deadline_s=600,
            upload=Upload(url="http://here", token="t"),
            job=GrantedJob(id=uuid.uuid4(), kind="article", spec={}),
        )
        return self.leases.open(granted, "$JS.ACK.WORK.c.1.2.3.4.5", self.time())

    def link(self, *, up, answered):
        self.gate.connected, self.gate.answered = up, answered

    @asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.awake.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def has_ended(process):
    """Say whether it is over; one that was still being started is killed, and reaped a little later."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(name="world")
async def a_world():
    return World()


async def is_awake(tools):
    """Wait for the newest caffeinate."""
    await eventually(lambda: [pid for pid in tools.caffeinated if psutil.pid_exists(pid)])


async def may_sleep(tools):
    """Wait until none is left, and see that it stays so."""
    await eventually(lambda: not any(psutil.pid_exists(pid) for pid in tools.caffeinated))
    started = len(tools.caffeinated)
    await asyncio.sleep(SOON_S)
    assert len(tools.caffeinated) == started


async def test_a_generator_counts_until_its_lease_lapsed_off_the_network(world, tools):
    async with world.running():
        world.attempt()
        await is_awake(tools)
        world.link(up=True, answered=False)  # a coordinator that is away hears of it later
        world.time.s += TTL_S * 3
        await asyncio.sleep(SOON_S)
        await is_awake(tools)
        world.link(up=False, answered=False)
        world.time.s += TTL_S - 1
        await asyncio.sleep(SOON_S)
        await is_awake(tools)
        world.time.s += 1
        await may_sleep(tools)
        world.link(up=True, answered=True)
        await is_awake(tools)
    assert len(tools.caffeinated) == 2


async def test_a_result_that_waits_counts_only_while_the_coordinator_answers(world, tools):
    async with world.running():
        world.leases.deliver(world.attempt())
        await is_awake(tools)
        world.link(up=True, answered=False)
        world.time.s += TTL_S - 1
        await asyncio.sleep(SOON_S)
        await is_awake(tools)
        world.time.s += 1
        await may_sleep(tools)


async def test_what_an_earlier_process_left_counts_when_the_coordinator_has_answered(world, tools):
    world.link(up=False, answered=False)
    async with world.running():
        world.leases.deliver(world.attempt())
        world.attempt()
        await may_sleep(tools)
        world.link(up=True, answered=False)
        await may_sleep(tools)
        world.link(up=True, answered=True)
        await is_awake(tools)


async def test_a_lease_that_is_lost_does_not_count_though_its_generator_goes_on(world, tools):
    async with world.running():
        attempt = world.attempt()
        await is_awake(tools)
        attempt.stop(StopKind.LOST, "canceled")
        await may_sleep(tools)


async def test_one_that_dies_is_followed_by_another_and_none_outlives_the_agent(world, tools):
    async with world.running():
        world.attempt()
        await eventually(lambda: len(tools.caffeinated) == 1)
        psutil.Process(tools.caffeinated[0]).kill()
        await eventually(lambda: len(tools.caffeinated) == 2)
        last = psutil.Process(tools.caffeinated[1])
    await eventually(lambda: has_ended(last))


async def test_one_that_will_not_end_is_ended(world, tools):
    stubborn = tools.folder / "bin" / "caffeinate"
    stubborn.write_text(stubborn.read_text().replace("#!/bin/sh\n", "#!/bin/sh\ntrap '' TERM\n"))
    async with world.running():
        world.attempt()
        await eventually(lambda: len(tools.caffeinated) == 1)
        child = psutil.Process(tools.caffeinated[0])
    await eventually(lambda: has_ended(child))


async def test_one_that_does_not_start_is_tried_again(world, tools, monkeypatch):
    start, refused = mac.caffeinate, []

    async def refuses_once(pid):
        if refused:
            return await start(pid)
        refused.append(pid)
        return None

    monkeypatch.setattr(mac, "caffeinate", refuses_once)
    async with world.running():
        world.attempt()
        await is_awake(tools)
    assert refused


async def test_where_there_is_none_nothing_happens(world, monkeypatch):
    monkeypatch.setattr("agent.awake.find", lambda _: None)
    await asyncio.wait_for(world.awake.run(), 1)
