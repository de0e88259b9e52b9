"""After a restore no epoch comes again that an agent may hold from before."""

from datetime import UTC, datetime

import asyncpg
import pytest

from coordinator.audit import audit
from coordinator.ledger.model import Grant, Judged, Lost, Retry
from coordinator.ledger.restored import epoch_floor, mark_of
from shared.states import JobState, LostReason, Verdict
from tests.support.ledger import Desk, beat, claim, completed, released, set_clock_offset

MADE_AT = datetime(2026, 11, 30, tzinfo=UTC)


async def mark_restored(dsn: str, made_at: datetime) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(mark_of(made_at))
    finally:
        await connection.close()
    return await epoch_floor(dsn)


async def again(desk: Desk, job_id, seq: int) -> int:
    """Offer the job again and claim it; return the epoch."""
    await desk.pool.execute("UPDATE job SET offered_at = tandem_now(), offered_seq = $2 WHERE id = $1", job_id, seq)
    answer = await desk.do(claim(job_id, seq=seq))
    assert isinstance(answer, Grant), answer
    return answer.epoch


async def test_the_next_epoch_is_the_floor_and_then_one_more(desk: Desk, ledger_dsn: str) -> None:
    job_id = await desk.held()
    await desk.do(released(job_id))
    floor = await mark_restored(ledger_dsn, MADE_AT)

    assert await again(desk, job_id, 2) == floor
    await desk.do(released(job_id, floor))
    assert await again(desk, job_id, 3) == floor + 1
    assert [row["epoch"] for row in await desk.rows("attempt", job_id)] == [1, floor, floor + 1]
    assert await audit(desk.pool, None, None) == []


async def test_what_was_granted_after_the_backup_is_refused(desk: Desk, ledger_dsn: str) -> None:
    waiting = await desk.offered()
    await mark_restored(ledger_dsn, MADE_AT)

    assert await desk.do(beat(waiting, 1)) == Lost(LostReason.STALE)
    answer = await desk.do(completed(waiting, 1))

    assert isinstance(answer, Judged)
    assert (answer.verdict, (await desk.row(waiting))["state"]) == (Verdict.REJECTED, JobState.PENDING)


async def test_a_lease_that_is_still_held_goes_on(desk: Desk, ledger_dsn: str) -> None:
    held = await desk.held()
    await mark_restored(ledger_dsn, MADE_AT)

    await desk.do(beat(held, 1))
    await desk.do(completed(held, 1))

    assert (await desk.row(held))["result_epoch"] == 1
    assert await audit(desk.pool, None, None) == []


async def test_a_job_that_is_submitted_again_has_no_old_epoch_either(desk: Desk, ledger_dsn: str) -> None:
    floor = await mark_restored(ledger_dsn, MADE_AT)
    job_id = await desk.held()

    assert (await desk.row(job_id))["epoch"] == floor
    assert (await desk.queries.jobs_light([job_id]))[job_id].epoch == floor
    assert await audit(desk.pool, None, None) == []


async def test_a_retry_of_what_was_settled_begins_at_the_floor(desk: Desk, ledger_dsn: str) -> None:
    job_id = await desk.held()
    await desk.do(completed(job_id))
    floor = await mark_restored(ledger_dsn, MADE_AT)
    await desk.do(Retry(job_id=job_id, actor="ann"))

    assert await again(desk, job_id, 2) == floor


@pytest.mark.parametrize("later_s", [0.0, 3600.0, -86400.0])
async def test_restoring_twice_gives_two_floors(desk: Desk, ledger_dsn: str, later_s: float) -> None:
    first = await mark_restored(ledger_dsn, MADE_AT)
    await set_clock_offset(desk.pool, later_s)

    assert await mark_restored(ledger_dsn, MADE_AT) > first


async def test_a_gap_that_no_restore_explains_is_a_breach(desk: Desk, ledger_dsn: str) -> None:
    job_id = await desk.held()
    await desk.do(released(job_id))
    await mark_restored(ledger_dsn, MADE_AT)
    await again(desk, job_id, 2)
    await desk.pool.execute("UPDATE restored SET epoch_floor = epoch_floor - 1")

    assert [breach.rule for breach in await audit(desk.pool, None, None)] == ["epochs"]
