"""Getting a finished result to the ledger: upload its files, publish its report, wait for the verdict.

An entry stays in the spool until the ledger has answered (rule 11): a verdict, or a lease question answered
`settled`, `stale` or `canceled`. JetStream's acknowledgement only says that a report is on its way; when no verdict
follows, the lease is asked about, and the report sent again with the same message id. The window in which JetStream
swallows a repeat does no harm: the entry just waits. Called by the runner, and by `service` for adopted entries.
"""

import asyncio
import random
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from agent.leases import Attempt, Leases, StopKind, first_of
from agent.settings import AgentSettings
from agent.spool import Entry, Spool, StoredFile
from agent.uploads import Sent, Uploads, digest
from shared import subjects
from shared.backoff import reconnect_delay_s
from shared.bus import Bus, BusError, TooLarge
from shared.failpoints import Failpoint, reach
from shared.states import ErrorClass, LostReason, ReportOutcome, Verdict
from shared.wire import Artifact, Report, ReportedError, VerdictMessage

_UPLOADS_AT_ONCE = 2
_TRIES = 3
"""How often a file that was refused or arrived damaged is sent before the attempt is reported as failed."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    """How a delivery ended: the ledger's verdict, or why the lease is gone."""

    verdict: Verdict | None = None
    lost: str = ""
    outcome: ReportOutcome | None = None  # what was reported in the end: a result may have become a failure


class Reporter:
    """Delivers entries, each in the task of its job."""

    def __init__(self, bus: Bus, leases: Leases, spool: Spool, uploads: Uploads, settings: AgentSettings) -> None:
        """Everything is composed in `service`."""
        self._bus = bus
        self._leases = leases
        self._spool = spool
        self._uploads = uploads
        self._settings = settings
        self._verdicts: dict[tuple[UUID, int], asyncio.Future[Verdict]] = {}
        self._nudged: asyncio.Future[None] | None = None
        self._uploading = asyncio.Semaphore(_UPLOADS_AT_ONCE)

    def resolve(self, message: VerdictMessage) -> None:
        """Take a verdict from control; one that nobody waits for is about something long answered."""
        waiting = self._verdicts.get((message.job_id, message.epoch))
        if waiting is not None and not waiting.done():
            waiting.set_result(message.verdict)

    def nudge(self) -> None:
        """Have everything that waits to be sent again try now: there is a connection."""
        if self._nudged is not None and not self._nudged.done():
            self._nudged.set_result(None)
        self._nudged = None

    async def deliver(self, attempt: Attempt, entry: Entry, *, adopted: bool = False) -> Answer:
        """Bring an entry to the ledger, however long it takes, and remove it from the spool."""
        self._verdicts[attempt.key] = asyncio.get_running_loop().create_future()
        try:
            answer = await self._answered(attempt) if adopted else None
            if answer is None and entry.parcel.files:
                entry = await self._upload_all(attempt, entry)
            if answer is None:
                reach(Failpoint.ALL_UPLOADED)
                attempt.stage("finalizing")
                answer = await self._report(attempt, entry.parcel.report)
        finally:
            del self._verdicts[attempt.key]
        reach(Failpoint.VERDICT_HEARD)
        self._spool.discard(entry)
        return answer if answer.outcome else replace(answer, outcome=entry.parcel.report.outcome)

    # ---- files

    async def _upload_all(self, attempt: Attempt, entry: Entry) -> Entry:
        """Upload the files; return the entry with what is to be reported, which may have become a failure."""
        attempt.stage("uploading")
        work = asyncio.create_task(self._upload_each(attempt, entry), name=f"upload:{entry.parcel.name}")
        try:
            await first_of(work, attempt.lost)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if attempt.lost.done():
            return entry
        done = work.result()
        if isinstance(done, ReportedError):
            return await self._give_up(entry, done)
        report = entry.parcel.report.model_copy(update={"artifacts": done})
        return Entry(entry.parcel.model_copy(update={"report": report}), entry.path)

    async def _upload_each(self, attempt: Attempt, entry: Entry) -> list[Artifact] | ReportedError:
        async with self._uploading:
            artifacts: list[Artifact] = []
            for number, file in enumerate(entry.parcel.files):
                attempt.progress(number / len(entry.parcel.files))
                sent = await self._upload(attempt, entry, file)
                if isinstance(sent, ReportedError):
                    return sent
                artifacts.append(sent)
                reach(Failpoint.FILE_UPLOADED)
            return artifacts

    async def _upload(self, attempt: Attempt, entry: Entry, file: StoredFile) -> Artifact | ReportedError:
        failures = refusals = 0
        while True:
            try:
                sha256 = await asyncio.to_thread(digest, entry.file(file))
            except OSError as error:
                return _error("spool_unreadable", f"{file.name}: {error}", ErrorClass.TRANSIENT)
            artifact = Artifact(name=file.name, media_type=file.media_type, size=file.size, sha256=sha256)
            await self._leases.ask(attempt)  # each time: the machine may have slept since the last byte
            if attempt.lost.done():
                return _error("stale", attempt.lost.result(), ErrorClass.TRANSIENT)
            sent, said = await self._uploads.send(attempt.upload, entry.file(file), artifact)
            if sent is Sent.STORED:
                return artifact
            _log.warning("upload failed", job_id=str(attempt.job_id), name=file.name, said=said[:300])
            if sent is Sent.STALE:
                attempt.stop(StopKind.LOST, LostReason.STALE)
                return _error("stale", said, ErrorClass.TRANSIENT)
            if sent is Sent.TOO_LARGE:
                return _error("artifact_too_large", f"{file.name}: {file.size} bytes; {said}", ErrorClass.PERMANENT)
            if sent is not Sent.AGAIN:
                refusals += 1
                if refusals >= _TRIES:
                    return _error(f"upload_{sent}", f"{file.name}: {said}", ErrorClass.TRANSIENT)
            await self._pause(attempt, failures)
            failures += 1

    async def _give_up(self, entry: Entry, error: ReportedError) -> Entry:
        """Put a failure in the place of the result, on disk too: a restart must not upload in vain again."""
        report = entry.parcel.report.model_copy(
            update={"outcome": ReportOutcome.FAILED, "error": error, "result": None, "artifacts": []}
        )
        parcel = entry.parcel.model_copy(update={"report": report, "files": []})
        try:
            failed = await self._spool.put(parcel)
        except (OSError, ValueError):
            return Entry(parcel, entry.path)
        reach(Failpoint.FAILURE_SPOOLED)
        self._spool.discard(entry)
        return failed

    # ---- the report

    async def _report(self, attempt: Attempt, report: Report) -> Answer:
        subject = subjects.report(self._settings.worker, report.job_id)
        msg_id = f"{report.job_id}:{report.epoch}"
        body = report.model_dump_json(by_alias=True).encode()
        failures = 0
        while (known := self._known(attempt)) is None:
            try:
                await self._bus.js_publish(subject, body, msg_id=msg_id, timeout_s=self._settings.report_timeout_s)
            except TooLarge as error:
                report = _without_result(report, str(error))
                body = report.model_dump_json(by_alias=True).encode()
            except BusError as error:
                _log.info("report not stored yet", job_id=str(report.job_id), error=str(error)[:200])
            else:
                reach(Failpoint.REPORT_STORED)
                answer = await self._answered(attempt, self._settings.verdict_timeout_s)
                if answer is not None:
                    return replace(answer, outcome=report.outcome)
                _log.info("no verdict yet", job_id=str(report.job_id), epoch=report.epoch)
            await self._pause(attempt, failures)
            failures += 1
        return replace(known, outcome=report.outcome)

    async def _answered(self, attempt: Attempt, wait_s: float = 0.0) -> Answer | None:
        """Wait for the verdict, then ask about the lease; None: the ledger knows nothing of a result yet."""
        await first_of(self._verdicts[attempt.key], attempt.lost, wait_s=wait_s)
        if self._known(attempt) is None:
            await self._leases.ask(attempt)
        return self._known(attempt)

    def _known(self, attempt: Attempt) -> Answer | None:
        verdict = self._verdicts[attempt.key]
        if verdict.done():
            return Answer(verdict=verdict.result())
        return Answer(lost=attempt.lost.result()) if attempt.lost.done() else None

    async def _pause(self, attempt: Attempt, failures: int) -> None:
        """Wait before the next try; a new connection, a verdict or the loss of the lease ends it early."""
        delay_s = reconnect_delay_s(failures, random.uniform(-1, 1), self._settings.resend_s)  # noqa: S311 - jitter
        if self._nudged is None:
            self._nudged = asyncio.get_running_loop().create_future()
        await first_of(self._verdicts[attempt.key], attempt.lost, self._nudged, wait_s=delay_s)


def _error(code: str, message: str, error_class: ErrorClass) -> ReportedError:
    return ReportedError(code=code, message=message[:4000].replace("\x00", ""), error_class=error_class)


def _without_result(report: Report, why: str) -> Report:
    """Return the failure that is reported in place of a result that no message can carry."""
    error = _error("result_too_large", f"{why}; put large results into files", ErrorClass.PERMANENT)
    return report.model_copy(
        update={"outcome": ReportOutcome.FAILED, "error": error, "result": None, "settings": {}, "stages": []}
    )
