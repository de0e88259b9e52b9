"""The reaper: ends leases that are over. It stands still while the coordinator can't hear heartbeats."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Command, Done, Expire, Grace, SetBack
from coordinator.ledger.queries import Queries
from shared.bus import Bus
from shared.errors import LedgerDownError

_log = structlog.get_logger()

_BATCH = 500

_SET_BACK = timedelta(seconds=1)
"""Smaller steps of the ledger's clock are let be."""


@dataclass(slots=True)
class Reaper:
    """Each round, every lease that is over ends; after blindness, every live one gets a full ttl first."""

    bus: Bus
    ledger: Ledger
    queries: Queries
    expired: int = 0
    reaches_ledger: bool = True  # as the last round found it
    set_back: int = 0  # times that the ledger's clock was found set back
    _now: datetime | None = None  # the ledger's clock when it was last looked at
    _seen: int = 0  # the bus connection whose leases got their grace; 0 = none yet

    @property
    def graced(self) -> bool:
        """Whether the leases had their grace since this coordinator was last blind."""
        return self._seen == self.bus.connections

    async def once(self) -> None:
        """Expire what is over. A lease that can't be handled does not stand before those behind it."""
        if not self.bus.connected:
            return
        try:
            await self._expire()
            self.reaches_ledger = True
        except LedgerDownError:
            self.reaches_ledger = False
            self._seen = 0  # no beat was written meanwhile: grace first, once it is back
            raise

    async def _expire(self) -> None:
        now = await self.queries.now()
        if self._now is not None and now < self._now - _SET_BACK:
            self.set_back += 1
            self._seen = 0
            _log.warning("the ledger's clock was set back", seconds=(self._now - now).total_seconds())
        self._now = now
        if not self.graced:
            connection = self.bus.connections
            await self.grace()
            self._seen = connection
        after = None
        while ids := await self.queries.expired(_BATCH, after):
            commands = [Expire(job_id=i, jitter=random.uniform(-1, 1)) for i in ids]  # noqa: S311 - spreads retries
            self.expired += await self._each(commands)
            after = ids[-1]

    async def grace(self) -> None:
        """Give every live lease a full ttl: nobody heard the beats of the time before, or time was another.

        What only seems not to be due any more, since the clock was set back, is due.
        """
        held = await self.queries.processing_ids()
        await self._each([Grace(job_id=job_id) for job_id in held])
        if held:
            _log.info("leases got grace", leases=len(held))
        while ahead := await self.queries.ahead(_BATCH):
            if not await self._each([SetBack(job_id=job_id) for job_id in ahead]):
                break  # others were faster, or these can't be handled

    async def _each(self, commands: Sequence[Command]) -> int:
        """Carry commands out, and return how many did something. One that can't be does not stop the others."""
        return sum(isinstance(answer, Done) for answer in await self.ledger.do_what_can(commands))
