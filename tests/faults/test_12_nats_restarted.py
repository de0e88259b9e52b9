"""Fault 12: NATS dies and comes back, with its store and without, under load and with fifty agents connected.

All are back without the restart of any process, at spread times. Pulls deliver again to every one of them. A
submission that got no answer is sent again, under the same id, and is one job; what was in the ledger, or in a store
that survived, is not lost. (A store that is lost takes along what the ledger had not read yet: a publisher that hears
of such a loss sends all again, which the keys make harmless; that is what the one here does.)
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, Self

import orjson
import pytest
import pytest_asyncio

from agent.executors.base import Product, Progress, RunnableJob
from coordinator.service import Coordinator, running
from shared import backoff, bus_connection
from shared.bus import Bus, BusError
from shared.wire import Capability
from tests.support.agent_world import RunningAgent, agent, settings_for
from tests.support.proxy import Proxy
from tests.support.servers import eventually, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

AGENTS = 50
KEYS = [f"key-{number}" for number in range(300)]
BEFORE = 200
"""So many are submitted as fast as it goes, and NATS dies meanwhile; the others only when it is away."""

BY_HTTP = 20
SENDERS = 8
PATIENCE_S = 60.0
RECONNECT_S = (0.5, 0.5)
UNCLAIMED_S = 15.0
TICK_S = 1.0
SPAN_S = 0.2  # ±20 % of it


class Gated:
    """An executor whose jobs end at once while the gate, which all share, is open."""

    name: ClassVar[str] = "gated"

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate
        self.starts: list[tuple[str, int]] = []

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        return cls(**table)

    def capabilities(self) -> list[Capability]:
        return [Capability(kind="article", models=["*"], executor=self.name)]

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        progress.stage("generating_text")
        self.starts.append((job.id, job.epoch))
        await self.gate.wait()
        return Product(result={"text": "words"})


class Fleet:
    """Fifty agents that reach NATS through one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.gate = asyncio.Event()
        self.executors = [Gated(self.gate) for _ in range(AGENTS)]
        self.agents: list[RunningAgent] = []

    async def start(self, world: World, folder: Path, stack: AsyncExitStack) -> None:
        identities = world.servers.nats.identities
        for number in range(AGENTS):
            identities.add_agent(f"mac-{number:02}")
        async with world.servers.open("agent:last"):
            pass  # the server knows them all by now
        nats = f"nats://127.0.0.1:{self.proxy.port}"
        for number, executor in enumerate(self.executors):
            settings = settings_for(
                world.servers,
                f"mac-{number:02}",
                folder / str(number),
                nats=nats,
                reconnect_s=RECONNECT_S,
                linger_s=5.0,
                heartbeat_tick_s=0.2,
                claim_timeout_s=1.0,
                verdict_timeout_s=1.0,
            )
            self.agents.append(await stack.enter_async_context(agent(settings, executor)))

    @property
    def starts(self) -> list[tuple[str, int]]:
        return [start for executor in self.executors for start in executor.starts]


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose loops run by themselves."""
    async with (
        own_servers() as servers,
        open_world(servers, ledger_dsn, tmp_path, reaper_s=1.0, reconcile_s=1.0) as made,
    ):
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def second(world: World) -> AsyncIterator[Coordinator]:
    """Another coordinator on the same ledger."""
    async with running(world.settings) as made:
        await eventually(lambda: not made.unready())
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(world: World, second: Coordinator, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Proxy("127.0.0.1", world.servers.nats.port) as proxy, AsyncExitStack() as stack:
        made = Fleet(proxy)
        await made.start(world, tmp_path, stack)
        yield made


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits before the agents' first tries to be back, as their connections ask for them."""
    seen: list[float] = []

    def spy(failures: int, jitter: float, schedule: Sequence[float]) -> float:
        delay_s = backoff.reconnect_delay_s(failures, jitter, schedule)
        if schedule == RECONNECT_S and failures == 0:
            seen.append(delay_s)
        return delay_s

    monkeypatch.setattr(bus_connection, "reconnect_delay_s", spy)
    return seen


@pytest.mark.fault(12)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["kept", "lost"])
async def test_fifty_agents_under_load_are_back_after_a_restart_of_nats(
    world: World, second: Coordinator, fleet: Fleet, delays: list[float], store: str
) -> None:
    fleet.gate.set()
    down = asyncio.Event()
    async with world.servers.open("publisher:local") as publisher, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send_all(publisher, KEYS, down))
        await eventually(lambda: len(fleet.starts) >= AGENTS, within_s=PATIENCE_S)

        await world.servers.nats.kill()
        down.set()
        await eventually(lambda: not world.coordinator.bus.connected)
        for number in range(BY_HTTP):
            await world.submit(key=f"http-{number}")
        if store == "lost":
            await world.servers.nats.wipe()
        else:
            await world.servers.nats.start()

        assert await sending > 0
        if store == "lost":
            await send_all(publisher, KEYS, down)
        await everyone_is_back(world, second, fleet)

    await all_completed(world, len(KEYS) + BY_HTTP)
    assert max(Counter(fleet.starts).values()) == 1
    assert_spread(delays)
    await each_gets_one(world, fleet)
    assert [a.task.done() for a in fleet.agents] == [False] * AGENTS


async def send_all(publisher: Bus, keys: Sequence[str], down: asyncio.Event) -> int:
    """Submit each key until JetStream has said that it is stored; return how often that took another try."""
    left, more = list(enumerate(keys)), 0
    left.reverse()

    async def send() -> None:
        nonlocal more
        while left:
            number, key = left.pop()
            if number >= BEFORE:
                await down.wait()
            body = orjson.dumps({"key": key, "kind": "article", "spec": {"prompt": "A story"}})
            while not await stored(publisher, key, body):
                more += 1
                await publisher.wait_connected(PATIENCE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(SENDERS):
            tasks.create_task(send())
    return more


async def stored(publisher: Bus, key: str, body: bytes) -> bool:
    try:
        await publisher.js_publish("tandem.submit.local", body, msg_id=f"local:{key}", timeout_s=1.0)
    except BusError:
        return False
    return True


async def everyone_is_back(world: World, second: Coordinator, fleet: Fleet) -> None:
    """Wait until all are connected again; then make the offers that fell into the gap old."""
    await eventually(lambda: fleet.proxy.connections == AGENTS, within_s=PATIENCE_S)
    await eventually(lambda: not world.coordinator.unready() and not second.unready(), within_s=PATIENCE_S)
    assert min(world.coordinator.bus.connections, second.bus.connections) >= 2
    await world.move_clock(UNCLAIMED_S + TICK_S)


async def all_completed(world: World, jobs: int) -> None:
    """Wait until so many jobs there are, and all completed, each once and with nothing charged."""

    async def done() -> bool:
        return bool(await world.pool.fetchval("SELECT count(*) FROM job WHERE state = 'completed'") == jobs)

    await eventually_async(done, within_s=PATIENCE_S)
    assert await world.pool.fetchval("SELECT count(*) FROM job") == jobs
    assert await world.pool.fetchval("SELECT sum(attempt + lease_losses + silences) FROM job") == 0
    assert await world.pool.fetchval("SELECT count(*) FROM attempt WHERE outcome = 'completed'") == jobs


def assert_spread(delays: Sequence[float]) -> None:
    """The agents' first tries lie over the whole span that the jitter gives, not in a bunch."""
    assert len(delays) >= AGENTS
    assert max(delays) - min(delays) > SPAN_S / 2
    slots = Counter(int((delay - min(delays)) / (SPAN_S / 10)) for delay in delays[:AGENTS])
    assert max(slots.values()) < AGENTS / 2


async def each_gets_one(world: World, fleet: Fleet) -> None:
    """With as many jobs as agents, and none that ends, every agent gets one."""
    fleet.gate.clear()
    wanted = [len(executor.starts) + 1 for executor in fleet.executors]
    for number in range(AGENTS):
        await world.submit(key=f"after-{number}")
    await eventually(lambda: [len(executor.starts) for executor in fleet.executors] == wanted, within_s=PATIENCE_S)
    fleet.gate.set()
    await all_completed(world, len(KEYS) + BY_HTTP + AGENTS)
