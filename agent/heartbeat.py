"""Heartbeats and deadlines of everything that is held, in one loop (driven by `service`).

A heartbeat is exactly `+WPI` on the delivery's reply subject, with headers (PROTOCOL, Take work 4): every
`heartbeat_s`, and half a second after the start and each new stage, but not more than one a second for a job. It is
one-way: a transport that fails is tried again in a second, and says nothing about the lease. One is in flight at a
time.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from agent.leases import Attempt, Leases, StopKind
from shared.bus import BusError

BODY = b"+WPI"
DETAIL_MOST = 200
_LEAST_GAP_S = 1.0
_SETTLE_S = 0.5
"""A start or stage is told when it has lasted so long: a job of a few milliseconds costs no heartbeat."""

_SEND_LIMIT_S = 5.0
_log = structlog.get_logger()


class Publish(Protocol):
    """How a heartbeat gets out: `Bus.publish`."""

    async def __call__(self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None) -> None:
        """Send one message; BusError when it can't be."""


class Heartbeats:
    """Look at every attempt, round by round: is its deadline over, is a heartbeat due."""

    def __init__(self, publish: Publish, leases: Leases, worker: str, instance: str, now: Callable[[], float]) -> None:
        """`publish` is the bus's; `instance` names this process; `now` is the clock that runs on in sleep."""
        self._publish = publish
        self._leases = leases
        self._worker = worker
        self._instance = instance
        self._now = now
        self._failing = False

    async def once(self) -> int:
        """Stop what is past its deadline, send what is due; return how many heartbeats were sent."""
        sent = 0
        for attempt in self._leases:
            if self._now() >= attempt.deadline_at and not attempt.delivering:
                attempt.stop(StopKind.DEADLINE, "ran past its deadline")
        for attempt in self._leases:
            if self._due(attempt) and await self._send(attempt):
                sent += 1
        return sent

    def _due(self, attempt: Attempt) -> bool:
        if not attempt.delivery or attempt.lost.done() or self._leases.find(*attempt.key) is not attempt:
            return False
        now = self._now()
        if now - attempt.sent_at < min(_LEAST_GAP_S, attempt.heartbeat_s):
            return False
        if attempt.changed_at is not None and now - attempt.changed_at >= min(_SETTLE_S, attempt.heartbeat_s):
            return True
        return now - max(attempt.sent_at, attempt.started_at) >= attempt.heartbeat_s

    async def _send(self, attempt: Attempt) -> bool:
        attempt.sent_at, attempt.changed_at = self._now(), None
        try:
            async with asyncio.timeout(_SEND_LIMIT_S):
                await self._publish(attempt.delivery, BODY, headers=headers_of(attempt, self._worker, self._instance))
        except (BusError, TimeoutError) as error:
            attempt.changed_at = float("-inf")  # again in a second: the lease may be short of time
            if not self._failing:
                _log.info("heartbeats do not get out", error=str(error)[:200])
            self._failing = True
            return False
        self._failing = False
        return True


def headers_of(attempt: Attempt, worker: str, instance: str) -> dict[str, str]:
    """Return the headers that tell the ledger what this attempt is doing."""
    headers = {
        "Tandem-Job": str(attempt.job_id),
        "Tandem-Epoch": str(attempt.epoch),
        "Tandem-Worker": worker,
        "Tandem-Instance": instance,
        "Tandem-Stage": attempt.stage_name or "starting",
        "Tandem-Elapsed": f"{attempt.elapsed_s():.1f}",
    }
    if attempt.fraction is not None:
        headers["Tandem-Progress"] = f"{attempt.fraction:.3f}"
    if attempt.note:
        headers["Tandem-Detail"] = "".join(c if c.isprintable() else " " for c in attempt.note[:DETAIL_MOST]).strip()
    return headers
