"""One log line for each change of a job's state, attempt or lane, with the facts that the ledger keeps of it.

`log_decided` is one of the ledger's `on_decided`: a line stands for something committed, and whichever loop or desk
asked for it, the line is the same. What changes nothing that people look for (heartbeats, offers, grace) has no line
here; what was refused is logged where it is answered (`claim denied`, `lease lost`, `report judged`).

    job admitted · claim granted · lease resumed · attempt ended · job moved · job canceled, retried, approved,
    rejected, prioritized (by a person: `actor`)
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog

from coordinator.ledger.model import (
    Approve,
    Attempt,
    Cancel,
    Claim,
    Command,
    Decided,
    FileReport,
    Job,
    Prioritize,
    Reject,
    Retry,
)
from shared.states import PRIORITY_NAME, AttemptOutcome, JobState

_log = structlog.get_logger()

_BY_PEOPLE: Final[dict[type[Command], str]] = {
    Cancel: "job canceled",
    Retry: "job retried",
    Approve: "job approved",
    Reject: "job rejected",
    Prioritize: "job prioritized",
}


def log_decided(decided: Sequence[Decided], _took_s: float) -> None:
    """Log what a commit changed."""
    for one in decided:
        if one.after is None or one.after is one.before:
            continue
        event = event_of(one.command, one.before, one.after)
        if event is not None:
            _log.info(event, **_facts(one.command, one.before, one.after))


def event_of(command: Command, before: Job | None, after: Job) -> str | None:
    """Return the word for a change; None if it has no line."""
    if before is None:
        return "job admitted"
    if type(command) in _BY_PEOPLE:
        return _BY_PEOPLE[type(command)]
    if after.epoch != before.epoch:
        return "claim granted"
    if before.lane != after.lane:
        return "job moved"
    was, now = _outcome(before), _outcome(after)
    if was is now:
        return None
    return "lease resumed" if now is None else "attempt ended"


def waited_s(before: Job, attempt: Attempt) -> float:
    """Return how long a job that was just claimed had been due."""
    return max((attempt.claimed_at - max(before.run_after, before.created_at)).total_seconds(), 0.0)


def ran_s(attempt: Attempt) -> float:
    """Return how long an attempt that has ended lasted."""
    ended_at = attempt.ended_at or attempt.claimed_at
    return max((ended_at - attempt.claimed_at).total_seconds(), 0.0)


def _outcome(job: Job) -> AttemptOutcome | None:
    return job.last.outcome if job.last else None


def _facts(command: Command, before: Job | None, after: Job) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "job_id": str(after.id),
        "state": after.state.value,
        "kind": after.kind,
        "lane": after.lane,
        "source": after.source,
    }
    if before is None:
        return facts | {"priority": PRIORITY_NAME[after.priority]}
    if (actor := getattr(command, "actor", None)) is not None:
        facts |= {"actor": actor, "priority": PRIORITY_NAME[after.priority]}
    if before.lane != after.lane:
        facts["was"] = before.lane
    last = after.last
    if last is None:
        return facts
    facts |= {"epoch": last.epoch, "worker": last.worker, "attempt": last.number}
    if isinstance(command, Claim) and after.epoch != before.epoch:
        facts["waited_s"] = round(waited_s(before, last), 3)
        if before.state is JobState.PROCESSING:
            facts["lapsed"] = before.worker
    elif last.outcome is not None and last.outcome is not _outcome(before):
        facts |= _ending(command, last, after)
    return facts


def _ending(command: Command, last: Attempt, after: Job) -> dict[str, Any]:
    facts: dict[str, Any] = {"outcome": str(last.outcome), "ran_s": round(ran_s(last), 3)}
    if last.error is not None:
        facts |= {"error": last.error.get("code"), "class": last.error.get("class")}
    if isinstance(command, FileReport):
        facts |= {"model": command.report.model}
    if after.state is JobState.PENDING and last.ended_at is not None and after.run_after > last.ended_at:
        facts["again_s"] = round((after.run_after - last.ended_at).total_seconds(), 1)
    return facts
