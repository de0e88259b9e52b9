"""Draining: running jobs may go on for a while, then they are given back.

Called by the gate at each change. It takes no work away that is already done: what waits in the spool is delivered,
now or by the next process.
"""

import asyncio
from dataclasses import dataclass

import structlog

from agent.gate import Gate
from agent.leases import Leases, StopKind
from shared.states import WorkerState

_log = structlog.get_logger()


@dataclass(slots=True)
class Drain:
    """Watches the gate: a drain starts the limit, a resume ends it."""

    gate: Gate
    leases: Leases
    limit_s: float
    _timer: asyncio.TimerHandle | None = None

    def gate_changed(self) -> None:
        """Start or end the limit."""
        draining = self.gate.state is WorkerState.DRAINING
        if draining and self._timer is None:
            _log.info("draining", held=len(self.leases), limit_s=self.limit_s)
            self._timer = asyncio.get_running_loop().call_later(self.limit_s, self.release)
        elif not draining and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        """Stop every generator; their jobs are reported as released."""
        for attempt in self.leases:
            if not attempt.delivering:
                attempt.stop(StopKind.DRAIN, "this agent is draining")

    def close(self) -> None:
        """Forget the limit."""
        if self._timer is not None:
            self._timer.cancel()
