"""Intake: submissions from SUBMIT and from HTTP become jobs, or are refused with every fault and put on record."""

import asyncio
import contextlib
import hashlib
import uuid
from dataclasses import dataclass
from typing import Literal

import orjson
import structlog

from coordinator.addresses import refused_host
from coordinator.dispatcher import Dispatcher
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Admit, Admitted, Answer, Conflict, SameJob
from coordinator.ledger.queries import Queries
from coordinator.placement import first_choice
from coordinator.settings import CoordinatorSettings
from coordinator.settling import SLICE, later, taken
from coordinator.workers import Directory
from shared import subjects
from shared.bus import Bus, BusError, Message
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.ids import JobId, job_id_of
from shared.states import PRIORITY_RANK
from shared.streams import INTAKE
from shared.submission import Submission, parse_submission
from shared.wire import BadMessageError, Fault

_log = structlog.get_logger()

JOB_HEADER = "Tandem-Job"
"""On a message in SUBMIT: the id that HTTP promised for it."""

UUID_V7 = 7

_BATCH = 256


@dataclass(frozen=True, slots=True)
class SubmitOutcome:
    """What became of an HTTP submission: `queued` = the ledger is away, it lies in SUBMIT."""

    kind: Literal["created", "same", "conflict", "queued"]
    job_id: uuid.UUID


@dataclass(slots=True)
class Intake:
    """Admits what SUBMIT holds, and what HTTP brings; the coordinators share SUBMIT's one consumer."""

    bus: Bus
    ledger: Ledger
    queries: Queries
    directory: Directory
    dispatcher: Dispatcher
    settings: CoordinatorSettings
    admitted: int = 0
    refused: int = 0

    async def run(self) -> None:
        """Admit submission after submission until cancelled."""
        async with self.bus.consume("SUBMIT", INTAKE, batch=_BATCH, queue_max=2 * _BATCH) as submissions:
            while True:
                await self._admit(await submissions.take(_BATCH))

    async def submit(self, source: str, body: bytes, *, patience_s: float | None = None) -> SubmitOutcome:
        """Admit one submission now; while the ledger is away, leave it in SUBMIT. A conflict is put on record.

        `patience_s`: a ledger that has not answered for so long counts as away, unless NATS can't take it either.
        Raises BadMessageError with every fault; LedgerDownError when neither the ledger nor NATS can take it.
        """
        try:
            submission = self._read(body)
        except BadMessageError as error:
            await self._record_if(source, error, body)
            raise
        command = self._command(source, submission, job_id_of(source, submission.key))
        outcome = await self._take(command, body, patience_s)
        if outcome.kind == "conflict":
            await self._record_if(source, _conflict(submission.key, outcome.job_id), body)
        return outcome

    async def _take(self, command: Admit, body: bytes, patience_s: float | None) -> SubmitOutcome:
        try:
            answer = await (self.ledger.do(command) if patience_s is None else self._asked(command, body, patience_s))
        except LedgerDownError as down:
            return await self._queue(command, body, down)
        return (
            answer
            if isinstance(answer, SubmitOutcome)
            else SubmitOutcome(self._kind_of(command, answer), command.job_id)
        )

    async def _asked(self, command: Admit, body: bytes, patience_s: float) -> Answer | SubmitOutcome:
        """Return what the ledger says, or that it lies in SUBMIT: whichever is durable first once patience is over."""
        asked = asyncio.create_task(self.ledger.do(command), name=f"admit:{command.job_id}")
        try:
            done, _ = await asyncio.wait({asked}, timeout=patience_s)
            if not done:
                with contextlib.suppress(LedgerDownError):
                    return await self._queue(command, body, LedgerDownError(f"no answer within {patience_s:g} s"))
            return await asked
        finally:
            asked.add_done_callback(_heard)
            asked.cancel()  # it lies in SUBMIT under the same id, or its caller is gone

    async def _queue(self, command: Admit, body: bytes, down: LedgerDownError) -> SubmitOutcome:
        """Leave a submission in SUBMIT under the id that it has here: the ledger may have committed it after all."""
        name = f"{command.source}:{command.key or command.job_id}:{command.content_sha256.hex()[:16]}"
        headers = {JOB_HEADER: str(command.job_id)}
        try:
            await self.bus.js_publish(subjects.submit(command.source), body, msg_id=name, headers=headers)
        except BusError:
            raise down from None
        reach(Failpoint.SUBMISSION_QUEUED)
        return SubmitOutcome("queued", command.job_id)

    async def _admit(self, messages: list[Message]) -> None:
        read: list[tuple[Message, Admit]] = []
        for number, message in enumerate(messages):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            source = message.subject.rpartition(".")[2]
            try:
                submission = self._read(message.data)
            except BadMessageError as error:
                await self._refuse(message, source, error)
                continue
            job_id = job_id_of(source, submission.key) if submission.key is not None else _id_of_message(message)
            read.append((message, self._command(source, submission, job_id)))
        if not read:
            return
        answers = await self.ledger.do_each([command for _, command in read])
        for (message, command), answer in zip(read, answers, strict=True):
            if isinstance(answer, LedgerDownError):
                await later(self.bus, message)
            elif isinstance(answer, Exception):
                await self._refuse(message, command.source, _fault("unstorable", repr(answer)))
            elif self._kind_of(command, answer) == "conflict":
                await self._refuse(message, command.source, _conflict(command.key, command.job_id))
            else:
                reach(Failpoint.SUBMISSION_UNSETTLED)
                await taken(self.bus, message)

    def _read(self, body: bytes) -> Submission:
        """Parse and check a submission; BadMessageError with every fault."""
        submission = parse_submission(body, self._kinds())
        url = submission.callback_url
        if url is not None and refused_host(url.host or "", self.settings.callback_allow):
            text = f"{url.host} is not a public address; the coordinator's callback_allow would have to name it"
            raise _fault("invalid", text, "callback_url")
        return submission

    def _kinds(self) -> frozenset[str]:
        return self.settings.kinds | self.directory.kinds()

    def _command(self, source: str, submission: Submission, job_id: JobId) -> Admit:
        model, models = submission.model, tuple(submission.models or ())
        if models:
            model = first_choice(submission.kind, models, self.directory.standing)
        lane = subjects.lane_of(submission.kind, model)
        return Admit(
            job_id=job_id,
            source=source,
            key=submission.key,
            kind=submission.kind,
            model=model,
            models=models,
            lane=lane,
            priority=PRIORITY_RANK[submission.priority],
            content_sha256=_content_sha256(submission),
            spec=submission.spec,
            labels=submission.labels,
            run_after=submission.run_after,
            max_attempts=submission.max_attempts or self.settings.max_attempts,
            timeout_s=submission.timeout_s or self.settings.timeout_s,
            review=submission.review,
            callback_url=str(submission.callback_url) if submission.callback_url else None,
            offer=self.dispatcher.has_room(lane),
        )

    def _kind_of(self, command: Admit, answer: Answer) -> Literal["created", "same", "conflict"]:
        match answer:
            case Admitted():
                self.admitted += 1
                return "created"
            case SameJob():
                _log.info("submission repeated", job_id=str(command.job_id), source=command.source)
                return "same"
            case Conflict():
                _log.info("submission conflicts", job_id=str(command.job_id), source=command.source)
                return "conflict"
            case other:
                msg = f"an admission was answered {other!r}"
                raise TypeError(msg)

    async def _refuse(self, message: Message, source: str, error: BadMessageError) -> None:
        try:
            await self._record(source, error, message.data)
        except LedgerDownError:
            await later(self.bus, message)
            return
        await taken(self.bus, message)

    async def _record_if(self, source: str, error: BadMessageError, body: bytes) -> None:
        """Put a refusal on record if the ledger is there; the caller has its answer in any case."""
        with contextlib.suppress(LedgerDownError):
            await self._record(source, error, body)

    async def _record(self, source: str, error: BadMessageError, body: bytes) -> None:
        self.refused += 1
        _log.info("submission refused", source=source, code=error.code, reason=str(error))
        faults = [fault.model_dump() for fault in error.faults]
        await self.queries.record_rejected_submission(source, error.code, str(error), faults, body)
        reach(Failpoint.REFUSAL_RECORDED)


def _heard(asked: "asyncio.Task[Answer]") -> None:
    """Nobody waits for what the ledger says any more."""
    if not asked.cancelled():
        asked.exception()


def _fault(code: str, text: str, name: str = "") -> BadMessageError:
    return BadMessageError(code, [Fault(field=name, message=text)])


def _conflict(key: str | None, job_id: uuid.UUID) -> BadMessageError:
    text = f"key {key!r} was used with other content (job {job_id})"
    return _fault("conflict", text, "key")


def _content_sha256(submission: Submission) -> bytes:
    """Return the digest of all that a submission asks for; its key only names it."""
    content = submission.model_dump(mode="json", exclude={"key"}, exclude_defaults=True)
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).digest()


def _id_of_message(message: Message) -> JobId:
    """Return the UUIDv7 of a submission without a key: the one that HTTP gave it, or one made from its place in SUBMIT.

    A redelivery yields the same. A publisher can name no job of anybody's key this way: those are UUIDv5.
    Reply form v1: `$JS.ACK.SUBMIT.<consumer>.<count>.<seq>.<consumer seq>.<ns>.<pending>`.
    """
    with contextlib.suppress(KeyError, ValueError):
        given = uuid.UUID((message.headers or {})[JOB_HEADER])
        if given.version == UUID_V7:
            return JobId(given)
    parts = message.reply.split(".")
    seq, ns = parts[5], int(parts[7])
    place = int.from_bytes(hashlib.sha256(f"{seq}:{ns}".encode()).digest()[:10])
    value = (ns // 1_000_000) << 80 | place
    value = value & ~(0xF << 76) | UUID_V7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62  # RFC 9562 variant
    return JobId(uuid.UUID(int=value))
