"""What the loops read, and that a million settled jobs cost them nothing."""

import uuid
from datetime import UTC, datetime, timedelta

import asyncpg
import orjson
import pytest

from coordinator.ledger.database import fetch, open_pool, sql
from coordinator.ledger.model import Approve, Cancel, Dispatch, Offered, Retry, Withdraw
from coordinator.ledger.queries import LaneWork, Placing, Queries
from shared.errors import LedgerDownError
from shared.states import JobState, WorkerState
from shared.wire import Presence
from tests.support.ledger import (
    Desk,
    admit,
    artifact,
    beat,
    claim,
    completed,
    failed,
    released,
    set_clock_offset,
    store,
)

PRESENCE = Presence(instance="mini-1", slots=2, facts={"odd": "a\x00b"})


@pytest.fixture
def queries(ledger_pool: asyncpg.Pool) -> Queries:
    return Queries(ledger_pool)


# --------------------------------------------------------------------------------------------------------- the clock


async def test_the_ledgers_clock_can_be_moved_for_every_session(desk: Desk) -> None:
    job = await desk.held()
    before = await desk.queries.now()
    await set_clock_offset(desk.pool, 1000)
    assert await desk.queries.now() - before >= timedelta(seconds=1000)
    assert await desk.queries.expired(10) == [job]
    await desk.do(beat(job))
    assert await desk.queries.expired(10) == []


def test_no_statement_asks_another_clock() -> None:
    from importlib.resources import files  # noqa: PLC0415 - only here

    compares_clocks = "doctor_database.sql"  # and may be asked before there is a schema
    for path in (files("coordinator.ledger") / "sql").iterdir():
        if path.name == compares_clocks:
            continue
        text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("--")).lower()
        for other in ("current_timestamp", "clock_timestamp", "localtime"):
            assert other not in text, path.name
        assert "now()" not in text.replace("tandem_now()", ""), path.name


# ---------------------------------------------------------------------------------------------------------- the backlog


async def test_the_backlog_is_in_the_order_priority_run_after_id(desk: Desk) -> None:
    now = await desk.queries.now()
    ids = sorted(uuid.uuid4() for _ in range(6))
    await set_clock_offset(desk.pool, 100)
    late, soon = now + timedelta(seconds=20), now + timedelta(seconds=10)
    await desk.admit(job_id=ids[5], priority=0, run_after=soon)
    await desk.admit(job_id=ids[4], priority=1, run_after=soon)
    await desk.admit(job_id=ids[3], priority=1, run_after=soon)
    await desk.admit(job_id=ids[2], priority=1, run_after=late)
    await desk.admit(job_id=ids[1], priority=3, run_after=late)
    await desk.admit(job_id=ids[0], priority=3, run_after=now + timedelta(days=1))
    await desk.admit(lane="image.any")
    await desk.offered()
    await desk.pool.execute("UPDATE job SET run_after = $1 WHERE id = ANY ($2)", soon, [ids[5], ids[4], ids[3]])
    await desk.pool.execute("UPDATE job SET run_after = $1 WHERE id = ANY ($2)", late, [ids[2], ids[1]])
    assert await desk.queries.backlog("article.any", 10) == [ids[1], ids[3], ids[4], ids[2], ids[5]]
    assert await desk.queries.backlog("article.any", 2) == [ids[1], ids[3]]


async def test_lanes_with_work_tells_what_waits_is_offered_is_held_and_comes(desk: Desk) -> None:
    later = await desk.queries.now() + timedelta(hours=1)
    await desk.admit(lane="a.any")
    await desk.admit(lane="a.any", priority=3)
    await desk.admit(lane="a.any", run_after=later + timedelta(hours=1), priority=3)
    await desk.admit(lane="a.any", run_after=later, priority=0)
    await desk.offered(1, lane="b.any")
    await desk.held(seq=2, lane="c.any")
    await desk.do(Cancel(job_id=await desk.admit(lane="d.any"), actor="ann"))
    assert await desk.queries.lanes_with_work() == [
        LaneWork("a.any", waiting=2, offered=0),
        LaneWork("b.any", waiting=0, offered=1),
        LaneWork("c.any", waiting=0, offered=0),
    ]
    assert await desk.queries.known_lanes() == ["a.any", "b.any", "c.any", "d.any"]


async def test_lanes_can_be_paused_and_who_did_it_is_kept(queries: Queries, ledger_pool: asyncpg.Pool) -> None:
    await queries.set_lane_paused("a.any", paused=True, actor="ann")
    await queries.set_lane_paused("b.any", paused=True, actor="ann")
    await queries.set_lane_paused("b.any", paused=False, actor="bob")
    assert await queries.paused_lanes() == {"a.any"}
    actions = await ledger_pool.fetch("SELECT actor, action, subject FROM operator_action ORDER BY id")
    assert [tuple(a) for a in actions] == [
        ("ann", "pause", "lane a.any"),
        ("ann", "pause", "lane b.any"),
        ("bob", "resume", "lane b.any"),
    ]


async def test_offers_are_listed_by_age(desk: Desk) -> None:
    old, _held = await desk.offered(1), await desk.held(seq=2)
    await set_clock_offset(desk.pool, 30)
    await desk.offered(3)
    (offer,) = await desk.queries.offers(15)
    assert (offer.job_id, offer.lane, offer.offered_seq, offer.excluded) == (old, "article.any", 1, frozenset())
    assert 30 <= offer.age_s < 60
    await desk.do(Withdraw(job_id=old, offered_at=offer.offered_at, reason="unclaimed"))
    assert await desk.queries.offers(15) == []


async def test_an_excluded_worker_is_told_with_the_offer(desk: Desk) -> None:
    job = await desk.held('odd "name\\')
    await desk.do(failed(job, worker='odd "name\\', error_class="elsewhere"))
    await desk.do(Dispatch(job_id=job))
    (offer,) = await desk.queries.offers(0)
    assert offer.excluded == {'odd "name\\'}


async def test_jobs_light_tells_where_jobs_stand(desk: Desk) -> None:
    held, offered = await desk.held(seq=4), await desk.offered(5)
    light = await desk.queries.jobs_light([held, offered, uuid.uuid4()])
    assert {job: (row.state, row.worker, row.epoch, row.offered_seq, row.spent_seq) for job, row in light.items()} == {
        held: (JobState.PROCESSING, "mini", 1, 4, 0),
        offered: (JobState.PENDING, None, 0, 5, 0),
    }
    assert light[offered].offered_at is not None
    assert await desk.queries.placing_of(held) == Placing("article", "article.any", None, ())
    assert await desk.queries.placing_of(uuid.uuid4()) is None


async def test_leases_are_listed_by_worker_and_in_pages_when_over(desk: Desk) -> None:
    mine = [await desk.held("mini", seq) for seq in (1, 2, 3)]
    other = await desk.held("book", 4)
    assert await desk.queries.processing_of("mini") == [(job, 1) for job in sorted(mine)]
    assert await desk.queries.processing_ids() == sorted([*mine, other])
    assert await desk.queries.expired(10) == []
    await set_clock_offset(desk.pool, 90)
    first = await desk.queries.expired(3)
    rest = await desk.queries.expired(3, first[-1])
    assert first + rest == sorted([*mine, other])
    assert await desk.queries.expired(3, rest[-1]) == []


async def test_the_highest_sequence_is_that_of_any_job_ever(desk: Desk) -> None:
    assert await desk.queries.highest_seq() == 0
    job = await desk.held(seq=41)
    await desk.do(completed(job))
    await desk.offered(7)
    assert await desk.queries.highest_seq() == 41


# ----------------------------------------------------------------------------------------------------------- the outbox


async def test_an_unpublished_job_has_all_that_its_message_says(desk: Desk) -> None:
    job = await desk.held(key="post-812", labels={"post": "812"})
    await store(desk.queries, job, artifact("b.png"), artifact("a.png"), artifact("spare.png"))
    await desk.do(completed(job, artifacts=[artifact("b.png"), artifact("a.png")]))
    (row,) = await desk.queries.unpublished(10)
    assert (row.id, row.epoch, row.kind, row.state, row.key, row.source) == (
        job,
        1,
        "article",
        JobState.COMPLETED,
        "post-812",
        "cms",
    )
    assert (row.labels, row.worker, row.model, row.result) == (
        {"post": "812"},
        "mini",
        "llama3.1:8b",
        {"text": "Bees."},
    )
    assert row.artifacts == [artifact("a.png"), artifact("b.png")]
    assert (row.error, row.published_epoch) == (None, None)


async def test_a_failed_and_a_never_started_job_are_published_too(desk: Desk) -> None:
    broken, never = await desk.held(model="m", lane="article.m"), await desk.admit()
    await desk.do(failed(broken, error_class="permanent"))
    await desk.do(Cancel(job_id=never, actor="ann"))
    rows = {row.id: row for row in await desk.queries.unpublished(10)}
    assert (rows[broken].error["code"], rows[broken].model, rows[broken].result) == ("broken", "m", None)
    assert (rows[never].worker, rows[never].epoch, rows[never].state) == (None, 0, JobState.CANCELED)


async def test_what_is_published_stays_published_unless_it_moved_on(desk: Desk) -> None:
    job = await desk.held(review=True)
    await desk.do(completed(job))
    (row,) = await desk.queries.unpublished(10)
    await desk.do(Approve(job_id=job, actor="ann"))
    await desk.queries.mark_published([(job, row.epoch, row.state, "", b"")])
    (again,) = await desk.queries.unpublished(10)
    assert again.state is JobState.COMPLETED, "the approval goes out although the review did not wait for it"
    await desk.queries.mark_published([(job, again.epoch, again.state, "", b"")])
    assert await desk.queries.unpublished(10) == []
    assert (await desk.row(job))["published_epoch"] == 1


async def test_a_retried_job_is_not_published_before_it_settles_again(desk: Desk) -> None:
    job = await desk.held()
    await desk.do(completed(job))
    await desk.do(Retry(job_id=job, actor="ann"))
    assert await desk.queries.unpublished(10) == []
    await desk.do(Cancel(job_id=job, actor="ann"))
    assert [row.state for row in await desk.queries.unpublished(10)] == [JobState.CANCELED]


# ----------------------------------------------------------------------------------------------------------- workers


async def test_a_workers_presence_and_what_is_wanted_of_it_are_kept_apart(
    queries: Queries, ledger_pool: asyncpg.Pool
) -> None:
    await queries.set_wanted("mini", WorkerState.PAUSED, actor="ann")
    (unseen,) = await queries.workers()
    assert (unseen.presence, unseen.first_seen_at, unseen.age_s) == (None, None, float("inf"))
    row = await queries.save_presence("mini", "NKEY", PRESENCE)
    assert (row.wanted, row.nkey, row.instance, row.age_s) == (WorkerState.PAUSED, "NKEY", "mini-1", 0)
    await set_clock_offset(ledger_pool, 20)
    (seen,) = await queries.workers()
    assert seen.presence is not None
    assert (seen.presence.slots, seen.presence.facts) == (2, {"odd": "a\ufffdb"})
    assert 20 <= seen.age_s < 60
    again = await queries.save_presence("mini", None, PRESENCE)
    assert (again.nkey, again.first_seen_at) == ("NKEY", seen.first_seen_at)
    await queries.save_sender("mini", "OTHER")
    assert [w.nkey for w in await queries.workers()] == ["OTHER"]


async def test_a_worker_can_not_be_wanted_unhealthy(queries: Queries) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await queries.set_wanted("mini", WorkerState.UNHEALTHY, actor="ann")


# ------------------------------------------------------------------------------------------------------------ refusals


async def test_a_refused_submission_is_kept_with_the_start_of_its_body(
    queries: Queries, ledger_pool: asyncpg.Pool
) -> None:
    faults = [{"field": "spec.width", "message": "bad\x00"}]
    await queries.record_rejected_submission("cms", "invalid", "bad\x00", faults, b"\x00" * 100_000)
    row = await ledger_pool.fetchrow("SELECT * FROM rejected_submission")
    assert (row["reason"], row["faults"]) == ("bad\ufffd", [{"field": "spec.width", "message": "bad\ufffd"}])
    assert (len(row["body"]), row["size"]) == (64 * 1024, 100_000)


@pytest.mark.parametrize("named", ["0190a1b2-0000-7000-8000-000000000000", "not-a-job"])
async def test_a_report_that_could_not_be_read_is_kept(queries: Queries, ledger_pool: asyncpg.Pool, named: str) -> None:
    await queries.record_rejected_report("mini", named, "not JSON", b'{"half\x00\xff' * 20_000)
    row = await ledger_pool.fetchrow("SELECT *, octet_length(report::text) AS size FROM rejected_result")
    assert (str(row["job_id"]) if row["job_id"] else None) == (named if named[0] == "0" else None)
    assert (row["verdict"], row["worker"], row["epoch"]) == ("rejected", "mini", None)
    assert row["report"]["unreadable"].startswith('{"half\ufffd\ufffd')


# ------------------------------------------------------------------------------------------------------------ artifacts


async def test_files_are_taken_while_the_epoch_may_still_report(desk: Desk) -> None:
    job, queries = await desk.held(), desk.queries
    assert await queries.upload_allowed(job, 1, "mini")
    assert not await queries.upload_allowed(job, 1, "book")
    assert not await queries.upload_allowed(job, 2, "mini")
    assert not await queries.upload_allowed(uuid.uuid4(), 1, "mini")
    assert await store(queries, job, artifact(), epoch=2) == [False]
    await desk.do(released(job))
    assert not await queries.upload_allowed(job, 1, "mini")
    assert await store(queries, job, artifact()) == [False]


async def test_files_are_taken_for_a_lapsed_epoch_until_somebody_else_claims(desk: Desk) -> None:
    from coordinator.ledger.model import Expire  # noqa: PLC0415 - beside its use

    job, queries = await desk.held(), desk.queries
    await set_clock_offset(desk.pool, 90)
    await desk.do(Expire(job_id=job))
    assert await queries.upload_allowed(job, 1, "mini")
    assert await store(queries, job, artifact()) == [True]
    await desk.ledger.do_many([Dispatch(job_id=job), Offered(job_id=job, seq=2), claim(job, "book", 2)])
    assert not await queries.upload_allowed(job, 1, "mini")
    assert await store(queries, job, artifact()) == [False]


async def test_a_second_file_of_a_name_replaces_the_first_until_it_is_linked(desk: Desk) -> None:
    job, queries = await desk.held(), desk.queries
    assert await store(queries, job, artifact(sha256="a" * 64), artifact(sha256="b" * 64)) == [True, True]
    (stored,) = await queries.artifacts_of(job, 1)
    assert (stored.sha256, stored.linked) == ("b" * 64, False)
    await desk.do(completed(job, artifacts=[artifact(sha256="b" * 64)]))
    assert await store(queries, job, artifact(sha256="c" * 64)) == [False]
    (stored,) = await queries.artifacts_of(job, 1)
    assert (stored.sha256, stored.linked) == ("b" * 64, True)


# ---------------------------------------------------------------------------------------------------------- the promise


async def test_postgres_away_is_a_ledger_that_is_down(ledger_dsn: str, unused_tcp_port: int) -> None:
    async with await open_pool(f"postgresql://tandem@127.0.0.1:{unused_tcp_port}/x", min_size=0) as pool:
        with pytest.raises(LedgerDownError):
            await Queries(pool).now()
    pool = await open_pool(ledger_dsn)
    await pool.close()
    with pytest.raises(LedgerDownError):
        await fetch(pool, "now")


_SETTLED = """
INSERT INTO job (
    id, source, kind, lane, priority, state, content_sha256, spec, labels, max_attempts, timeout_s, review, run_after,
    created_at, finished_at, epoch, offered_seq, spent_seq, result_epoch, result
)
SELECT
    gen_random_uuid(), 'cms', 'article', 'article.any', 1, 'completed', '\\x00', '{}', '{}', 3, 1800, false,
    tandem_now(), tandem_now() - i * interval '1 s', tandem_now(), 1, i, i, 1, '{}'
FROM generate_series(1, $1::int) AS i
"""

HOT = {
    "expired": ((100, None), {"job_processing", "job_holder"}),
    "backlog": (("article.any", 100, ["mini"]), {"job_backlog"}),
    "lanes_with_work": ((1000,), {"job_backlog", "job_offered", "job_processing", "job_holder"}),
    "offers": ((15.0,), {"job_offered"}),
    "offers_beyond": (("article.any", ["mini"]), {"job_offered"}),
    "processing_of": (("mini",), {"job_holder"}),
    "held_by_silent": (("mini", "mini-1", datetime(2026, 1, 1, tzinfo=UTC)), {"job_holder"}),
    "processing_ids": ((), {"job_processing", "job_holder", "job_list_by_lane"}),
    "unpublished": ((100,), {"job_outbox"}),
    "movable": ((None, ["article.any"], 100), {"job_choices", "job_refused", "job_pkey"}),
}
"""What the loops ask again and again: the statement, arguments, and the partial indexes that may serve it."""


def _nodes(plan: dict) -> list[dict]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _nodes(child))]


async def test_hot_queries_read_partial_indexes_and_no_settled_row(desk: Desk) -> None:
    """20,000 settled jobs beside 2,000 that wait: no query of a loop may touch the settled ones."""
    await desk.ledger.do_many([admit() for _ in range(1000)])
    later = await desk.queries.now() + timedelta(days=1)
    await desk.ledger.do_many([admit(run_after=later, priority=3) for _ in range(1000)])
    for seq in range(1, 11):
        await desk.held("mini", seq)
    for seq in range(11, 21):
        await desk.offered(seq)
    await desk.do(completed(await desk.held(seq=30)))
    await desk.pool.execute(_SETTLED, 20_000)
    await desk.pool.execute("VACUUM ANALYZE job")
    for name, (args, expected) in HOT.items():
        text = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql(name)}"
        (explained,) = orjson.loads(await desk.pool.fetchval(text, *args))
        nodes = _nodes(explained["Plan"])
        scans = [n for n in nodes if n.get("Relation Name") == "job" and n["Node Type"] != "Bitmap Heap Scan"]
        bitmaps = [n for n in nodes if n["Node Type"] == "Bitmap Index Scan"]
        used = {n.get("Index Name", n["Node Type"]) for n in [*scans, *bitmaps]}
        assert used, name
        assert used <= expected, name
        read = sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in scans)
        assert read <= 1100, f"{name} read {read} rows"


async def test_the_writer_finds_its_rows_by_key(desk: Desk) -> None:
    """Even on a table that was empty when its plans were made."""
    first = [await desk.held("mini", seq) for seq in range(1, 8)]
    for _ in range(8):  # enough for a generic plan
        await desk.ledger.do_many([beat(job) for job in first])
    await desk.pool.execute(_SETTLED, 20_000)
    await desk.pool.execute("SELECT pg_stat_force_next_flush()")
    before = await _seq_reads(desk.pool)
    for _ in range(8):
        await desk.ledger.do_many([beat(job) for job in first])
    await desk.ledger._connection.execute("SELECT pg_stat_force_next_flush()")
    assert await _seq_reads(desk.pool) == before


async def _seq_reads(pool: asyncpg.Pool) -> int:
    return await pool.fetchval("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'job'")


async def test_a_heartbeat_touches_no_index_of_the_job(desk: Desk) -> None:
    """It stays a heap-only update while its page has room, so beats don't grow the indexes."""
    job = await desk.held()
    for _ in range(10):
        await desk.do(beat(job))
    await desk.ledger._connection.execute("SELECT pg_stat_force_next_flush()")
    counts = await desk.pool.fetchrow("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job'")
    assert counts["n_tup_upd"] - counts["n_tup_hot_upd"] <= 2, "only the offer and the claim move index entries"
    assert counts["n_tup_hot_upd"] >= 10
