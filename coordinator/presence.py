"""Presence: an agent says what it can do and what it holds; it is told its lanes (PROTOCOL, Take work, 1; rule 8)."""

from dataclasses import dataclass

import orjson
import structlog
from pydantic import ValidationError

from coordinator.dispatcher import Dispatcher
from coordinator.lanes import LaneConsumers
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Done, RollCall
from coordinator.ledger.queries import Queries, WorkerRow
from coordinator.workers import Directory, lanes_of
from shared import subjects, wire
from shared.bus import ApiError, Bus, BusError, Message, Subscription
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.lease import Policy
from shared.loops import worth_a_line

_log = structlog.get_logger()


MOST_LANES = 64
"""Lanes that one agent pulls from, those with work first; each costs a consumer, and the account has a limit."""


@dataclass(slots=True)
class PresenceDesk:
    """Answers `tandem.presence.*`, and ends leases that their holder does not know of."""

    bus: Bus
    ledger: Ledger
    queries: Queries
    directory: Directory
    dispatcher: Dispatcher
    lanes: LaneConsumers
    policy: Policy
    ghosts: int = 0  # leases ended because their worker no longer listed them
    _unanswered: int = 0  # in a row, whoever asked

    async def subscribe(self) -> list[Subscription]:
        """Start answering."""
        return [await self.bus.subscribe(subjects.PRESENCE, self._on_presence, queue=subjects.COORDINATORS)]

    async def _on_presence(self, message: Message) -> None:
        worker = message.subject.rpartition(".")[2]
        try:
            await self._take(message, worker)
        except (LedgerDownError, BusError) as error:
            self._unanswered += 1
            if worth_a_line(self._unanswered):  # every agent asks again and again
                _log.info("presence not answered", worker=worker, failures=self._unanswered, error=str(error))
        else:
            self._unanswered = 0

    async def _take(self, message: Message, worker: str) -> None:
        try:
            presence = wire.Presence.model_validate_json(message.data)
        except ValidationError as error:
            _log.warning("bad presence", worker=worker, error=str(error))
            faults = [f.model_dump() for f in wire.faults_of(error)]
            await self.bus.respond(message, orjson.dumps({"error": {"code": "invalid", "faults": faults}}))
            return
        if not await self.directory.is_sender(message.sender, worker, learn=True):
            return
        row = await self.queries.save_presence(worker, message.sender, presence)
        if row is None:
            await self._replaced(message, worker, presence.instance)
            return
        self.directory.saw(row)
        reach(Failpoint.PRESENCE_UNHELD)
        await self._hold_against(row, presence)
        reply = await self._reply(worker, presence)
        reply["state"], reply["as_of"] = row.wanted, row.seen_at
        if row.rules is not None:
            reply["rules"] = row.rules
        await self.bus.respond(message, orjson.dumps(reply))

    async def _replaced(self, message: Message, worker: str, instance: str) -> None:
        """Answer a process that was replaced by a newer one of its name: two must not work under one."""
        _log.warning("replaced process announces itself", worker=worker, instance=instance)
        fault = {"field": "instance", "message": f"a newer process announced itself as {worker}"}
        await self.bus.respond(message, orjson.dumps({"error": {"code": "replaced", "faults": [fault]}}))

    async def _hold_against(self, row: WorkerRow, presence: wire.Presence) -> None:
        """Compare what the ledger says this worker holds with what it lists (rule 8)."""
        worker = row.name
        listed = {busy.job_id: busy.epoch for busy in presence.busy}
        held = await self.queries.processing_of(worker)
        others = listed.keys() - {job_id for job_id, _ in held}
        if others:  # it may be the next process of one whose lease lapsed meanwhile
            held += await self.queries.lapsed_of(worker, list(others))
        calls = [
            RollCall(
                job_id=job_id,
                worker=worker,
                instance=presence.instance,
                epoch=listed.get(job_id),
                retired=row.retired,
                as_of=presence.as_of,
            )
            for job_id, _ in held
        ]
        for call, answer in zip(calls, await self.ledger.do_what_can(calls), strict=True):
            if isinstance(answer, Done) and call.epoch is None:
                self.ghosts += 1

    async def _reply(self, worker: str, presence: wire.Presence) -> dict[str, object]:
        offers = []
        with_work = self.dispatcher.known()
        may_pull = [lane for lane in lanes_of(presence, with_work) if not self.directory.is_aside(worker, lane)]
        lanes = sorted(may_pull, key=lambda lane: lane not in with_work)
        for lane in lanes[:MOST_LANES]:
            try:
                await self.lanes.ensure(lane)
            except ApiError as error:
                _log.warning("lane without a consumer", lane=lane, error=str(error))
                continue
            kind, _, slug = lane.partition(".")
            offers.append(
                {
                    "kind": kind,
                    "slug": slug,
                    "consumer": subjects.consumer_of(lane),
                    "pending": self.dispatcher.waiting(lane),
                    "better_free": self.directory.better_free(lane, presence.rank),
                }
            )
        return {
            "lanes": offers,
            "lease_ttl_s": self.policy.lease_ttl_s,
            "heartbeat_s": self.policy.heartbeat_s,
            "presence_s": self.policy.presence_s,
        }
