"""Audit and repair against a whole Tandem: silent while all is well, each planted breach seen, what is safe mended.

Breaches are planted by SQL or by raw operations on streams. What the ledger alone shows is in tests/web/test_audit.py.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_asyncio

from coordinator import audit_streams, cli_audit
from coordinator.artifacts import FolderStore
from coordinator.audit import RULES, Breach, Limits, audit
from coordinator.audit import look as look_twice
from coordinator.ledger.database import open_pool
from coordinator.repair import ADVICE, Mend, repair
from shared import subjects
from shared.bus import Bus
from shared.streams import consumer_info, last_message_seq, remove_message, stored_message, work_subjects
from tests.support.puppet import Held, Puppet
from tests.support.servers import own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

LANE = "article.any"
FAR = "2099-01-01T00:00:00Z"
STRICT = Limits(grace_s=0, unpublished_s=0, standing_s=0, again_s=0)
"""For a system in which nothing is on its way."""


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


@asynccontextmanager
async def reached(world: World) -> AsyncIterator[tuple[Any, Bus, FolderStore]]:
    store = FolderStore(world.settings.artifacts)
    try:
        async with await open_pool(world.dsn, max_size=3) as pool, world.servers.open("coordinator") as bus:
            yield pool, bus, store
    finally:
        store.close()


async def look(world: World, limits: Limits = STRICT) -> list[Breach]:
    async with reached(world) as (pool, bus, store):
        return await audit(pool, bus, store, limits)


async def mend(world: World, limits: Limits = STRICT) -> list[Mend]:
    async with reached(world) as (pool, bus, store):
        return await repair(pool, bus, store, world.settings.policy(), "http://here", limits)


async def seen(world: World, limits: Limits = STRICT) -> set[tuple[str, UUID | None]]:
    return {(breach.rule, breach.job_id) for breach in await look(world, limits)}


async def completed(world: World, mini: Puppet, **more: Any) -> Held:
    """A job that is done, has a file, and whose message is out."""
    await world.submit(**more)
    held = await mini.take()
    file = await held.upload("story.md", b"A story")
    await held.report(artifacts=[file])
    await held.verdict("accepted")
    await published(world)
    return held


async def published(world: World) -> None:
    async def out() -> bool:
        left: int = await world.pool.fetchval("SELECT count(*) FROM job WHERE unpublished")
        return not left

    await eventually_async(out)


async def offered(world: World) -> tuple[UUID, str]:
    """A job whose offer lies in WORK, and is noted; returns it with its subject."""
    job_id = UUID((await world.submit())["id"])
    subject = subjects.work(LANE, job_id)
    await world.offered_after(subject, 0)
    return job_id, subject


def result_subject(held: Held) -> str:
    return subjects.result("local", "article", UUID(held.job_id))


async def say(bus: Bus, held: Held, **changed: Any) -> int:
    """Publish another message about a job, made from its last one; return its sequence."""
    last = await stored_message(bus, "RESULTS", last_by_subj=result_subject(held))
    assert last is not None
    return (await bus.js_publish(last.subject, orjson.dumps({**orjson.loads(last.data), **changed}))).seq


# ---- a system that is well


async def test_jobs_of_every_state_are_no_breach(world: World) -> None:
    mini = await world.puppet("mini")
    await completed(world, mini)
    await world.act((await completed(world, mini, review=True)).job_id, "approve")
    again = await completed(world, mini)
    await world.act(again.job_id, "retry")
    await (await mini.take()).fail("permanent")
    await world.act((await world.submit(run_after=FAR))["id"], "cancel")
    await completed(world, mini, review=True)
    await world.submit(run_after=FAR)
    await world.submit()
    held = await mini.take()
    await held.beat()
    await mini.announce(busy=[(held.job_id, held.epoch)])
    await offered(world)
    await published(world)
    states = {row["state"] for row in await world.pool.fetch("SELECT DISTINCT state FROM job")}
    assert states == {"pending", "processing", "completed", "failed", "canceled", "awaiting_review"}

    assert await look(world) == []
    assert await mend(world) == []


async def test_a_busy_system_never_shows_a_breach(world: World) -> None:
    workers = [await world.puppet(name) for name in ("mini", "book", "pro")]

    async def works(worker: Puppet) -> None:
        for turn in range(12):
            held = await worker.take()
            await worker.announce(busy=[(held.job_id, held.epoch)])
            file = await held.upload("story.md", held.job_id.encode())
            if turn % 3:
                await held.report(artifacts=[file])
                await held.verdict("accepted")
            else:
                await held.fail("permanent")
            await worker.announce()

    async def looks() -> list[Breach]:
        async with reached(world) as (pool, bus, store):
            return [breach for _ in range(8) for breach in await audit(pool, bus, store, Limits(again_s=0.1))]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(submit_all(world, 36))
        for worker in workers:
            tasks.create_task(works(worker))
        audits = [tasks.create_task(looks()) for _ in range(2)]
    assert [breach for done in audits for breach in done.result()] == []
    await published(world)
    assert await look(world) == []


async def test_what_only_the_first_look_finds_is_no_breach(world: World) -> None:
    job_id, _ = await offered(world)
    stray = subjects.work(LANE, uuid4())
    ack = await world.coordinator.bus.js_publish(stray, b"{}")
    other = await world.coordinator.bus.js_publish(subjects.work("article.other", job_id), b"{}")
    looks = []

    async def pause(seconds: float) -> None:
        looks.append(seconds)
        await remove_message(world.coordinator.bus, "WORK", ack.seq)

    async with reached(world) as (pool, bus, _):
        found = await look_twice(pool, bus, None, Limits(again_s=7), pause=pause)
        assert [breach.rule for breach in found.breaches] == ["lane"]
        await remove_message(world.coordinator.bus, "WORK", other.seq)
        assert (await look_twice(pool, bus, None, Limits(), pause=pause)).breaches == []
    assert looks == [7]


async def submit_all(world: World, jobs: int) -> None:
    for _ in range(jobs):
        await world.submit()


# ---- what is safe is mended


async def test_an_offer_without_a_message_is_made_anew(world: World) -> None:
    job_id, subject = await offered(world)
    seq = await last_message_seq(world.coordinator.bus, subject)
    assert seq is not None
    await remove_message(world.coordinator.bus, "WORK", seq)
    assert await look(world) == [Breach("offer", job_id, 0, "offered, but WORK has no message for it")]
    assert await look(world, Limits(again_s=0)) == []  # it may be on its way

    (end,) = await mend(world)

    assert (end.breach.rule, end.mended, end.what) == (
        "offer",
        True,
        "the offer was taken back; the next one is a new one",
    )
    assert (await (await world.puppet("mini")).take()).job_id == str(job_id)


async def test_messages_that_nobody_wants_are_removed(world: World) -> None:
    mini = await world.puppet("mini")
    done = UUID((await completed(world, mini)).job_id)
    wanted, subject = await offered(world)
    stranger, bus = uuid4(), world.coordinator.bus
    for unwanted in (
        subjects.work(LANE, done),
        subjects.work(LANE, stranger),
        "tandem.work.article.any.nonsense",
        subjects.work("article.other", wanted),
    ):
        await bus.js_publish(unwanted, b"{}")
    assert await seen(world, Limits(again_s=0, grace_s=3600)) == {("work", stranger), ("work", None), ("lane", wanted)}
    assert await seen(world) == {("work", done), ("work", stranger), ("work", None), ("lane", wanted)}

    assert {(end.mended, end.what) for end in await mend(world)} == {(True, "the message was removed")}

    assert await work_subjects(bus) == {subject}
    assert await look(world) == []


async def test_a_subject_that_is_only_listed_is_no_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of several that comes back may list one for a while whose message is gone."""
    done = UUID((await completed(world, await world.puppet("mini"))).job_id)

    async def and_one_that_is_gone(bus: Bus) -> set[str]:
        return {*await work_subjects(bus), subjects.work(LANE, done)}

    monkeypatch.setattr(audit_streams, "work_subjects", and_one_that_is_gone)
    async with reached(world) as (pool, bus, store):
        found = await look_twice(pool, bus, store, STRICT)
    assert found.breaches == []
    assert "1 messages of WORK listed, 1 of them without a message" in found.covered


async def test_a_lease_that_is_over_is_expired(world: World) -> None:
    await world.submit()
    held = await (await world.puppet("mini")).take()
    await world.move_clock(96)

    async def hears() -> bool:
        info = await consumer_info(world.coordinator.bus, "REPORTS", "reports")
        return info is not None and info["num_waiting"] > 0

    await eventually_async(hears)
    assert await seen(world, Limits(again_s=0)) == {("lease", UUID(held.job_id))}

    (end,) = await mend(world, Limits(again_s=0))

    assert (end.mended, end.what) == (True, "the lease was expired")
    assert (await (await world.puppet("book")).take()).epoch == 2


async def test_a_lease_that_nobody_could_extend_is_left(world: World) -> None:
    await world.submit()
    held = await (await world.puppet("mini")).take()
    await world.stop_coordinator()
    await world.move_clock(96)

    (end,) = await mend(world)

    assert (end.breach.rule, end.mended, end.what) == ("lease", False, ADVICE["lease"])
    assert await world.pool.fetchval("SELECT state FROM job WHERE id = $1", UUID(held.job_id)) == "processing"


async def test_a_result_that_is_gone_from_results_is_published_again(world: World) -> None:
    mini = await world.puppet("mini")
    await completed(world, mini)
    held = await completed(world, mini)
    bus, subject = world.coordinator.bus, result_subject(held)
    first = await stored_message(bus, "RESULTS", last_by_subj=subject)
    assert first is not None
    async with world.servers.open("provisioner") as provisioner:
        await remove_message(provisioner, "RESULTS", first.seq)
    assert await seen(world) == {("results", UUID(held.job_id))}

    (end,) = await mend(world)

    assert (end.mended, end.what) == (True, "published again")
    second = await stored_message(bus, "RESULTS", last_by_subj=subject)
    assert second is not None
    said = json.loads(second.data)
    assert said["artifacts"][0]["url"].startswith(f"http://here/v1/jobs/{held.job_id}/")
    assert {**said, "artifacts": None} == {**json.loads(first.data), "artifacts": None}
    assert await look(world) == []


async def test_a_result_older_than_the_stream_keeps_is_not_missed(world: World) -> None:
    held = await completed(world, await world.puppet("mini"))
    async with world.servers.open("provisioner") as provisioner:
        await provisioner.api("STREAM.PURGE.RESULTS")
    assert await seen(world) == {("results", UUID(held.job_id))}
    await world.move_clock(7 * 24 * 3600)
    assert await look(world) == []


async def test_a_last_word_that_is_not_the_ledgers_is_followed_by_the_right_one(world: World) -> None:
    held = await completed(world, await world.puppet("mini"))
    await say(world.coordinator.bus, held, state="failed")
    (breach,) = await look(world)
    assert (breach.rule, breach.epoch) == ("last_word", 1)
    assert breach.text.startswith("the last word on RESULTS is epoch 1, failed")

    (end,) = await mend(world)

    assert (end.mended, end.what) == (True, "published again")
    last = await stored_message(world.coordinator.bus, "RESULTS", last_by_subj=result_subject(held))
    assert last is not None
    assert json.loads(last.data)["state"] == "completed"


async def test_what_waits_in_the_outbox_goes_out(world: World) -> None:
    held = await completed(world, await world.puppet("mini"))
    await world.stop_coordinator()
    await world.pool.execute("UPDATE job SET unpublished = true")
    async with world.servers.open("coordinator") as bus, world.servers.open("provisioner") as provisioner:
        await say(bus, held, state="failed")
        assert await seen(world, Limits(again_s=0)) == set()  # it may wait a little
        assert await seen(world) == {("unpublished", UUID(held.job_id))}
        await provisioner.api("STREAM.PURGE.RESULTS")
    assert await seen(world) == {("unpublished", UUID(held.job_id))}

    assert [(end.mended, end.what) for end in await mend(world)] == [(True, "published")]
    assert not await world.pool.fetchval("SELECT unpublished FROM job")


async def test_a_result_that_results_refuses_to_take_twice_is_left(world: World) -> None:
    await completed(world, await world.puppet("mini"))
    for what in ("published again", ADVICE["results"]):
        async with world.servers.open("provisioner") as provisioner:
            await provisioner.api("STREAM.PURGE.RESULTS")
        (end,) = await mend(world)
        assert (end.breach.rule, end.what) == ("results", what)


async def test_a_ghost_lease_is_given_back(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    await mini.announce(busy=[(held.job_id, held.epoch)])
    await world.pool.execute("UPDATE attempt SET claimed_at = claimed_at - interval '60 s'")
    await world.pool.execute(
        "UPDATE worker SET presence = jsonb_set(presence, '{busy}', '[]'), seen_at = tandem_now() - interval '3 s'"
    )
    assert await seen(world) == {("ghost", UUID(held.job_id))}

    (end,) = await mend(world)

    assert (end.mended, end.what) == (True, "the lease was given back, as at its worker's next presence")
    await mini.hears("revoke", job_id=held.job_id)
    assert (await mini.take()).epoch == 2


async def test_a_file_of_another_epoch_is_taken_out_of_the_result(world: World) -> None:
    held = await completed(world, await world.puppet("mini"))
    await world.pool.execute(
        "INSERT INTO artifact SELECT job_id, 7, name, worker, media_type, size, sha256, stored_at, true FROM artifact"
    )
    assert await seen(world) == {("other_epoch", UUID(held.job_id))}

    (end,) = await mend(world)

    assert (end.mended, end.what) == (True, "taken out of the result")
    linked = await world.pool.fetch("SELECT epoch FROM artifact WHERE linked")
    assert [row["epoch"] for row in linked] == [1]


async def test_a_job_that_is_stuck_is_offered(world: World) -> None:
    await world.puppet("mini")
    job_id, subject = await offered(world)
    seq = await last_message_seq(world.coordinator.bus, subject)
    assert seq is not None
    await world.stop_coordinator()
    limits = Limits(again_s=0, stuck_s=0)
    await world.pool.execute("UPDATE job SET offered_at = NULL, spent_seq = offered_seq")
    async with world.servers.open("coordinator") as bus:
        await remove_message(bus, "WORK", seq)
        assert await seen(world, limits) == {("stuck", job_id)}
        assert await seen(world, Limits(again_s=0)) == set()  # the dispatcher has its time

        ends = await mend(world, Limits(again_s=0, stuck_s=0))

        assert [(end.breach.rule, end.mended, end.what) for end in ends[:1]] == [("stuck", True, "offered")]
        assert await work_subjects(bus) == {subject}


@pytest.mark.parametrize(
    "why_not",
    [
        "UPDATE lane SET paused = true",
        "UPDATE worker SET wanted = 'paused'",
        "UPDATE worker SET seen_at = tandem_now() - interval '31 s'",
        "UPDATE worker SET presence = jsonb_set(presence, '{state}', '\"unhealthy\"')",
        "UPDATE worker SET presence = jsonb_set(presence, '{slots}', '0')",
        "UPDATE worker SET presence = jsonb_set(presence, '{capabilities,0,kind}', '\"image\"')",
        "UPDATE job SET excluded = '{mini}'",
        "UPDATE job SET run_after = tandem_now() + interval '1 h'",
    ],
)
async def test_a_job_waits_rightly_when_nobody_may_take_it(world: World, why_not: str) -> None:
    await world.puppet("mini")
    _, subject = await offered(world)
    seq = await last_message_seq(world.coordinator.bus, subject)
    assert seq is not None
    await world.stop_coordinator()
    await world.pool.execute("INSERT INTO lane (name) VALUES ($1) ON CONFLICT DO NOTHING", LANE)
    limits = Limits(again_s=0, grace_s=3600, stuck_s=0)
    assert {rule for rule, _ in await seen(world, limits)} == {"unclaimed"}
    unoffered = "UPDATE job SET offered_at = NULL, spent_seq = offered_seq"
    await world.pool.execute(why_not)
    if "run_after" not in why_not:
        assert await seen(world, limits) == set()
    await world.pool.execute(unoffered)
    async with world.servers.open("coordinator") as bus:
        await remove_message(bus, "WORK", seq)
    assert await seen(world, limits) == set()


async def test_a_job_that_may_run_is_stuck_behind_offers_that_nobody_free_may_take(world: World) -> None:
    await world.puppet("mini")
    for_others, _ = await offered(world)
    waits, subject = await offered(world)
    seq = await last_message_seq(world.coordinator.bus, subject)
    assert seq is not None
    await world.stop_coordinator()
    await world.pool.execute("UPDATE job SET excluded = '{mini}' WHERE id = $1", for_others)
    await world.pool.execute("UPDATE job SET offered_at = NULL, spent_seq = offered_seq WHERE id = $1", waits)
    async with world.servers.open("coordinator") as bus:
        await remove_message(bus, "WORK", seq)
    limits = Limits(again_s=0, stuck_s=0)
    assert await seen(world, limits) == {("stuck", waits)}
    await world.pool.execute("UPDATE job SET excluded = '{}' WHERE id = $1", for_others)
    assert await seen(world, limits) == {("unclaimed", for_others)}  # an offer for it is there, however long it lies


async def test_offers_that_nobody_free_may_take_do_not_stand_before_one_that_is(world: World) -> None:
    mini, book = await world.puppet("mini"), await world.puppet("book")
    for _ in range(world.settings.window_min):
        await world.submit()
        held = await mini.take()
        await mini.announce(busy=[(held.job_id, held.epoch)])
        await held.fail("elsewhere")
    await book.announce(state="paused")  # it may take them, another day
    await mini.announce()
    dispatcher = world.coordinator.dispatcher
    later = dispatcher.clock() + 60
    dispatcher.clock = lambda: later  # the claims above make no room any more
    await dispatcher.once()
    for_mini = UUID((await world.submit())["id"])

    await world.offered_after(subjects.work(LANE, for_mini), 0)
    assert await look(world, Limits(again_s=0)) == []


async def test_an_offer_that_lies_is_made_anew(world: World) -> None:
    await world.puppet("mini")
    job_id, subject = await offered(world)
    seq = await last_message_seq(world.coordinator.bus, subject)
    await world.stop_coordinator()
    await world.pool.execute("UPDATE job SET offered_at = offered_at - interval '61 s'")
    limits = Limits(again_s=0)
    assert await seen(world, limits) == {("unclaimed", job_id)}

    (end,) = await mend(world, limits)

    assert (end.mended, end.what) == (True, "the offer was taken back; the next one is a new one")
    async with world.servers.open("coordinator") as bus:
        newer = await last_message_seq(bus, subject)
        assert newer is not None
        assert seq is not None
        assert newer > seq
    assert await look(world, limits) == []


async def test_two_repairs_at_once_beside_a_coordinator_mend_once(world: World) -> None:
    mini = await world.puppet("mini")
    done = await completed(world, mini)
    jobs = [await offered(world) for _ in range(2)]
    bus = world.coordinator.bus
    for _, subject in jobs:
        seq = await last_message_seq(bus, subject)
        assert seq is not None
        await remove_message(bus, "WORK", seq)
    await bus.js_publish(subjects.work(LANE, uuid4()), b"{}")
    async with world.servers.open("provisioner") as provisioner:
        await provisioner.api("STREAM.PURGE.RESULTS")

    ends = await asyncio.gather(mend(world), mend(world))

    assert all(end.mended for one in ends for end in one), ends
    assert await mend(world) == []
    assert {(await mini.take()).epoch, (await mini.take()).epoch} == {1}
    assert await last_message_seq(bus, subjects.work(LANE, UUID(done.job_id))) is None
    results = await bus.api("STREAM.INFO.RESULTS")
    assert results["state"]["messages"] == 1


# ---- what is not safe is left, with advice

Plant = Callable[[World, Held], Awaitable[object]]


def by_sql(statement: str) -> Plant:
    return lambda world, held: world.pool.execute(statement, UUID(held.job_id))


async def lose_the_file(world: World, _: Held) -> None:
    sha256 = hashlib.sha256(b"A story").hexdigest()
    (world.settings.artifacts / "sha256" / sha256[:2] / sha256[2:]).unlink()


async def publish_an_unknown_epoch(world: World, held: Held) -> None:
    await say(world.coordinator.bus, held, epoch=10**12)
    await say(world.coordinator.bus, held, epoch=1)


async def publish_a_result_that_was_none(world: World, held: Held) -> None:
    await world.pool.execute(
        "INSERT INTO attempt (job_id, epoch, number, worker, delivery, claimed_at, deadline_at, outcome, ended_at)"
        " SELECT job_id, 2, 1, 'book', '', claimed_at, deadline_at, 'released', ended_at FROM attempt"
    )
    await world.pool.execute("UPDATE job SET epoch = 2")
    await say(world.coordinator.bus, held, epoch=2)


async def publish_nonsense(world: World, _: Held) -> None:
    await world.coordinator.bus.js_publish(subjects.result("local", "article", uuid4()), b"{}")


async def publish_an_older_result_last(world: World, held: Held) -> None:
    await world.act(held.job_id, "retry")
    again = await held.puppet.take()
    await again.report()
    await again.verdict("accepted")
    await published(world)
    await say(world.coordinator.bus, again, epoch=1)
    await say(world.coordinator.bus, again, epoch=2)


_LISTED = "jsonb_build_array(jsonb_build_object('job_id', $1::uuid, 'epoch', 5, 'stage', ''))"
_GRANTED_TO_BOOK = (
    "WITH book AS (INSERT INTO worker (name, instance, presence) SELECT 'book', instance,"
    " jsonb_set(presence, '{busy}', jsonb_build_array(jsonb_build_object('job_id', $1::uuid, 'epoch', 1)))"
    " FROM worker) SELECT"
)


async def test_breaches_that_read_the_same_are_each_left(world: World) -> None:
    held = await completed(world, await world.puppet("mini"))
    for _ in range(2):
        await world.pool.execute(
            "INSERT INTO rejected_result (job_id, epoch, worker, verdict, reason, current_epoch, at, report)"
            " VALUES ($1, 1, 'mini', 'stale', 'why', 1, tandem_now(), '{}')",
            UUID(held.job_id),
        )
    assert [(end.breach.rule, end.mended) for end in await mend(world)] == [("rejected", False)] * 2


@pytest.mark.parametrize(
    ("rule", "plant", "says"),
    [
        ("files", lose_the_file, "story.md: the file is not in the store"),
        ("counters", by_sql("UPDATE job SET attempt = 3 WHERE id = $1"), "attempt is 3"),
        ("bytes", by_sql("DELETE FROM artifact WHERE job_id = $1"), "0 bytes together, its report said 7"),
        ("untrue", publish_an_unknown_epoch, "says epoch 2147483648, the newest is 1"),
        ("untrue", publish_a_result_that_was_none, "says completed of an attempt that ended released"),
        ("untrue", publish_nonsense, "is no result: ValidationError"),
        ("superseded", publish_an_older_result_last, "has a result of epoch 1, after one of epoch 2"),
        (
            "presence",
            by_sql(f"UPDATE worker SET presence = jsonb_set(presence, '{{busy}}', {_LISTED})"),
            "mini says that it holds it, but that epoch was never granted",
        ),
        ("presence", by_sql(_GRANTED_TO_BOOK), "book says that it holds it, but it was granted to mini"),
        (
            "presence",
            by_sql("UPDATE worker SET instance = 'other' WHERE $1::uuid IS NOT NULL"),
            "worker mini: its process is other",
        ),
        (
            "presence",
            by_sql(
                "INSERT INTO worker (name, nkey) SELECT 'twin', nkey FROM worker WHERE $1::uuid IS NOT NULL LIMIT 1"
            ),
            "workers mini, twin are authenticated as one user",
        ),
    ],
)
async def test_what_is_not_safe_to_mend_is_left(world: World, rule: str, plant: Plant, says: str) -> None:
    mini = await world.puppet("mini")
    held = await completed(world, mini)
    assert await look(world) == []
    await plant(world, held)

    (end,) = [end for end in await mend(world) if end.breach.rule == rule]

    assert (end.mended, end.what) == (False, ADVICE[rule])
    assert says in end.breach.text
    assert [(e.breach, e.mended) for e in await mend(world) if e.breach.rule == rule] == [(end.breach, False)]


async def test_a_report_that_nobody_takes_off_is_seen(world: World) -> None:
    mini = await world.puppet("mini")
    await completed(world, mini)
    job_id = (await world.submit(run_after=FAR))["id"]
    await world.stop_coordinator()
    await mini.report(job_id, 1)
    async with world.servers.open("coordinator") as bus:
        assert await look(world) == []  # no coordinator is there
        async with bus.consume("REPORTS", "reports", batch=2, queue_max=4) as reports:
            await anext(reports)  # and is never acknowledged
            (breach,) = await look(world)
            await mini.report(job_id, 1)  # its counts are others in each look
            ends = {end.breach.same: end for end in await mend(world)}
            assert [end.what for end in ends.values()] == [ADVICE["reports"]] * 2
            end = ends[breach.same]
            assert await look(world, Limits(again_s=0)) == []  # it has not been there long
    assert (end.breach.rule, end.breach.job_id, end.mended) == ("reports", UUID(job_id), False)
    assert end.breach.detail.endswith("s; 2 stand there, 2 handed out and not acknowledged")


async def test_a_line_that_moves_is_no_breach(world: World) -> None:
    await world.stop_coordinator()
    async with world.servers.open("coordinator") as bus, world.servers.open("publisher:cms") as cms:
        for _ in range(9):
            await cms.js_publish("tandem.submit.cms", b"{}")
        async with bus.consume("SUBMIT", "intake", batch=2, queue_max=2) as found:
            first = await anext(found)
            await bus.ack(first)
            await bus.ack(await anext(found))
            waiting = await look(world)
            await anext(found)
            stuck = await look(world)
    assert {breach.rule for breach in [*waiting, *stuck]} <= {"submit"}
    assert len(stuck) <= 4, "what was not handed out waits its turn"


def test_every_rule_has_its_promise_and_its_advice() -> None:
    assert set(ADVICE) == set(RULES)
    assert {promise for promise, _ in RULES.values()} <= set(range(1, 9))


# ---- the command


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what was printed, without the log, which a test has on stdout."""
    out, err = capsys.readouterr()
    return "".join(line for line in out.splitlines(keepends=True) if "[info " not in line), err


async def test_the_command_prints_what_it_found_and_did(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    held = await completed(world, await world.puppet("mini"))
    await world.coordinator.bus.js_publish(subjects.work(LANE, uuid4()), b"{}")
    await lose_the_file(world, held)
    settings = world.settings

    assert not await cli_audit.audited(settings, results=10, json=False)
    out, err = said(capsys)
    assert f"files (promise 4): {held.job_id} epoch 1: story.md: the file is not in the store\n" in out
    assert "1 of RESULTS' 1 messages read, the newest\n" in err
    assert err.endswith("2 breaches\n")

    assert not await cli_audit.repaired(settings, results=10, json=False)
    out, err = said(capsys)
    assert out.splitlines()[1::2] == [f"  left: {ADVICE['files']}", "  mended: the message was removed"]
    assert err == "1 mended, 1 left\n"

    assert not await cli_audit.repaired(settings, results=0, json=True)
    (end,) = json.loads(said(capsys)[0])
    assert (end["rule"], end["promise"], end["outcome"], end["what"]) == ("files", 4, "left", ADVICE["files"])
    await world.pool.execute("DELETE FROM artifact")
    await world.pool.execute("UPDATE attempt SET bytes = 0")
    assert await cli_audit.audited(settings, results=10, json=True)
    assert json.loads(said(capsys)[0]) == []
    assert await cli_audit.repaired(settings, results=10, json=False)


async def test_offers_that_nobody_free_may_take_stay_within_one_window(world: World) -> None:
    """However many there are: else each would be offered to those who may not, again and again."""
    await world.puppet("mini")
    for _ in range(20):
        await world.submit()
    await world.pool.execute("UPDATE job SET excluded = '{mini}'")
    for _ in range(6):
        await world.coordinator.dispatcher.once()
    offered = await world.pool.fetchval("SELECT count(*) FROM job WHERE offered_at IS NOT NULL")
    assert offered <= 2 * world.settings.window_min
