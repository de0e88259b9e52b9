"""The read side for people: what the HTTP interface and the page show. Reads only, and never waits for a writer.

Rows come back as dicts of plain values with the names of their SQL columns (`sql/view_*.sql`). Everything raises
LedgerDownError when Postgres is away.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias
from uuid import UUID

import asyncpg

from coordinator.ledger import job_list
from coordinator.ledger.database import CONNECT_S, fetch, reaching, sql
from coordinator.ledger.ended import Ended
from coordinator.ledger.job_list import Cursor, JobFilter, JobPage
from shared.states import PRIORITY_NAME, JobState

__all__ = ["Cursor", "Ended", "JobFilter", "JobPage"]

Pool: TypeAlias = asyncpg.Pool
Row = dict[str, Any]


_AGES: Final = frozenset({"age_s", "duration_s", "heartbeat_age_s", "seen_age_s", "since_s"})
"""Columns that say how long something has been so: not below zero, also after Postgres's clock was set back."""


async def job_page(pool: Pool, wanted: JobFilter, limit: int) -> JobPage:
    """Return up to `limit` jobs, newest first, without what they are made from and what came out."""
    rows, following = await job_list.page(pool, wanted, limit)
    return JobPage([_row(row) for row in rows], following)


async def waiting_for_review(pool: Pool, limit: int, source: str | None = None) -> list[UUID]:
    """Return the ids of the jobs that await review, the longest waiting first; of one source if it is named."""
    return [row["id"] for row in await _rows(pool, "waiting_for_review", limit, source)]


async def job(pool: Pool, job_id: UUID, source: str | None = None) -> Row | None:
    """Return a job with its `attempts`, `artifacts`, `callbacks`, `publications` and `actions`, all at one instant.

    None if `source` has no such job.
    """
    async with snapshot(pool) as connection:
        found = await connection.fetchrow(sql("view_job"), job_id, source)
        if found is None:
            return None
        row = _row(found)
        row["attempts"] = [_row(r) for r in await connection.fetch(sql("view_attempts"), job_id)]
        row["artifacts"] = [_row(r) for r in await connection.fetch(sql("view_artifacts"), job_id)]
        told = await connection.fetch(sql("view_callbacks"), job_id) if row["callback_url"] else []
        row["callbacks"] = [_row(r) for r in told]
        row["publications"] = [_row(r) for r in await connection.fetch(sql("view_publications"), job_id)]
        row["actions"] = [_row(r) for r in await connection.fetch(sql("view_actions"), job_id)]
        return row


async def callbacks(pool: Pool, job_id: UUID) -> list[Row]:
    """Return what a job's `callback_url` was told, or is to be told, oldest first."""
    return await _rows(pool, "callbacks", job_id)


async def undelivered(pool: Pool, limit: int, source: str | None = None) -> list[Row]:
    """Return callbacks that were given up, newest first; of one source if it is named."""
    return await _rows(pool, "undelivered", limit, source)


async def publications(pool: Pool, job_id: UUID) -> list[Row]:
    """Return how a job's results are published in its source's CMS, oldest first."""
    return await _rows(pool, "publications", job_id)


async def unpublished(pool: Pool, limit: int, source: str | None = None) -> list[Row]:
    """Return what is not published in a CMS yet, or failed, newest first; of one source if it is named."""
    return await _rows(pool, "unpublished", limit, source)


async def paused_sites(pool: Pool, source: str | None = None) -> list[Row]:
    """Return the sources whose CMS refuses us, each with the reason."""
    return await _rows(pool, "paused_sites", source)


async def source_of(pool: Pool, job_id: UUID) -> str | None:
    """Return who submitted a job; None if there is no such job."""
    found = await _rows(pool, "source", job_id)
    return found[0]["source"] if found else None


async def attempts(pool: Pool, job_id: UUID) -> list[Row]:
    """Return every attempt of a job, oldest first."""
    return await _rows(pool, "attempts", job_id)


async def heartbeats(pool: Pool, job_id: UUID, limit: int) -> list[Row]:
    """Return the last heartbeats of a job that are still kept, newest first."""
    return await _rows(pool, "heartbeats", job_id, limit)


async def artifact(pool: Pool, job_id: UUID, name: str, source: str | None = None) -> Row | None:
    """Return one file of the accepted result: name, media_type, size, sha256; None if `source` has no such file."""
    found = await _rows(pool, "artifact", job_id, name, source)
    return found[0] if found else None


async def counts(pool: Pool) -> dict[str, int]:
    """Return how many jobs are in each state."""
    found = {row["state"]: row["jobs"] for row in await _rows(pool, "counts")}
    return {str(state): found.get(state, 0) for state in JobState}


async def running(pool: Pool, limit: int) -> list[Row]:
    """Return what runs where, oldest claim first."""
    return await _rows(pool, "running", limit)


async def failed(pool: Pool, limit: int) -> list[Row]:
    """Return the jobs that failed last, newest first, each with the `worker` of its last attempt."""
    return await _rows(pool, "failed", limit)


async def workers(pool: Pool, away_after_s: float) -> list[Row]:
    """Return every worker; one that was not heard of for `away_after_s` is not `present`."""
    return await _rows(pool, "workers", away_after_s)


async def lanes(pool: Pool) -> list[Row]:
    """Return every lane with how many of its jobs wait, are offered and run."""
    return await _rows(pool, "lanes")


async def metrics_publications(pool: Pool) -> list[Row]:
    """Return how many results are not published, by `source`: `waiting`, `failed`, and whether its site is `paused`."""
    return await _rows(pool, "metrics_publications")


async def rejected_results(pool: Pool, limit: int, source: str | None = None) -> list[Row]:
    """Return the last reports that were not accepted, newest first."""
    return await _rows(pool, "rejected_results", source, limit)


async def rejected_of(pool: Pool, job_id: UUID, limit: int) -> list[Row]:
    """Return the last reports about one job that were not accepted, newest first."""
    return await _rows(pool, "rejected_of", job_id, limit)


async def rejected_submissions(pool: Pool, limit: int, source: str | None = None) -> list[Row]:
    """Return the last submissions that were refused, newest first, each with its first 2,000 bytes as text."""
    found = await _rows(pool, "rejected_submissions", source, limit)
    return [{**row, "body": row["body"].decode("utf-8", "replace")} for row in found]


async def versions(pool: Pool) -> Row:
    """Return the versions of Postgres and of the schema, and what time the ledger has."""
    return (await _rows(pool, "versions"))[0]


@asynccontextmanager
async def snapshot(pool: Pool) -> AsyncIterator[Any]:
    """Lend a connection whose every statement reads the ledger as of one instant, and can change nothing."""
    with reaching():
        async with (
            pool.acquire(timeout=CONNECT_S) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection


def _row(record: Mapping[str, Any]) -> Row:
    row = dict(record)
    if "priority" in row:
        row["priority"] = PRIORITY_NAME[row["priority"]]
    for name in _AGES & row.keys():
        if row[name] is not None:
            row[name] = max(row[name], 0.0)
    return row


async def _rows(pool: Pool, name: str, *arguments: object) -> list[Row]:
    return [_row(record) for record in await fetch(pool, f"view_{name}", *arguments)]
