"""What a batch writes: gathered job by job from the decisions, then written with one statement per kind of change.

Called by `batch.py` inside its transaction, with the rows locked. Only what really changed is written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from coordinator.ledger import rows
from coordinator.ledger.database import sql
from coordinator.ledger.model import (
    Action,
    Admit,
    Announce,
    Attempt,
    Beat,
    Command,
    Decision,
    Job,
    Outcome,
    Record,
    Refused,
)
from shared.states import SETTLED
from shared.wire import Report


class Tracked:
    """One job while its commands are decided, and what must be written of it."""

    __slots__ = ("actions", "admit", "announced", "attempts", "base", "beats", "cleared", "job", "refused", "reports",
                 "result")  # fmt: skip

    def __init__(self, base: Job | None) -> None:
        """Start from the job as it stands in the table; None if it is not there."""
        self.base = base  # from its admission on: as it will be inserted
        self.job = base
        self.admit: Admit | None = None  # it must be inserted
        self.attempts: dict[int, Attempt] = {}  # changed ones, by epoch
        self.reports: dict[int, Report] = {}  # accepted ones, by epoch
        self.result: Report | None = None
        self.cleared = False  # the result that it had is none any more
        self.announced = False
        self.beats: list[Beat] = []
        self.refused: list[Refused] = []
        self.actions: list[Action] = []

    def take(self, command: Command, decision: Decision) -> None:
        """Note what follows from a command."""
        before, after = self.job, decision.job
        for attempt in decision.closed:
            self.attempts[attempt.epoch] = attempt
        if after is not None and after is not before:
            self._moved(command, before, after)
        for record in decision.records:
            self._record(record)
        for effect in decision.effects:
            if isinstance(effect, Announce):
                self.announced = True

    def _moved(self, command: Command, before: Job | None, after: Job) -> None:
        self.job = after
        if before is None:
            assert isinstance(command, Admit)
            self.admit, self.base = command, after
            return
        if after.last is not None and after.last is not before.last:
            self.attempts[after.last.epoch] = after.last
        if before.state in SETTLED and after.state not in SETTLED:
            self.result, self.cleared, self.announced = None, True, False

    def _record(self, record: Record) -> None:
        match record:
            case Beat():
                self.beats.append(record)
            case Refused():
                self.refused.append(record)
            case Action():
                self.actions.append(record)
            case Outcome(report, accepted):
                self.reports[report.epoch] = report
                if accepted:
                    self.result = report

    @property
    def placed(self) -> bool:
        """Whether the job came to its lane in this batch."""
        return self.job is not None and (self.admit is not None or self.base is None or self.job.lane != self.base.lane)

    def changed(self) -> bool:
        """Say whether the job's row changes in more than its lease's end."""
        if self.cleared or self.announced or self.result is not None:
            return True
        return self.job is not self.base and rows.job_columns(self.job) != rows.job_columns(self.base)

    def written_attempts(self) -> list[Attempt]:
        """Return the attempts that change in more than what a heartbeat says."""
        was = self.base.last if self.base else None
        return [
            attempt
            for epoch, attempt in self.attempts.items()
            if was is None
            or was.epoch != epoch
            or epoch in self.reports
            or rows.attempt_columns(was) != rows.attempt_columns(attempt)
        ]


@dataclass(slots=True)
class Writes:
    """The rows of each statement."""

    updated: list[rows.JobWrite] = field(default_factory=list)
    extended: list[tuple[UUID, datetime | None]] = field(default_factory=list)
    beats: list[tuple[Beat, datetime | None]] = field(default_factory=list)  # alone with their job
    history: list[Beat] = field(default_factory=list)
    attempts: list[rows.AttemptWrite] = field(default_factory=list)
    unlinked: list[UUID] = field(default_factory=list)
    linked: list[tuple[UUID, int, str]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    actions: list[tuple[UUID, Action]] = field(default_factory=list)

    def add(self, t: Tracked) -> None:
        """Gather what a job's commands changed."""
        self.refused += t.refused
        job, base = t.job, t.base
        if job is None or base is None:
            return
        self.actions += [(job.id, action) for action in t.actions]
        attempts = t.written_attempts() if t.attempts else []
        changed = t.changed()
        if len(t.beats) == 1 and not changed and not attempts:
            self.beats.append((t.beats[0], job.lease_expires_at))
            return
        self.history += t.beats
        if not attempts:  # what a heartbeat or a lease question says
            attempts = list(t.attempts.values())
        self.attempts += [rows.AttemptWrite(job.id, attempt, t.reports.get(attempt.epoch)) for attempt in attempts]
        if changed:
            self._change(t, job)
        elif job.lease_expires_at != base.lease_expires_at:
            self.extended.append((job.id, job.lease_expires_at))

    def _change(self, t: Tracked, job: Job) -> None:
        self.updated.append(rows.JobWrite(job, t.cleared or t.result is not None, t.result, t.announced))
        if t.cleared:
            self.unlinked.append(job.id)
        if t.result is not None:
            self.linked += [(job.id, t.result.epoch, artifact.name) for artifact in t.result.artifacts]


async def write(
    connection: asyncpg.Connection, tracked: Iterable[Tracked], lanes: set[str], now: datetime
) -> set[UUID]:
    """Write what changed, and the `lanes` that are new.

    Returns the jobs that another coordinator has inserted meanwhile; nothing is written of those.
    """
    jobs = list(tracked)
    missed = await _insert(connection, jobs)
    writes = Writes()
    for t in jobs:
        if not missed or t.job is None or t.job.id not in missed:
            writes.add(t)
    if lanes:
        await connection.execute(sql("lane_insert"), sorted(lanes))
    if writes.beats:
        columns = rows.heartbeat_columns([beat for beat, _ in writes.beats])
        await connection.execute(sql("heartbeat"), *columns, [lease_end for _, lease_end in writes.beats], now)
    if writes.history:
        await connection.execute(sql("heartbeat_insert"), *rows.heartbeat_columns(writes.history), now)
    await _run(connection, "job_extend", [[e[i] for e in writes.extended] for i in range(2)])
    await _run(connection, "job_update", rows.job_update_columns(writes.updated))
    await _run(connection, "attempt_write", rows.attempt_write_columns(writes.attempts))
    if writes.unlinked:
        await connection.execute(sql("artifact_unlink"), writes.unlinked)
    await _run(connection, "artifact_link", [[link[i] for link in writes.linked] for i in range(3)])
    await _run(connection, "rejected_result_insert", rows.rejected_columns(writes.refused))
    await _run(connection, "operator_action_insert", rows.action_columns(writes.actions))
    return missed


async def _insert(connection: asyncpg.Connection, jobs: Sequence[Tracked]) -> set[UUID]:
    new = [(t.admit, t.base) for t in jobs if t.admit is not None and t.base is not None]
    if not new:
        return set()
    inserted = await connection.fetch(sql("job_insert"), *rows.job_insert_columns(new))
    return {job.id for _, job in new} - {row["id"] for row in inserted}


async def _run(connection: asyncpg.Connection, name: str, columns: Sequence[list[Any]]) -> None:
    if columns[0]:
        await connection.execute(sql(name), *columns)
