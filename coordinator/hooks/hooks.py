"""Takes an event of a source: what it becomes is submitted, or it is ignored with a reason, or refused, on record.

What is submitted is durable before an event counts as taken: in the ledger, or in SUBMIT while the ledger is away or
does not answer. Nothing else is kept of an event, so one that can't be made durable raises, and its sender is told to
send it again. An event whose key is known already is taken too, whatever else about it is new: a CMS can do nothing
about a conflict, so that it only goes on record.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import orjson
import structlog

from coordinator.hooks.checks import Received
from coordinator.hooks.config import Source
from coordinator.hooks.mapper import Mapper
from coordinator.hooks.mapping import Mapped
from coordinator.intake import SubmitOutcome
from coordinator.publishing.config import WordPressSite
from shared.errors import LedgerDownError, TandemError
from shared.wire import BadMessageError, Fault

_log = structlog.get_logger()

ANSWER_S: Final = 1.8
"""A sender has its answer after so long, since some wait for two seconds, and send nothing again."""

LEDGER_S: Final = 1.0
"""The `patience_s` of `submit`: what a hanging ledger leaves of ANSWER_S is for NATS."""

AT_ONCE: Final = 512
AT_ONCE_BYTES: Final = 64 * 1024 * 1024
"""Events that are being taken, and their bodies; one more is told to come back later. A bulk edit has room."""

ENDS: Final = ("taken", "ignored", "refused", "unauthorized", "busy", "failed")
"""What an event can come to; `failed`: it could not be made durable. The last two are sent again, if the sender can."""

_SECRET: Final = frozenset({"authorization", "cookie", "proxy-authorization"})

Submit = Callable[[str, bytes], Awaitable[SubmitOutcome]]
Record = Callable[[str, str, str, Sequence[dict[str, str]], bytes], Awaitable[None]]


class BusyError(TandemError):
    """Too many events at once; this one was not taken."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of an event: jobs by the name of their rule, or why it is none."""

    jobs: dict[str, tuple[UUID, str]] = field(default_factory=dict)  # -> its id, and what `SubmitOutcome.kind` says
    ignored: str | None = None


@dataclass(slots=True)
class Hooks:
    """The sources, and how many events each had of which end; `async with` holds their mappers."""

    sources: Mapping[str, Source]
    submit: Submit
    record: Record  # of what is refused: (source, code, reason, faults, body)
    answer_s: float = ANSWER_S
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # by source and end, one of ENDS
    _mappers: dict[str, Mapper] = field(default_factory=dict)
    _running: dict[asyncio.Task[Taken], int] = field(default_factory=dict)  # -> bytes of its body
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        """Start every source's mapper; MapperDownError."""
        try:
            for name, source in self.sources.items():
                self._mappers[name] = await self._stack.enter_async_context(Mapper(name, source.rules()))
            await asyncio.gather(*(mapper.warm() for mapper in self._mappers.values()))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Stop what is still being taken, and the mappers; harmless when repeated."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._stack.aclose()

    def status(self) -> dict[str, dict[str, int]]:
        """Return what /status shows: of each source, how many events had which end."""
        return {name: {end: self.counts[name, end] for end in ENDS} for name in self.sources}

    def refusal(self, name: str, request: Received, now_s: float) -> str | None:
        """Return why a request is not from this source."""
        why = self.sources[name].check.refusal(request, now_s)
        if why is not None:
            self.counts[name, "unauthorized"] += 1
            _log.info("hook not from its source", source=name, reason=why)
        return why

    def begin(self, name: str, request: Received) -> asyncio.Task[Taken]:
        """Begin to take an event that is from this source; it is taken even if nobody waits. BusyError.

        The task raises BadMessageError with every fault; LedgerDownError or MapperDownError if it can't be kept now.
        """
        if len(self._running) >= AT_ONCE or sum(self._running.values()) + len(request.body) > AT_ONCE_BYTES:
            self.counts[name, "busy"] += 1
            msg = f"{len(self._running)} events are being taken already"
            raise BusyError(msg)
        task = asyncio.create_task(self._take(name, request), name=f"hook:{name}")
        self._running[task] = len(request.body)
        task.add_done_callback(partial(self._ended, name))
        return task

    def _ended(self, name: str, task: asyncio.Task[Taken]) -> None:
        del self._running[task]
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, BadMessageError):
            return
        self.counts[name, "failed"] += 1
        if isinstance(error, TandemError):
            _log.info("event not taken", source=name, error=str(error))
        else:
            _log.error("event not taken", source=name, exc_info=error)

    async def _take(self, name: str, request: Received) -> Taken:
        mapped = await self._mappers[name].map(self._shown(name, request), request.body)
        if mapped.ignored is not None:
            self.counts[name, "ignored"] += 1
            _log.info("event ignored", source=name, reason=mapped.ignored)
            return Taken(ignored=mapped.ignored)
        jobs, faults = await self._submitted(name, mapped)
        if mapped.faults:
            await self._refused(name, mapped.faults, request.body)
        faults += [Fault(field=where, message=what) for where, what in mapped.faults]
        if faults:
            self.counts[name, "refused"] += 1
            _log.info("event refused", source=name, faults=len(faults))
            raise BadMessageError("invalid", faults)
        self.counts[name, "taken"] += 1
        _log.info("event taken", source=name, jobs={job: str(job_id) for job, (job_id, _) in jobs.items()})
        return Taken(jobs)

    async def _submitted(self, name: str, mapped: Mapped) -> tuple[dict[str, tuple[UUID, str]], list[Fault]]:
        """Submit all, for one commit; what one of them is refused for disturbs no other."""
        submitting = (self.submit(name, orjson.dumps(submission)) for submission in mapped.submissions.values())
        ends = await asyncio.gather(*submitting, return_exceptions=True)
        jobs: dict[str, tuple[UUID, str]] = {}
        faults: list[Fault] = []
        for job, end in zip(mapped.submissions, ends, strict=True):
            if isinstance(end, BadMessageError):  # on record already
                faults += [Fault(field=f"jobs.{job}.{f.field}".rstrip("."), message=f.message) for f in end.faults]
            elif isinstance(end, BaseException):
                raise end
            else:
                jobs[job] = (end.job_id, end.kind)
        return jobs, faults

    async def _refused(self, name: str, faults: Sequence[tuple[str, str]], body: bytes) -> None:
        listed: list[dict[str, Any]] = [{"field": where, "message": what} for where, what in faults]
        reason = "; ".join(f"{where}: {what}" if where else what for where, what in faults)
        with contextlib.suppress(LedgerDownError):  # the sender has its answer in any case
            await self.record(name, "hook", reason, listed, body)

    def _shown(self, name: str, request: Received) -> dict[str, str]:
        """Return the headers that rules may look at."""
        hidden = _SECRET | {self.sources[name].check.proof}
        return {header: value for header, value in request.headers.items() if header not in hidden}


def sites_of(sources: Mapping[str, Source], others: Mapping[str, WordPressSite]) -> dict[str, WordPressSite]:
    """Return where results of which source are published: what the sources say, and the settings' own."""
    return {
        **others,
        **{name: _site_of(source, source.wordpress) for name, source in sources.items() if source.wordpress},
    }


def _site_of(source: Source, site: WordPressSite) -> WordPressSite:
    """Have what a post has by then stay where the WordPress plugin asked for what it lacked, unless the source says."""
    if site.replace is not None or source.preset != "wordpress":
        return site
    return site.model_copy(update={"replace": False})
