"""Claims and lease questions: requests that agents make, answered from the ledger (PROTOCOL, Take work, 3 and 4)."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, Literal

import orjson
import structlog
from pydantic import ValidationError

from coordinator.dispatcher import Dispatcher
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Claim, Denial, Grant, Heartbeat, Held, Lost
from coordinator.upload_tokens import UploadTokens
from coordinator.workers import Directory
from shared import subjects, wire
from shared.bus import Bus, BusError, Message, Subscription
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.lease import Policy
from shared.states import PRIORITY_NAME, DenyReason

_log = structlog.get_logger()

_VERSION: Final = version("tandem")


@dataclass(slots=True)
class Claims:
    """Answers `tandem.claim.*` and `tandem.lease.*`. What can't be answered now is not answered: agents ask again."""

    bus: Bus
    ledger: Ledger
    directory: Directory
    dispatcher: Dispatcher
    tokens: UploadTokens
    policy: Policy
    ready: Callable[[], bool]  # leases had their grace: until then a claim could take over what nobody could extend
    no_progress_s: Callable[[str, str, int, int], float | None]  # (lane, worker, attempt, of) -> what is learned
    upload_url: str  # base of the upload addresses; set once the HTTP side listens
    granted: int = 0
    denied: Counter[str] = field(default_factory=Counter)  # by reason

    async def subscribe(self) -> list[Subscription]:
        """Start answering."""
        return [
            await self.bus.subscribe(subjects.CLAIM, self._on_claim, queue=subjects.COORDINATORS),
            await self.bus.subscribe(subjects.LEASE, self._on_lease, queue=subjects.COORDINATORS),
        ]

    async def _on_claim(self, message: Message) -> None:
        worker = message.subject.rpartition(".")[2]
        try:
            asked = wire.Claim.model_validate_json(message.data)
            token = subjects.parse_delivery(asked.delivery)
        except ValidationError as error:
            await self._refuse(message, [f.model_dump() for f in wire.faults_of(error)])
            return
        if token is None:
            await self._refuse(message, [{"field": "delivery", "message": "not the reply subject of a WORK message"}])
            return
        lane = subjects.lane_of_consumer(token.consumer)
        command = Claim(
            job_id=asked.job_id,
            worker=worker,
            instance=asked.instance or self.directory.instance_of(worker),
            delivery=asked.delivery,
            token=token,
            paused=self._paused(worker, asked.instance, lane),
        )
        if not self.ready():
            return
        try:
            if not await self.directory.is_sender(message.sender, worker, learn=True):
                await self._refuse(message, [{"field": "", "message": "the connection is not this worker's"}])
                return
            answer = await self.ledger.do(command)
        except LedgerDownError:
            return
        if isinstance(answer, Grant):
            self.granted += 1
            self.dispatcher.claimed(lane)
            reach(Failpoint.GRANT_UNANSWERED)
            await self._answer(message, self._granted(command, answer, lane))
        else:
            assert isinstance(answer, Denial)
            self.denied[answer.reason] += 1
            _log.info("claim denied", job_id=str(asked.job_id), worker=worker, reason=str(answer.reason))
            body = {"verdict": "denied", "reason": answer.reason, "retry_in_s": answer.retry_in_s}
            await self._answer(message, orjson.dumps(body))

    def _paused(self, worker: str, instance: str | None, lane: str) -> Literal["lane", "worker", "aside"] | None:
        if self.dispatcher.is_paused(lane):
            return "lane"
        if not self.directory.may_take(worker, instance):
            return "worker"
        return "aside" if self.directory.is_aside(worker, lane) else None

    def _granted(self, command: Claim, grant: Grant, lane: str) -> bytes:
        assert grant.payload is not None
        return orjson.dumps(
            {
                "verdict": "granted",
                "epoch": grant.epoch,
                "attempt": grant.attempt,
                "lease_ttl_s": grant.lease_ttl_s,
                "heartbeat_s": self.policy.heartbeat_s,
                "deadline_s": grant.deadline_s,
                "no_progress_s": self.no_progress_s(lane, command.worker, grant.attempt, grant.payload.max_attempts),
                "failures": [
                    {"code": charge.code, "verdict": charge.verdict, "here": charge.worker == command.worker}
                    for charge in grant.payload.charges
                ],
                "upload": {
                    "url": f"{self.upload_url}/v1/uploads/{command.job_id}/{grant.epoch}",
                    "token": self.tokens.issue(command.job_id, grant.epoch, command.worker),
                },
                "job": {
                    "id": command.job_id,
                    "kind": grant.payload.kind,
                    "model": grant.payload.model,
                    "spec": grant.payload.spec,
                    "labels": grant.payload.labels,
                    "priority": PRIORITY_NAME[grant.payload.priority],
                },
            }
        )

    async def _on_lease(self, message: Message) -> None:
        worker = message.subject.rpartition(".")[2]
        try:
            asked = wire.LeaseQuestion.model_validate_json(message.data)
        except ValidationError as error:
            faults = [f.model_dump() for f in wire.faults_of(error)]
            await self._answer(message, orjson.dumps({"error": {"code": "invalid", "faults": faults}}))
            return
        try:
            if not await self.directory.is_sender(message.sender, worker, learn=True):
                await self._answer(message, orjson.dumps({"error": {"code": "not_your_worker", "faults": []}}))
                return
            question = Heartbeat(job_id=asked.job_id, worker=worker, epoch=asked.epoch, instance=asked.instance)
            answer = await self.ledger.do(question)
        except LedgerDownError:
            return
        reach(Failpoint.LEASE_UNANSWERED)
        told = {} if asked.version is None else {"version": _VERSION}
        match answer:
            case Held(ttl_s):
                await self._answer(message, orjson.dumps({"lease": "held", "ttl_s": ttl_s, **told}))
            case Lost(reason):
                await self._answer(message, orjson.dumps({"lease": "lost", "reason": reason, **told}))
            case other:
                msg = f"a lease question was answered {other!r}"
                raise TypeError(msg)

    async def _refuse(self, message: Message, faults: list[dict[str, str]]) -> None:
        """Answer a claim that can't be one: denied, with what is wrong."""
        _log.warning("bad claim", subject=message.subject, faults=faults)
        error = {"code": "invalid", "faults": faults}
        body = {"verdict": "denied", "reason": DenyReason.UNKNOWN, "retry_in_s": None, "error": error}
        await self._answer(message, orjson.dumps(body))

    async def _answer(self, message: Message, body: bytes) -> None:
        try:
            await self.bus.respond(message, body)
        except BusError:
            _log.info("answer lost", subject=message.subject)  # the agent asks again and gets the same
