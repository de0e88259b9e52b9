"""What the agent is told: revokes, verdicts, and an operator's orders (PROTOCOL, Take work 7).

Called inside the bus's read loop, so it only hands on. A message that can't be read is logged and dropped: there is
nobody to answer.
"""

import structlog
from pydantic import ValidationError

from agent.gate import Gate
from agent.leases import Leases, StopKind
from agent.reporter import Reporter
from shared.bus import Message
from shared.states import WorkerState
from shared.wire import ControlMessage, Revoke, VerdictMessage

_ORDERS = {"drain": WorkerState.DRAINING, "pause": WorkerState.PAUSED, "resume": WorkerState.READY}
_log = structlog.get_logger()


class Control:
    """Handles `tandem.control.<worker>`."""

    def __init__(self, leases: Leases, reporter: Reporter, gate: Gate, instance: str) -> None:
        """Those whom the messages are for; `instance` names this process."""
        self._leases = leases
        self._reporter = reporter
        self._gate = gate
        self._instance = instance

    def take(self, message: Message) -> None:
        """Hand one message on."""
        try:
            told = ControlMessage.validate_json(message.data)
        except ValidationError as error:
            _log.warning("control message can't be read", error=str(error)[:300])
            return
        if isinstance(told, VerdictMessage):
            self._reporter.resolve(told)
        elif isinstance(told, Revoke):
            attempt = self._leases.find(told.job_id, told.epoch)
            if attempt is not None and told.instance in (None, self._instance):
                _log.info("revoked", job_id=str(told.job_id), epoch=told.epoch, reason=told.reason)
                attempt.stop(StopKind.LOST, told.reason)
        else:
            _log.info("ordered", order=told.type)
            self._gate.order(_ORDERS[told.type])
