"""The reconciler: the net under everything (rule 12). It holds WORK against the ledger and mends what differs.

It reads the stream first and the ledger second, and acts on a job only after looking at both again. It counts what it
mends: a count above zero in a healthy run is a bug. It also makes streams anew after NATS lost its disk.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from coordinator.lanes import LaneConsumers
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Done, Offered, Withdraw
from coordinator.ledger.queries import OfferRow, Queries
from shared import subjects
from shared.bus import Bus
from shared.failpoints import Failpoint, reach
from shared.states import JobState
from shared.streams import last_message_seq, remove_message, work_subjects

_log = structlog.get_logger()

IN_FLIGHT_S = 6.0
"""Younger offers are left alone: their publish, or its answer, may still be on the way (publish timeout 5 s)."""

SETTLING_S = 1.0
"""Settlements are one-way: a message that was just settled may still be listed. So look again after this."""

_CONCURRENCY = 64


@dataclass(slots=True)
class Mended:
    """What was found and mended since the start."""

    missing: int = 0  # pending and offered, but no message
    unrecorded: int = 0  # a message whose sequence the ledger did not know
    orphaned: int = 0  # a message whose job wants none
    streams: int = 0  # streams made anew


@dataclass(slots=True)
class Reconciler:
    """Each round WORK is what the ledger says it should be."""

    bus: Bus
    ledger: Ledger
    queries: Queries
    lanes: LaneConsumers
    provision: Callable[[], Awaitable[list[str]]]
    mended: Mended = field(default_factory=Mended)
    seen: int = 0  # the bus connection on which the streams were last looked at

    async def once(self) -> None:
        """Look at everything once; raises BusError or LedgerDownError when one of the two fails meanwhile."""
        if not self.bus.connected:
            return
        if self.bus.connections != self.seen:
            connection = self.bus.connections
            self.mended.streams += len(await self.provision())
            reach(Failpoint.LANES_UNRENEWED)
            await self.lanes.renew()
            self.seen = connection
        present = await self._present()
        offers = await self.queries.offers(IN_FLIGHT_S)
        await _each([self._missing(offer) for offer in offers if offer.job_id not in present])
        await self._surplus(present, {offer.job_id for offer in offers})

    async def _present(self) -> dict[UUID, str]:
        """Return WORK's subjects by job; a message on one that names no job is nobody's, and goes."""
        present = {}
        for subject in await work_subjects(self.bus):
            try:
                present[subjects.job_of_work(subject)] = subject
            except ValueError:
                seq = await last_message_seq(self.bus, subject)
                if seq is not None and await remove_message(self.bus, "WORK", seq):
                    self.mended.orphaned += 1
                    _log.warning("message of no job", subject=subject, seq=seq)
        return present

    async def _missing(self, offer: OfferRow) -> None:
        """Look again for an offer's message; if it is not there, take the offer back, so that it is made anew."""
        if await last_message_seq(self.bus, subjects.work(offer.lane, offer.job_id)) is not None:
            return
        answer = await self.ledger.do(Withdraw(job_id=offer.job_id, offered_at=offer.offered_at, reason="missing"))
        if isinstance(answer, Done):
            self.mended.missing += 1
            _log.warning("offer without a message", job_id=str(offer.job_id), lane=offer.lane)

    async def _surplus(self, present: dict[UUID, str], settled_down: set[UUID]) -> None:
        """Mend messages that the ledger does not expect, or whose place it never noted (`settled_down`: old offers)."""
        rows = await self.queries.jobs_light(list(present))
        orphans, unrecorded = [], []
        for job_id, subject in present.items():
            row = rows.get(job_id)
            offered = row is not None and row.state is JobState.PENDING and row.offered_at is not None
            if not offered and (row is None or row.state is not JobState.PROCESSING):
                orphans.append((job_id, subject))
            elif job_id in settled_down and row is not None and offered and row.offered_seq <= row.spent_seq:
                unrecorded.append((job_id, subject))
        if orphans:
            await asyncio.sleep(SETTLING_S)
        await _each([*(self._orphan(*one) for one in orphans), *(self._unrecorded(*one) for one in unrecorded)])

    async def _orphan(self, job_id: UUID, subject: str) -> None:
        seq = await last_message_seq(self.bus, subject)
        row = (await self.queries.jobs_light([job_id])).get(job_id)
        wanted = row is not None and (row.offered_at is not None or row.state is JobState.PROCESSING)
        if seq is None or wanted:
            return
        if await remove_message(self.bus, "WORK", seq):
            self.mended.orphaned += 1
            _log.warning("message without an offer", job_id=str(job_id), seq=seq)

    async def _unrecorded(self, job_id: UUID, subject: str) -> None:
        seq = await last_message_seq(self.bus, subject)
        if seq is not None and isinstance(await self.ledger.do(Offered(job_id=job_id, seq=seq)), Done):
            self.mended.unrecorded += 1


async def _each(work: Sequence[Awaitable[None]]) -> None:
    """Run all, a bounded number at once; the first error ends the round."""
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def one(item: Awaitable[None]) -> None:
        async with gate:
            await item

    await asyncio.gather(*(one(item) for item in work))
