"""Who failed how often in a row, as it follows from the attempts on record."""

import uuid
from typing import Any

import orjson
import pytest

from coordinator.ledger.database import sql
from coordinator.ledger.queries import Streak
from shared.states import WorkerState
from shared.wire import Presence
from tests.support.ledger import Desk, delivery

HOUR_S = 3600.0


class Record:
    """Writes attempts as they stand in the table, one after the other, a minute each, the last one ended just now."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def workers(self, *names: str) -> None:
        for name in names:
            await self.desk.queries.save_presence(name, None, Presence(instance=f"{name}-1"))

    async def attempt(
        self, worker: str, ago_s: float, outcome: str, code: str = "broken", *, lane: str = "article.any", **error: Any
    ) -> None:
        said = None if outcome in ("completed", "canceled") else {"code": code, "message": "It broke.", **error}
        await self.desk.pool.execute(
            "INSERT INTO attempt (job_id, epoch, number, worker, delivery, claimed_at, deadline_at, outcome, ended_at,"
            " error) SELECT $1, 1, 1, $2, $3, at - interval '10 s', at, $5, at, $6"
            " FROM (SELECT tandem_now() - make_interval(secs => $4)) AS ended (at)",
            uuid.uuid4(),
            worker,
            delivery(1, lane=lane),
            ago_s,
            outcome,
            said,
        )

    async def failures(self, worker: str, *ago_s: float, **more: Any) -> None:
        for each in ago_s:
            await self.attempt(worker, each, "failed", **{"class": "transient", **more})

    async def streaks(self, **more: Any) -> dict[tuple[str, str], Streak]:
        asked: dict[str, Any] = {
            "within_s": 24 * HOUR_S,
            "attempts": 300,
            "failures": 3,
            "empty": ["empty"],
            "recently_s": HOUR_S,
        }
        found = await self.desk.queries.streaks(**{**asked, **more})
        return {(one.worker, one.lane): one for one in found}


@pytest.fixture
def record(desk: Desk) -> Record:
    return Record(desk)


async def test_failures_in_a_row_are_counted_while_another_worker_succeeds(record: Record) -> None:
    await record.workers("mini", "book")
    await record.attempt("mini", 900, "completed")
    await record.failures("mini", 400, 300, 200, 100)
    await record.attempt("book", 150, "completed")
    streak = (await record.streaks())["mini", "article.any"]
    assert (streak.failures, streak.code, streak.message) == (4, "broken", "It broke.")
    assert (streak.others, streak.empty) == (True, False)
    assert 100 <= streak.age_s < 160


async def test_a_job_that_is_not_tried_again_where_it_failed_says_nothing_of_the_machine(record: Record) -> None:
    await record.workers("mini", "book")
    for ago_s in (400, 200):
        await record.failures("mini", ago_s)
        await record.failures("mini", ago_s - 50, **{"class": "elsewhere", "detail": {"verdict": "unknown"}})
    assert await record.streaks() == {}
    await record.failures("mini", 50, **{"class": "elsewhere", "detail": {"verdict": "route"}})
    assert (await record.streaks())["mini", "article.any"].failures == 3


async def test_a_success_ends_the_row(record: Record) -> None:
    await record.workers("mini")
    await record.failures("mini", 400, 300, 200)
    await record.attempt("mini", 100, "completed")
    assert await record.streaks() == {}


async def test_lanes_are_apart(record: Record) -> None:
    await record.workers("mini", "book")
    await record.failures("mini", 400, 300, 200, lane="image.flux-1-dev")
    await record.attempt("mini", 100, "completed")
    await record.attempt("book", 100, "completed")
    streaks = await record.streaks()
    assert list(streaks) == [("mini", "image.flux-1-dev")]
    assert not streaks["mini", "image.flux-1-dev"].others, "they succeeded in another lane"


@pytest.mark.parametrize(
    ("outcome", "code", "error_class", "failures"),
    [
        ("failed", "out_of_memory", "elsewhere", 3),
        ("failed", "timeout", "transient", 3),
        ("failed", "bad_input", "permanent", 2),
        ("released", "drain", "transient", 2),
        ("canceled", "", "transient", 2),
        ("lease_expired", "worker_lost", "transient", 3),
        ("lease_expired", "worker_restarted", "transient", 3),
        ("lease_expired", "worker_silent", "transient", 2),
    ],
)
async def test_only_what_may_be_the_machines_fault_counts_and_the_rest_is_passed_over(
    record: Record, outcome: str, code: str, error_class: str, failures: int
) -> None:
    await record.workers("mini")
    await record.failures("mini", 400, 300)
    await record.attempt("mini", 200, outcome, code, **{"class": error_class})
    assert [one.failures for one in (await record.streaks(failures=2)).values()] == [failures]


async def test_another_workers_success_counts_for_an_hour_before_the_last_failure_and_ever_after(
    record: Record,
) -> None:
    await record.workers("mini", "book", "studio")
    await record.failures("mini", 8 * HOUR_S, 7 * HOUR_S, 6 * HOUR_S)
    await record.attempt("book", 7.5 * HOUR_S, "completed")
    assert not (await record.streaks())["mini", "article.any"].others
    await record.attempt("studio", 6.5 * HOUR_S, "completed")
    assert (await record.streaks())["mini", "article.any"].others


async def test_answers_without_content_are_told_apart_by_the_newest_failures(record: Record) -> None:
    await record.workers("mini", "book")
    await record.failures("mini", 500)
    await record.failures("mini", 400, 300, 200, code="empty")
    await record.failures("book", 400, 300, code="empty")
    await record.failures("book", 200)
    streaks = await record.streaks()
    assert {worker: streak.empty for (worker, _), streak in streaks.items()} == {"mini": True, "book": False}


async def test_what_was_before_an_operators_resume_counts_no_more(record: Record) -> None:
    await record.workers("mini")
    await record.failures("mini", 400, 300, 200)
    await record.desk.queries.set_wanted("mini", WorkerState.PAUSED, actor="ann")
    assert await record.streaks(), "only a resume lets it back"
    await record.desk.queries.set_wanted("mini", WorkerState.READY, actor="ann")
    assert await record.streaks() == {}
    await record.desk.queries.set_wanted("mini", WorkerState.PAUSED, actor="ann")
    assert await record.streaks() == {}, "a pause does not bring it back"


async def test_old_attempts_are_forgotten(record: Record) -> None:
    await record.workers("mini")
    await record.failures("mini", 25 * HOUR_S, 300, 200)
    assert await record.streaks() == {}


async def test_a_workers_history_is_read_by_its_index_and_to_a_limit(record: Record) -> None:
    await record.workers("mini", "book")
    await record.failures("mini", 400, 300, 200)
    await record.desk.pool.execute(
        "INSERT INTO attempt (job_id, epoch, number, worker, delivery, claimed_at, deadline_at, outcome, ended_at)"
        " SELECT gen_random_uuid(), 1, 1, 'book', 'd', at, at, 'completed', at"
        " FROM generate_series(1, 20000) AS n, LATERAL (SELECT tandem_now() - n * interval '1 s') AS ended (at)"
    )
    await record.desk.pool.execute("VACUUM ANALYZE attempt")
    await record.desk.pool.execute("SELECT pg_stat_force_next_flush()")
    plan = await _plan(record.desk)
    assert {node["Index Name"] for node in plan if node.get("Relation Name") == "attempt"} == {"attempt_worker"}
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in plan if node.get("Relation Name") == "attempt")
    assert read == 303


async def _plan(desk: Desk) -> list[dict[str, Any]]:
    text = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql('streaks')}"
    (explained,) = orjson.loads(await desk.pool.fetchval(text, 86400.0, 300, 3, ["empty"], 3600.0))
    todo, nodes = [explained["Plan"]], []
    while todo:
        nodes.append(todo.pop())
        todo += nodes[-1].get("Plans", [])
    return nodes
