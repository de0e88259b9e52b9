"""A job's life on this machine, from top to bottom.

    claim → workspace → executor, beside its heartbeats → spool → (the slot is free here) → upload files → report
          → verdict → clean up

`run` returns exactly one `RunEnd`. What happens to the job is the ledger's business; here it is only decided what
this agent says about its attempt. Called by the puller, once for each delivery.
"""

import asyncio
import errno
import traceback
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from uuid import UUID

import structlog

from agent.claims import Claims
from agent.executors.base import BackendDown, Executor, ExecutorError, RunnableJob
from agent.executors.registry import Registry
from agent.executors.verdicts import refused_here
from agent.gate import Gate
from agent.journal import Adopting, Claimed, Journal
from agent.leases import Attempt, Leases, StopKind, first_of
from agent.made import Made, checked_files, crashed, failed, parcel_of, released
from agent.reporter import Answer, Reporter
from agent.slots import Slot
from agent.spool import Entry, Spool
from agent.workspace import Workspaces
from shared.failpoints import Failpoint, reach
from shared.states import DenyReason, ErrorClass, LostReason, ReportOutcome, Verdict
from shared.wire import Granted

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
class Runner:
    """Runs jobs; one object, called for every delivery."""

    claims: Claims
    leases: Leases
    registry: Registry
    workspaces: Workspaces
    spool: Spool
    reporter: Reporter
    gate: Gate
    journal: Journal

    async def run(self, job_id: UUID, delivery: str, *, give_up_at: float, slot: Slot) -> RunEnd:
        """Take a delivery from its claim to its verdict, giving the slot back as soon as the generator is idle."""
        try:
            if await self._holds(job_id):
                return RunEnd(job_id, How.DENIED, reason=DenyReason.LEASED)
            answer = await self.claims.claim(job_id, delivery, give_up_at=give_up_at)
            if answer is None:
                return RunEnd(job_id, How.UNANSWERED)
            if isinstance(answer, DenyReason):
                return RunEnd(job_id, How.DENIED, reason=answer)
            attempt, granted = answer
            reach(Failpoint.GRANTED)
            return await self._carry_out(attempt, granted, slot)
        finally:
            slot.release()

    async def resume(self, attempt: Attempt, claimed: Claimed, slot: Slot) -> RunEnd:
        """Take up what an earlier process of this worker began, if the lease is still ours."""
        try:
            await self.leases.ask(attempt)
            executor = self.registry.named(claimed.executor)
            if not attempt.lost.done() and executor is not None:
                return await self._carry_out(attempt, claimed.granted, slot, executor)
            await _abandon(executor, attempt.job_id, attempt.epoch)
            reason = attempt.lost.result() if attempt.lost.done() else f"{claimed.executor} is no longer configured"
            return RunEnd(attempt.job_id, How.LOST, attempt.epoch, reason=reason)
        finally:
            slot.release()
            self.leases.close(attempt)
            await self.journal.forget(str(attempt.job_id), attempt.epoch)

    async def drop(self, claimed: Claimed) -> None:
        """Give up what an earlier process began, and have its executor stop it; nothing takes its place before that."""
        job_id, epoch = claimed.granted.job.id, claimed.granted.epoch
        async with self.registry.going_on(claimed.executor, str(job_id), epoch):
            await _abandon(self.registry.named(claimed.executor), job_id, epoch)
        await self.journal.forget(str(job_id), epoch)

    async def _carry_out(
        self, attempt: Attempt, granted: Granted, slot: Slot, executor: Executor | None = None
    ) -> RunEnd:
        """Generate and deliver; `executor`: the one that has begun with it."""
        try:
            entry = await self._generate(attempt, granted, executor)
            slot.release()
            if entry is None:
                return RunEnd(attempt.job_id, How.LOST, attempt.epoch, reason=attempt.lost.result())
            return _end(attempt, await self.reporter.deliver(attempt, entry))
        finally:
            self.leases.close(attempt)

    async def _holds(self, job_id: UUID) -> bool:
        """Say whether a job that is offered is still ours: asking resumes a lease that lapsed while we were away.

        Claiming it would throw away what we have of it, to make the same again.
        """
        ours = [attempt for attempt in self.leases if attempt.job_id == job_id and not attempt.lost.done()]
        for attempt in ours:
            await self.leases.ask(attempt)
        return any(not attempt.lost.done() for attempt in ours)

    async def _generate(self, attempt: Attempt, granted: Granted, executor: Executor | None) -> Entry | None:
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
            no_progress_s=granted.no_progress_s,
            failures=granted.failures,
        )
        try:
            made = await self._use_generator(attempt, job, executor)
            return None if made is None else await self._store(attempt, made)
        finally:
            await self.journal.forget(job.id, job.epoch)
            if opened:
                await asyncio.to_thread(self.workspaces.remove, name)

    async def _use_generator(self, attempt: Attempt, job: RunnableJob, executor: Executor | None) -> Made | None:
        """Run the executor until it is done or stopped, and until it is really idle; None: the lease is lost."""
        told = self.gate.told()
        if told is not None:  # the pull was open when the order came, or the process is a new one
            await _abandon(executor, attempt.job_id, attempt.epoch)
            return released(told, "this agent takes no work now")
        work = asyncio.create_task(self._execute(attempt, job, executor), name=f"execute:{job.id}.{job.epoch}")
        try:
            await first_of(work, attempt.stopped)
        finally:
            await _until_idle(work, job)
        if attempt.stopped.done():  # perhaps before it had found what an earlier process began
            await _abandon(executor, attempt.job_id, attempt.epoch)
        if attempt.lost.done():
            return None
        if not attempt.stopped.done():
            said = "the executor cancelled itself"
            return crashed(said, failures=job.failures) if work.cancelled() else work.result()
        if not work.cancelled() and work.result().outcome is ReportOutcome.COMPLETED:
            return work.result()  # it was done all the same
        stop = attempt.stopped.result()
        if stop.kind is StopKind.DEADLINE:
            return failed("timeout", f"stopped after {attempt.elapsed_s():.0f} s: {stop.reason}", ErrorClass.TRANSIENT)
        return released("drain", stop.reason)

    async def _execute(self, attempt: Attempt, job: RunnableJob, executor: Executor | None) -> Made:
        """Be the executor's boundary: whatever it raises becomes a value here."""
        try:
            return await self._call_executor(attempt, job, executor)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            if isinstance(error, OSError) and error.errno in _DISK_FULL:
                return self._disk_full(error)
            _log.exception("executor crashed", job_id=job.id, epoch=job.epoch)
            tail = traceback.format_exc()[-_TRACEBACK_MOST:]
            return crashed(f"{type(error).__name__}: {error}", tail, failures=job.failures)

    async def _call_executor(self, attempt: Attempt, job: RunnableJob, begun: Executor | None) -> Made:
        executor = begun or self.registry.find(job.kind, job.model)
        if executor is None:
            return failed("no_executor", f"nothing here runs {job.kind} with {job.model}", ErrorClass.ELSEWHERE)
        if begun is None and not self.registry.is_up(executor):  # the pull was open when it went down
            return released("backend_down", f"{executor.name} is left alone for a while")
        if begun is None and (refusal := refused_here(job.failures or ())) is not None:
            return failed(refusal.code, refusal.message, refusal.error_class, refusal.detail)
        await self.journal.keep(attempt, job, executor)
        try:
            return Made(ReportOutcome.COMPLETED, await self.registry.run(executor, job, attempt))
        except BackendDown as error:
            self.registry.hold_back(executor, error.message)
            self.gate.changed()
            return released(error.code, error.message, error.detail)
        except ExecutorError as error:
            return failed(error.code, error.message, error.error_class, error.detail)

    def _disk_full(self, error: OSError) -> Made:
        self.gate.hold("disk_full", _DISK_HOLD_S)
        full = error.errno in _DISK_FULL
        return released("disk_full" if full else "spool_failed", f"{error.strerror or error}")

    async def _store(self, attempt: Attempt, made: Made) -> Entry | None:
        """Spool it. A disk that refuses makes it a release; one that refuses even that, a release sent unspooled."""
        self.leases.deliver(attempt)
        reach(Failpoint.GENERATED)
        workspace = self.workspaces.path(f"{attempt.job_id}.{attempt.epoch}")
        try:
            files, sources = await checked_files(made.product.files, workspace)
            entry = await self.spool.put(parcel_of(attempt, made, files), sources)
        except (ValueError, TypeError) as error:
            made = failed("bad_product", f"the executor's product can't be sent: {error}", ErrorClass.TRANSIENT)
            entry = await self._store_release(attempt, made)
        except OSError as error:
            _log.error("spool refused a result", job_id=str(attempt.job_id), epoch=attempt.epoch, error=str(error))
            entry = await self._store_release(attempt, self._disk_full(error))
        reach(Failpoint.ENTRY_IN_PLACE)
        if attempt.lost.done():
            self.spool.discard(entry)
            return None
        return entry

    async def _store_release(self, attempt: Attempt, made: Made) -> Entry:
        parcel = parcel_of(attempt, made, [])
        try:
            return await self.spool.put(parcel)
        except OSError as error:
            _log.error("spool refuses even an error", job_id=str(attempt.job_id), error=str(error))
            return Entry(parcel, None)


async def _abandon(executor: Executor | None, job_id: UUID, epoch: int) -> None:
    """Have an executor stop what goes on of an attempt without this process."""
    if isinstance(executor, Adopting):
        await executor.abandon(str(job_id), epoch)


async def _until_idle(work: asyncio.Task[Made], job: RunnableJob) -> None:
    while not work.done():
        work.cancel()
        done, _ = await asyncio.wait({work}, timeout=_STUBBORN_S)
        if not done:
            _log.warning("generator does not stop", job_id=job.id, epoch=job.epoch)


def _end(attempt: Attempt, answer: Answer) -> RunEnd:
    """Return how a delivered run ended; `settled` in answer to a lease question is a verdict that was lost."""
    answered = answer.verdict is not None or answer.lost == LostReason.SETTLED
    how = How(answer.outcome.value) if answered and answer.outcome else How.LOST
    return RunEnd(attempt.job_id, how, attempt.epoch, answer.verdict, answer.lost)
