"""Who the agents are: what they announced, who is authenticated as whom, what an operator wants of them.

The server's permissions tie `tandem.claim.<w>`, `.lease.<w>`, `.presence.<w>` and `.report.<w>.>` to one user each,
and stamp the sender on the first three. So the sender of a presence is that worker's, and a heartbeat, which any
agent may send, is held against it.
"""

import asyncio
from dataclasses import dataclass, field

import structlog

from coordinator.ledger.queries import Queries, WorkerRow
from shared import subjects
from shared.states import WorkerState
from shared.wire import Presence

_log = structlog.get_logger()

MISSED_ROUNDS = 3
"""Presence rounds without a word after which a worker counts as away."""


@dataclass(slots=True)
class Directory:
    """The workers as the ledger has them, read anew every round; shared by all coordinators through the ledger."""

    queries: Queries
    presence_s: float
    rows: dict[str, WorkerRow] = field(default_factory=dict)
    foreign: int = 0  # messages whose sender was not the worker named in them
    _sender: dict[str, str] = field(default_factory=dict)  # authenticated user -> worker
    _learning: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def once(self) -> None:
        """Read the workers."""
        self.rows = {row.name: row for row in await self.queries.workers()}
        for row in self.rows.values():
            if row.nkey is not None:
                self._sender.setdefault(row.nkey, row.name)

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
                await self.once()  # another coordinator may have met it
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

    def capable(self, lane: str) -> frozenset[str]:
        """Return the workers, present or known, that serve a lane."""
        return frozenset(row.name for row in self.rows.values() if row.presence and serves(row.presence, lane))

    def free_slots(self, lane: str, excluded: frozenset[str] = frozenset()) -> int:
        """Return how many jobs of a lane its present, ready workers could start now."""
        return sum(
            max(row.presence.slots - len(row.presence.busy), 0)
            for row in self.rows.values()
            if row.presence
            and row.age_s < MISSED_ROUNDS * self.presence_s
            and row.presence.state is WorkerState.READY
            and row.wanted is WorkerState.READY
            and row.name not in excluded
            and serves(row.presence, lane)
        )

    def kinds(self) -> frozenset[str]:
        """Return every kind that a known worker can do."""
        return frozenset(c.kind for row in self.rows.values() if row.presence for c in row.presence.capabilities)


def serves(presence: Presence, lane: str) -> bool:
    """Say whether an agent with these capabilities runs jobs of a lane; `*` serves every model and `any`."""
    kind, _, slug = lane.partition(".")
    return any(
        capability.kind == kind
        and (slug == subjects.ANY or any(model == "*" or subjects.slug(model) == slug for model in capability.models))
        for capability in presence.capabilities
    )


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
