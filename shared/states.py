"""The words for what a job, an attempt and a worker can be. Values are what stands on the wire and in the ledger."""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"  # waits: in the backlog, for its time, or offered in WORK
    PROCESSING = "processing"  # one worker holds its lease
    COMPLETED = "completed"  # its one accepted result stands
    FAILED = "failed"  # permanent error, or a limit was reached
    CANCELED = "canceled"  # an operator or publisher called it off
    AWAITING_REVIEW = "awaiting_review"  # has a result that a person must approve or reject


SETTLED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELED, JobState.AWAITING_REVIEW})
"""States in which no agent has anything to do for the job; exactly these have `finished_at`."""


class AttemptOutcome(StrEnum):
    """How an attempt (one epoch of a job) ended; an open attempt has none."""

    COMPLETED = "completed"  # its result was accepted
    FAILED = "failed"  # it reported an error, or ran past its deadline
    RELEASED = "released"  # given back without fault: drain, backend down, ghost lease
    LEASE_EXPIRED = "lease_expired"  # its heartbeats stopped; the only end that can be taken back
    CANCELED = "canceled"  # the job was called off under it
    CLOSED = "closed"  # it had lapsed, and an operator's retry shut the door behind it


class Lapse(StrEnum):
    """What is known of a holder whose lease lapsed; the `code` in its attempt's error."""

    SILENT = "worker_silent"  # it was heard of in this attempt, then no more: asleep, or out of reach
    LOST = "worker_lost"  # its process died, or it was never heard of after its claim: may be the job's doing
    RESTARTED = "worker_restarted"  # it died, and its next process does not have the job: nothing of it can come back


class ReportOutcome(StrEnum):
    """What an agent says of its attempt."""

    COMPLETED = "completed"  # here is the result
    FAILED = "failed"  # here is the error
    RELEASED = "released"  # not my job's fault: give it to another


class ErrorClass(StrEnum):
    """What the coordinator does about a reported error."""

    TRANSIENT = "transient"  # again, after the backoff
    ELSEWHERE = "elsewhere"  # again at once, on another worker
    PERMANENT = "permanent"  # never again: failed now


class Verdict(StrEnum):
    """What the ledger answered to a report."""

    ACCEPTED = "accepted"  # it changed the job
    DUPLICATE = "duplicate"  # that epoch has its outcome already
    STALE = "stale"  # a newer epoch exists
    REJECTED = "rejected"  # the job is canceled or failed, or the report is not this worker's to make


class DenyReason(StrEnum):
    """Why a claim was not granted."""

    LEASED = "leased"  # another attempt holds a live lease
    SETTLED = "settled"  # nothing to do any more through this delivery
    NOT_DUE = "not_due"  # its time has not come
    PAUSED = "paused"  # its lane, or this worker, is paused
    ELSEWHERE = "elsewhere"  # this worker is excluded from the job
    UNKNOWN = "unknown"  # no such job


class LostReason(StrEnum):
    """Why a heartbeat or a lease question is answered `lost`."""

    STALE = "stale"  # a newer epoch exists, or this one's door is closed
    CANCELED = "canceled"  # the job was called off
    SETTLED = "settled"  # the job is finished
    DEADLINE = "deadline"  # the attempt ran past its timeout_s


class Priority(StrEnum):
    """Order in the backlog; within one, earlier `run_after` first."""

    LOW = "low"  # only when nothing else waits
    NORMAL = "normal"  # the default
    HIGH = "high"  # before normal
    URGENT = "urgent"  # before everything


PRIORITY_RANK = {Priority.LOW: 0, Priority.NORMAL: 1, Priority.HIGH: 2, Priority.URGENT: 3}
"""A priority as the ledger sorts it: higher first."""

PRIORITY_NAME = {rank: str(name) for name, rank in PRIORITY_RANK.items()}
"""A priority as it stands on the wire, by its rank."""


class WorkerState(StrEnum):
    """What an agent says it is ready for, or what an operator told it to be."""

    READY = "ready"  # pulls work
    DRAINING = "draining"  # finishes what it has and takes nothing more
    PAUSED = "paused"  # takes nothing until resumed
    UNHEALTHY = "unhealthy"  # a backend is down
