"""What the HTTP side works with, and the small things that all its endpoints share."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar, cast
from uuid import UUID

from aiohttp import web

from coordinator.artifacts import ArtifactStore
from coordinator.enrolment import Enrolment
from coordinator.hooks.hooks import Hooks
from coordinator.intake import SubmitOutcome
from coordinator.ledger import views
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.queries import Queries
from coordinator.ledger.views import Pool
from coordinator.metrics import Metrics
from coordinator.reasons import Wait
from coordinator.tokens import Tokens
from coordinator.upload_tokens import UploadTokens
from coordinator.web.access import Access, Caller
from coordinator.web.errors import RefusedError
from coordinator.web.live_hub import Live
from coordinator.web.rates import Rates
from shared.errors import LedgerDownError
from shared.lease import Policy
from shared.wire import Fault

_SPARING = 10
_T = TypeVar("_T")

_KEPT = 256

OperatorOrder = Literal["drain", "pause", "resume"]


class Sparing:
    """Asks a question that reads a whole table anew only once ten times as long as it took has passed.

    So pages that reload themselves, however many are open, keep Postgres busy for a tenth of the time at most; while
    the answer is quick, it is always fresh. Those who ask at the same time get one answer. The newest 256 are kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asking: dict[str, asyncio.Lock] = {}
        self._known: dict[str, tuple[float, Any]] = {}
        self._background: dict[str, asyncio.Task[LedgerDownError | None]] = {}

    async def ask(self, name: str, question: Callable[[], Awaitable[_T]], *, good_s: float = 0.0) -> _T:
        """Return the answer to the question of this name, or one that is recent enough; its errors are not kept.

        `good_s`: that much is recent enough, however quick it is to ask.
        """
        async with self._asking.setdefault(name, asyncio.Lock()):
            good_until, answer = self._known.get(name, (-math.inf, None))
            asked_at = self._clock()
            if asked_at >= good_until:
                answer = await question()
                answered_at = self._clock()
                self.forget(name)
                self._known[name] = (answered_at + max(good_s, _SPARING * (answered_at - asked_at)), answer)
                self._forget_oldest()
            return cast(_T, answer)

    async def ask_soon(
        self, name: str, question: Callable[[], Awaitable[_T]], *, good_s: float = 0.0, patience_s: float = 0.1
    ) -> _T | None:
        """Return the answer to the question; if it takes longer than `patience_s`, the one before, or None.

        It goes on being asked, for those who come after.
        """
        asking = self._background.get(name)
        if asking is None or asking.done():
            asking = asyncio.create_task(self._hide_errors(name, question, good_s), name=f"asking {name}")
            self._background[name] = asking
        await asyncio.wait({asking}, timeout=patience_s)
        error = asking.result() if asking.done() else None
        if error is not None:
            raise error
        return cast(_T | None, self._known.get(name, (0.0, None))[1])

    async def close(self) -> None:
        """Ask no more."""
        for asking in self._background.values():
            asking.cancel()
        await asyncio.gather(*self._background.values(), return_exceptions=True)

    async def _hide_errors(
        self, name: str, question: Callable[[], Awaitable[Any]], good_s: float
    ) -> LedgerDownError | None:
        """Return the error instead of raising it: nobody may be waiting any more."""
        try:
            await self.ask(name, question, good_s=good_s)
        except LedgerDownError as error:
            return error
        return None

    def forget(self, name: str) -> None:
        """Have the question asked anew: somebody changed what it is about."""
        self._known.pop(name, None)

    def _forget_oldest(self) -> None:
        while len(self._known) > _KEPT:
            oldest = next(iter(self._known))
            self.forget(oldest)
            self._asking.pop(oldest, None)


async def predict_nothing(rows: Sequence[views.Row]) -> None:
    """Say of each job that it is not known when it will be done."""
    for row in rows:
        row["predicted_finish"] = None


async def _no_callback(_job_id: UUID, _actor: str) -> bool:
    return False


async def _no_site(_source: str) -> bool:
    return False


async def _no_lines(_: UUID, __: int, ___: datetime | None = None) -> list[dict[str, Any]]:
    return []


class LogLines(Protocol):
    """Finds what was logged about a job."""

    async def __call__(self, job_id: UUID, most: int, created_at: datetime | None = None, /) -> list[dict[str, Any]]:
        """Return the newest lines, newest last; nothing is looked for from well before `created_at`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebContext:
    """Everything that the HTTP side needs from the rest of the coordinator; made in `service.py`."""

    ledger: Ledger  # every change of a job
    pool: Pool  # for coordinator.ledger.views only
    queries: Queries  # for uploads: which epoch may bring files, and which it brought; and for workers' rules
    policy: Policy
    store: ArtifactStore
    tokens: UploadTokens
    access: Access
    submit: Callable[[str, bytes], Awaitable[SubmitOutcome]]  # (source, body); raises BadMessageError, LedgerDownError
    order: Callable[[str, OperatorOrder, str], Awaitable[object]]  # (worker, what it is told, who says so)
    pause_lane: Callable[[str, bool, str], Awaitable[object]]  # (lane, paused, who says so)
    health: Callable[[], Mapping[str, Any]]  # loops, bus and ledger, as /status shows them
    ready: Callable[[], list[str]]  # why it is not ready; empty = ready
    predict: Callable[[Sequence[views.Row]], Awaitable[None]] = predict_nothing  # adds `predicted_finish` to jobs
    max_artifact_bytes: int = 512 * 1024 * 1024
    why: Callable[[views.Row], list[str]] = lambda _: []  # of a job with its attempts: why it is where it is
    aside: Callable[[str], list[dict[str, Any]]] = lambda _: []  # of a worker: the lanes that it gets nothing from
    metrics: Metrics = field(default_factory=Metrics)
    callback_again: Callable[[UUID, str], Awaitable[bool]] = _no_callback  # (job, who says so); False: it has none
    publish_again: Callable[[UUID, str], Awaitable[bool]] = _no_callback  # (job, who says so); False: not now
    check_site: Callable[[str], Awaitable[bool]] = _no_site  # (source); False: it is not paused
    log_lines: LogLines = _no_lines
    hooks: Hooks | None = None  # the sources that may post to /hooks; None = none is configured
    base_url: str | None = None  # how readers reach this server; None = as the request at hand did
    why_lane: Callable[[views.Row], Wait | None] = lambda _: None  # of a lane: why its jobs wait; None: none does
    why_idle: Callable[[str, frozenset[str]], list[str]] = lambda _, __: []  # (worker, lanes): why it gets none
    live: Live = field(default_factory=Live)
    enrolment: Enrolment | None = None  # None: nobody can be invited
    access_tokens: Tokens | None = None  # None: none can be made
    rates: Rates = field(default_factory=lambda: Rates(per_s=500, burst=2000))  # of requests, by token
    refusals: Rates = field(default_factory=lambda: Rates(per_s=0.5, burst=30))  # of unknown tokens, by address
    guesses: Rates = field(default_factory=lambda: Rates(per_s=10 / 60, burst=10))  # of secrets, by address
    ended: views.Ended = field(default_factory=views.Ended)  # how attempts ended lately
    sparing: Sparing = field(default_factory=Sparing)  # between the page and the counts of all jobs
    sparing_logs: Sparing = field(default_factory=Sparing)  # between the pages of jobs and the log files


Endpoint = Callable[[WebContext, web.Request, Caller], Awaitable[web.StreamResponse]]


async def counts_of(context: WebContext) -> dict[str, int]:
    """Return how many jobs are in each state."""
    return await context.sparing.ask("counts", lambda: views.counts(context.pool))


async def lanes_of(context: WebContext) -> list[views.Row]:
    """Return every lane with what is in it."""
    return await context.sparing.ask("lanes", lambda: views.lanes(context.pool))


def job_id_of(request: web.Request) -> UUID:
    """Return the job that the path names; the routes let nothing else through."""
    return UUID(request.match_info["job_id"])


def no_such_job(job_id: UUID) -> RefusedError:
    """Return the answer for a job that does not exist, or is none of the caller's business."""
    return RefusedError(404, "not_found", f"no job {job_id}")


async def visible_job(context: WebContext, request: web.Request, caller: Caller) -> UUID:
    """Return the id of the job in the path; RefusedError (404) unless there is one that the caller may see."""
    job_id = job_id_of(request)
    source = await views.source_of(context.pool, job_id)
    if source is None or caller.source not in (None, source):
        raise no_such_job(job_id)
    return job_id


def query_of(request: web.Request, known: frozenset[str]) -> dict[str, list[str]]:
    """Return the query's values by name; RefusedError (400) naming every name that is not known here."""
    found: dict[str, list[str]] = {}
    for name, value in request.query.items():
        found.setdefault(name, []).append(value)
    faults = [
        Fault(field=name, message=f"unknown; known here: {', '.join(sorted(known))}")
        for name in found
        if name not in known
    ]
    if any("\x00" in value for values in found.values() for value in values):
        faults.append(Fault(field="", message="text must not contain NUL"))
    if faults:
        raise bad_query(faults)
    return found


def bad_query(faults: list[Fault]) -> RefusedError:
    """Return the answer for a query that can't be understood."""
    return RefusedError(400, "invalid", "; ".join(f"{f.field}: {f.message}" for f in faults), faults)


def number_of(query: Mapping[str, list[str]], name: str, default: int, most: int) -> int:
    """Return a whole number from 1 to `most` out of a query; RefusedError (400) if it is none."""
    text = query.get(name, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):  # noqa: PLR2004
        raise bad_query([Fault(field=name, message=f"a whole number from 1 to {most}")])
    return int(text)
