"""When jobs will be done, and how long a generator may be silent, by how long the last results took.

    records = Records.of(samples)               what is on record of a worker in a lane, of a lane, of a kind
    running(records, held, now)                 by the results that took longer, or by the job's progress
    waiting(records, lane, slot, ...)           after the jobs before it, in the slot that will take it (`taken`)

Pure; `outlook` reads the record and tells. Estimates for people: no job is placed, ended or charged by one. What can't
be known is None: nothing on record, a job that outlasts the record, a lane that nobody serves.
"""

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from coordinator.ledger.queries import DurationRow, HeldRow

ENOUGH: Final = 5
"""With fewer results of its own a worker is judged by its lane; with none in the lane, by the kind."""

ENOUGH_FOR_PATIENCE: Final = 20
"""With fewer results of its own, nothing is said of how long a worker's generator may be silent."""

MOST: Final = 200
"""Of a kind with more results on record every second, third, and so on is used."""

PATIENCE: Final = 3.0
"""A generator may be silent so many times as long as the longest stage on record."""


class Spread(NamedTuple):
    """Seconds: half of them are over by the one, nine of ten by the other."""

    median_s: float
    p90_s: float


class Stage(NamedTuple):
    """A part of an attempt, in seconds from its grant."""

    name: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """How a result came about."""

    lane: str
    worker: str
    took_s: float
    stages: tuple[Stage, ...]  # at least one: an attempt that told none is one

    @property
    def quiet_s(self) -> float:
        """The longest stage: between its ends the generator may have been silent all the time."""
        return max(stage.ended_s - stage.began_s for stage in self.stages)


def spread_of(seconds: Iterable[float]) -> Spread | None:
    """Return the median and the 90th percentile, each one of the values (the nearest rank); None if there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    return Spread(*(ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.9)))


@dataclass(frozen=True)
class Record:
    """The results of jobs that are alike; `who` says in one word how."""

    who: str
    samples: Sequence[Sample]  # never empty

    @property
    def basis(self) -> str:
        """What a prediction rests on, for people."""
        return f"{self.who}, {len(self.samples)} job{'s' * (len(self.samples) != 1)}"

    @cached_property
    def _took_s(self) -> list[float]:
        return sorted(sample.took_s for sample in self.samples)

    @cached_property
    def whole(self) -> Spread:
        """How long such a job takes."""
        found = spread_of(self._took_s)
        assert found is not None
        return found

    @cached_property
    def typical_s(self) -> float:
        """How long many such jobs take, each: the mean of the nine of ten that took least."""
        most = self.whole.p90_s
        took = [took_s for took_s in self._took_s if took_s <= most]
        return sum(took) / len(took)

    def left(self, elapsed_s: float) -> Spread | None:
        """Return how long a job still takes that has gone on for so long; None if none ever took longer."""
        longer = self._took_s[bisect_right(self._took_s, elapsed_s) :]
        return spread_of([took_s - elapsed_s for took_s in longer])

    def left_in(self, stage: str, fraction: float) -> Spread | None:
        """Return how long a job still takes of whose stage so much is done; None if none had such a stage, once."""
        found: list[float] = []
        for sample in self.samples:
            same = [one for one in sample.stages if one.name == stage]
            if len(same) == 1:
                rest_s = max(sample.took_s - same[0].ended_s, 0.0)
                found.append((1.0 - fraction) * (same[0].ended_s - same[0].began_s) + rest_s)
        return spread_of(found)


@dataclass(frozen=True, slots=True)
class Records:
    """All that is on record, by (lane, worker), (lane, "") and (kind, "")."""

    by_key: Mapping[tuple[str, str], Record] = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Self:
        """Sort them."""
        found: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
        for sample in samples:
            for key in ((sample.lane, sample.worker), (sample.lane, ""), (_kind(sample.lane), "")):
                found[key].append(sample)
        return cls({key: Record(key[1] or key[0], _thinned(alike)) for key, alike in found.items()})

    def find(self, lane: str, worker: str) -> Record | None:
        """Return the narrowest record that says enough of a worker's jobs of a lane; None if there is none at all."""
        own = self.by_key.get((lane, worker))
        if own is not None and len(own.samples) >= ENOUGH:
            return own
        return self.by_key.get((lane, "")) or self.by_key.get((_kind(lane), ""))

    def patience_s(self, lane: str, worker: str) -> float | None:
        """Return how long this worker's generator may be silent at a job of this lane; None: that is not known."""
        own = self.by_key.get((lane, worker))
        if own is None or len(own.samples) < ENOUGH_FOR_PATIENCE:
            return None
        return PATIENCE * max(sample.quiet_s for sample in own.samples)


@dataclass(frozen=True, slots=True)
class Prediction:
    """When a job will be done."""

    median: datetime
    p90: datetime
    basis: str

    def as_json(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        return {"median": self.median, "p90": self.p90, "basis": self.basis}


def left_of(record: Record, held: HeldRow, now: datetime) -> Spread | None:
    """Return how long a running job still takes: by its age or by its progress, whichever ends it sooner.

    A text's progress is a part of what it may have at most, and few are that long; an image's steps are exact, but for
    what was loaded before them.
    """
    found = [record.left((now - held.claimed_at).total_seconds())]
    if held.stage is not None and held.progress is not None and held.heartbeat_at is not None:
        left = record.left_in(held.stage, held.progress)
        since_s = (now - held.heartbeat_at).total_seconds()
        found.append(left and Spread(max(left.median_s - since_s, 0.0), max(left.p90_s - since_s, 0.0)))
    return min((left for left in found if left is not None), default=None)


def running(records: Records, held: HeldRow, now: datetime) -> Prediction | None:
    """Return when a running job will be done; None if nothing on record says so."""
    record = records.find(held.lane, held.worker)
    left = left_of(record, held, now) if record is not None else None
    if record is None or left is None:
        return None
    return _prediction(record, left, now)


class Slot(NamedTuple):
    """A place for one job at a time, in the order in which they are taken: soonest free, then best rank."""

    free_s: float  # until it takes the next job of the lane
    rank: int
    worker: str
    lanes: int = 1  # with jobs that wait for it: in turn, so each waits so many times as long
    before: float = 0.0  # jobs that end before that one begins


def slots_of(records: Records, lane: str, own: Slot, slots: int, held: Iterable[HeldRow], now: datetime) -> list[Slot]:
    """Return the slots of a worker as a lane finds them, each like `own`, but for those in which a job runs.

    One whose job outlasts the record counts as half done with it.
    """
    left: list[float] = []
    for job in held:
        record = records.find(job.lane, own.worker) or records.find(lane, own.worker)
        found = left_of(record, job, now) if record is not None else None
        left.append(found.median_s if found is not None else record.typical_s / 2 if record is not None else 0.0)
    busy = [own._replace(free_s=left_s, before=1.0) for left_s in sorted(left, reverse=True)[:slots]]
    return [*busy, *(own for _ in range(slots - len(busy)))]


def taken(slots: Sequence[Slot], typical_s: Mapping[str, float], count: int) -> list[Slot]:
    """Return the slot that takes the first job of a lane, the second, and so on; `typical_s` by worker."""
    heap, found = list(slots), []
    heapq.heapify(heap)
    for _ in range(count if heap else 0):
        free_s, rank, worker, lanes, before = heap[0]
        found.append(heap[0])
        heapq.heapreplace(heap, Slot(free_s + lanes * typical_s[worker], rank, worker, lanes, before + lanes))
    return found


def waiting(records: Records, lane: str, slot: Slot, run_after: datetime, now: datetime) -> Prediction | None:
    """Return when a job will be done that this slot will take. What ends before it adds to its own spread."""
    record = records.find(lane, slot.worker)
    if record is None:
        return None
    whole = record.whole
    starts_s = max(slot.free_s, (run_after - now).total_seconds())
    median_s = starts_s + whole.median_s
    p90_s = median_s + (whole.p90_s - whole.median_s) * math.sqrt(1.0 + slot.before)
    return _prediction(record, Spread(median_s, p90_s), now)


def sample_of(row: DurationRow) -> Sample:
    """Return a result as it is reckoned with; agents' times that contradict each other are put right."""
    ended_s = row.took_s if row.elapsed_s is None else max(row.elapsed_s, 0.0)
    began = [(str(mark["stage"]), max(float(mark["at_s"]), 0.0)) for mark in row.stages or []] or [("", 0.0)]
    ends = [at_s for _, at_s in began[1:]] + [ended_s]
    stages = tuple(Stage(name, at_s, max(end_s, at_s)) for (name, at_s), end_s in zip(began, ends, strict=True))
    return Sample(row.lane, row.worker, row.took_s, stages)


def _thinned(alike: Sequence[Sample]) -> Sequence[Sample]:
    return alike[:: math.ceil(len(alike) / MOST)]


def _kind(lane: str) -> str:
    return lane.partition(".")[0]


def _prediction(record: Record, left: Spread, now: datetime) -> Prediction | None:
    try:
        return Prediction(now + timedelta(seconds=left.median_s), now + timedelta(seconds=left.p90_s), record.basis)
    except OverflowError:
        return None
