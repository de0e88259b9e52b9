"""The outlook: tells when jobs will be done, and how long a generator may be silent. Reckons by `forecast`.

The durations on record are read every round; where a job stands and what is before it, whenever somebody asks. Changes
nothing in the ledger. Called by the HTTP side and by claims.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from coordinator import forecast
from coordinator.dispatcher import Dispatcher
from coordinator.forecast import Prediction, Records, Slot
from coordinator.ledger.queries import HeldRow, Queries, WorkerRow
from coordinator.workers import Directory, serves
from shared.states import JobState

MOST_LANES: Final = 50
"""Of so many lanes, by name, the record is read."""

PER_LANE: Final = 100
"""The newest so many results of a lane are the record."""

MOST_WAITING: Final = 1000
"""What waits behind so many jobs of its lane has no prediction."""

_MOST_PLACES = 4000  # of all lanes that one answer is about: a few milliseconds
_MOST_HELD = 1000

Row = dict[str, Any]


@dataclass(slots=True)
class Outlook:
    """What is on record, and who may take what waits."""

    queries: Queries
    directory: Directory
    dispatcher: Dispatcher
    records: Records = field(default_factory=Records)

    async def once(self) -> None:
        """Read the durations on record anew."""
        rows = await self.queries.durations(MOST_LANES, PER_LANE)
        self.records = await asyncio.to_thread(lambda: Records.of(map(forecast.sample_of, rows)))

    def no_progress_s(self, lane: str, worker: str, attempt: int, of: int) -> float | None:
        """Return how long the generator may be silent in the `attempt`-th try `of` so many; None: the agent's limit.

        Only the first of several is held to it, so that what was never so slow before costs one try and not the job.
        """
        return self.records.patience_s(lane, worker) if attempt == 1 < of else None

    async def tell(self, rows: Sequence[Row]) -> None:
        """Add `predicted_finish` to jobs as `view_job`, `view_jobs` and `view_running` show them."""
        pending = [row for row in rows if _state(row) == JobState.PENDING]
        found = await self._waiting(pending) if pending else {}
        for row in rows:
            if _state(row) == JobState.PROCESSING:
                found[row["id"]] = self._running(row)
                await asyncio.sleep(0)  # a tenth of a millisecond each; lists are long
            prediction = found.get(row["id"])
            row["predicted_finish"] = prediction.as_json() if prediction else None

    def _running(self, row: Row) -> Prediction | None:
        now = row["claimed_at"] + timedelta(seconds=row["since_s"] if "since_s" in row else row["duration_s"])
        held = HeldRow(**{name: row[name] for name in HeldRow.__dataclass_fields__})
        return forecast.running(self.records, held, now)

    async def _waiting(self, rows: Sequence[Row]) -> dict[UUID, Prediction | None]:
        workers = {lane: self._workers(lane) for lane in {row["lane"] for row in rows}}
        lanes = sorted(lane for lane, able in workers.items() if able and self.records.find(lane, ""))
        if not lanes:
            return {}
        most = min(MOST_WAITING, _MOST_PLACES // len(lanes) + 1)
        queues = await self.queries.queues(lanes, most)
        names = sorted({row.name for lane in lanes for row in workers[lane]})
        held = _by_worker(await self.queries.held_by(names, _MOST_HELD))
        now = await self.queries.now()
        found: dict[UUID, Prediction | None] = {}
        for lane in lanes:
            slots = [slot for worker in workers[lane] for slot in self._slots(lane, worker, held, now)]
            jobs = [row for row in rows if row["lane"] == lane]
            found |= self._in_lane(lane, jobs, queues[lane], slots, full=len(queues[lane]) == most, now=now)
        return found

    def _in_lane(
        self, lane: str, jobs: Sequence[Row], queue: Sequence[UUID], slots: Sequence[Slot], *, full: bool, now: datetime
    ) -> dict[UUID, Prediction | None]:
        places = {job_id: place for place, job_id in enumerate(queue)}
        if not full:  # a job that is not due yet comes after all that is
            places |= {row["id"]: len(queue) for row in jobs if row["run_after"] > now and row["id"] not in places}
        typical_s = {slot.worker: self._typical_s(lane, slot.worker) for slot in slots}
        last = max((places[row["id"]] for row in jobs if row["id"] in places), default=-1)
        turns = forecast.taken(slots, typical_s, last + 1)
        return {
            row["id"]: forecast.waiting(self.records, lane, turns[places[row["id"]]], row["run_after"], now)
            for row in jobs
            if turns and row["id"] in places
        }

    def _typical_s(self, lane: str, worker: str) -> float:
        record = self.records.find(lane, worker)
        return record.typical_s if record is not None else 0.0

    def _slots(self, lane: str, worker: WorkerRow, held: dict[str, list[HeldRow]], now: datetime) -> list[Slot]:
        presence = worker.presence
        assert presence is not None
        others = sum(serves(presence, known) and self._waits(known) for known in self.dispatcher.known() - {lane})
        own = Slot(0.0, presence.rank, worker.name, 1 + others)
        return forecast.slots_of(self.records, lane, own, presence.slots, held.get(worker.name, []), now)

    def _waits(self, lane: str) -> bool:
        return self.dispatcher.waiting(lane) > 0 and not self.dispatcher.is_paused(lane)

    def _workers(self, lane: str) -> list[WorkerRow]:
        """Return those who take jobs of a lane now; nobody while it is paused."""
        if self.dispatcher.is_paused(lane):
            return []
        return [
            row
            for row in self.directory.rows.values()
            if row.presence
            and self.directory.is_ready(row)
            and not self.directory.is_aside(row.name, lane)
            and serves(row.presence, lane)
        ]


def _state(row: Row) -> str:
    return str(row.get("state", JobState.PROCESSING))  # `view_running` has no other


def _by_worker(rows: Iterable[HeldRow]) -> dict[str, list[HeldRow]]:
    found: defaultdict[str, list[HeldRow]] = defaultdict(list)
    for row in rows:
        found[row.worker].append(row)
    return found
