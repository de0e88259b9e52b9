"""Departures: a process that is gone gives up its leases at once, instead of when they run out (DESIGN §4).

When a process dies its machine closes its connection, and the server says so: `Client Closed`. A machine that sleeps
or lost its link says nothing; the server then drops it as a `Stale Connection`, and its leases wait for their ttl, for
it may still be at work. A process that only made its connection anew speaks again within `grace_s`.

This only makes takeovers faster: with an event missed, or nobody to hear it, the lease runs out. So whatever could make
a living process look silent here (a ledger that was away, a coordinator that stood still) drops what was heard.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import orjson
import structlog

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Depart, Done
from coordinator.ledger.queries import Queries
from coordinator.workers import Directory
from shared.bus import Bus, Denied, Message, Subscription
from shared.errors import LedgerDownError

_log = structlog.get_logger()

SUBJECT = "$SYS.ACCOUNT.AGENTS.DISCONNECT"
_GONE = "Client Closed"

ROUND_S = 0.25

_IN_FLIGHT = 0.1
"""Heartbeats that were on their way when the connection ended are written after it: in this part of the grace they
prove nothing. An announcement always does: a process makes one as soon as it has a new connection.
"""

_LATE_ROUNDS = 4
"""Rounds by which this may be late before it must be thought of as having stood still itself."""

_MOST_WAITING = 4096


@dataclass(slots=True)
class Departures:
    """Hears which connections end; `once` ends the leases of processes that did not come back."""

    watcher: Bus  # in the server's system account
    ledger: Ledger
    queries: Queries
    directory: Directory
    hearing: Callable[[], bool]  # whether this coordinator hears heartbeats, and leases had their grace
    grace_s: float
    clock: Callable[[], float] = time.monotonic
    ended: int = 0  # leases ended because their process was gone
    _closed: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """(worker, instance) -> when its connection ended, and when to look."""

    async def subscribe(self) -> list[Subscription]:
        """Start hearing. Every coordinator hears all: the ledger decides once, and one may die meanwhile."""
        try:
            return [await self.watcher.subscribe(SUBJECT, self._on_disconnect)]
        except Denied as error:
            _log.warning("may not hear disconnects: leases of dead processes wait for their ttl", error=str(error))
            return []

    def _on_disconnect(self, message: Message) -> None:
        process = self._process(message.data)
        if process is not None and len(self._closed) < _MOST_WAITING:
            self._closed[process] = (now := self.clock(), now + self.grace_s)
            _log.info("connection closed", worker=process[0], instance=process[1])

    def _process(self, data: bytes) -> tuple[str, str] | None:
        """Return which process it was; None for a silent link, or a connection that is no agent's own.

        The user is authenticated, the name is not: `agent-<worker>-<instance>` counts only for that user's worker.
        """
        try:
            event = orjson.loads(data)
            client, reason = event["client"], event["reason"]
            user, name = client["user"], client["name"]
        except (ValueError, KeyError, TypeError):
            return None
        worker = self.directory.worker_of(user) if isinstance(user, str) else None
        if worker is None or reason != _GONE or not isinstance(name, str):
            return None
        instance = name.removeprefix(f"agent-{worker}-")
        return (worker, instance) if instance != name else None

    async def once(self) -> None:
        """End the leases of every process whose time to come back is over."""
        now = self.clock()
        due = [process for process, (_, at) in self._closed.items() if at <= now]
        if not due:
            return
        if not self.hearing():
            self._closed.clear()
            return
        for process in due:
            closed_at, at = self._closed.pop(process)
            if now - at > _LATE_ROUNDS * ROUND_S:  # first what came meanwhile must be heard
                self._closed[process] = (closed_at, now + self.grace_s)
                continue
            try:
                await self._depart(*process, closed_at=closed_at)
            except LedgerDownError:
                self._closed.clear()  # nobody's heartbeats are written now
                raise

    async def _depart(self, worker: str, instance: str, *, closed_at: float) -> None:
        """End what this process holds if it was not heard of since its connection ended."""
        ended_at = await self.queries.now() - timedelta(seconds=self.clock() - closed_at)  # or a little before
        held = await self.queries.held_by_silent(worker, instance, ended_at)
        since = ended_at + timedelta(seconds=self.grace_s * _IN_FLIGHT)
        commands = [Depart(job_id=j, worker=worker, instance=instance, since=since) for j in held]
        self.ended += sum(isinstance(answer, Done) for answer in await self.ledger.do_what_can(commands))
