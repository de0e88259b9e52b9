"""Reports: how attempts ended, as their agents tell it; each is judged by the ledger, then taken off REPORTS.

A report leaves the stream only after the ledger has committed what became of it. One that can't be read is put on
record with its reason, answered, and taken off at once, so that it never stands before its neighbours.
"""

import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field

import orjson
import structlog
from pydantic import ValidationError

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import FileReport, Judged
from coordinator.ledger.queries import Queries
from coordinator.placement import later_models
from coordinator.settling import SLICE, later, taken
from coordinator.workers import Directory
from shared import wire
from shared.bus import Bus, Message
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.states import Verdict
from shared.streams import REPORTS
from shared.text import has_nul

_log = structlog.get_logger()

_BATCH = 256


@dataclass(slots=True)
class Reports:
    """Takes REPORTS in batches; the coordinators share its one consumer."""

    bus: Bus
    ledger: Ledger
    queries: Queries
    directory: Directory
    judged: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0

    async def run(self) -> None:
        """Judge report after report until cancelled."""
        async with self.bus.consume("REPORTS", REPORTS, batch=_BATCH, queue_max=2 * _BATCH) as reports:
            while True:
                await self._judge(await reports.take(_BATCH))

    async def _judge(self, messages: list[Message]) -> None:
        read: list[tuple[Message, FileReport]] = []
        for number, message in enumerate(messages):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            try:
                read.append((message, await self._read(message)))
            except wire.BadMessageError as error:
                await self._set_aside(message, error)
            except LedgerDownError:
                await later(self.bus, message)
        if not read:
            return
        answers = await self.ledger.do_each([command for _, command in read])
        for (message, command), answer in zip(read, answers, strict=True):
            if isinstance(answer, LedgerDownError):
                await later(self.bus, message)
            elif isinstance(answer, Exception):
                _log.error("report failed", job_id=str(command.job_id), error=repr(answer))
                await self._set_aside(
                    message, wire.BadMessageError("unstorable", [wire.Fault(field="", message=repr(answer))])
                )
            else:
                assert isinstance(answer, Judged)
                self.judged += 1
                self.verdicts[answer.verdict] += 1
                if answer.verdict is not Verdict.ACCEPTED:  # an accepted one is the attempt's line
                    _log.info(
                        "report judged",
                        job_id=str(command.job_id),
                        epoch=command.report.epoch,
                        worker=command.worker,
                        outcome=str(command.report.outcome),
                        verdict=str(answer.verdict),
                        reason=answer.reason,
                    )
                reach(Failpoint.REPORT_UNSETTLED)
                await taken(self.bus, message)

    async def _read(self, message: Message) -> FileReport:
        """Read a report and hold it against the subject, which only its worker may use."""
        _, _, worker, named = message.subject.split(".", 3)
        try:
            raw = orjson.loads(message.data)
            report = wire.Report.model_validate(raw)
        except orjson.JSONDecodeError as error:
            raise wire.BadMessageError("not_json", [wire.Fault(field="", message=str(error))]) from None
        except ValidationError as error:
            raise wire.BadMessageError("invalid", wire.faults_of(error)) from None
        if str(report.job_id) != named:
            fault = wire.Fault(field="job_id", message=f"{report.job_id} was reported on the subject of {named}")
            raise wire.BadMessageError("invalid", [fault])
        if b"u0000" in message.data and has_nul(raw):
            raise wire.BadMessageError("invalid", [wire.Fault(field="", message="text must not contain NUL")])
        placing = await self.queries.placing_of(report.job_id) if report.error else None
        return FileReport(
            job_id=report.job_id,
            worker=worker,
            report=report,
            sha256=hashlib.sha256(message.data).digest(),
            jitter=random.uniform(-1, 1),  # noqa: S311 - spreads retries, guards nothing
            capable=self.directory.capable(placing.lane) if placing else frozenset(),
            another_model=placing is not None and bool(later_models(placing, self.directory.standing)),
        )

    async def _set_aside(self, message: Message, error: wire.BadMessageError) -> None:
        self.unreadable += 1
        _, _, worker, named = message.subject.split(".", 3)
        _log.warning("report refused", worker=worker, subject=message.subject, reason=str(error))
        try:
            await self.queries.record_rejected_report(worker, named, str(error), message.data)
        except LedgerDownError:
            await later(self.bus, message)
            return
        reach(Failpoint.UNREADABLE_RECORDED)
        if not await self._failed(worker, named, message, str(error)):
            await later(self.bus, message)
            return
        reach(Failpoint.UNREADABLE_UNSETTLED)
        await taken(self.bus, message)

    async def _failed(self, worker: str, named: str, message: Message, reason: str) -> bool:
        """End the attempt that an unreadable report is about, as far as it says which: else it would run for ever.

        Returns False if the ledger is away.
        """
        try:
            raw = orjson.loads(message.data)
            ids = {"job_id": named, "epoch": raw["epoch"]}
            error = {"code": "unreadable_report", "message": reason[:1000], "class": "transient"}
            report = wire.Report.model_validate({**ids, "outcome": "failed", "error": error})
        except (ValueError, TypeError, KeyError):
            return True  # its agent will ask about the lease, or presence ends it
        command = FileReport(
            job_id=report.job_id, worker=worker, report=report, sha256=hashlib.sha256(message.data).digest()
        )
        try:
            await self.ledger.do(command)
        except LedgerDownError:
            return False
        except Exception as error:  # noqa: BLE001 - whatever its job's row does, the report is on record
            _log.error("attempt of an unreadable report not ended", job_id=str(report.job_id), error=repr(error))
        return True
