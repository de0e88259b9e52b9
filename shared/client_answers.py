"""What the HTTP interface answers, as models: what a client may rely on. `/openapi.json` is made from these, too.

Fields that this version has no name for are kept, so that a newer server may say more. Durations in seconds.
"""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from shared.errors import TandemError
from shared.states import JobState
from shared.wire import Fault


class RefusedRequestError(TandemError):
    """The server answered, and refused; `code` is one word for programs, each fault names a field."""

    def __init__(self, status: int, code: str, message: str, faults: list[Fault]) -> None:
        """Keep what the server said."""
        super().__init__(message)
        self.status, self.code, self.faults = status, code, faults


class Answer(BaseModel):
    """A part of an answer; what is not named here is kept."""

    model_config = ConfigDict(
        extra="allow", frozen=True, protected_namespaces=(), json_schema_serialization_defaults_required=True
    )


class Submitted(Answer):
    """What became of a submission."""

    id: UUID
    state: str  # of the job; `queued` while the ledger is away
    how: Literal["created", "same", "queued"]


class PredictedFinish(Answer):
    """When a job that waits or runs will be done: half of such jobs are by `median`, nine of ten by `p90`."""

    median: datetime
    p90: datetime
    basis: str  # what it rests on, for people: "mini, 41 jobs"


class JobLine(Answer):
    """A job as lists show it. Durations in seconds."""

    id: UUID
    key: str | None = None
    source: str
    kind: str
    model: str | None = None
    lane: str
    state: JobState
    labels: dict[str, str] = {}
    priority: str = "normal"
    created_at: datetime
    finished_at: datetime | None = None
    worker: str | None = None  # who holds it, or held it last
    stage: str | None = None
    progress: float | None = None
    duration_s: float | None = None  # of the last attempt
    predicted_finish: PredictedFinish | None = None  # None: not known, or it is settled
    lease_left_s: float | None = None
    epoch: int = 0
    attempt: int = 0
    max_attempts: int = 0
    lease_losses: int = 0
    silences: int = 0
    error: dict[str, Any] | None = None


class AttemptLine(Answer):
    """One epoch of a job."""

    epoch: int
    number: int
    worker: str
    claimed_at: datetime
    ended_at: datetime | None = None
    duration_s: float | None = None
    outcome: str | None = None
    stage: str | None = None
    progress: float | None = None
    heartbeats: int = 0
    error: dict[str, Any] | None = None


class ArtifactLine(Answer):
    """A file of the accepted result."""

    name: str
    media_type: str
    size: int  # bytes
    sha256: str
    url: str
    trimmed_at: datetime | None = None  # its content is kept no more, since then


class CallbackLine(Answer):
    """What a job's `callback_url` was told of one state, or is to be told."""

    epoch: int
    state: str
    webhook_id: str
    url: str
    size: int  # of the body, bytes
    since: datetime
    attempts: int
    next_at: datetime | None = None  # exactly one of these three
    delivered_at: datetime | None = None
    given_up_at: datetime | None = None
    tried_at: datetime | None = None
    status: int | None = None  # the last answer's
    error: str | None = None  # why the last try failed


class PublicationLine(Answer):
    """How a result comes to its source's CMS."""

    epoch: int
    post: str | None = None
    since: datetime
    attempts: int
    next_at: datetime | None = None  # at most one of these three
    published_at: datetime | None = None
    failed_at: datetime | None = None
    tried_at: datetime | None = None
    error: str | None = None  # why the last try failed


class ActionLine(Answer):
    """What a person did to a job."""

    at: datetime
    actor: str
    action: str
    note: str | None = None


class JobView(JobLine):
    """A job with everything about it."""

    spec: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    result_epoch: int | None = None
    models: list[str] | None = None  # in order of preference; `model` is the one that it has now
    why: list[str] = []  # why it is where it is, for people
    used_model: str | None = None
    attempts: list[AttemptLine] = []
    artifacts: list[ArtifactLine] = []
    callbacks: list[CallbackLine] = []  # oldest first, as these
    publications: list[PublicationLine] = []
    actions: list[ActionLine] = []


class RunningLine(Answer):
    """A job that a worker is at. Durations in seconds."""

    id: UUID
    key: str | None = None
    source: str
    kind: str
    model: str | None = None
    worker: str
    lane: str
    epoch: int
    attempt: int = 0
    max_attempts: int = 0
    claimed_at: datetime
    stage: str | None = None
    progress: float | None = None
    since_s: float
    heartbeat_age_s: float | None = None
    lease_left_s: float
    predicted_finish: PredictedFinish | None = None


class JobPage(Answer):
    """A page of jobs, newest first; `next` is the next page's cursor."""

    jobs: list[JobLine]
    next: str | None = None


class Event(Answer):
    """Something that happened to a job: `type` is its new state, or `stage`."""

    job_id: UUID
    type: str
    epoch: int
    worker: str | None = None
    stage: str | None = None


class HeartbeatLine(Answer):
    """A heartbeat that is still kept."""

    epoch: int
    worker: str
    at: datetime
    stage: str
    elapsed_s: float
    progress: float | None = None
    detail: str | None = None


class UnpublishedLine(Answer):
    """A result that is not published yet, or can't be."""

    job_id: UUID
    epoch: int
    source: str
    kind: str
    post: str | None = None
    attempts: int
    since: datetime
    next_at: datetime | None = None
    tried_at: datetime | None = None
    failed_at: datetime | None = None
    error: str | None = None


class PausedSite(Answer):
    """A source for which nothing is published until its site lets us in again."""

    source: str
    reason: str
    since: datetime
    check_at: datetime | None = None


class Unpublished(Answer):
    """What is not published, newest first, and where nothing is."""

    unpublished: list[UnpublishedLine]
    paused: list[PausedSite]


class UndeliveredLine(Answer):
    """A callback that was given up."""

    job_id: UUID
    epoch: int
    state: str
    source: str
    url: str
    attempts: int
    given_up_at: datetime
    status: int | None = None
    error: str | None = None


class WorkerLine(Answer):
    """A worker as it was last heard of."""

    name: str
    present: bool
    wanted: str
    seen_age_s: float | None = None
    presence: dict[str, Any] | None = None
    holds: list[dict[str, Any]] = []
    last_hour: dict[str, int] = {}
    aside: list[dict[str, Any]] = []  # lanes that it gets nothing from for now: lane, failures, code, reason ...
    rules: dict[str, Any] | None = None  # that it was told; None: its own count
    why_idle: list[str] = []  # why it gets nothing though there is work, for people


class LaneLine(Answer):
    """A lane and how many of its jobs are where."""

    name: str
    paused: bool
    waiting: int
    due: int = 0  # of those that wait
    offered: int
    processing: int
    waits_s: float | None = None
    why: str | None = None  # why its jobs wait, for people; None: none does


class RejectedResult(Answer):
    """A report that was not accepted; one that could not be read names no epoch, or not even a job."""

    job_id: UUID | None = None
    epoch: int | None = None
    worker: str
    verdict: str
    reason: str
    current_epoch: int
    at: datetime
    late_s: float | None = None  # after the end of its attempt


class RejectedSubmission(Answer):
    """A submission that was refused."""

    source: str
    at: datetime
    code: str
    reason: str
    faults: list[Fault] = []


class Rejected(Answer):
    """The last refusals, newest first."""

    results: list[RejectedResult]
    submissions: list[RejectedSubmission]
