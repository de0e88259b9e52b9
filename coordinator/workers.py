"""Who the agents are: what they announced, who is authenticated as whom, what an operator wants of them.

The server's permissions tie `tandem.claim.<w>`, `.lease.<w>`, `.presence.<w>` and `.report.<w>.>` to one user each,
and stamp the sender on the first three. So the sender of a presence is that worker's, and a heartbeat, which any
agent may send, is held against it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from coordinator.ledger.queries import Queries, WorkerRow
from coordinator.placement import Standing
from coordinator.quarantine import EMPTY_CODES, Rules, SetAside, set_aside
from shared import subjects
from shared.errors import LedgerDownError
from shared.states import WorkerState
from shared.wire import Capability, Presence

_log = structlog.get_logger()

MISSED_ROUNDS = 3
"""Presence rounds without a word after which a worker counts as away."""


@dataclass(slots=True)
class Directory:
    """The workers as the ledger has them, read anew every round; shared by all coordinators through the ledger."""

    queries: Queries
    presence_s: float
    rules: Rules = field(default_factory=Rules)
    aside: dict[tuple[str, str], SetAside] = field(default_factory=dict)  # by worker and lane
    rows: dict[str, WorkerRow] = field(default_factory=dict)
    hearing: Callable[[], int] = lambda: 1  # which connection to NATS hears the workers; 0 = none
    foreign: int = 0  # messages whose sender was not the worker named in them
    _sender: dict[str, str] = field(default_factory=dict)  # authenticated user -> worker
    _learning: asyncio.Lock = field(default_factory=asyncio.Lock)
    _heard_by: int = 0
    _heard_from: datetime | None = None  # by the ledger's clock; None: nobody is heard now

    async def once(self) -> None:
        """Read the workers, and who is set aside."""
        await self._read()
        await self._set_aside()

    async def _read(self) -> None:
        try:
            connection = self.hearing()
            if connection != self._heard_by:
                self._heard_from = await self.queries.now() if connection else None
                self._heard_by = connection
            rows = await self.queries.workers()
        except LedgerDownError:  # what is heard can't be written down
            self._heard_by, self._heard_from = 0, None
            raise
        self.rows = {row.name: row for row in rows}
        for row in self.rows.values():
            if row.nkey is not None:
                self._sender.setdefault(row.nkey, row.name)

    async def _set_aside(self) -> None:
        rules = self.rules
        streaks = await self.queries.streaks(
            within_s=rules.within_s,
            attempts=rules.attempts,
            failures=rules.failures,
            empty=EMPTY_CODES,
            recently_s=rules.recently_s,
        )
        found = set_aside(streaks, self.rows, rules, executors=_executors, able=self._able)
        for worker, lane in found.keys() - self.aside.keys():
            _log.warning("worker set aside", worker=worker, lane=lane, reason=found[worker, lane].reason)
        for worker, lane in self.aside.keys() - found.keys():
            _log.info("worker let back", worker=worker, lane=lane)
        self.aside = found

    async def is_sender(self, sender: str | None, worker: str, *, learn: bool = False) -> bool:
        """Say whether the authenticated `sender` is `worker`'s.

        `learn`: the message came on a subject that only this worker may use, so an unknown sender is this worker's.
        """
        if sender is None:
            return self._foreign(sender, worker)
        known = self._sender.get(sender)
        if known is None:
            known = await self._look_up(sender, worker, learn=learn)
        return known == worker or self._foreign(sender, worker)

    async def _look_up(self, sender: str, worker: str, *, learn: bool) -> str | None:
        async with self._learning:
            if sender in self._sender:
                return self._sender[sender]
            if learn:
                await self.queries.save_sender(worker, sender)
                self._sender[sender] = worker
            else:
                await self._read()  # another coordinator may have met it
            return self._sender.get(sender)

    def _foreign(self, sender: str | None, worker: str) -> bool:
        self.foreign += 1
        _log.warning("sender is not the worker named", sender=sender, worker=worker)
        return False

    def saw(self, row: WorkerRow) -> None:
        """Take a presence into account before the next reading."""
        self.rows[row.name] = row

    def instance_of(self, worker: str) -> str | None:
        """Return the process that last announced itself as this worker."""
        row = self.rows.get(worker)
        return row.presence.instance if row and row.presence else None

    def worker_of(self, sender: str) -> str | None:
        """Return the worker that an authenticated user is known as."""
        return self._sender.get(sender)

    def may_take(self, worker: str, instance: str | None) -> bool:
        """Say whether an operator lets this worker take new jobs, and this process of it was not replaced."""
        row = self.rows.get(worker)
        return row is None or (row.wanted is WorkerState.READY and instance not in row.retired)

    def is_aside(self, worker: str, lane: str) -> bool:
        """Say whether a worker gets nothing from a lane for now: it failed there again and again."""
        return (worker, lane) in self.aside

    def aside_of(self, worker: str) -> list[dict[str, Any]]:
        """Return the lanes that a worker gets nothing from for now, each with the reason."""
        return [one.shown() for (name, _), one in sorted(self.aside.items()) if name == worker]

    def capable(self, lane: str) -> frozenset[str]:
        """Return the workers, present or known, that serve a lane.

        Those set aside too, and those whose backend is down: they come back.
        """
        return frozenset(row.name for row in self.rows.values() if row.presence and will_serve(row.presence, lane))

    def free_slots(self, lane: str, excluded: frozenset[str] = frozenset()) -> int:
        """Return how many jobs of a lane its present, ready workers could start now."""
        return sum(free for name, free in self.free(lane).items() if name not in excluded)

    def free(self, lane: str) -> dict[str, int]:
        """Return the workers that could start a job of a lane now, with the number of their free slots."""
        found = {}
        for row in self.rows.values():
            said = row.presence
            if said is None or (row.name, lane) in self.aside:
                continue
            slots = said.slots - len(said.busy)
            if slots > 0 and self.is_ready(row) and serves(said, lane):
                found[row.name] = slots
        return found

    def better_free(self, lane: str, rank: int) -> int:
        """Return how many jobs of a lane the workers of a better rank than this could start now."""
        ranks = {name: row.presence.rank for name, row in self.rows.items() if row.presence}
        return sum(free for name, free in self.free(lane).items() if ranks[name] < rank)

    def standing(self, lane: str, excluded: frozenset[str] = frozenset(), /) -> Standing:
        """Return what the jobs of a lane can expect of all workers but `excluded`."""
        capable = self.capable(lane) - excluded
        able = [row for name in capable if serves_now(row := self.rows[name], lane) and not self.is_aside(name, lane)]
        if any(self.is_ready(row) or self.is_expected(row) for row in able):
            return Standing.PRESENT
        return Standing.KNOWN if capable else Standing.NOBODY

    def is_present(self, row: WorkerRow) -> bool:
        """Say whether a worker was heard of lately."""
        return row.age_s < MISSED_ROUNDS * self.presence_s

    def is_expected(self, row: WorkerRow) -> bool:
        """Say whether a worker that took work when it was last heard of had no time yet to be heard again.

        After NATS, Postgres or all coordinators were away, everyone's silence is ours: no job moves because of it.
        """
        if row.seen_at is None or not self._takes_work(row):
            return False
        if self._heard_from is None:
            return True
        heard_s = row.age_s - (self._heard_from - row.seen_at).total_seconds()
        return row.seen_at < self._heard_from and heard_s < MISSED_ROUNDS * self.presence_s

    def is_ready(self, row: WorkerRow) -> bool:
        """Say whether a worker is present and takes work, by its own word and by the operator's."""
        return self.is_present(row) and self._takes_work(row)

    def _takes_work(self, row: WorkerRow) -> bool:
        said = row.presence
        if said is None or said.facts.get("not_pulling"):
            return False
        return said.state is row.wanted is WorkerState.READY

    def _able(self, lane: str) -> frozenset[str]:
        return frozenset(row.name for row in self.rows.values() if serves_now(row, lane) and self.is_ready(row))

    def kinds(self) -> frozenset[str]:
        """Return every kind that a known worker can do."""
        said = [row.presence for row in self.rows.values() if row.presence]
        return frozenset(c.kind for presence in said for c in (*presence.capabilities, *presence.down))


def serves(presence: Presence, lane: str) -> bool:
    """Say whether an agent with these capabilities runs jobs of a lane; `*` serves every model and `any`."""
    return any(True for _ in _serving(presence.capabilities, lane))


def will_serve(presence: Presence, lane: str) -> bool:
    """Say whether it does, or will when a backend of its that is down is back."""
    return any(True for _ in _serving((*presence.capabilities, *presence.down), lane))


def serves_now(row: WorkerRow, lane: str) -> bool:
    """Say whether a worker could run jobs of a lane when it was last heard of."""
    return row.presence is not None and serves(row.presence, lane)


def _serving(capabilities: Iterable[Capability], lane: str) -> Iterator[Capability]:
    kind, _, slug = lane.partition(".")
    for capability in capabilities:
        if capability.kind == kind and (
            slug == subjects.ANY or any(model == "*" or subjects.slug(model) == slug for model in capability.models)
        ):
            yield capability


def _executors(row: WorkerRow, lane: str) -> list[str]:
    return [capability.executor for capability in _serving(row.presence.capabilities, lane)] if row.presence else []


def lanes_of(presence: Presence, known: frozenset[str]) -> list[str]:
    """Return the lanes an agent may pull from: those of its models, `any`, and with `*` every known one of the kind."""
    lanes: dict[str, None] = {}
    for capability in presence.capabilities:
        for model in capability.models:
            if model == "*":
                lanes.update(dict.fromkeys(sorted(lane for lane in known if lane.startswith(f"{capability.kind}."))))
            else:
                lanes[subjects.lane_of(capability.kind, model)] = None
        lanes[subjects.lane_of(capability.kind, None)] = None
    return list(lanes)
