"""What this agent holds: every attempt from its grant until its verdict, and the question whether it is still ours.

An `Attempt` is one epoch of one job in this process, running or waiting in the spool. It ends by an explicit word
only: a revoke, `lost` in answer to a question, an upload refused as stale, or the verdict. A question that fails says
nothing (DESIGN §2). Nothing here talks to a generator.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import structlog
from pydantic import ValidationError

from agent.spool import Parcel
from shared import subjects
from shared.bus import Bus, BusError
from shared.states import LostReason
from shared.wire import Busy, Granted, LeaseQuestion, LeaseReply, StageMark, Upload

MOST_STAGES = 1000
_ASK_AT_ONCE = 16
_log = structlog.get_logger()


class StopKind(StrEnum):
    """Why a generator is told to stop before it is done."""

    LOST = "lost"  # the lease is gone: nothing of it may be sent any more
    DEADLINE = "deadline"  # it ran too long: reported as failed
    DRAIN = "drain"  # this agent is told to end: released


@dataclass(frozen=True, slots=True)
class Stop:
    """The first word that stopped an attempt."""

    kind: StopKind
    reason: str


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One epoch that this agent holds. It is also the `Progress` that its executor writes to, from any thread."""

    job_id: UUID
    epoch: int
    delivery: str  # where its heartbeats go
    kind: str
    model: str | None
    heartbeat_s: float
    upload: Upload
    started_at: float  # by the clock that runs on in sleep, like all times here
    deadline_at: float
    now: Callable[[], float]
    stopped: asyncio.Future[Stop]  # resolved by the first word that stops the generator
    lost: asyncio.Future[str]  # resolved with the reason when the lease is gone
    doubtful: bool = False  # a lot may have happened since the ledger was last heard
    delivering: bool = False  # the generator is done, its result is on its way
    stage_name: str = ""
    fraction: float | None = None
    note: str = ""
    stages: list[StageMark] = field(default_factory=list)
    sent_at: float = float("-inf")  # last heartbeat
    changed_at: float | None = None  # a stage that no heartbeat has told yet began then

    @property
    def key(self) -> tuple[UUID, int]:
        """What verdicts and revokes name it by."""
        return (self.job_id, self.epoch)

    def elapsed_s(self) -> float:
        """Return the seconds since the grant."""
        return self.now() - self.started_at

    def stage(self, name: str) -> None:
        """Begin a stage; the same one again is no news."""
        name = "".join(char for char in name[:64] if char.isprintable())
        if name == self.stage_name:
            return
        self.stage_name, self.fraction, self.note = name, None, ""  # what was said of the stage before it is over
        if self.changed_at is None:
            self.changed_at = self.now()
        if len(self.stages) < MOST_STAGES:
            self.stages.append(StageMark(stage=self.stage_name, at_s=round(self.elapsed_s(), 3)))

    def progress(self, fraction: float) -> None:
        """Say how much of the stage is done; told with the next heartbeat."""
        self.fraction = min(max(fraction, 0.0), 1.0)

    def detail(self, text: str) -> None:
        """Say what is going on; told with the next heartbeat."""
        self.note = text

    def stop(self, kind: StopKind, reason: str) -> None:
        """Stop it. Losing the lease counts even after another stop; a deadline does not take a finished result."""
        if kind is StopKind.LOST and reason == LostReason.DEADLINE and self.delivering:
            return
        if kind is StopKind.LOST and not self.lost.done():
            self.lost.set_result(str(reason))
        if not self.stopped.done():
            self.stopped.set_result(Stop(kind, str(reason)))


async def first_of(*futures: "asyncio.Future[Any]", wait_s: float | None = None) -> None:
    """Return when one of them is done, or `wait_s` has passed; none is cancelled or looked into."""
    await asyncio.wait(set(futures), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)


class Leases:
    """Every attempt that is held; presence lists them (rule 8)."""

    def __init__(self, bus: Bus, worker: str, instance: str, now: Callable[[], float], *, timeout_s: float) -> None:
        """`instance` names this process; `now` is the clock; a question waits `timeout_s` for its answer."""
        self._bus = bus
        self._worker = worker
        self._instance = instance
        self._now = now
        self._timeout_s = timeout_s
        self._held: dict[tuple[UUID, int], Attempt] = {}
        self._emptied = asyncio.Event()
        self.delivering = 0
        """How many wait for their delivery."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when one comes or goes."""

    def __iter__(self) -> Iterator[Attempt]:
        """Iterate over what is held now; it may change meanwhile."""
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        """How many attempts are held."""
        return len(self._held)

    def open(self, granted: Granted, delivery: str, asked_at: float) -> Attempt:
        """Hold a granted claim that was asked for at `asked_at`."""
        return self._hold(
            granted.job.id,
            granted.epoch,
            delivery=delivery,
            kind=granted.job.kind,
            model=granted.job.model,
            heartbeat_s=granted.heartbeat_s,
            upload=granted.upload,
            deadline_at=asked_at + granted.deadline_s,
        )

    def adopt(self, parcel: Parcel) -> Attempt:
        """Hold an attempt of an earlier process whose result lies in the spool."""
        attempt = self._hold(
            parcel.report.job_id,
            parcel.report.epoch,
            delivery=parcel.delivery,
            kind=parcel.kind,
            heartbeat_s=parcel.heartbeat_s,
            upload=parcel.upload,
        )
        attempt.stage_name = "finalizing"
        self.deliver(attempt)
        return attempt

    def close(self, attempt: Attempt) -> None:
        """Hold it no more: no heartbeat names it from now on."""
        if self._held.pop(attempt.key, None) is not None and attempt.delivering:
            self.delivering -= 1
        if not self._held:
            self._emptied.set()
        self.on_change()

    async def wait_empty(self) -> None:
        """Return when nothing is held."""
        while self._held:
            self._emptied.clear()
            await self._emptied.wait()

    def find(self, job_id: UUID, epoch: int) -> Attempt | None:
        """Return the attempt if it is held."""
        return self._held.get((job_id, epoch))

    def busy(self) -> list[Busy]:
        """Return what presence says of them."""
        return [Busy(job_id=a.job_id, epoch=a.epoch, stage=a.stage_name) for a in self._held.values()]

    def deliver(self, attempt: Attempt) -> None:
        """Note that its generator is done: from here on only the ledger's word ends it."""
        attempt.delivering = True
        self.delivering += 1

    async def ask(self, attempt: Attempt) -> LeaseReply | None:
        """Ask whether it is still ours; `lost` stops it. None: no answer, which says nothing."""
        asked = LeaseQuestion(job_id=attempt.job_id, epoch=attempt.epoch, instance=self._instance)
        question = asked.model_dump_json().encode()
        try:
            message = await self._bus.request(subjects.lease(self._worker), question, timeout_s=self._timeout_s)
            reply = LeaseReply.model_validate_json(message.data)
        except (BusError, ValidationError) as error:
            _log.debug("no answer about a lease", job_id=str(attempt.job_id), error=str(error)[:200])
            return None
        attempt.doubtful = False
        if reply.lease == "lost":
            attempt.stop(StopKind.LOST, reply.reason or LostReason.STALE)
        return reply

    def doubt(self) -> None:
        """Be sure of nothing any more: after a sleep, a stop of the process, or a new connection."""
        for attempt in self:
            attempt.doubtful = True

    async def ask_doubtful(self) -> None:
        """Ask about everything that is in doubt; what gets no answer stays so."""
        limit = asyncio.Semaphore(_ASK_AT_ONCE)

        async def one(attempt: Attempt) -> None:
            async with limit:
                if self.find(*attempt.key) is attempt:
                    await self.ask(attempt)

        await asyncio.gather(*(one(attempt) for attempt in self if attempt.doubtful))

    def _hold(
        self,
        job_id: UUID,
        epoch: int,
        *,
        delivery: str,
        kind: str,
        heartbeat_s: float,
        upload: Upload,
        model: str | None = None,
        deadline_at: float = float("inf"),
    ) -> Attempt:
        loop, now = asyncio.get_running_loop(), self._now()
        attempt = Attempt(
            job_id=job_id,
            epoch=epoch,
            delivery=delivery,
            kind=kind,
            model=model,
            heartbeat_s=heartbeat_s,
            upload=upload,
            started_at=now,
            changed_at=now,
            deadline_at=deadline_at,
            now=self._now,
            stopped=loop.create_future(),
            lost=loop.create_future(),
        )
        self._held[attempt.key] = attempt
        self.on_change()
        return attempt
