"""A process that is gone gives up its leases at once; a link that is silent, or made anew, keeps them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from coordinator.departures import SUBJECT, Departures
from coordinator.ledger.ledger import Ledger
from shared.bus import Message
from shared.errors import LedgerDownError
from tests.support.puppet import Puppet, puppet
from tests.support.servers import eventually, own_servers
from tests.support.world import NEVER_S, World
from tests.support.world import world as open_world

GRACE_S = 600.0
"""By clocks that a test moves: so long that what passes of real time meanwhile counts for nothing."""

QUICK_GRACE_S = 0.5
"""For a coordinator whose own loop and clock are to end a lease."""


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose own desk ends nothing: a `Scene` does."""
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, disconnect_grace_s=NEVER_S) as made:
        yield made


@asynccontextmanager
async def process(
    world: World, worker: str, instance: str, *, name: str = "", busy: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[Puppet]:
    """One process of an agent: leaving the block closes its connection, as its machine does when it dies."""
    async with puppet(world.servers, worker, name=name or f"agent-{worker}-{instance}") as made:
        made.instance = instance
        await made.announce(busy=busy)
        yield made


class Scene:
    """A desk with a clock that the test moves, in a coordinator's surroundings."""

    def __init__(self, world: World) -> None:
        coordinator = world.coordinator
        assert coordinator.departures is not None
        self.world = world
        self.now = 100.0
        self.hearing = True
        self.heard: list[str] = []  # the names of connections that ended
        coordinator.directory._sender["KEY"] = "mini"
        self.desk = Departures(
            coordinator.departures.watcher,
            coordinator.ledger,
            coordinator.queries,
            coordinator.directory,
            lambda: self.hearing,
            GRACE_S,
            clock=lambda: self.now,
        )

    def hear(self, message: Message) -> None:
        """Hand an event of the server to the desk."""
        self.desk._on_disconnect(message)
        self.heard.append(orjson.loads(message.data)["client"]["name"])

    async def ended(self, *names: str) -> None:
        """Wait until the desk has heard of the end of these connections."""
        await eventually(lambda: set(names) <= set(self.heard))

    async def pass_time(self, seconds: float) -> None:
        """Move the ledger's clock and the desk's, then let the desk look."""
        await self.world.move_clock(seconds)
        self.now += seconds
        await self.desk.once()


@asynccontextmanager
async def scene_of(world: World) -> AsyncIterator[Scene]:
    """Run a scene that hears the server's own events."""
    scene = Scene(world)
    subscription = await scene.desk.watcher.subscribe(SUBJECT, scene.hear)
    await scene.desk.watcher.flush()
    yield scene
    await subscription.close()


async def test_the_leases_of_a_process_that_died_end_at_once(ledger_dsn: str, tmp_path: Path) -> None:
    async with (
        own_servers() as servers,
        open_world(servers, ledger_dsn, tmp_path, disconnect_grace_s=QUICK_GRACE_S) as world,
    ):
        mini = await world.puppet("mini")
        job = await world.submit()
        async with process(world, "macbook", "one") as macbook:
            await (await macbook.take()).beat()
            await eventually(lambda: world.coordinator.heartbeats.taken == 1)

        held = await mini.take()

        assert (held.job_id, held.epoch) == (job["id"], 2)
        seen = await world.job(job["id"])
        assert (seen["lease_losses"], seen["silences"], seen["attempt"]) == (1, 0, 0)
        assert seen["attempts"][0]["error"]["code"] == "worker_lost"


async def test_a_process_that_makes_its_connection_anew_keeps_its_leases(world: World) -> None:
    job = await world.submit()
    async with scene_of(world) as scene:
        async with process(world, "macbook", "one") as macbook:
            held = await macbook.take()
        await scene.ended("agent-macbook-one")
        await scene.pass_time(GRACE_S / 2)
        async with process(world, "macbook", "one", busy=[(job["id"], 1)]) as again:
            await scene.pass_time(GRACE_S / 2)
            assert (scene.desk._closed, scene.desk.ended) == ({}, 0)
            assert (await world.job(job["id"]))["state"] == "processing"
            assert (await again.ask(held.job_id, 1))["lease"] == "held"


async def test_an_announcement_just_after_the_connection_ended_is_enough(world: World) -> None:
    """The next one may be due only after the grace."""
    scene = Scene(world)
    async with process(world, "mini", "one") as mini:
        job = await world.submit()
        await mini.take()
        await world.move_clock(GRACE_S)
        scene.desk._on_disconnect(event())
        await mini.announce(busy=[(job["id"], 1)])
        await world.move_clock(GRACE_S * 0.95)  # so the end is older than the announcement
        scene.now += GRACE_S
        await scene.desk.once()
        assert not scene.desk._closed
        assert (await world.job(job["id"]))["state"] == "processing"


async def test_a_process_that_was_only_heard_through_its_heartbeats_keeps_its_leases(world: World) -> None:
    """Its announcement may be late; whatever it says proves that it lives."""
    job = await world.submit()
    async with scene_of(world) as scene:
        async with process(world, "macbook", "one") as macbook:
            held = await macbook.take()
        await scene.ended("agent-macbook-one")
        await scene.pass_time(GRACE_S / 2)
        async with puppet(world.servers, "macbook", name="agent-macbook-one") as again:
            held.puppet = again
            await held.beat()
            await eventually(lambda: world.coordinator.heartbeats.taken == 1)
            await scene.pass_time(GRACE_S / 2)
            assert (scene.desk._closed, scene.desk.ended) == ({}, 0)
            assert (await world.job(job["id"]))["state"] == "processing"
            assert (await held.ask())["lease"] == "held"


async def test_a_process_that_comes_back_late_resumes_what_nobody_took(world: World) -> None:
    job = await world.submit()
    async with scene_of(world) as scene:
        async with process(world, "macbook", "one") as macbook:
            held = await macbook.take()
        await scene.ended("agent-macbook-one")
        await scene.pass_time(GRACE_S)
        assert (await world.job(job["id"]))["state"] == "pending"
    async with process(world, "macbook", "one") as again:
        assert (await again.ask(held.job_id, 1))["lease"] == "held"
        seen = await world.job(job["id"])
        assert (seen["state"], seen["epoch"], seen["lease_losses"]) == ("processing", 1, 0)


async def test_the_end_of_a_connection_that_is_no_agents_own_means_nothing(world: World) -> None:
    """The user is authenticated, the name is not: nobody can end another's leases by naming a connection after it."""
    look, doctor = "a look around with the agent's own key", "agent-macbook-two"  # a process of its own
    async with scene_of(world) as scene, process(world, "macbook", "one") as macbook:
        await world.submit()
        held = await macbook.take()
        async with process(world, "intruder", "one", name="agent-macbook-one"):
            pass
        for name in (look, doctor):
            async with puppet(world.servers, "macbook", name=name):
                pass
        await scene.ended("agent-macbook-one", look, doctor)
        assert list(scene.desk._closed) == [("macbook", "two")]
        await scene.pass_time(GRACE_S)
        assert (scene.desk._closed, scene.desk.ended) == ({}, 0)
        assert (await held.ask())["lease"] == "held"


def event(reason: str = "Client Closed", **client: Any) -> Message:
    body = {"client": {"user": "KEY", "name": "agent-mini-one", **client}, "reason": reason}
    return Message("$SYS.ACCOUNT.AGENTS.DISCONNECT", orjson.dumps(body))


@pytest.mark.parametrize(
    "message",
    [
        event("Stale Connection"),
        event("Write Deadline"),
        event("Read Error"),
        event("Server Shutdown"),
        event(user="NOBODY"),
        event(name="agent-macbook-one"),
        event(name=None),
        event(user=7),
        Message("s", b"[]"),
        Message("s", b"{"),
    ],
    ids=lambda m: str(m.data)[:70],
)
async def test_what_is_no_death_is_not_waited_for(world: World, message: Message) -> None:
    scene = Scene(world)
    scene.desk._on_disconnect(message)
    assert not scene.desk._closed
    scene.desk._on_disconnect(event())
    assert scene.desk._closed == {("mini", "one"): (100.0, 100.0 + scene.desk.grace_s)}


async def test_a_coordinator_that_could_not_hear_drops_what_it_was_told(world: World) -> None:
    scene = Scene(world)
    scene.desk._on_disconnect(event())
    scene.hearing = False
    await scene.pass_time(GRACE_S)
    assert not scene.desk._closed


async def test_a_coordinator_that_stood_still_gives_the_grace_once_more(world: World) -> None:
    """What the process said meanwhile may still lie in this coordinator's own buffers."""
    scene = Scene(world)
    scene.desk._on_disconnect(event())
    await scene.pass_time(GRACE_S + 15)
    assert scene.desk._closed == {("mini", "one"): (100.0, scene.now + scene.desk.grace_s)}
    await scene.pass_time(GRACE_S)
    assert not scene.desk._closed


async def test_while_the_ledger_was_away_nobody_could_be_heard(world: World) -> None:
    scene = Scene(world)
    job = await world.submit()
    async with process(world, "mini", "one") as mini:
        await mini.take()
        scene.desk._on_disconnect(event())
        scene.desk._on_disconnect(event(name="agent-mini-two"))
        scene.desk.ledger = Ledger(world.dsn, world.settings.policy(), on_effects=lambda _: None)  # never opened
        with pytest.raises(LedgerDownError):
            await scene.pass_time(GRACE_S)  # without a word of it
        assert not scene.desk._closed
        assert (await world.job(job["id"]))["state"] == "processing"


async def test_a_replaced_process_is_told_so_and_gets_nothing(world: World) -> None:
    async with process(world, "macbook", "one") as old:
        job = await world.submit()
        held = await old.take()
        async with process(world, "macbook", "two") as new:
            answer = await old.announce(busy=[(job["id"], 1)])
            assert answer["error"]["code"] == "replaced"
            await world.coordinator.directory.once()
            assert (await old.ask_claim({**claim_of(held), "instance": "one"}))["verdict"] == "denied"
            taken = await new.take()
            assert taken.epoch == 2
            row = world.coordinator.directory.rows["macbook"]
            assert (row.instance, row.retired) == ("two", frozenset({"one"}))


def claim_of(held: Any) -> dict[str, Any]:
    return {"job_id": held.job_id, "delivery": held.offer.reply}


async def test_the_next_process_takes_on_what_lapsed_meanwhile_and_only_it_can_extend_it(world: World) -> None:
    async with process(world, "macbook", "one") as old:
        job = await world.submit()
        held = await old.take()
        await held.beat(**{"Tandem-Instance": "one"})
        await world.pass_time(91)
        assert (await world.job(job["id"]))["state"] == "pending"
        async with process(world, "macbook", "two") as new:
            await new.announce(busy=[(job["id"], 1)])
            lost = await old._ask("tandem.lease.macbook", {"job_id": job["id"], "epoch": 1, "instance": "one"})
            assert lost == {"lease": "lost", "reason": "stale"}
            mine = await new._ask("tandem.lease.macbook", {"job_id": job["id"], "epoch": 1, "instance": "two"})
            assert mine["lease"] == "held"
