"""The dispatcher: keeps each lane's window in WORK topped up from the backlog in the ledger (DESIGN §3).

A lane has out only what its agents will take soon: their free slots and one second of recent claims, at least
`window_min`. So a million waiting jobs cost NATS nothing, and an urgent one waits behind few.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Dispatch, Withdraw
from coordinator.ledger.queries import LaneWork, Queries
from coordinator.workers import Directory

_log = structlog.get_logger()

_MOST_A_ROUND = 1000
_RATE_MEMORY_S = 1.0


@dataclass(slots=True)
class _Rate:
    """Claims a second, forgotten exponentially."""

    per_s: float = 0.0
    at: float = 0.0

    def count(self, now: float) -> None:
        self.per_s = self.value(now) + 1.0 / _RATE_MEMORY_S
        self.at = now

    def value(self, now: float) -> float:
        return self.per_s * math.exp(-(now - self.at) / _RATE_MEMORY_S)


@dataclass(slots=True)
class Dispatcher:
    """Offers what is due, in the order priority, run_after, id; makes offers anew that nobody took."""

    ledger: Ledger
    queries: Queries
    directory: Directory
    connected: Callable[[], bool]  # whether an offer could be sent now
    window_min: int
    unclaimed_s: float
    clock: Callable[[], float] = time.monotonic
    offered: int = 0
    unclaimed: int = 0  # offers made anew because a free agent left them lying
    _work: dict[str, LaneWork] = field(default_factory=dict)
    _paused: frozenset[str] = frozenset()
    _room: dict[str, int] = field(default_factory=dict)  # offers a lane may still take, where nothing waits
    _rates: dict[str, _Rate] = field(default_factory=dict)
    _looked_at: float = -math.inf
    _wake: Callable[[], None] = lambda: None

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Say how to start the next round early; `service.py` calls this once."""
        self._wake = wake

    def wake(self) -> None:
        """Start the next round now."""
        self._wake()

    # ---- what others ask

    def known(self) -> frozenset[str]:
        """Return every lane that has jobs now."""
        return frozenset(self._work)

    def waiting(self, lane: str) -> int:
        """Return about how many jobs of a lane wait."""
        work = self._work.get(lane)
        return work.waiting + work.offered if work else 0

    def is_paused(self, lane: str) -> bool:
        """Say whether an operator paused the lane."""
        return lane in self._paused

    def has_room(self, lane: str) -> bool:
        """Take one place in the lane's window if there is one and nothing waits before it."""
        if lane not in self._work:
            self._room.setdefault(lane, self.window_min)  # a lane that never was
        room = self._room.get(lane, 0)
        if room <= 0 or lane in self._paused or not self.connected():
            return False
        self._room[lane] = room - 1
        return True

    def claimed(self, lane: str) -> None:
        """Count a claim: it makes room."""
        self._rates.setdefault(lane, _Rate()).count(self.clock())
        work = self._work.get(lane)
        if work is not None and work.waiting:
            self._wake()
        elif lane in self._room:
            self._room[lane] += 1

    # ---- the round

    async def once(self) -> None:
        """Top up every lane's window; now and then look for offers that lie unclaimed."""
        if not self.connected():
            return
        self._paused = await self.queries.paused_lanes()
        work = {lane.lane: lane for lane in await self.queries.lanes_with_work()}
        self._room.clear()
        for lane, found in work.items():
            await self._top_up(lane, found)
        self._work = work
        if self.clock() - self._looked_at >= 1.0:
            self._looked_at = self.clock()
            await self._renew()

    async def _top_up(self, lane: str, work: LaneWork) -> None:
        if lane in self._paused:
            return
        room, free = self._window(lane) - work.offered, None
        if room <= 0 < work.waiting:
            free = list(self.directory.free(lane))  # what comes in beyond the window must be for one of these
            room += await self._out_of_reach(lane, frozenset(free))
        if room <= 0:
            return
        if not work.waiting:
            self._room[lane] = room
            return
        due = await self.queries.backlog(lane, min(room, _MOST_A_ROUND), free)
        if due:
            await self.ledger.do_what_can([Dispatch(job_id=job_id) for job_id in due])
            self.offered += len(due)
        if room > _MOST_A_ROUND and len(due) == _MOST_A_ROUND:
            self._wake()
        elif len(due) < room:
            self._room[lane] = room - len(due)

    async def _out_of_reach(self, lane: str, free: frozenset[str]) -> int:
        """Count offers that are for none of those who are free: they must not stand before one that is."""
        return await self.queries.offers_beyond(lane, free) if free else 0

    def _window(self, lane: str) -> int:
        rate = self._rates.get(lane)
        recent = math.ceil(rate.value(self.clock())) if rate else 0
        return max(self.window_min, self.directory.free_slots(lane) + recent)

    async def _renew(self) -> None:
        """Take back offers that lie though somebody is free: an agent that froze or died swallowed them (DESIGN §4)."""
        free: dict[str, int] = {}
        taken_back = []
        for offer in await self.queries.offers(self.unclaimed_s):
            left = free.setdefault(offer.lane, self.directory.free_slots(offer.lane))
            paused = offer.lane in self._paused
            if paused or (left > 0 and self.directory.free_slots(offer.lane, offer.excluded) > 0):
                free[offer.lane] = left - 1
                reason = "paused" if paused else "unclaimed"
                taken_back.append(Withdraw(job_id=offer.job_id, offered_at=offer.offered_at, reason=reason))
                self.unclaimed += not paused
                _log.info("offer taken back", job_id=str(offer.job_id), lane=offer.lane, reason=reason)
        if taken_back:
            await self.ledger.do_what_can(taken_back)
