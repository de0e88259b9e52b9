"""What transitions speak of: a job with its last attempt, the commands, the answers and the effects. Values only.

All instants are Postgres's `now()`; no agent's clock ever enters. Durations end in `_s`. `Job`,
`Attempt` and `Decision`, made anew at each step, are named tuples: as frozen dataclasses they cost four times as much,
a part of the coordinator's time worth having (tests/bench).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from shared.states import (
    AttemptOutcome,
    DenyReason,
    JobState,
    LostReason,
    Verdict,
)
from shared.subjects import Delivery
from shared.wire import Report


class Attempt(NamedTuple):
    """The attempt of the job's current epoch: who held the lease, through which delivery, and how it ended."""

    epoch: int
    number: int  # 1 = first; counts failures, not lapses
    worker: str
    instance: str | None  # the process; None if a foreign agent never said
    delivery: str  # reply subject of the WORK message that was claimed
    claimed_at: datetime
    deadline_at: datetime
    outcome: AttemptOutcome | None = None  # None = open
    ended_at: datetime | None = None
    error: dict[str, Any] | None = None
    result_sha256: bytes | None = None  # digest of the accepted report, to tell a repeat from a second result
    stage: str | None = None
    progress: float | None = None
    heartbeats: int = 0
    heartbeat_at: datetime | None = None


class Job(NamedTuple):
    """A job as transitions see it: all but what it is made from and what came out."""

    id: UUID
    source: str
    kind: str
    model: str | None
    lane: str
    state: JobState
    content_sha256: bytes
    max_attempts: int
    timeout_s: float
    review: bool
    run_after: datetime
    created_at: datetime
    epoch: int = 0
    attempt: int = 0  # reports of failure charged
    lease_losses: int = 0  # lapses charged: its holder died, or was never heard of
    silences: int = 0  # lapses charged: its holder fell silent in the middle
    excluded: tuple[str, ...] = ()  # workers that said `elsewhere`
    offered_at: datetime | None = None  # when the current offer was decided; None = not offered
    offered_seq: int = 0  # sequence in WORK of the newest offer known; survives it
    spent_seq: int = 0  # deliveries of messages up to this sequence grant nothing any more
    worker: str | None = None  # holder of the lease; set exactly while processing
    lease_expires_at: datetime | None = None  # set exactly while processing
    finished_at: datetime | None = None  # set exactly while settled
    error: dict[str, Any] | None = None  # why it failed
    models: tuple[str, ...] = ()  # in order of preference, `model` among them; empty = there is no choice
    priority: int = 1  # shared.states.PRIORITY_RANK
    epoch_floor: int = 0  # the next epoch is no lower: older ones may be known to agents from before a restore
    last: Attempt | None = None  # the attempt of `epoch`; None before the first claim


# --------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """A submission that passed its checks."""

    job_id: UUID
    source: str
    key: str | None
    kind: str
    model: str | None
    lane: str
    priority: int
    content_sha256: bytes  # of everything in the submission but its key
    spec: dict[str, Any]
    labels: dict[str, str]
    run_after: datetime | None
    max_attempts: int
    timeout_s: float
    review: bool
    callback_url: str | None
    models: tuple[str, ...] = ()  # in order of preference, `model` among them; empty = there is no choice
    offer: bool = False  # the lane's window has room: offer it in the same commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The lane's window has room for this job."""

    job_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The offer lies in WORK under this sequence."""

    job_id: UUID
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Take an offer back, if it is still the one that was looked at."""

    job_id: UUID
    offered_at: datetime
    reason: str  # unclaimed | missing | unsent | paused


@dataclass(frozen=True, slots=True, kw_only=True)
class Relane:
    """Nobody takes the job where it waits, and somebody would with another of its models."""

    job_id: UUID
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker asks for the lease through a delivery."""

    job_id: UUID
    worker: str
    instance: str | None
    delivery: str
    token: Delivery  # `delivery`, read
    paused: Literal["lane", "worker", "aside"] | None = None  # aside: this worker fails again and again in the lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A worker says that it still works; `stage` None = it only asks whether the lease is held."""

    job_id: UUID
    worker: str
    epoch: int
    stage: str | None = None
    elapsed_s: float = 0.0
    progress: float | None = None
    detail: str | None = None
    instance: str | None = None  # the process; None if a foreign agent never says


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """A worker's report. `uploaded` is what the ledger has of this epoch's files; the shell fills it in."""

    job_id: UUID
    worker: str
    report: Report
    sha256: bytes  # of the report's body
    jitter: float = 0.0  # in [-1, 1], for the backoff
    capable: frozenset[str] = frozenset()  # workers, present or known, that serve the job's lane
    another_model: bool = False  # somebody, present or known, serves a later one of the job's models
    uploaded: frozenset[tuple[str, int, str]] = frozenset()  # (name, size, sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """The reaper saw a lease that is over."""

    job_id: UUID
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """A worker's presence, held against one lease that the ledger says it has."""

    job_id: UUID
    worker: str
    instance: str
    epoch: int | None  # the epoch that presence lists for this job; None = not listed
    retired: frozenset[str] = frozenset()  # processes of this worker that `instance` has replaced
    as_of: datetime | None = None  # the presence was sent after this; None = not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Depart:
    """A process's connection was closed by its machine, and it has not announced itself since."""

    job_id: UUID
    worker: str
    instance: str
    since: datetime  # what was heard of it until then may have been on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """A worker's identity was revoked: it can neither report nor be told, so its lease ends now."""

    job_id: UUID
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """The coordinator was blind (start, reconnect): a live lease gets a full ttl from now."""

    job_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBack:
    """The ledger's clock was set back: what was due when it was admitted seems to lie in the future."""

    job_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """A person or publisher calls the job off."""

    job_id: UUID
    actor: str
    note: str | None = None  # why, in the person's words; so in those below


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A person runs a settled job again."""

    job_id: UUID
    actor: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """A person accepts a result that awaits review."""

    job_id: UUID
    actor: str
    note: str | None = None
    epoch: int | None = None  # the epoch of the result that the person saw; None = not said


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A person refuses a result that awaits review."""

    job_id: UUID
    actor: str
    again: bool  # run it again, else cancel it
    note: str | None = None
    epoch: int | None = None  # as in Approve


@dataclass(frozen=True, slots=True, kw_only=True)
class Prioritize:
    """A person moves a job forward or back in the backlog."""

    job_id: UUID
    actor: str
    priority: int  # shared.states.PRIORITY_RANK
    note: str | None = None


Command = (
    Admit
    | Dispatch
    | Offered
    | Withdraw
    | Relane
    | Claim
    | Heartbeat
    | FileReport
    | Expire
    | RollCall
    | Depart
    | Evict
    | Grace
    | SetBack
    | Cancel
    | Retry
    | Approve
    | Reject
    | Prioritize
)

# ---------------------------------------------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class Admitted:
    """A new job."""


@dataclass(frozen=True, slots=True)
class SameJob:
    """The same submission again."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Same id, other content."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What ended an attempt that is charged to the job."""

    code: str
    verdict: str | None  # what its agent made of it (`detail.verdict`)
    worker: str


@dataclass(frozen=True, slots=True)
class Payload:
    """What a worker needs to do the job, as it is stored."""

    kind: str
    model: str | None
    spec: dict[str, Any]
    labels: dict[str, str]
    priority: int
    max_attempts: int
    charges: tuple[Charge, ...]  # the newest 20, the oldest of them first


@dataclass(frozen=True, slots=True)
class Grant:
    """The lease is the claimant's."""

    epoch: int
    attempt: int
    lease_ttl_s: float
    deadline_s: float  # left for the whole attempt
    payload: Payload | None = None  # filled in by the shell from the same locked row


@dataclass(frozen=True, slots=True)
class Denial:
    """No lease through this delivery."""

    reason: DenyReason
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The lease is good for `ttl_s` more."""

    ttl_s: float
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is gone for ever."""

    reason: LostReason


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a report."""

    verdict: Verdict
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The command did what it says."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """The command no longer applies; nothing changed. `reason` is for people."""

    reason: str


Answer = Admitted | SameJob | Conflict | Grant | Denial | Held | Lost | Judged | Done | Nothing

# ---------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Offer:
    """Put the job's message into WORK; first remove, confirmed, the older one if there may be one (rules 3, 4)."""

    job_id: UUID
    kind: str
    model: str | None
    lane: str
    remove_seq: int  # 0 = there was none
    offered_at: datetime  # names this offer, if it must be taken back


@dataclass(frozen=True, slots=True)
class Settle:
    """Acknowledge a delivered message by its own sequence."""

    lane: str
    seq: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a message that may be undelivered, by its own sequence."""

    seq: int


@dataclass(frozen=True, slots=True)
class Postpone:
    """Nak this very delivery, to come again after the delay."""

    delivery: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a worker that a lease is gone."""

    worker: str
    job_id: UUID
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class TellVerdict:
    """Tell a worker what became of its report."""

    worker: str
    job_id: UUID
    epoch: int
    verdict: Verdict
    reason: str | None


@dataclass(frozen=True, slots=True)
class Wake:
    """The lane has a job to offer."""

    lane: str


@dataclass(frozen=True, slots=True)
class Announce:
    """The job is settled: its result goes out."""

    job_id: UUID


Effect = Offer | Settle | Remove | Postpone | Tell | TellVerdict | Wake | Announce

# ---------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat for the history."""

    command: Heartbeat
    at: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a report says beyond its verdict: model, settings, stages, result; kept with its attempt."""

    report: Report
    accepted: bool  # completed: the result and files become the job's


@dataclass(frozen=True, slots=True)
class Refused:
    """A report that was not accepted, for the record."""

    command: FileReport
    verdict: Verdict
    reason: str
    current_epoch: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Action:
    """What a person did to the job."""

    actor: str
    action: str
    at: datetime
    note: str | None = None  # why, in the person's words


Record = Beat | Outcome | Refused | Action


class Decision(NamedTuple):
    """What follows from a command: the job as it is now, the answer, and what to do and write down."""

    job: Job | None
    answer: Answer
    effects: tuple[Effect, ...] = ()
    records: tuple[Record, ...] = ()
    closed: tuple[Attempt, ...] = ()  # attempts of older epochs that ended here


class Decided(NamedTuple):
    """A command once it is committed: the job before and after it (the same object: nothing changed), the answer."""

    command: Command
    before: Job | None
    after: Job | None
    answer: Answer
