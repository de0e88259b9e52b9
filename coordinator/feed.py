"""The live feed: what just changed, on `tandem.event.<job_id>.<type>`; best effort, for pages and monitors.

Types: the job's new state, or `stage`. Whoever needs the truth asks the ledger; a lost event loses nothing.
"""

import asyncio
from dataclasses import dataclass, field

import orjson
import structlog

from coordinator.ledger.model import Job
from shared import subjects
from shared.bus import Bus, BusError

_log = structlog.get_logger()

_MOST_WAITING = 10_000


@dataclass(slots=True)
class Feed:
    """Takes each change right after its commit; `changed` is the ledger's `on_changes`."""

    bus: Bus
    _events: asyncio.Queue[tuple[str, bytes]] = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))

    def changed(self, before: Job | None, after: Job) -> None:
        """Note one change; dropped while too many wait."""
        stage = after.last.stage if after.last else None
        if before is None or before.state is not after.state:
            kind = str(after.state)
        elif stage != (before.last.stage if before.last else None):
            kind = "stage"
        else:
            return
        body = {
            "job_id": str(after.id),
            "type": kind,
            "source": after.source,
            "epoch": after.epoch,
            "worker": after.worker,
            "stage": stage,
        }
        if not self._events.full():
            self._events.put_nowait((subjects.event(after.id, kind), orjson.dumps(body)))

    async def run(self) -> None:
        """Publish event after event until cancelled."""
        while True:
            subject, body = await self._events.get()
            try:
                await self.bus.publish(subject, body)
            except BusError:
                _log.debug("event lost", subject=subject)
