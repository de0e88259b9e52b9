"""A process that is gone gives up its leases at once; a link that is silent, or made anew, keeps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from coordinator.departures import Departures
from coordinator.ledger.ledger import Ledger
from shared.bus import Message
from shared.errors import LedgerDownError
from tests.support.puppet import Puppet, puppet
from tests.support.servers import eventually, own_servers
from tests.support.world import World
from tests.support.world import world as open_world

GRACE_S = 2.0


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, disconnect_grace_s=GRACE_S) as made:
        yield made


@asynccontextmanager
async def process(world: World, worker: str, instance: str, *, name: str = "") -> AsyncIterator[Puppet]:
    """One process of an agent: leaving the block closes its connection, as its machine does when it dies."""
    async with puppet(world.servers, worker, name=name or f"agent-{worker}-{instance}") as made:
        made.instance = instance
        await made.announce()
        yield made


def departures(world: World) -> Departures:
    found = world.coordinator.departures
    assert found is not None
    return found


async def looked(world: World, *, ended: int) -> None:
    """Wait until every connection that closed was looked at."""
    desk = departures(world)
    await eventually(lambda: not desk._closed)
    assert desk.ended == ended


async def test_the_leases_of_a_process_that_died_end_at_once(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    async with process(world, "macbook", "one") as macbook:
        await (await macbook.take()).beat()
        await world.until(job["id"], "processing")

    held = await mini.take()

    assert (held.job_id, held.epoch) == (job["id"], 2)
    seen = await world.job(job["id"])
    assert (seen["lease_losses"], seen["silences"], seen["attempt"]) == (1, 0, 0)
    assert seen["attempts"][0]["error"]["code"] == "worker_lost"


async def test_a_process_that_makes_its_connection_anew_keeps_its_leases(world: World) -> None:
    job = await world.submit()
    async with process(world, "macbook", "one") as macbook:
        held = await macbook.take()
    async with process(world, "macbook", "one") as again:
        await again.announce(busy=[(job["id"], 1)])
        await looked(world, ended=0)
        assert (await again.ask(held.job_id, 1))["lease"] == "held"


async def test_an_announcement_just_after_the_connection_ended_is_enough(world: World) -> None:
    """The next one may be due only after the grace."""
    scene = Scene(world)
    async with process(world, "mini", "one") as mini:
        job = await world.submit()
        await mini.take()
        await world.move_clock(60)
        await mini.announce(busy=[(job["id"], 1)])
        await world.move_clock(4.6)
        scene.desk._on_disconnect(event())
        scene.now = 105.0
        await scene.desk.once()
        assert not scene.desk._closed
        assert (await world.job(job["id"]))["state"] == "processing"


async def test_a_process_that_was_only_heard_through_its_heartbeats_keeps_its_leases(world: World) -> None:
    """Its announcement may be late; whatever it says proves that it lives."""
    await world.submit()
    async with process(world, "macbook", "one") as macbook:
        held = await macbook.take()
    async with puppet(world.servers, "macbook", name="agent-macbook-one") as again:
        held.puppet = again
        while departures(world)._closed:
            await held.beat()
            await asyncio.sleep(0)
        await looked(world, ended=0)
        assert (await held.ask())["lease"] == "held"


async def test_a_process_that_comes_back_late_resumes_what_nobody_took(world: World) -> None:
    job = await world.submit()
    async with process(world, "macbook", "one") as macbook:
        held = await macbook.take()
    await world.until(job["id"], "pending")
    async with process(world, "macbook", "one") as again:
        assert (await again.ask(held.job_id, 1))["lease"] == "held"
        seen = await world.job(job["id"])
        assert (seen["state"], seen["epoch"], seen["lease_losses"]) == ("processing", 1, 0)


async def test_the_end_of_a_connection_that_is_no_agents_own_means_nothing(world: World) -> None:
    """The user is authenticated, the name is not: nobody can end another's leases by naming a connection after it."""
    async with process(world, "macbook", "one") as macbook:
        await macbook.announce()
        await world.submit()
        held = await macbook.take()
        async with process(world, "intruder", "one", name="agent-macbook-one"):
            pass
        async with puppet(world.servers, "macbook", name="a look around with the agent's own key"):
            pass
        async with puppet(world.servers, "macbook", name="agent-macbook-two"):  # its doctor, another process
            pass
        await eventually(lambda: departures(world)._closed)  # the last one is a process of that name
        await looked(world, ended=0)
        assert (await held.ask())["lease"] == "held"


def event(reason: str = "Client Closed", **client: Any) -> Message:
    body = {"client": {"user": "KEY", "name": "agent-mini-one", **client}, "reason": reason}
    return Message("$SYS.ACCOUNT.AGENTS.DISCONNECT", orjson.dumps(body))


class Scene:
    """The desk of a coordinator, with a clock, and events by hand."""

    def __init__(self, world: World) -> None:
        coordinator = world.coordinator
        self.now = 100.0
        self.hearing = True
        coordinator.directory._sender["KEY"] = "mini"
        self.desk = Departures(
            coordinator.bus,
            coordinator.ledger,
            coordinator.queries,
            coordinator.directory,
            lambda: self.hearing,
            5.0,
            clock=lambda: self.now,
        )


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
    assert scene.desk._closed == {("mini", "one"): 100.0}


async def test_a_coordinator_that_could_not_hear_drops_what_it_was_told(world: World) -> None:
    scene = Scene(world)
    scene.desk._on_disconnect(event())
    scene.now, scene.hearing = 105.0, False
    await scene.desk.once()
    assert not scene.desk._closed


async def test_a_coordinator_that_stood_still_gives_the_grace_once_more(world: World) -> None:
    """What the process said meanwhile may still lie in this coordinator's own buffers."""
    scene = Scene(world)
    scene.desk._on_disconnect(event())
    scene.now = 120.0
    await scene.desk.once()
    assert scene.desk._closed == {("mini", "one"): 120.0}
    scene.now = 125.0
    await scene.desk.once()
    assert not scene.desk._closed


async def test_while_the_ledger_was_away_nobody_could_be_heard(world: World) -> None:
    scene = Scene(world)
    job = await world.submit()
    async with process(world, "mini", "one") as mini:
        await mini.take()
        await world.move_clock(6)  # without a word of it
        scene.desk._on_disconnect(event())
        scene.desk._on_disconnect(event(name="agent-mini-two"))
        scene.now = 105.0
        scene.desk.ledger = Ledger(world.dsn, world.settings.policy(), on_effects=lambda _: None)  # never opened
        with pytest.raises(LedgerDownError):
            await scene.desk.once()
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
