"""Lanes and their consumers: each consumer exists before anything is published to its subject."""

import asyncio

from shared.bus import Bus
from shared.streams import ensure_lane_consumer
from shared.subjects import Lane


class LaneConsumers:
    """Remembers which consumers are known to exist; forgets when the server may have lost them."""

    def __init__(self, bus: Bus, ack_wait_s: float) -> None:
        """`ack_wait_s` is the lease ttl."""
        self._bus = bus
        self._ack_wait_s = ack_wait_s
        self._known: set[str] = set()
        self._making = asyncio.Lock()

    async def ensure(self, lane: str) -> None:
        """Create the lane's consumer unless it is known to exist; BusError if the server does not answer."""
        if lane in self._known:
            return
        async with self._making:
            if lane not in self._known:
                await ensure_lane_consumer(self._bus, Lane(lane), ack_wait_s=self._ack_wait_s)
                self._known.add(lane)

    async def renew(self) -> None:
        """Make every known consumer again: the server may have lost its disk."""
        known, self._known = self._known, set()
        for lane in sorted(known):
            await self.ensure(lane)
