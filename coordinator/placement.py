"""Placement: which of its models a job is made with, and moving it on when nobody takes it where it waits.

A job that names several goes to the first that somebody offers who is present and ready, else to the first that a known
worker offers, else to the first. While it waits, it moves only to where more can be expected than where it is. What a
worker refused (`elsewhere`) is not tried again with a model named earlier, so that a job can't go round in circles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Protocol
from uuid import UUID

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Relane, Withdraw
from coordinator.ledger.queries import MovableRow, Queries
from shared.subjects import lane_of

_MOST_A_ROUND = 500


class Standing(IntEnum):
    """What a lane's jobs can expect; more is better."""

    NOBODY = 0  # no worker that was ever heard of serves it
    KNOWN = 1  # one does that is away, paused, set aside, or has a backend down
    PRESENT = 2  # one is present and ready


class HasStanding(Protocol):
    """What is asked of the workers; `workers.Directory.standing` answers."""

    def __call__(self, lane: str, excluded: frozenset[str] = ..., /) -> Standing:
        """Return what the jobs of a lane can expect of all workers but `excluded`."""


class _Placed(Protocol):
    """Where a job waits, and where else it might."""

    @property
    def kind(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def models(self) -> Sequence[str]: ...


def first_choice(kind: str, models: Sequence[str], standing: HasStanding) -> str:
    """Return the model of a new job; the first of the best wins."""
    return max(models, key=lambda model: standing(lane_of(kind, model)))


def later_models(job: _Placed, standing: HasStanding) -> list[str]:
    """Return the models after the present one in the job's order that a known worker offers."""
    models = list(job.models)
    later = models[models.index(job.model) + 1 :] if job.model in models else []
    return [model for model in later if standing(lane_of(job.kind, model))]


def better_model(job: MovableRow, standing: HasStanding) -> str | None:
    """Return the model with which the job can expect more than where it waits; None: it stays."""
    choices = later_models(job, standing) if job.excluded else job.models
    if not choices:
        return None
    best = first_choice(job.kind, choices, standing)
    more = standing(lane_of(job.kind, best)) > standing(job.lane, job.excluded)
    return best if more else None


@dataclass(slots=True)
class Placement:
    """Moves waiting jobs to another of their models."""

    ledger: Ledger
    queries: Queries
    standing: HasStanding
    lanes: Callable[[], frozenset[str]]  # those that have jobs
    moved: int = 0
    _after: UUID | None = None  # the last job looked at, if there were more

    async def once(self) -> None:
        """Look at a batch of those that wait and have a choice; one after the other has its turn."""
        poor = [lane for lane in self.lanes() if self.standing(lane) is not Standing.PRESENT]
        rows = await self.queries.movable(poor, self._after, _MOST_A_ROUND)
        self._after = rows[-1].id if len(rows) == _MOST_A_ROUND else None
        standing = cache(self.standing)  # the jobs ask about the same few lanes, and each answer looks at every worker
        orders: list[Withdraw | Relane] = []
        for row in rows:
            model = better_model(row, standing)
            if model is None:
                continue
            if row.offered_at is not None:
                orders.append(Withdraw(job_id=row.id, offered_at=row.offered_at, reason="another model"))
            orders.append(Relane(job_id=row.id, model=model))
            self.moved += 1
        if orders:
            await self.ledger.do_what_can(orders)
