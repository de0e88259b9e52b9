"""What people look at in a ledger of many jobs: held by the plans, not by the clock."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest
import pytest_asyncio

from coordinator.ledger import job_list
from coordinator.ledger.database import sql
from coordinator.ledger.job_list import JobFilter
from tests.bench.filling import fill
from tests.support.ledger import Desk, completed

JOBS = 20_000
FROM_THE_TOP = (datetime(9999, 1, 1, tzinfo=UTC), UUID(int=0))
# source, state, kind, model, worker, labels, text
WANTED = {
    "text": (None, None, None, None, None, None, "no such word"),
    "worker": (None, None, None, None, "mac-1", None, None),
    "worker of few": (None, None, None, None, "mac-gone", None, None),
    "label": (None, None, None, None, None, '{"site": "main"}', None),
    "all": ("cms", "completed", "article", "llama3.1:8b", "mac-1", '{"site": "news"}', "news"),
}


@pytest_asyncio.fixture(loop_scope="session")
async def many(ledger_pool: asyncpg.Pool, ledger_dsn: str) -> asyncpg.Pool:
    await fill(ledger_dsn, settled=JOBS, pending=0)
    return ledger_pool


def indexes(plan: dict[str, Any]) -> Iterator[str]:
    if ("Relation Name" in plan or "Index Name" in plan) and plan["Node Type"] != "Bitmap Heap Scan":
        yield plan.get("Index Name", plan["Node Type"])
    for child in plan.get("Plans", ()):
        yield from indexes(child)


async def test_jobs_that_are_looked_at_one_by_one_are_found_by_their_keys(many: asyncpg.Pool) -> None:
    ids = [row["id"] for row in await many.fetch(sql("list_newest"), *FROM_THE_TOP, 1000)]
    for what, only in WANTED.items():
        text = f"EXPLAIN (FORMAT JSON) {sql('view_jobs')}"
        (found,) = orjson.loads(await many.fetchval(text, ids, *FROM_THE_TOP, 51, *only))
        assert set(indexes(found["Plan"])) <= {"job_pkey", "attempt_pkey"}, what


async def test_who_held_few_jobs_is_asked_before_a_text_that_many_have(
    many: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_list, "_GLANCE", 60)
    asked = []
    fetch = job_list.fetch

    async def noted(pool: asyncpg.Pool, name: str, *arguments: object) -> list[asyncpg.Record]:
        asked.append(name)
        return await fetch(pool, name, *arguments)

    monkeypatch.setattr(job_list, "fetch", noted)
    found = await job_list.page(many, JobFilter(worker="mac-gone", text="main"), 50)
    assert "list_by_text" not in asked
    assert found.next is None
    expected = await many.fetch(
        "SELECT DISTINCT job.id FROM job JOIN attempt ON attempt.job_id = job.id"
        " WHERE attempt.worker = 'mac-gone' AND labels ->> 'site' = 'main'"
    )
    assert {row["id"] for row in found.rows} == {row["id"] for row in expected}
    assert len(expected) == 50


async def test_an_attempt_that_ends_is_written_in_its_place(desk: Desk) -> None:
    """The index over its end is one that names blocks of the table, not rows."""
    for seq in range(1, 11):
        await desk.do(completed(await desk.held(seq=seq)))
    await desk.ledger._connection.execute("SELECT pg_stat_force_next_flush()")
    row = await desk.pool.fetchrow(
        "SELECT n_tup_upd AS written, n_tup_hot_upd AS in_place FROM pg_stat_user_tables WHERE relname = 'attempt'"
    )
    assert row["written"] == row["in_place"] > 0
