"""What follows a commit on the bus: offers, settlements, revokes, verdicts. The ledger hands them over, in order.

At most once by design: what is lost here (crash, link down) the reconciler, the outbox or the agent's own question
brings back. Nothing here decides anything.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import orjson
import structlog

from coordinator.lanes import LaneConsumers
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import (
    Announce,
    Effect,
    Offer,
    Offered,
    Postpone,
    Remove,
    Settle,
    Tell,
    TellVerdict,
    Wake,
    Withdraw,
)
from shared import subjects
from shared.bus import ApiError, Bus, BusError
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.streams import SUBJECT_TAKEN, last_message_seq, nak_seq, remove_message

_log = structlog.get_logger()

_UNSENT = (BusError, TypeError, ValueError)
"""NATS is away or refuses; or something that can't be sent got this far, which must not end the program."""


class Wakes(Protocol):
    """Something that can be told to look again at once."""

    def wake(self) -> None:
        """Start the next round now."""


@dataclass(slots=True)
class Effects:
    """Carries effects out; `take` is the ledger's `on_effects`."""

    bus: Bus
    lanes: LaneConsumers
    tasks: asyncio.TaskGroup
    lost: int = 0  # effects that could not be carried out; the reconciler's work
    _batches: asyncio.Queue[Sequence[Effect]] = field(default_factory=asyncio.Queue)
    _under_way: int = 0  # batches not yet carried out whole
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _ledger: Ledger | None = None
    _dispatcher: Wakes | None = None
    _results: Wakes | None = None
    _reconciler: Wakes | None = None

    def connect(self, ledger: Ledger, *, dispatcher: Wakes, results: Wakes, reconciler: Wakes) -> None:
        """Say whom effects lead back to; `service.py` calls this once."""
        self._ledger, self._dispatcher, self._results, self._reconciler = ledger, dispatcher, results, reconciler

    def take(self, effects: Sequence[Effect]) -> None:
        """Queue the effects of one commit."""
        self._under_way += 1
        self._idle.clear()
        self._batches.put_nowait(effects)

    @property
    def idle(self) -> bool:
        """Whether everything handed over so far was carried out, or lost."""
        return not self._under_way

    async def wait_idle(self) -> None:
        """Wait until everything handed over was carried out, or lost."""
        while self._under_way:
            await self._idle.wait()

    def _carried_out(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    async def run(self) -> None:
        """Carry out batch after batch until cancelled."""
        while True:
            effects = await self._batches.get()
            offers: list[Offer] = []
            removals: list[Remove] = []
            for effect in effects:
                match effect:
                    case Offer():
                        offers.append(effect)
                    case Remove():
                        removals.append(effect)
                    case Wake():
                        self._wake(self._dispatcher)
                    case Announce():
                        self._wake(self._results)
                    case Settle() | Postpone() | Tell() | TellVerdict():
                        await self._send(effect)
                    case _:
                        assert_never(effect)
            if offers or removals:
                self.tasks.create_task(self._offer_and_remove(offers, removals), name="offers")
            else:
                self._carried_out()

    async def _send(self, effect: Settle | Postpone | Tell | TellVerdict) -> None:
        try:
            match effect:
                case Settle(lane, seq):
                    reach(Failpoint.DELIVERY_UNSETTLED)
                    await self.bus.publish(subjects.ack_of(lane, seq), b"+ACK")
                case Postpone(delivery, delay_s):
                    await self.bus.nak(delivery, delay_s)
                case Tell() | TellVerdict():
                    reach(Failpoint.VERDICT_UNTOLD)
                    await self.bus.publish(subjects.control(effect.worker), control_message(effect))
        except _UNSENT as error:
            self._missed(effect, error)

    async def _offer_and_remove(self, offers: list[Offer], removals: list[Remove]) -> None:
        try:
            await self._offer_all(offers, removals)
        finally:
            self._carried_out()

    async def _offer_all(self, offers: list[Offer], removals: list[Remove]) -> None:
        done = await asyncio.gather(*(self._remove(r.seq) for r in removals), *(self.offer(o) for o in offers))
        noted = [command for command in done if command is not None]
        if noted and self._ledger is not None:
            try:
                await self._ledger.do_what_can(noted)
            except LedgerDownError as error:
                self._missed(noted[0], error)

    async def _remove(self, seq: int) -> Offered | Withdraw | None:
        reach(Failpoint.OFFER_UNREMOVED)
        try:
            await remove_message(self.bus, "WORK", seq)
        except _UNSENT as error:
            self._missed(Remove(seq), error)
        return None

    async def offer(self, offer: Offer) -> Offered | Withdraw:
        """Offer, as one operation (rules 3 and 4): the older message is gone for sure before the new one comes.

        Returns what the ledger must know: where the offer lies, or that it was not sent, or perhaps not.
        """
        subject = subjects.work(offer.lane, offer.job_id)
        body = orjson.dumps({"job_id": str(offer.job_id), "kind": offer.kind, "model": offer.model})
        try:
            await self.lanes.ensure(offer.lane)
            reach(Failpoint.LANE_MADE)
            if offer.remove_seq:
                await remove_message(self.bus, "WORK", offer.remove_seq)
                reach(Failpoint.OLD_OFFER_REMOVED)
            seq = await self._publish(offer, subject, body)
            reach(Failpoint.OFFER_UNNOTED)
        except _UNSENT as error:
            self._missed(offer, error)
            return Withdraw(job_id=offer.job_id, offered_at=offer.offered_at, reason="unsent")
        return Offered(job_id=offer.job_id, seq=seq)

    async def _publish(self, offer: Offer, subject: str, body: bytes) -> int:
        """Return the sequence under which the offer lies; one that was there already is made available again."""
        try:
            return (await self.bus.js_publish(subject, body)).seq
        except ApiError as error:
            if error.err_code != SUBJECT_TAKEN:
                raise
        seq = await last_message_seq(self.bus, subject)
        if seq is None:  # taken away between the refusal and the look
            return (await self.bus.js_publish(subject, body)).seq
        await nak_seq(self.bus, subjects.consumer_of(offer.lane), seq)
        return seq

    def _missed(self, effect: object, error: Exception) -> None:
        self.lost += 1
        if self.lost & (self.lost - 1) == 0:  # an outage must not fill the log
            _log.warning("effect lost", effect=type(effect).__name__, error=str(error), lost=self.lost)
        self._wake(self._reconciler)

    @staticmethod
    def _wake(who: Wakes | None) -> None:
        if who is not None:
            who.wake()


def control_message(effect: Tell | TellVerdict, *, instance: str | None = None) -> bytes:
    """Return the body of a control message (PROTOCOL, Take work, 7); `instance`: the only process to obey a revoke."""
    body = {"job_id": str(effect.job_id), "epoch": effect.epoch, "reason": effect.reason}
    if isinstance(effect, Tell):
        return orjson.dumps({"type": "revoke", **body, **({"instance": instance} if instance else {})})
    return orjson.dumps({"type": "verdict", "verdict": effect.verdict, **body})
