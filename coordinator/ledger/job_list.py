"""The list of jobs by what people ask for: filters of every kind, a page at a time, quick with a million jobs.

Called by `views.py`. Kind, model and state lead to a page by the index of the list. For anything else, in this order:

- A glance at the newest jobs, which is enough for what many have.
- What only few jobs have (these labels, this worker, this text) is found by its own index, and is the whole answer.
- Else the list is walked on, some thousand jobs at a time, for as long as `SEARCH_S`. So a page may be short or even
  empty though the list goes on: then `JobPage.next` says from where.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from coordinator.ledger.database import fetch
from shared.states import JobState
from shared.subjects import lane_of

SEARCH_S: Final = 0.08
"""How long the list is walked for a page."""

_GLANCE: Final = 1000
_FEW: Final = 4000  # so many are looked at one by one, whatever they have in common
_CHUNK: Final = 2000
_READ: Final = 20_000  # entries of the index at once, over all lanes and states


class Cursor(NamedTuple):
    """A place in the list of jobs: the last one seen."""

    created_at: datetime
    job_id: UUID


_NEWEST: Final = Cursor(datetime(9999, 1, 1, tzinfo=UTC), UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list; None or empty = any. `before` is where the page before ended."""

    source: str | None = None
    state: str | None = None
    kind: str | None = None
    model: str | None = None
    worker: str | None = None  # holds it, or has held it
    labels: Mapping[str, str] = field(default_factory=dict)  # each of them
    text: str | None = None  # starts its id or key, is the value of a label, or words of its error
    before: Cursor | None = None

    @property
    def by_lane(self) -> bool:
        """Whether lanes and states narrow the list."""
        return bool(self.state or self.kind or self.model)

    @property
    def is_exact(self) -> bool:
        """Whether they alone say which jobs are wanted (but for two models whose names make one lane)."""
        return not (self.source or self.worker or self.labels or self.text)


class JobPage(NamedTuple):
    """Jobs, newest first; `next` = from where the list goes on, None = this was its end."""

    rows: list[Any]  # as view_jobs.sql has them
    next: Cursor | None


async def page(pool: asyncpg.Pool, wanted: JobFilter, limit: int) -> JobPage:
    """Return up to `limit` jobs, without what they are made from and what came out."""
    before = wanted.before or _NEWEST
    if wanted.is_exact:
        return await _walk(pool, wanted, JobPage([], before), limit, limit + 1, 0.0)
    found = await _walk(pool, wanted, JobPage([], before), limit, max(_GLANCE, limit + 1), 0.0)
    if found.next is None or len(found.rows) == limit:
        return found
    few, newest_at = await _few(pool, wanted)
    if few is not None:
        return _cut(await _wanted(pool, few, wanted, before, limit + 1), limit)
    if newest_at is not None and newest_at < found.next.created_at:
        found = JobPage(found.rows, Cursor(newest_at, UUID(int=0)))
    return await _walk(pool, wanted, found, limit, max(_CHUNK, limit + 1), SEARCH_S)


async def _walk(
    pool: asyncpg.Pool, wanted: JobFilter, found: JobPage, limit: int, size: int, search_s: float
) -> JobPage:
    """Go on from what is found until there is a page, the list or the time ends; `size` jobs at once, at least once."""
    ends_at = time.monotonic() + search_s
    lanes = await _lanes(pool, wanted)
    states = [wanted.state] if wanted.state else list(JobState)
    size = max(min(size, _READ // max(len(lanes) * len(states), 1)), limit + 1)
    rows, before = found
    while before is not None:
        if wanted.by_lane:
            places = await fetch(pool, "list_by_lane", *before, size, lanes, states)
        else:
            places = await fetch(pool, "list_newest", *before, size)
        ids = [place["id"] for place in places]
        rows = [*rows, *await _wanted(pool, ids, wanted, before, limit + 1 - len(rows))]
        before = Cursor(*places[-1]) if len(places) == size else None
        if len(rows) > limit:
            return _cut(rows, limit)
        if time.monotonic() >= ends_at:
            break
    return JobPage(rows, before)


def _cut(rows: list[asyncpg.Record], limit: int) -> JobPage:
    if len(rows) <= limit:
        return JobPage(rows, None)
    last = rows[limit - 1]
    return JobPage(rows[:limit], Cursor(last["created_at"], last["id"]))


async def _lanes(pool: asyncpg.Pool, wanted: JobFilter) -> list[str]:
    """Return the lanes in which such jobs can be."""
    if not wanted.by_lane:
        return []
    known = [row["name"] for row in await fetch(pool, "known_lanes")]
    if wanted.kind is not None:
        known = [lane for lane in known if lane.startswith(f"{wanted.kind}.")]
    if wanted.model is not None:
        known = [lane for lane in known if lane == lane_of(lane.partition(".")[0], wanted.model)]
    return known


async def _wanted(
    pool: asyncpg.Pool, ids: Sequence[UUID], wanted: JobFilter, before: Cursor, limit: int
) -> list[asyncpg.Record]:
    if not ids:
        return []
    labels = orjson.dumps(dict(wanted.labels)).decode() if wanted.labels else None
    only = (wanted.source, wanted.state, wanted.kind, wanted.model, wanted.worker, labels, wanted.text)
    return await fetch(pool, "view_jobs", ids, *before, limit, *only)


async def _few(pool: asyncpg.Pool, wanted: JobFilter) -> tuple[list[UUID] | None, datetime | None]:
    """Return the jobs that one of the filters leaves, None if each leaves too many; and when a worker last claimed."""
    newest_at = None
    for found in (_by_worker(wanted), _by_labels(wanted), _by_text(wanted)):  # the quickest first
        if found is None:
            continue
        name, arguments = found
        rows = await fetch(pool, name, *arguments)
        if len(rows) <= _FEW:
            return list({row["id"] for row in rows}), None
        if name == "list_by_worker":
            newest_at = rows[0]["claimed_at"]
    return None, newest_at


def _by_text(wanted: JobFilter) -> tuple[str, tuple[Any, ...]] | None:
    if not wanted.text:
        return None
    digits = wanted.text.lower().replace("-", "")
    low = high = None
    if re.fullmatch(r"[0-9a-f]{1,32}", digits):
        low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    path = f"$.* == {orjson.dumps(wanted.text).decode()}"
    return "list_by_text", (wanted.text, _FEW + 1, low, high, path)


def _by_worker(wanted: JobFilter) -> tuple[str, tuple[Any, ...]] | None:
    return ("list_by_worker", (wanted.worker, _FEW + 1)) if wanted.worker else None


def _by_labels(wanted: JobFilter) -> tuple[str, tuple[Any, ...]] | None:
    if not wanted.labels:
        return None
    return "list_by_label", (orjson.dumps(dict(wanted.labels)).decode(), _FEW + 1)
