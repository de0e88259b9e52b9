"""A job's life on this machine, from top to bottom.

    claim → workspace → executor, beside its heartbeats → spool → (the slot is free here) → upload files → report
          → verdict → clean up

`run` returns exactly one `RunEnd`. What happens to the job is the ledger's business; here it is only decided what
this agent says about its attempt. Called by the puller, once for each delivery.
"""

import asyncio
import errno
import stat
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import structlog

from agent.claims import Claims
from agent.executors.base import BackendDown, ExecutorError, Product, ProductFile, RunnableJob
from agent.executors.registry import Registry
from agent.gate import Gate
from agent.leases import Attempt, Leases, StopKind, first_of
from agent.reporter import Answer, Reporter
from agent.slots import Slot
from agent.spool import Entry, Parcel, Spool, StoredFile
from agent.workspace import Workspaces
from shared.states import DenyReason, ErrorClass, LostReason, ReportOutcome, Verdict
from shared.wire import Granted, Report, ReportedError

MOST_FILES = 100
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DISK_HOLD_S = 60.0
_STUBBORN_S = 10.0
_TRACEBACK_MOST = 4000
_log = structlog.get_logger()


class How(StrEnum):
    """How a delivery ended for this agent."""

    COMPLETED = "completed"  # its result was reported and answered
    FAILED = "failed"  # its error was reported and answered
    RELEASED = "released"  # it was given back and that was answered
    LOST = "lost"  # the lease was taken away; nothing was sent since
    DENIED = "denied"  # the claim was refused
    UNANSWERED = "unanswered"  # nobody answered the claim while the delivery was ours


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The one outcome of a run."""

    job_id: UUID
    how: How
    epoch: int = 0  # 0: never granted
    verdict: Verdict | None = None  # what the ledger said to the report
    reason: str = ""  # why denied or lost


@dataclass(frozen=True, slots=True)
class Made:
    """What the generator's time came to: a product, or an error with what should follow from it."""

    outcome: ReportOutcome
    product: Product = field(default_factory=Product)
    error: ReportedError | None = None


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs jobs; one object, called for every delivery."""

    claims: Claims
    leases: Leases
    registry: Registry
    workspaces: Workspaces
    spool: Spool
    reporter: Reporter
    gate: Gate

    async def run(self, job_id: UUID, delivery: str, *, give_up_at: float, slot: Slot) -> RunEnd:
        """Take a delivery from its claim to its verdict, giving the slot back as soon as the generator is idle."""
        try:
            answer = await self.claims.claim(job_id, delivery, give_up_at=give_up_at)
            if answer is None:
                return RunEnd(job_id, How.UNANSWERED)
            if isinstance(answer, DenyReason):
                return RunEnd(job_id, How.DENIED, reason=answer)
            attempt, granted = answer
            try:
                entry = await self._generate(attempt, granted)
                slot.release()
                if entry is None:
                    return RunEnd(job_id, How.LOST, attempt.epoch, reason=attempt.lost.result())
                return _end(attempt, await self.reporter.deliver(attempt, entry))
            finally:
                self.leases.close(attempt)
        finally:
            slot.release()

    async def _generate(self, attempt: Attempt, granted: Granted) -> Entry | None:
        """Use the generator and spool what came of it; None when the lease was lost meanwhile."""
        name = f"{attempt.job_id}.{attempt.epoch}"
        opened: list[Path] = []

        def open_workspace() -> Path:
            if not opened:
                opened.append(self.workspaces.open(name))
            return opened[0]

        job = RunnableJob(
            id=str(attempt.job_id),
            epoch=attempt.epoch,
            attempt=granted.attempt,
            kind=granted.job.kind,
            model=granted.job.model,
            spec=granted.job.spec,
            labels=granted.job.labels,
            open_workspace=open_workspace,
        )
        try:
            made = await self._use_generator(attempt, job)
            return None if made is None else await self._store(attempt, made)
        finally:
            if opened:
                await asyncio.to_thread(self.workspaces.remove, name)

    async def _use_generator(self, attempt: Attempt, job: RunnableJob) -> Made | None:
        """Run the executor until it is done or stopped, and until it is really idle; None: the lease is lost."""
        told = self.gate.told()
        if told is not None:  # the pull was open when the order came
            return _released(told, "this agent takes no work now")
        work = asyncio.create_task(self._execute(attempt, job), name=f"execute:{job.id}.{job.epoch}")
        try:
            await first_of(work, attempt.stopped)
        finally:
            await _until_idle(work, job)
        if attempt.lost.done():
            return None
        if not attempt.stopped.done():
            return _crashed("the executor cancelled itself") if work.cancelled() else work.result()
        stop = attempt.stopped.result()
        if stop.kind is StopKind.DEADLINE:
            return _failed("timeout", f"stopped after {attempt.elapsed_s():.0f} s: {stop.reason}", ErrorClass.TRANSIENT)
        return _released("drain", stop.reason) if work.cancelled() else work.result()

    async def _execute(self, attempt: Attempt, job: RunnableJob) -> Made:
        """Be the executor's boundary: whatever it raises becomes a value here."""
        executor = self.registry.find(job.kind, job.model)
        if executor is None:
            return _failed("no_executor", f"nothing here runs {job.kind} with {job.model}", ErrorClass.ELSEWHERE)
        if not self.registry.is_up(executor):  # the pull was open when it went down
            return _released("backend_down", f"{executor.name} is left alone for a while")
        try:
            return Made(ReportOutcome.COMPLETED, await executor.run(job, attempt))
        except BackendDown as error:
            self.registry.hold_back(executor)
            self.gate.changed()
            return _released(error.code, error.message, error.detail)
        except ExecutorError as error:
            return _failed(error.code, error.message, error.error_class, error.detail)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            if isinstance(error, OSError) and error.errno in _DISK_FULL:
                return self._disk_full(error)
            _log.exception("executor crashed", executor=executor.name, job_id=job.id, epoch=job.epoch)
            return _crashed(f"{type(error).__name__}: {error}", traceback.format_exc()[-_TRACEBACK_MOST:])

    def _disk_full(self, error: OSError) -> Made:
        self.gate.hold("disk_full", _DISK_HOLD_S)
        full = error.errno in _DISK_FULL
        return _released("disk_full" if full else "spool_failed", f"{error.strerror or error}")

    async def _store(self, attempt: Attempt, made: Made) -> Entry | None:
        """Spool it. A disk that refuses makes it a release; one that refuses even that, a release sent unspooled."""
        attempt.delivering = True
        workspace = self.workspaces.path(f"{attempt.job_id}.{attempt.epoch}")
        try:
            files, sources = await _checked_files(made.product.files, workspace)
            entry = await self.spool.put(_parcel(attempt, made, files), sources)
        except (ValueError, TypeError) as error:
            made = _failed("bad_product", f"the executor's product can't be sent: {error}", ErrorClass.TRANSIENT)
            entry = await self._store_release(attempt, made)
        except OSError as error:
            _log.error("spool refused a result", job_id=str(attempt.job_id), epoch=attempt.epoch, error=str(error))
            entry = await self._store_release(attempt, self._disk_full(error))
        if attempt.lost.done():
            self.spool.discard(entry)
            return None
        return entry

    async def _store_release(self, attempt: Attempt, made: Made) -> Entry:
        parcel = _parcel(attempt, made, [])
        try:
            return await self.spool.put(parcel)
        except OSError as error:
            _log.error("spool refuses even an error", job_id=str(attempt.job_id), error=str(error))
            return Entry(parcel, None)


async def _until_idle(work: asyncio.Task[Made], job: RunnableJob) -> None:
    while not work.done():
        work.cancel()
        done, _ = await asyncio.wait({work}, timeout=_STUBBORN_S)
        if not done:
            _log.warning("generator does not stop", job_id=job.id, epoch=job.epoch)


def _parcel(attempt: Attempt, made: Made, files: list[StoredFile]) -> Parcel:
    product = made.product
    report = Report(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        outcome=made.outcome,
        elapsed_s=round(attempt.elapsed_s(), 3),
        model=product.model,
        settings=_storable(product.settings),
        result=_storable(product.result),
        stages=list(attempt.stages),
        error=made.error,
    )
    return Parcel(
        report=report,
        delivery=attempt.delivery,
        kind=attempt.kind,
        heartbeat_s=attempt.heartbeat_s,
        upload=attempt.upload,
        files=files,
    )


def _storable(value: Any) -> Any:
    """Return it as JSON would carry it, without NUL, which no Postgres text holds; TypeError if JSON can't."""
    encoded = orjson.dumps(value)
    return _without_nul(orjson.loads(encoded)) if b"\\u0000" in encoded else value


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value


async def _checked_files(files: Sequence[ProductFile], workspace: Path) -> tuple[list[StoredFile], list[Path]]:
    if not files:
        return [], []
    return await asyncio.to_thread(_check_files, files, workspace)


def _check_files(files: Sequence[ProductFile], workspace: Path) -> tuple[list[StoredFile], list[Path]]:
    """Return the files as they will be stored; ValueError for one that is no regular file of this workspace."""
    if len(files) > MOST_FILES:
        msg = f"{len(files)} files; at most {MOST_FILES}"
        raise ValueError(msg)
    if len({file.artifact for file in files}) != len(files):
        msg = "two files with one name"
        raise ValueError(msg)
    home = workspace.resolve()
    stored: list[StoredFile] = []
    for number, file in enumerate(files):
        try:
            found = file.path.lstat()
            inside = file.path.parent.resolve(strict=True).is_relative_to(home)
        except OSError as error:
            msg = f"{file.artifact}: {error.strerror}"
            raise ValueError(msg) from None
        if not stat.S_ISREG(found.st_mode) or not inside:
            msg = f"{file.artifact} is no regular file of the workspace"
            raise ValueError(msg)
        stored.append(
            StoredFile(stored=f"{number:03}", name=file.artifact, media_type=file.media_type, size=found.st_size)
        )
    return stored, [file.path for file in files]


def _end(attempt: Attempt, answer: Answer) -> RunEnd:
    """Return how a delivered run ended; `settled` in answer to a lease question is a verdict that was lost."""
    answered = answer.verdict is not None or answer.lost == LostReason.SETTLED
    how = How(answer.outcome.value) if answered and answer.outcome else How.LOST
    return RunEnd(attempt.job_id, how, attempt.epoch, answer.verdict, answer.lost)


def _released(code: str, message: str, detail: Any = None) -> Made:
    return Made(ReportOutcome.RELEASED, error=_error(code, message, ErrorClass.TRANSIENT, detail))


def _failed(code: str, message: str, error_class: ErrorClass, detail: Any = None) -> Made:
    return Made(ReportOutcome.FAILED, error=_error(code, message, error_class, detail))


def _crashed(message: str, tail: str = "") -> Made:
    return _failed("executor_crash", message, ErrorClass.TRANSIENT, {"traceback": tail} if tail else None)


def _error(code: str, message: str, error_class: ErrorClass, detail: Any) -> ReportedError:
    try:
        detail = _storable(detail)
    except TypeError:
        detail = repr(detail)[:2000].replace("\x00", "")
    return ReportedError(
        code=code[:100].replace("\x00", ""),
        message=message[:4000].replace("\x00", ""),
        error_class=error_class,
        detail=detail,
    )
