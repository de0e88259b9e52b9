"""The writer: many commands a commit, each for itself; several writers on one database; Postgres that goes away."""

import asyncio
import contextlib
import uuid

import asyncpg
import pytest

from coordinator.ledger import batch as batch_module
from coordinator.ledger.database import open_pool
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import (
    Admitted,
    Cancel,
    Charge,
    Claim,
    Conflict,
    Denial,
    Dispatch,
    Done,
    Expire,
    Grant,
    Held,
    Job,
    Judged,
    Nothing,
    Offer,
    Offered,
    Retry,
    SameJob,
    TellVerdict,
)
from coordinator.ledger.queries import Queries
from coordinator.ledger.transitions import decide
from shared.errors import LedgerDownError
from shared.states import JobState, Verdict
from tests.support.ledger import (
    POLICY,
    Desk,
    admit,
    artifact,
    beat,
    claim,
    completed,
    failed,
    file_report,
    open_desk,
    released,
    seeded,
    set_clock_offset,
    store,
    waits_for_a_lock,
)

POISON = "a\x00b"
"""Text that Postgres can't store: it passes every check of ours and fails the batch."""


# ------------------------------------------------------------------------------------------------ one commit for many


async def test_commands_that_wait_together_are_committed_together(desk: Desk) -> None:
    answers = await desk.ledger.do_many([admit() for _ in range(300)])
    assert answers == [Admitted()] * 300
    assert desk.ledger.status()["batches"] == 1


async def test_a_batch_is_bounded(ledger_pool: asyncpg.Pool) -> None:
    async with open_desk(ledger_pool, batch=7) as desk:
        await desk.ledger.do_many([admit() for _ in range(20)])
        assert desk.ledger.status()["batches"] == 3
        assert desk.ledger.status()["largest_batch"] == 7


async def test_commands_for_one_job_see_each_other_in_their_order(desk: Desk) -> None:
    """A job's whole life in a single transaction."""
    new = admit(offer=True)
    job = new.job_id
    life = [
        new,
        Offered(job_id=job, seq=4),
        claim(job, "mini", 4),
        claim(job, "book", 4, count=2),
        beat(job),
        beat(job, stage="finalizing"),
        completed(job),
        completed(job),
        Cancel(job_id=job, actor="ann"),
    ]
    answers = await desk.ledger.do_many(life)
    assert desk.ledger.status()["batches"] == 1
    assert [type(a) for a in answers[:3]] == [Admitted, Done, Grant]
    assert isinstance(answers[3], Denial)
    assert [type(a) for a in answers[4:6]] == [Held, Held]
    assert answers[6:] == [Judged(Verdict.ACCEPTED), Judged(Verdict.DUPLICATE), Nothing("the job is completed")]
    row = await desk.row(job)
    assert (row["state"], row["epoch"], row["result"], row["result_epoch"], row["unpublished"]) == (
        "completed",
        1,
        {"text": "Bees."},
        1,
        True,
    )
    (attempt,) = await desk.rows("attempt", job)
    assert (attempt["outcome"], attempt["heartbeats"], attempt["stage"]) == ("completed", 2, "finalizing")
    assert len(await desk.rows("heartbeat", job)) == 2


async def test_effects_and_changes_come_after_the_commit_in_the_order_of_the_commands(desk: Desk) -> None:
    news = [admit(offer=True) for _ in range(20)]
    await desk.ledger.do_many(news)
    assert [o.job_id for o in desk.took(Offer)] == [n.job_id for n in news]
    assert [(before, after.id, after.state) for before, after in desk.changes] == [
        (None, n.job_id, JobState.PENDING) for n in news
    ]
    assert await desk.pool.fetchval("SELECT count(*) FROM job") == 20


async def test_a_command_that_changes_nothing_writes_nothing(desk: Desk) -> None:
    job = await desk.held()
    before = await desk.pool.fetchval("SELECT xmin FROM attempt WHERE job_id = $1", job)
    desk.changes.clear()
    same = admit(job)
    assert await desk.ledger.do_many([same, Dispatch(job_id=job), Expire(job_id=job)]) == [
        SameJob(),
        Nothing("not waiting for an offer"),
        Nothing("lease was extended"),
    ]
    assert desk.changes == []
    assert await desk.pool.fetchval("SELECT xmin FROM attempt WHERE job_id = $1", job) == before


async def test_what_a_grant_brings_is_the_stored_job(desk: Desk) -> None:
    job = await desk.offered(spec={"prompt": "é"}, labels={"a": "b"}, priority=3, model="m")
    answer = await desk.do(claim(job))
    assert isinstance(answer, Grant)
    assert answer.payload is not None
    assert (answer.payload.spec, answer.payload.labels, answer.payload.priority, answer.payload.model) == (
        {"prompt": "é"},
        {"a": "b"},
        3,
        "m",
    )


async def test_a_grant_says_what_is_charged_to_the_job(desk: Desk) -> None:
    """Whichever worker met it; neither what only excluded a worker, nor what was before a person's retry."""
    job, said = await desk.offered(max_attempts=9), []
    ends = (
        ("mini", "transient", {"verdict": "retry_then_fail"}, False),
        ("macbook", "elsewhere", {"verdict": "route"}, False),
        ("studio", "transient", ["a foreign agent's"], True),
        ("mini", "transient", None, False),
    )
    for seq, (worker, error_class, detail, retried) in enumerate(ends, 2):
        grant = await desk.do(claim(job, worker, seq=seq - 1))
        said.append((grant.attempt, [(c.code, c.verdict, c.worker) for c in grant.payload.charges]))
        error = {"code": f"x{seq}", "message": "x", "class": error_class, "detail": detail}
        await desk.do(file_report(job, grant.epoch, worker, {"outcome": "failed", "error": error}))
        if retried:
            await desk.do(Cancel(job_id=job, actor="ada"))
            await desk.do(Retry(job_id=job, actor="ada"))
        await set_clock_offset(desk.pool, 3600 * seq)
        await desk.do(Dispatch(job_id=job))
        await desk.do(Offered(job_id=job, seq=seq))
    said.append((await desk.do(claim(job, "mini", seq=len(ends) + 1))).payload.charges)
    met = ("x2", "retry_then_fail", "mini")
    assert said == [(1, []), (2, [met]), (2, [met]), (1, []), (Charge("x5", None, "mini"),)]


async def test_a_grant_says_no_more_than_the_newest_failures(desk: Desk) -> None:
    job = await desk.offered(max_attempts=40)
    for seq in range(1, 24):
        grant = await desk.do(claim(job, seq=seq))
        error = {"code": f"x{seq}", "message": "x", "class": "transient"}
        await desk.do(file_report(job, grant.epoch, "mini", {"outcome": "failed", "error": error}))
        await set_clock_offset(desk.pool, 3600 * seq)
        await desk.do(Dispatch(job_id=job))
        await desk.do(Offered(job_id=job, seq=seq + 1))
    grant = await desk.do(claim(job, seq=24))
    assert [c.code for c in grant.payload.charges] == [f"x{seq}" for seq in range(4, 24)]


async def test_an_accepted_report_is_kept_with_its_attempt_and_links_its_files(desk: Desk) -> None:
    job = await desk.held()
    kept, other = artifact("image-1.png", 5), artifact("not-named.png", 7)
    assert await store(desk.queries, job, kept, other) == [True, True]
    report = completed(
        job,
        artifacts=[kept],
        settings={"seed": 42},
        stages=[{"stage": "loading_model", "at_s": 0.5}],
        elapsed_s=41.2,
    )
    assert await desk.do(report) == Judged(Verdict.ACCEPTED)
    (attempt,) = await desk.rows("attempt", job)
    assert {k: attempt[k] for k in ("elapsed_s", "model", "settings", "stages", "bytes")} == {
        "elapsed_s": 41.2,
        "model": "llama3.1:8b",
        "settings": {"seed": 42},
        "stages": [{"stage": "loading_model", "at_s": 0.5}],
        "bytes": 5,
    }
    linked = {row["name"]: row["linked"] for row in await desk.rows("artifact", job)}
    assert linked == {"image-1.png": True, "not-named.png": False}


async def test_a_file_that_was_not_uploaded_fails_the_report(desk: Desk) -> None:
    job = await desk.held()
    await store(desk.queries, job, artifact(sha256="b" * 64))
    await desk.do(completed(job, artifacts=[artifact(sha256="a" * 64)]))
    row = await desk.row(job)
    assert (row["state"], row["attempt"], row["result"]) == ("pending", 1, None)
    (attempt,) = await desk.rows("attempt", job)
    assert attempt["error"]["code"] == "artifact_missing"
    assert [row["linked"] for row in await desk.rows("artifact", job)] == [False]


async def test_a_retry_takes_the_result_and_its_files_away(desk: Desk) -> None:
    job = await desk.held()
    await store(desk.queries, job, artifact())
    await desk.do(completed(job, artifacts=[artifact()]))
    await desk.do(Retry(job_id=job, actor="ann"))
    row = await desk.row(job)
    assert (row["state"], row["result"], row["result_epoch"], row["result_model"], row["unpublished"]) == (
        "pending",
        None,
        None,
        None,
        False,
    )
    assert [row["linked"] for row in await desk.rows("artifact", job)] == [False]
    (action,) = await desk.pool.fetch("SELECT * FROM operator_action")
    assert (action["actor"], action["action"], action["job_id"]) == ("ann", "retry", job)


async def test_a_refused_report_is_kept_short(desk: Desk) -> None:
    job = await desk.held()
    await desk.do(completed(job))
    long = completed(job, text="x" * 300_000, settings={"seed": 1})
    assert (await desk.do(long)).verdict is Verdict.DUPLICATE  # type: ignore[union-attr]
    huge = completed(job, settings={"a": "y" * 200_000}, epoch=2**31 - 1)
    await desk.do(huge)
    rows = await desk.rows("rejected_result", job)
    assert [row["verdict"] for row in rows] == ["duplicate", "rejected"]
    assert rows[0]["report"]["result"]["text"] == "x" * 4096
    assert rows[0]["report"]["cut"] == ["result"]
    assert rows[1]["report"]["settings"] is None
    sizes = await desk.pool.fetch("SELECT octet_length(report::text) AS size FROM rejected_result")
    assert all(row["size"] <= 64 * 1024 for row in sizes)


async def test_nul_in_a_result_is_stored_as_a_replacement_character(desk: Desk) -> None:
    job = await desk.held()
    assert await desk.do(completed(job, text="a\x00b")) == Judged(Verdict.ACCEPTED)
    assert (await desk.row(job))["result"] == {"text": "a\ufffdb"}


# ------------------------------------------------------------------------------------------------------ one bad command


async def test_a_bad_command_fails_alone(desk: Desk) -> None:
    good = [admit() for _ in range(5)]
    bad = admit(source=POISON)
    answers = await desk.ledger.do_each([*good[:2], bad, *good[2:]])
    assert isinstance(answers[2], asyncpg.PostgresError)
    assert answers[:2] + answers[3:] == [Admitted()] * 5
    assert await desk.pool.fetchval("SELECT count(*) FROM job") == 5
    assert desk.ledger.status()["bad_commands"] == 1
    assert [after.id for _, after in desk.changes] == [g.job_id for g in good]


async def test_the_error_of_a_bad_command_is_raised_to_its_caller(desk: Desk) -> None:
    neighbour = asyncio.create_task(desk.do(admit()))
    with pytest.raises(asyncpg.PostgresError):
        await desk.do(admit(source=POISON))
    assert await neighbour == Admitted()


async def test_a_transition_that_raises_fails_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    cursed = admit()

    def broken(job: Job | None, command, now, policy):
        if command.job_id == cursed.job_id:
            raise AssertionError("a fault in transitions")
        return decide(job, command, now, policy)

    monkeypatch.setattr(batch_module, "decide", broken)
    answers = await desk.ledger.do_each([admit(), cursed, admit()])
    assert [type(a) for a in answers] == [Admitted, AssertionError, Admitted]


async def test_a_callback_that_fails_stops_nobody(ledger_pool: asyncpg.Pool) -> None:
    def refuse(effects) -> None:
        raise RuntimeError("not today")

    async with Ledger(ledger_pool, POLICY, on_effects=refuse) as ledger:
        assert await ledger.do(admit()) == Admitted()
        assert await ledger.do(admit()) == Admitted()
        assert ledger.status()["callback_failures"] == 2


# --------------------------------------------------------------------------------------------------------- cancellation


@contextlib.asynccontextmanager
async def row_locked(pool: asyncpg.Pool, job: uuid.UUID):
    """Hold a job's row, so that the writer waits for it; yields the connection that holds it."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", job)
        yield connection


async def test_a_caller_that_is_cancelled_does_not_stop_the_batch(desk: Desk) -> None:
    job = await desk.held()
    async with row_locked(desk.pool, job):
        impatient = asyncio.create_task(desk.do(beat(job)))
        patient = asyncio.create_task(desk.do(beat(job, stage="uploading")))
        await waits_for_a_lock(desk.pool)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
    assert isinstance(await patient, Held)
    assert len(await desk.rows("heartbeat", job)) == 2


async def test_a_command_whose_caller_left_before_it_was_taken_is_not_carried_out(desk: Desk) -> None:
    job, other = await desk.held(), admit()
    async with row_locked(desk.pool, job):
        blocking = asyncio.create_task(desk.do(beat(job)))
        await waits_for_a_lock(desk.pool)
        left = asyncio.create_task(desk.do(other))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
    await blocking
    await desk.do(beat(job))
    assert await desk.pool.fetchval("SELECT count(*) FROM job") == 1


async def test_a_full_queue_makes_callers_wait_and_loses_none(ledger_pool: asyncpg.Pool) -> None:
    async with open_desk(ledger_pool, waiting=2, batch=2) as desk:
        answers = await asyncio.gather(*(desk.do(admit()) for _ in range(50)))
    assert answers == [Admitted()] * 50


async def test_closing_carries_out_what_waits(ledger_pool: asyncpg.Pool) -> None:
    async with open_desk(ledger_pool) as desk:
        waiting = [asyncio.create_task(desk.do(admit())) for _ in range(30)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*waiting) == [Admitted()] * 30
    with pytest.raises(LedgerDownError, match="closed"):
        await desk.do(admit())


# ----------------------------------------------------------------------------------------------------- Postgres is away


async def test_a_lost_connection_is_told_to_all_and_the_next_batch_has_a_new_one(desk: Desk) -> None:
    job = await desk.held()
    async with row_locked(desk.pool, job) as holder:
        waiting = [asyncio.create_task(desk.do(c)) for c in (beat(job), admit(), completed(job))]
        await waits_for_a_lock(desk.pool)
        await holder.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(a) for a in answers] == [LedgerDownError] * 3
    assert await desk.do(completed(job)) == Judged(Verdict.ACCEPTED)
    assert await desk.pool.fetchval("SELECT count(*) FROM job") == 1
    assert desk.ledger.status()["outages"] == 1
    assert desk.ledger.status()["connected"]


async def test_a_connection_that_died_between_batches_is_not_noticed(desk: Desk) -> None:
    await desk.admit()
    connection = desk.ledger._connection
    gone = asyncio.Event()
    connection.add_termination_listener(lambda _: gone.set())
    await desk.pool.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
    async with asyncio.timeout(10):
        await gone.wait()
    assert await desk.do(admit()) == Admitted()


async def test_a_commit_without_an_answer_is_not_reported_as_success(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server commits, and the answer is lost: the caller must hear LedgerDownError, and may repeat."""
    command = admit()
    connection = await desk.ledger._connected()
    execute = connection.execute

    async def lossy(query: str, *args: object) -> str:
        tag: str = await execute(query, *args)
        if query == "COMMIT":
            raise ConnectionResetError("the answer never came")
        return tag

    monkeypatch.setattr(desk.ledger, "_connection", _Lossy(connection, lossy))
    with pytest.raises(LedgerDownError):
        await desk.do(command)
    assert desk.effects == []
    assert await desk.do(command) == SameJob()


class _Lossy:
    """A connection that loses answers."""

    def __init__(self, connection, execute) -> None:
        self._connection, self.execute = connection, execute

    def __getattr__(self, name: str):
        return getattr(self._connection, name)


async def test_an_unreachable_postgres_is_down_for_each_command(unused_tcp_port: int) -> None:
    dsn = f"postgresql://tandem@127.0.0.1:{unused_tcp_port}/tandem"
    async with Ledger(dsn, POLICY, on_effects=lambda _: None) as ledger:
        answers = await ledger.do_each([admit(), admit()])
        assert [type(a) for a in answers] == [LedgerDownError] * 2
        assert ledger.status()["connected"] is False


async def test_a_ledger_of_its_own_dsn_works(ledger_dsn: str) -> None:
    async with Ledger(ledger_dsn, POLICY, on_effects=lambda _: None) as ledger:
        assert await ledger.do(admit()) == Admitted()


# ------------------------------------------------------------------------------------------------- several coordinators


async def test_the_attempt_is_read_after_the_lock_and_not_with_it(desk: Desk) -> None:
    """Two coordinators, one job: whoever waited for the lock must see the other's attempt, not its own snapshot's."""
    job = await desk.held()
    async with row_locked(desk.pool, job) as other:
        waiting = asyncio.create_task(desk.do(beat(job)))
        await waits_for_a_lock(desk.pool)
        await other.execute(
            "UPDATE job SET state = 'pending', worker = NULL, lease_expires_at = NULL, offered_at = NULL"
        )
        await other.execute("UPDATE attempt SET outcome = 'released', ended_at = tandem_now(), heartbeats = 7")
    answer = await waiting
    assert type(answer).__name__ == "Lost"
    (attempt,) = await desk.rows("attempt", job)
    assert (attempt["outcome"], attempt["heartbeats"]) == ("released", 7)


async def test_admitting_the_same_job_twice_at_once_makes_it_once(ledger_pool: asyncpg.Pool) -> None:
    """The second coordinator finds no row, inserts, meets the first one's, and decides again."""
    shared, own, other = admit(offer=True), admit(), admit()
    async with open_desk(ledger_pool) as desk, ledger_pool.acquire() as first:
        transaction = first.transaction()
        await transaction.start()
        await first.execute(
            "INSERT INTO job (id, source, kind, lane, priority, state, content_sha256, spec, labels, max_attempts,"
            " timeout_s, review, run_after, created_at) VALUES ($1, 'cms', 'article', 'article.any', 1, 'pending',"
            " $2, '{}', '{}', 3, 60, false, tandem_now(), tandem_now())",
            shared.job_id,
            shared.content_sha256,
        )
        commands = [own, shared, admit(shared.job_id, content_sha256=b"other"), Cancel(job_id=shared.job_id, actor="a")]
        waiting = asyncio.create_task(desk.ledger.do_many([*commands, other]))
        await waits_for_a_lock(ledger_pool)
        await transaction.commit()
        assert await waiting == [Admitted(), SameJob(), Conflict(), Done(), Admitted()]
        assert desk.ledger.status()["races"] == 3
        assert desk.took(Offer) == []
        assert (await desk.row(shared.job_id))["state"] == "canceled"
        assert len(await desk.pool.fetch("SELECT FROM operator_action")) == 1


async def test_two_ledgers_admit_the_same_jobs_at_once(ledger_pool: asyncpg.Pool) -> None:
    with seeded() as rng:
        news = [admit() for _ in range(400)]
        async with open_desk(ledger_pool, batch=50) as one, open_desk(ledger_pool, batch=50) as two:
            orders = [rng.sample(news, len(news)) for _ in range(2)]
            answers = await asyncio.gather(one.ledger.do_many(orders[0]), two.ledger.do_many(orders[1]))
    counts = [sum(isinstance(a, Admitted) for a in part) for part in answers]
    assert sum(counts) == 400
    assert all(isinstance(a, Admitted | SameJob) for part in answers for a in part)


async def test_two_ledgers_race_and_each_epoch_is_granted_once(ledger_pool: asyncpg.Pool) -> None:
    """Eight claimers, a reaper, beats and reports side by side on two ledgers; the clock jumps over leases."""
    jobs = 40
    with seeded() as rng:
        async with open_desk(ledger_pool, batch=20) as one, open_desk(ledger_pool, batch=20) as two:
            ids = [await one.offered(seq, max_attempts=100) for seq in range(1, jobs + 1)]
            seqs = {job: seq for seq, job in enumerate(ids, 1)}
            next_seq = iter(range(jobs + 1, 10**9))
            grants: dict[tuple[uuid.UUID, int], str] = {}
            surfaced: list[Exception] = []

            async def offer_again(desk: Desk, job: uuid.UUID) -> None:
                if await desk.do(Dispatch(job_id=job)) == Done():
                    seqs[job] = next(next_seq)
                    await desk.do(Offered(job_id=job, seq=seqs[job]))

            async def claimer(desk: Desk, worker: str) -> None:
                for count in range(1, 60):
                    job = rng.choice(ids)
                    answer = await desk.do(claim(job, worker, seqs[job], count))
                    if not isinstance(answer, Grant):
                        await offer_again(desk, job)
                        continue
                    assert grants.setdefault((job, answer.epoch), worker) == worker, "an epoch was granted twice"
                    report = rng.choice([completed, failed, released, beat])
                    await rng.choice([one, two]).do(report(job, answer.epoch, worker))

            async def reaper(desk: Desk) -> None:
                for _ in range(30):
                    ids_ = await desk.queries.expired(100)
                    await desk.ledger.do_each([Expire(job_id=job) for job in rng.sample(ids_, len(ids_))])

            async def clock() -> None:
                for step in range(1, 20):
                    await set_clock_offset(ledger_pool, 100 * step)
                    await two.ledger.do_many([beat(job, 1, "mini") for job in ids])

            work = [claimer(rng.choice([one, two]), f"mac-{i}") for i in range(8)]
            done = await asyncio.gather(*work, reaper(one), reaper(two), clock(), return_exceptions=True)
            surfaced += [error for error in done if isinstance(error, BaseException)]
            assert surfaced == []
            attempts = await ledger_pool.fetch("SELECT job_id, epoch, worker, outcome FROM attempt")
            assert {(a["job_id"], a["epoch"]): a["worker"] for a in attempts} == grants
            for row in await ledger_pool.fetch("SELECT * FROM job"):
                mine = sorted((a for a in attempts if a["job_id"] == row["id"]), key=lambda a: a["epoch"])
                assert [a["epoch"] for a in mine] == list(range(1, row["epoch"] + 1))
                assert sum(a["outcome"] == "completed" for a in mine) == (row["state"] == "completed")
                assert all(a["outcome"] for a in mine[:-1]), "an old epoch stayed open"
            told = [t for desk in (one, two) for t in desk.took(TellVerdict) if t.verdict is Verdict.ACCEPTED]
            assert len({(t.job_id, t.epoch) for t in told}) == len(told)
            assert one.ledger.status()["bad_commands"] == two.ledger.status()["bad_commands"] == 0


async def test_a_deadlock_is_tried_again_and_not_seen(desk: Desk) -> None:
    """Another session locks jobs against the id order. A third one holds the writer up until that one waits for it, so
    that it is the writer who closes the circle, and whom Postgres throws out.
    """
    low, middle, high = sorted([await desk.held(seq=seq) for seq in (1, 2, 3)])
    await desk.ledger._connection.execute("SET deadlock_timeout = '10ms'")
    async with desk.pool.acquire() as other, desk.pool.acquire() as third:
        await other.execute("SET deadlock_timeout = '60s'")
        against, holding = other.transaction(), third.transaction()
        await against.start()
        await holding.start()
        await other.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", high)
        await third.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", middle)
        waiting = asyncio.create_task(desk.ledger.do_many([beat(low), beat(middle), beat(high)]))
        await waits_for_a_lock(desk.pool)
        blocked = asyncio.create_task(other.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", low))
        await waits_for_a_lock(desk.pool, 2)
        await holding.commit()
        await blocked
        await against.commit()
        assert [type(a) for a in await waiting] == [Held, Held, Held]
    assert desk.ledger.status()["conflicts"] >= 1


async def test_claims_of_one_delivery_by_many_are_granted_once(ledger_pool: asyncpg.Pool) -> None:
    async with open_desk(ledger_pool) as one, open_desk(ledger_pool) as two:
        job = await one.offered()
        claims: list[Claim] = [claim(job, f"mac-{i}", count=i + 1) for i in range(50)]
        answers = await asyncio.gather(*((one if i % 2 else two).do(c) for i, c in enumerate(claims)))
        assert sum(isinstance(a, Grant) for a in answers) == 1
        assert all(isinstance(a, Grant | Denial) for a in answers)


async def test_a_ledger_that_takes_no_writes_is_away(ledger_dsn: str, desk: Desk) -> None:
    """Such as one whose Postgres became a standby: a coordinator that can only read must leave the others to answer."""
    name = ledger_dsn.rpartition("/")[2].partition("?")[0]
    await desk.pool.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    async with await open_pool(ledger_dsn) as pool:
        with pytest.raises(LedgerDownError, match="takes no writes"):
            await Queries(pool).now()
    assert await desk.queries.now()
