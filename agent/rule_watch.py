"""Holding this agent's rules against its machine, again and again: a change counts within one round, without a restart.

The rules are the settings' (`[rules]`, read again when the file changes) unless the coordinator says others in its
presence answer: an operator's word counts for more than the file, for as long as it is said. While a rule forbids
work the gate names its reason, so presence tells it; pulls that are open are withdrawn; running jobs go on, unless the
rule is one of `stops` and what it asks of the machine is known. One round is `once()`; `service` drives it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from agent.leases import Leases, StopKind
from agent.machine import read_machine
from shared.errors import ConfigurationError
from shared.rules import Forbidden, Reading, Rule, Rules, forbidden
from shared.wire import LaneOffer, faults_of

OVERFLOW_RANK: Final = 1
"""The rank of an agent that leaves work to others, unless its own is worse."""
_NOT_YET: Final = "rules_not_read"
_log = structlog.get_logger()


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class RuleWatch:
    """What the rules say now. `on_change` is called when that is something else than before."""

    own: Rules  # the settings'
    leases: Leases
    now: Callable[[], float]  # the clock that runs on in sleep
    on_change: Callable[[], None]
    read: Callable[[frozenset[Rule]], Awaitable[Reading]] = read_machine
    wall: Callable[[], datetime] = _utc_now
    reload: Callable[[], Rules | None] = lambda: None  # the file's, if it has changed
    fault: str = ""  # why what the coordinator said can't be followed
    _answered: bool = False  # before that nobody knows whose rules count
    _told: Rules | None = None
    _said: Mapping[str, Any] | None = None  # as the coordinator said it last
    _forbidden: Sequence[Forbidden] | None = None  # None: not looked yet
    _waiting_since: dict[str, float] = field(default_factory=dict)  # lanes in which work has waited ever since

    @property
    def rules(self) -> Rules:
        """The rules that count."""
        return self.own if self._told is None else self._told

    async def once(self) -> None:
        """Look at the file and the machine, and at running jobs that a rule gives back."""
        if (changed := self.reload()) is not None and changed != self.own:
            _log.info("rules changed", by="settings", rules=changed.said())
            self.own = changed
        rules = self.rules
        reading = await self.read(rules.asked())
        if rules is not self.rules:  # told others meanwhile; another round comes at once
            return
        found = forbidden(rules, reading, self.wall())
        before = self.reason()
        self._forbidden = found
        if self.reason() != before:
            _log.info("rules", forbids=self.reason(), why=[one.said for one in found])
            self.on_change()
        for one in found:
            if one.rule in rules.stops and self._answered and not one.reason.endswith("_unknown"):
                self._give_back(one)

    def reason(self) -> str | None:
        """Return why no work may be taken, in one word; None: no rule minds."""
        if self._forbidden is None:
            return _NOT_YET if self.rules.asked() else None
        return self._forbidden[0].reason if self._forbidden else None

    def told(self, said: Mapping[str, Any] | None) -> bool:
        """Take the coordinator's rules (None: it has none for this agent); True: they are new, so look now.

        Rules that can't be read change nothing, and presence says so: what a newer coordinator means by a word that is
        unknown here can't be guessed.
        """
        self._answered = True
        if said == self._said:
            return False
        self._said = said
        try:
            rules = None if said is None else Rules.model_validate(said)
        except ValidationError as error:
            self.fault = "; ".join(f"{fault.field}: {fault.message}" for fault in faults_of(error, "rules"))
            _log.warning("the coordinator's rules can't be followed", faults=self.fault)
            return False
        self.fault = ""
        _log.info("rules changed", by="coordinator", rules=None if rules is None else rules.said())
        self._told, self._forbidden = rules, None
        return True

    def rank(self, own: int) -> int:
        """Return the rank to pull with: one that leaves work to others has no better one than OVERFLOW_RANK."""
        return max(own, OVERFLOW_RANK) if self.rules.overflow else own

    def offered(self, offers: Sequence[LaneOffer]) -> None:
        """Note in which lanes work waits, as the presence answer has them."""
        now = self.now()
        waiting = {offer.consumer for offer in offers if offer.pending}
        self._waiting_since = {name: self._waiting_since.get(name, now) for name in waiting}

    def may_take(self, offer: LaneOffer) -> bool:
        """Say whether a lane is not left to others: they have no free slot for it, or its work has waited too long.

        A coordinator that does not say how many slots they have leaves it to the ranks of the pulls.
        """
        if not self.rules.overflow or not offer.better_free:
            return True
        since = self._waiting_since.get(offer.consumer)
        return since is not None and self.now() - since >= self.rules.overflow_after_s

    def facts(self) -> dict[str, object]:
        """Return what presence tells of the rules; empty when there is nothing to tell."""
        found: dict[str, object] = {}
        if shown := self.rules.said():
            found["rules"] = shown | {"by": "settings" if self._told is None else "coordinator"}
        if self._forbidden:
            found["forbidden"] = [one.said for one in self._forbidden]
        return found | ({"rules_fault": self.fault} if self.fault else {})

    def _give_back(self, why: Forbidden) -> None:
        for attempt in self.leases:
            if not attempt.delivering and not attempt.stopped.done():
                attempt.stop(StopKind.DRAIN, f"{why.reason}: {why.said}")


class RulesFile:
    """The rules in a settings file, read again when it has changed: what `RuleWatch.reload` calls."""

    def __init__(self, path: Path, load: Callable[[], Rules]) -> None:
        """`load` reads them from the file as it is; ConfigurationError if it can't be read now."""
        self._path = path
        self._load = load
        self._seen = self._stamp()

    def __call__(self) -> Rules | None:
        """Return the rules if the file has changed; one that can't be read leaves them as they are."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        self._seen = stamp
        try:
            return self._load()
        except ConfigurationError as error:
            _log.warning("changed settings can't be read; the rules stay", error=str(error))
            return None

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
