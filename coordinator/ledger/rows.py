"""Between rows and the values that transitions speak of: reading what was locked, and the columns of each write.

Pure. The statements take rows column by column (`unnest`): each `…_columns` function returns one list per placeholder
of its statement, in the statement's order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from uuid import UUID

import orjson

from coordinator.ledger.model import Action, Admit, Attempt, Beat, Job, Refused
from shared.states import AttemptOutcome, JobState
from shared.wire import Report

MAX_KEPT_BYTES = 64 * 1024
"""How much of a refused report is kept, as JSON."""

_MAX_BIGINT = 2**63 - 1
_STATES = {str(state): state for state in JobState}
_OUTCOMES: dict[str | None, AttemptOutcome | None] = {None: None, **{str(o): o for o in AttemptOutcome}}

Columns = list[list[Any]]

job_columns = attrgetter(
    "state",
    "run_after",
    "epoch",
    "attempt",
    "lease_losses",
    "silences",
    "excluded",
    "model",
    "lane",
    "priority",
    "offered_at",
    "offered_seq",
    "spent_seq",
    "worker",
    "finished_at",
    "error",
)
"""What a transition may change of a job, but for the lease's end, which heartbeats move alone."""

attempt_columns = attrgetter(
    "number",
    "worker",
    "instance",
    "delivery",
    "claimed_at",
    "deadline_at",
    "outcome",
    "ended_at",
    "error",
    "result_sha256",
)
"""What a transition may change of an attempt, but for what a heartbeat says."""


def attempt_of(row: Mapping[str, Any]) -> Attempt:
    """Return the attempt that a row of attempt_of.sql describes."""
    return Attempt(
        epoch=row["epoch"],
        number=row["number"],
        worker=row["worker"],
        instance=row["instance"],
        delivery=row["delivery"],
        claimed_at=row["claimed_at"],
        deadline_at=row["deadline_at"],
        outcome=_OUTCOMES[row["outcome"]],
        ended_at=row["ended_at"],
        error=row["error"],
        result_sha256=row["result_sha256"],
        stage=row["stage"],
        progress=row["progress"],
        heartbeats=row["heartbeats"],
        heartbeat_at=row["heartbeat_at"],
    )


def job_of(row: Mapping[str, Any], last: Attempt | None) -> Job:
    """Return the job that a row of job_lock.sql describes."""
    excluded = row["excluded"]
    return Job(
        id=row["id"],
        source=row["source"],
        kind=row["kind"],
        model=row["model"],
        lane=row["lane"],
        state=_STATES[row["state"]],
        content_sha256=row["content_sha256"],
        max_attempts=row["max_attempts"],
        timeout_s=row["timeout_s"],
        review=row["review"],
        run_after=row["run_after"],
        created_at=row["created_at"],
        epoch=row["epoch"],
        attempt=row["attempt"],
        lease_losses=row["lease_losses"],
        silences=row["silences"],
        excluded=tuple(excluded) if excluded else (),
        offered_at=row["offered_at"],
        offered_seq=row["offered_seq"],
        spent_seq=row["spent_seq"],
        worker=row["worker"],
        lease_expires_at=row["lease_expires_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        models=tuple(row["models"] or ()),
        priority=row["priority"],
        epoch_floor=row["epoch_floor"],
        last=last,
    )


@dataclass(frozen=True, slots=True)
class JobWrite:
    """A job as it must be written."""

    job: Job
    result_is: bool  # the result columns change: to `result`'s, or to none
    result: Report | None
    announced: bool


@dataclass(frozen=True, slots=True)
class AttemptWrite:
    """An attempt as it must be written, with what its accepted report said."""

    job_id: UUID
    attempt: Attempt
    report: Report | None


def job_insert_columns(new: Sequence[tuple[Admit, Job]]) -> Columns:
    """Return the columns of job_insert.sql."""
    return _columns(
        19,
        (
            (
                job.id,
                job.source,
                admit.key,
                job.kind,
                job.model,
                job.lane,
                job.priority,
                job.state,
                job.content_sha256,
                admit.spec,
                admit.labels,
                admit.callback_url,
                job.max_attempts,
                job.timeout_s,
                job.review,
                job.run_after,
                job.created_at,
                job.offered_at,
                _text_array(job.models) if job.models else None,
            )
            for admit, job in new
        ),
    )


def job_update_columns(writes: Sequence[JobWrite]) -> Columns:
    """Return the columns of job_update.sql."""
    return _columns(
        24,
        (
            (
                job.id,
                job.state,
                job.run_after,
                job.epoch,
                job.attempt,
                job.lease_losses,
                job.silences,
                _text_array(job.excluded),
                job.offered_at,
                job.offered_seq,
                job.spent_seq,
                job.worker,
                job.lease_expires_at,
                job.finished_at,
                job.error,
                write.result_is,
                report.result if report else None,
                report.epoch if report else None,
                report.model if report else None,
                write.announced,
                job.model,
                job.lane,
                _text_array(job.models) if job.models else None,
                job.priority,
            )
            for write in writes
            for job, report in [(write.job, write.result)]
        ),
    )


def attempt_write_columns(writes: Sequence[AttemptWrite]) -> Columns:
    """Return the columns of attempt_write.sql."""
    return _columns(
        21,
        (
            (
                write.job_id,
                a.epoch,
                a.number,
                a.worker,
                a.instance,
                a.delivery,
                a.claimed_at,
                a.deadline_at,
                a.outcome,
                a.ended_at,
                a.error,
                a.result_sha256,
                a.stage,
                a.progress,
                a.heartbeats,
                a.heartbeat_at,
                *_told(write.report),
            )
            for write in writes
            for a in [write.attempt]
        ),
    )


def _told(report: Report | None) -> tuple[Any, ...]:
    """Return what a report says of its attempt: elapsed_s, model, settings, stages, bytes."""
    if report is None:
        return (None, None, None, None, None)
    # As text: asyncpg takes a list within a list of values for an array of arrays.
    stages = orjson.dumps([{"stage": mark.stage, "at_s": mark.at_s} for mark in report.stages]).decode()
    size = min(sum(artifact.size for artifact in report.artifacts), _MAX_BIGINT)
    return (report.elapsed_s, report.model, report.settings, stages, size)


def heartbeat_columns(beats: Sequence[Beat]) -> Columns:
    """Return the columns of heartbeat_insert.sql, and the first ones of heartbeat.sql; their time is not among them."""
    commands = [beat.command for beat in beats]
    return _columns(7, ((c.job_id, c.epoch, c.worker, c.stage, c.elapsed_s, c.progress, c.detail) for c in commands))


def rejected_columns(refused: Sequence[Refused]) -> Columns:
    """Return the columns of rejected_result_insert.sql."""
    return _columns(
        8,
        (
            (
                r.command.job_id,
                max(min(r.command.report.epoch, _MAX_BIGINT), -_MAX_BIGINT),
                r.command.worker,
                r.verdict,
                r.reason,
                r.current_epoch,
                r.at,
                kept_report(r.command.report),
            )
            for r in refused
        ),
    )


def action_columns(actions: Sequence[tuple[UUID, Action]]) -> Columns:
    """Return the columns of operator_action_insert.sql."""
    return _columns(6, ((a.at, a.actor, a.action, job_id, "job", a.note) for job_id, a in actions))


def kept_report(report: Report) -> dict[str, Any]:
    """Return a refused report as it is kept: whole if it is short, else its parts cut until it is.

    First the result's texts are cut, then whole parts go, the biggest first; each that went is named under `cut`.
    """
    whole: dict[str, Any] = orjson.loads(report.model_dump_json(by_alias=True))  # numbers past 64 bit become floats
    if _size(whole) <= MAX_KEPT_BYTES:
        return whole
    cut = []
    if isinstance(whole["result"], dict):
        cut.append("result")
        whole["result"] = {k: v[:4096] if isinstance(v, str) else v for k, v in whole["result"].items()}
    for part in sorted(("result", "settings", "artifacts", "stages", "error"), key=lambda p: -_size(whole[p])):
        if _size(whole) <= MAX_KEPT_BYTES - 200:
            break
        whole[part] = None
        cut.append(part)
    return {**whole, "cut": sorted(set(cut))}


def _size(value: Any) -> int:
    return len(orjson.dumps(value))


def _text_array(values: Sequence[str]) -> str:
    """Return Postgres's literal of a text[]: arrays of arrays can't be unnested row by row."""
    if not values:
        return "{}"
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def _columns(width: int, rows: Iterable[tuple[Any, ...]]) -> Columns:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(width)]
