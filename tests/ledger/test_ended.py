"""How attempts ended lately: each in the bucket of its end, and a bucket that is over is counted once."""

import pytest

from coordinator.ledger.ended import FINAL_AFTER_S, Ended
from tests.support.ledger import Desk, completed, failed, set_clock_offset

BUCKET_S = 1800.0
DAY_S = 86400.0


async def go_to(desk: Desk, into_s: float, *, buckets: int = 1) -> None:
    """Move the clock on, to so long after the begin of the bucket after the next `buckets` - 1."""
    real_s = float(await desk.pool.fetchval("SELECT extract(epoch FROM now())"))
    now_s = (await desk.queries.now()).timestamp()
    await set_clock_offset(desk.pool, (now_s // BUCKET_S + buckets) * BUCKET_S + into_s - real_s)


async def told(desk: Desk, ended: Ended) -> list[tuple[int, str, int, int]]:
    rows = await ended.throughput(desk.pool, DAY_S, BUCKET_S)
    return [(row["bucket"], row["kind"], row["completed"], row["failed"]) for row in rows]


async def test_an_attempt_is_in_the_bucket_of_its_end_until_a_day_has_gone_by(desk: Desk) -> None:
    await go_to(desk, 600)
    job = await desk.held()
    await set_clock_offset(desk.pool, await _offset(desk) + 60)
    await desk.do(completed(job))
    await desk.do(failed(await desk.held(seq=2)))
    ended = Ended()
    assert await told(desk, ended) == [(47, "article", 1, 1)]

    await go_to(desk, 600)
    await desk.do(completed(await desk.held(seq=3)))
    (before, now) = await ended.throughput(desk.pool, DAY_S, BUCKET_S)
    assert (before["bucket"], before["completed"], now["bucket"], now["completed"]) == (46, 1, 47, 1)
    assert before["median_s"] == pytest.approx(60, abs=5)
    assert await told(desk, Ended()) == await told(desk, ended), "as one who counts all of it"

    await go_to(desk, 600, buckets=46)
    assert await told(desk, ended) == [(0, "article", 1, 1), (1, "article", 1, 0)]
    await go_to(desk, 600)
    assert await told(desk, ended) == [(0, "article", 1, 0)]
    await go_to(desk, 600)
    assert await told(desk, ended) == []


async def test_what_is_over_is_counted_once_and_what_may_still_change_is_not(desk: Desk) -> None:
    await go_to(desk, BUCKET_S - 120)
    await desk.do(completed(await desk.held(seq=1)))
    ended = Ended()
    await go_to(desk, FINAL_AFTER_S / 2)
    assert await told(desk, ended) == [(46, "article", 1, 0)]
    await desk.pool.execute("UPDATE attempt SET outcome = 'failed'")
    assert await told(desk, ended) == [(46, "article", 0, 1)]

    await set_clock_offset(desk.pool, await _offset(desk) + FINAL_AFTER_S)
    assert await told(desk, ended) == [(46, "article", 0, 1)]
    await desk.pool.execute("UPDATE attempt SET outcome = 'completed'")
    assert await told(desk, ended) == [(46, "article", 0, 1)], "read once, and never again"
    assert await told(desk, Ended()) == [(46, "article", 1, 0)]


async def _offset(desk: Desk) -> float:
    return float(await desk.pool.fetchval("SELECT extract(epoch FROM tandem_now() - now())"))
