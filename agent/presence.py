"""Announcing this agent: what it is, can do and holds; the answer says what it may pull and by what times.

One round is `once()`; `service` drives it every `presence_s`, and at once after a connection or a change of state.
While nobody answers, nothing is pulled: claims would go unanswered too.
"""

import importlib.metadata
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import structlog
from pydantic import ValidationError

from agent import host, presence_facts
from agent.executors.registry import Registry
from agent.gate import Gate
from agent.leases import Leases
from agent.puller import Lanes
from agent.rule_watch import RuleWatch
from agent.settings import AgentSettings
from shared import subjects
from shared.bus import Bus, BusError, Denied
from shared.states import WorkerState
from shared.wire import Presence, PresenceAnswer, PresenceReply, RefusedPresence

_PATIENCE = 2
"""Announcements that may go unanswered before nothing is pulled any more."""

_log = structlog.get_logger()


class PresenceRounds:
    """Keeps the lanes and the gate up to date."""

    def __init__(
        self,
        bus: Bus,
        gate: Gate,
        leases: Leases,
        registry: Registry,
        lanes: Lanes,
        rules: RuleWatch,
        settings: AgentSettings,
        instance: str,
        *,
        on_answer: Callable[[PresenceReply], None],
    ) -> None:
        """`on_answer` hears every answer: its times are the coordinator's to set."""
        self._bus = bus
        self._gate = gate
        self._leases = leases
        self._registry = registry
        self._lanes = lanes
        self._rules = rules
        self._settings = settings
        self._data = Path(settings.data).expanduser()
        self._instance = instance
        self._on_answer = on_answer
        self._unanswered = 0
        self._denied = False  # and said once
        self._as_of: datetime | None = None
        self._version = importlib.metadata.version("tandem")
        self.announced: tuple[WorkerState, int] | None = None
        self.refused: str | None = None
        """Why the coordinator takes no announcement of this process; a reason of the gate."""

    async def once(self) -> None:
        """Announce, and take the answer; BusError when there is none."""
        if not self._bus.connected:
            self.announced = None  # what is announced next is news to whoever answers
            self._nobody()
            return
        facts = await presence_facts.facts(self._data)  # first: the rest must be of one instant
        capabilities = self._registry.capabilities()
        self.announced = (self._gate.state, len(capabilities))
        said = Presence(
            version=self._version,
            instance=self._instance,
            host=host.name(),
            platform=host.system(),
            slots=self._settings.slots,
            rank=self._rules.rank(self._settings.rank),
            state=self._gate.state,
            capabilities=capabilities,
            down=self._registry.down(),
            warm=self._registry.warm(),
            busy=self._leases.busy(),
            as_of=self._as_of,
            facts=facts
            | {"not_pulling": self._gate.why_not(once_answered=True), "probes": self._registry.probes()}
            | self._rules.facts(),
        )
        try:
            message = await self._bus.request(
                subjects.presence(self._settings.worker),
                said.model_dump_json().encode(),
                timeout_s=self._settings.presence_timeout_s,
            )
            reply = PresenceAnswer.validate_json(message.data)
        except (BusError, ValidationError) as error:
            if isinstance(error, Denied) and not self._denied:
                self._denied = True
                _log.error("the seed is not this worker's", worker=self._settings.worker, todo="tandem-agent doctor")
            self._nobody()
            raise
        if isinstance(reply, RefusedPresence):
            self._refused(reply)
        else:
            self._take(reply)

    def _refused(self, reply: RefusedPresence) -> None:
        if self.refused is None:
            _log.error("announcement refused; taking no work", code=reply.error.code, faults=reply.error.faults)
        self.refused = reply.error.code
        self._gate.changed()

    def _take(self, reply: PresenceReply) -> None:
        self._unanswered, self.refused, self._as_of = 0, None, reply.as_of
        offers = [offer for offer in reply.lanes if self._registry.serves(offer.kind, offer.slug)]
        if [o.consumer for o in offers] != [o.consumer for o in self._lanes.offers]:
            _log.info("lanes", consumers=[offer.consumer for offer in offers])
        self._lanes.offers = offers
        self._rules.offered(offers)
        self._lanes.lease_ttl_s = reply.lease_ttl_s
        if reply.state is not self._gate.wanted:
            _log.info("state wanted", state=reply.state)
        self._gate.wanted = reply.state
        self._gate.answered = True
        self._on_answer(reply)
        self._gate.changed()

    def _nobody(self) -> None:
        self._unanswered += 1
        if self._unanswered >= _PATIENCE and self._gate.answered:
            _log.warning("nobody answers presence; taking no work")
            self._gate.answered = False
        self._gate.changed()
