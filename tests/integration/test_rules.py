"""Rules of DESIGN §2 that live between the ledger and JetStream, each against both.

Rules 1, 2, 6 and 10 are transitions (tests/ledger/test_transitions_table.py), 7 and 11 the agent's (tests/agent).
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import orjson
import pytest_asyncio

from coordinator.ledger.model import Dispatch, Offer, Offered
from shared import subjects
from shared.bus import Message
from shared.streams import last_message_seq, remove_message
from shared.subjects import parse_delivery
from tests.support.puppet import Held
from tests.support.servers import eventually, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

LANE = "article.any"
FAR = "2099-01-01T00:00:00Z"


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


def seq_of(offer: Message) -> int:
    delivery = parse_delivery(offer.reply)
    assert delivery is not None
    return delivery.seq


def offer_of(job: dict[str, str], remove_seq: int = 0) -> Offer:
    return Offer(UUID(job["id"]), "article", None, LANE, remove_seq, datetime.now(UTC))


async def test_rule_03_an_offer_that_is_refused_makes_the_message_that_is_there_available(world: World) -> None:
    frozen, mini = await world.puppet("macbook"), await world.puppet("mini")
    job = await world.submit(run_after=FAR)
    await world.coordinator.effects.lanes.ensure(LANE)
    bus, subject = world.coordinator.bus, subjects.work(LANE, UUID(job["id"]))
    ack = await bus.js_publish(subject, orjson.dumps({"job_id": job["id"], "kind": "article", "model": None}))
    await frozen.pull()  # and never claims it

    offered = await world.coordinator.effects.offer(offer_of(job))

    assert offered == Offered(job_id=UUID(job["id"]), seq=ack.seq)
    assert seq_of(await mini.pull()) == ack.seq


async def test_rule_04_the_old_message_is_gone_for_sure_before_the_new_one_comes(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    old = seq_of(await mini.pull())  # its ack was lost: it is still there

    offered = await world.coordinator.effects.offer(offer_of(job, remove_seq=old))

    assert isinstance(offered, Offered)
    assert offered.seq > old
    assert seq_of(await mini.pull()) == offered.seq


async def test_rule_05_a_settlement_that_comes_late_leaves_the_newer_offer_alone(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    await world.submit()
    late = await macbook.take()
    await world.pass_time(91)
    bus = world.coordinator.bus
    subject = subjects.work(LANE, UUID(late.job_id))
    newer = await world.offered_after(subject, seq_of(late.offer))

    await bus.ack(late.offer)
    assert not await remove_message(bus, "WORK", seq_of(late.offer))

    assert await last_message_seq(bus, subject) == newer
    assert (await mini.take()).epoch == 2


async def test_rule_08_a_lease_that_its_living_agent_does_not_list_ends_as_released(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    ghost = await macbook.take()  # the agent never got the grant
    await macbook.announce()
    assert (await world.job(job["id"]))["state"] == "processing"  # younger than one presence round

    await world.move_clock(11)
    await macbook.announce()

    assert (await macbook.hears("revoke", job_id=job["id"], epoch=1))["reason"] == "stale"
    assert (await mini.take()).epoch == 2
    seen = await world.job(job["id"])
    assert (seen["attempt"], seen["lease_losses"]) == (0, 0)
    assert seen["attempts"][0]["outcome"] == "released"
    assert (await ghost.ask())["lease"] == "lost"


async def test_rule_08_a_listed_lease_stays_and_a_new_process_may_take_it_over(world: World) -> None:
    macbook = await world.puppet("macbook")
    job = await world.submit()
    held = await macbook.take()
    await world.move_clock(11)

    await macbook.announce(busy=[(job["id"], 1)])
    macbook.instance = "the-next-process"
    await macbook.announce(busy=[(job["id"], 1)])

    assert (await held.ask())["lease"] == "held"
    assert (await world.job(job["id"]))["attempts"][0]["instance"] == "the-next-process"


async def test_rule_08_a_new_process_that_does_not_list_it_gives_it_up_at_once(world: World) -> None:
    macbook = await world.puppet("macbook")
    job = await world.submit()
    await macbook.take()

    macbook.instance = "the-next-process"
    await macbook.announce()

    seen = await world.job(job["id"])
    assert (seen["attempts"][0]["outcome"], seen["lease_losses"]) == ("lease_expired", 1)  # it crashed


async def test_rule_09_a_stream_made_anew_starts_above_every_sequence_the_ledger_has_seen(world: World) -> None:
    mini = await world.puppet("mini")
    seen = await world.submit(run_after=FAR)
    ahead = 9_000_000_000_000_000  # above the clock's microseconds until the year 2255
    await world.pool.execute("UPDATE job SET offered_seq = $1, spent_seq = $1 WHERE id = $2", ahead, UUID(seen["id"]))

    await world.servers.nats.wipe()
    await world.reconnected(mini)
    await world.submit()

    assert seq_of(await mini.pull()) > ahead


async def test_rule_12_an_offer_without_a_message_is_made_again(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    await remove_message(world.coordinator.bus, "WORK", seq_of(await mini.pull()))
    await world.move_clock(10)

    await world.coordinator.reconciler.once()

    assert (await mini.take()).job_id == job["id"]
    assert world.coordinator.reconciler.mended.missing == 1


async def test_rule_12_a_message_of_a_settled_job_is_taken_away(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await held.report()
    await held.verdict("accepted")
    bus, subject = world.coordinator.bus, subjects.work(LANE, UUID(job["id"]))
    await eventually_async(lambda: _is_gone(world, subject))
    await bus.js_publish(subject, b"{}")

    await world.coordinator.reconciler.once()

    assert await last_message_seq(bus, subject) is None
    assert world.coordinator.reconciler.mended.orphaned == 1


async def test_rule_12_a_message_whose_place_was_never_recorded_is_found(world: World) -> None:
    await world.puppet("mini")
    job = await world.submit()
    subject = subjects.work(LANE, UUID(job["id"]))
    seq = await world.offered_after(subject, 0)
    await world.pool.execute("UPDATE job SET offered_seq = 0")  # as if the coordinator had died before it noted it
    await world.move_clock(10)

    await world.coordinator.reconciler.once()

    assert await world.pool.fetchval("SELECT offered_seq FROM job") == seq
    assert world.coordinator.reconciler.mended.unrecorded == 1


async def test_rule_12_in_a_healthy_run_nothing_needs_mending(world: World) -> None:
    mini = await world.puppet("mini")
    jobs = [await world.submit() for _ in range(10)]
    for number in range(10):
        held = await mini.take()
        await world.coordinator.reconciler.once()
        await held.report("failed" if number % 3 == 0 else "completed", error=_error(number))
        await held.verdict("accepted")
    await eventually(lambda: world.coordinator.effects.idle)
    await world.move_clock(10)
    await world.coordinator.reconciler.once()

    mended = world.coordinator.reconciler.mended
    assert (mended.missing, mended.orphaned, mended.unrecorded) == (0, 0, 0)
    assert len(jobs) == 10


async def test_an_offer_that_a_frozen_agent_swallowed_is_made_anew_for_a_free_one(world: World) -> None:
    frozen, mini = await world.puppet("macbook"), await world.puppet("mini")
    job = await world.submit()
    swallowed = await frozen.pull()
    assert await mini.try_pull() is None

    await world.move_clock(16)
    await mini.announce()
    await asyncio.wait_for(_renewed(world), 10)
    held = await mini.take()

    assert (held.job_id, held.epoch) == (job["id"], 1)
    assert (await frozen.claim(swallowed))["verdict"] == "denied"


async def test_an_offer_that_could_not_be_sent_is_taken_back_at_once(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(run_after=FAR)
    await world.pool.execute("UPDATE job SET run_after = tandem_now()")
    await world.servers.nats.stop()
    await eventually(lambda: not world.coordinator.bus.connected)

    await world.coordinator.ledger.do(Dispatch(job_id=UUID(job["id"])))
    await eventually(lambda: world.coordinator.effects.idle)

    assert await world.pool.fetchval("SELECT offered_at FROM job") is None
    await world.servers.nats.start()
    await world.reconnected(mini)
    assert (await mini.take()).job_id == job["id"]


async def test_a_heartbeat_in_anothers_name_changes_nothing(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    held = await mini.take()
    before = await world.job(job["id"])

    forged = Held(macbook, held.offer, held.grant)
    await forged.beat("forged", **{"Tandem-Worker": "mini"})
    await eventually(lambda: world.coordinator.heartbeats.bad == 1)

    after = await world.job(job["id"])
    assert (after["stage"], after["lease_expires_at"]) == (before["stage"], before["lease_expires_at"])
    await held.beat("generating_text")
    await eventually(lambda: world.coordinator.heartbeats.taken == 1)


async def _renewed(world: World) -> None:
    while not world.coordinator.dispatcher.unclaimed:
        world.coordinator.dispatcher.wake()
        await asyncio.sleep(0.05)


async def _is_gone(world: World, subject: str) -> bool:
    return await last_message_seq(world.coordinator.bus, subject) is None


def _error(number: int) -> dict[str, str] | None:
    return {"code": "x", "message": "x", "class": "permanent"} if number % 3 == 0 else None
