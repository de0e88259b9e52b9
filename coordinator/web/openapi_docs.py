"""What each endpoint of the HTTP interface takes and answers, as models: `openapi.py` makes the document of it.

Answers are the models that clients read (`shared.client_answers`), bodies those that the endpoints parse. Which paths
there are and who may use them stands in `app.py` alone; a test holds this list against it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from coordinator.web import (
    downloads,
    enrolment,
    hooks,
    jobs,
    live,
    logs,
    operations,
    publications,
    publishers,
    tokens,
    uploads,
    worker_rules,
)
from coordinator.web.job_actions import BODIES, ActionBody
from shared.client_answers import (
    Answer,
    AttemptLine,
    CallbackLine,
    HeartbeatLine,
    JobPage,
    JobView,
    LaneLine,
    PublicationLine,
    Rejected,
    RunningLine,
    UndeliveredLine,
    Unpublished,
    WorkerLine,
)
from shared.rules import Rules
from shared.states import JobState
from shared.submission import ArticleSpec, ImageSpec, Submission
from shared.wire import Fault

ERROR_STATUSES: Final = {
    400: "The query or the body can't be understood; `faults` names each reason",
    401: "No token, or an unknown one",
    403: "The token's role does not allow it",
    404: "There is no such thing, or it is none of the caller's business",
    408: "The body did not arrive in time",
    409: "It does not apply to how things are now",
    410: "It was there, and is not kept any more",
    411: "Content-Length is needed",
    413: "Too large",
    416: "The file has no such bytes",
    417: "Only 100-continue may be expected",
    422: "The body is wrong; `faults` names every field",
    429: "Too often: wait as long as Retry-After says",
    503: "Nothing was decided: try again",
    507: "The store is full",
}


# ----------------------------------------------------------------------------------------------------------- answers


class Problem(Answer):
    """Why a request was refused."""

    code: str  # one word for programs
    message: str  # a sentence for people
    faults: list[Fault]


class Refused(Answer):
    """The one form that refusals have."""

    error: Problem


class JobId(Answer):
    """A job of which no more is known now; the ledger went away, or is yet to admit it."""

    id: UUID
    state: str = ""  # `queued`, or absent

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class Attempts(Answer):
    """Every attempt of a job, oldest first."""

    attempts: list[AttemptLine]


class Heartbeats(Answer):
    """The kept heartbeats of a job, newest first."""

    heartbeats: list[HeartbeatLine]


class Callbacks(Answer):
    """What a job's callback_url was told, oldest first."""

    callbacks: list[CallbackLine]


class Publications(Answer):
    """How a job's results are published."""

    publications: list[PublicationLine]


class Logs(Answer):
    """Log lines about a job, newest last; their fields are those that were logged."""

    lines: list[dict[str, Any]]


class Workers(Answer):
    """Every worker that was ever heard of."""

    workers: list[WorkerLine]


class Lanes(Answer):
    """Every lane that ever had a job."""

    lanes: list[LaneLine]


class Undelivered(Answer):
    """Callbacks that were given up, newest first."""

    undelivered: list[UndeliveredLine]


class WorkerOrdered(Answer):
    """A worker was told."""

    worker: str
    order: Literal["drain", "pause", "resume"]


class WorkerRules(Answer):
    """By which rules a worker works."""

    worker: str
    rules: dict[str, Any] | None  # what it was told; null: its own count
    in_force: dict[str, Any]  # what it followed when it was last heard
    by: str | None  # coordinator, settings; null: it has none
    fault: str | None  # why it can't follow what it was told
    forbidden: list[str]  # why it takes no work, for people


class Invitation(Answer):
    """A line that lets one Mac join; it is shown this once."""

    worker: str
    line: str
    expires_at: datetime
    warnings: list[str]


class WorkerRevoked(Answer):
    """A worker that was cut off."""

    worker: str
    leases_ended: int


class Welcome(Answer):
    """What a Mac that has joined is told, sealed with the invitation's key."""

    worker: str
    nats: str  # URL
    ca: str  # certificates to trust, PEM; empty = the system's
    seal: str


class NatsPublisher(Answer):
    """A publisher that may connect to NATS."""

    source: str
    public_key: str  # of its nkey


class NatsPublishers(Answer):
    """Every publisher that may connect to NATS."""

    publishers: list[NatsPublisher]


class PublisherAdded(NatsPublisher):
    """A publisher that may connect to NATS from now on."""

    nats: str  # URL


class PublisherRevoked(Answer):
    """A publisher that was cut off."""

    source: str


class Token(Answer):
    """A token; what it is itself is shown once, when it is made."""

    id: str | None  # None: of the coordinator's settings
    role: str
    name: str
    made_by: str | None
    made_at: datetime | None
    last_used_at: datetime | None


class NewToken(Answer):
    """A token that was made."""

    id: str
    role: str
    name: str
    token: str


class Tokens(Answer):
    """Every token that is good."""

    tokens: list[Token]


class TokenRevoked(Answer):
    """A token that is good no more."""

    id: str
    role: str
    name: str


class LaneOrdered(Answer):
    """A lane is paused, or not."""

    lane: str
    paused: bool


class SiteChecked(Answer):
    """A source's site is looked at now."""

    source: str
    order: Literal["check"]


class Status(Answer):
    """How everything is; without jobs, lanes, workers and running while the ledger is away."""

    ready: bool
    not_ready_because: list[str]
    health: dict[str, Any]
    versions: dict[str, Any]
    ledger: dict[str, Any]
    jobs: dict[JobState, int] = Field({})
    lanes: list[LaneLine] = Field([])
    workers: list[WorkerLine] = Field([])
    running: list[RunningLine] = Field([])

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class Alive(Answer):
    """The process lives."""

    alive: Literal[True]


class Ready(Answer):
    """Whether work can be taken and given, and why not."""

    ready: bool
    reasons: list[str]


class Stored(Answer):
    """A file that is in the store."""

    name: str
    size: int  # bytes
    sha256: str


class HookTaken(Answer):
    """What an event became: jobs, or nothing for a reason."""

    jobs: list[dict[str, Any]] = Field([])
    ignored: str = ""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


# ---------------------------------------------------------------------------------------------------- what is asked


_Limit = Annotated[int, Field(ge=1, le=500)]


class JobsQuery(BaseModel):
    """Which jobs; each that is given must match."""

    state: JobState | None = None
    kind: str | None = None
    model: str | None = None
    worker: str | None = Field(None, description="Holds it, or has held it")
    label: list[Annotated[str, Field(pattern="^[^:]*:")]] = Field([], description="name:value; each must match")
    text: str | None = Field(None, description="Begins its id or key, is a label's value, or words of its error")
    limit: _Limit = 50
    cursor: str | None = Field(None, pattern="^[A-Za-z0-9_-]+$", description="`next` of the page before")


class LimitQuery(BaseModel):
    """How many."""

    limit: _Limit = 50


class HeartbeatsQuery(BaseModel):
    """How many."""

    limit: int = Field(200, ge=1, le=5000)


class LogsQuery(BaseModel):
    """How many."""

    limit: int = Field(200, ge=1, le=2000)


class EventsQuery(BaseModel):
    """Whose events."""

    job_id: UUID | None = None


class ArticleSubmission(Submission):
    """A submission of an article."""

    kind: Literal["article"]
    spec: ArticleSpec  # type: ignore[assignment] # as an object it is checked apart: see parse_submission


class ImageSubmission(Submission):
    """A submission of an image."""

    kind: Literal["image"]
    spec: ImageSpec  # type: ignore[assignment] # the same


# ------------------------------------------------------------------------------------------------------- endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """What one endpoint takes and answers; what all have (401, 403, 404 of a job ...) is added by `openapi.py`."""

    answers: Mapping[int, Any]  # by status: a model or a union of models, None for an empty body
    refuses: frozenset[int] = frozenset()
    query: type[BaseModel] | None = None
    body: Any = None  # a model or a union of models
    needs_body: bool = False  # also where every field of it may be left out
    body_of: Callable[[str], Any] | None = None  # of an action that the path names
    media: str = "application/json"  # of the answers
    location: frozenset[int] = frozenset()  # statuses with a Location
    headers: Mapping[str, str] = field(default_factory=dict)  # what the request must say besides, with a description
    uses_ledger: bool = True


def _refuses(*statuses: int) -> frozenset[int]:
    return frozenset(statuses)


_SUBMIT: Final = Doc(
    answers={200: JobView | JobId, 201: JobView | JobId, 202: JobId},
    refuses=_refuses(409, 413),
    body=ArticleSubmission | ImageSubmission | Submission,
    location=frozenset({200, 201, 202}),
)

DOCS: Final[Mapping[Callable[..., Any], Doc]] = {
    jobs.submit: _SUBMIT,
    jobs.search: Doc(answers={200: JobPage}, query=JobsQuery),
    jobs.show: Doc(answers={200: JobView}),
    jobs.attempts: Doc(answers={200: Attempts}),
    jobs.heartbeats: Doc(answers={200: Heartbeats}, query=HeartbeatsQuery),
    jobs.callbacks: Doc(answers={200: Callbacks}),
    jobs.callback_again: Doc(answers={200: Callbacks}, refuses=_refuses(409)),
    jobs.act: Doc(
        answers={200: JobView | JobId},
        refuses=_refuses(409, 413),
        body_of=lambda action: BODIES.get(action, ActionBody),
    ),
    downloads.download: Doc(answers={200: None, 206: None, 304: None}, refuses=_refuses(410, 416), media="*/*"),
    publications.of_job: Doc(answers={200: Publications}),
    publications.again: Doc(answers={200: Publications}, refuses=_refuses(409)),
    publications.undone: Doc(answers={200: Unpublished}, query=LimitQuery),
    publications.check: Doc(answers={200: SiteChecked}, refuses=_refuses(404, 409)),
    logs.of_job: Doc(answers={200: Logs}, query=LogsQuery),
    operations.workers: Doc(answers={200: Workers}),
    operations.order: Doc(answers={200: WorkerOrdered}, refuses=_refuses(404)),
    worker_rules.show: Doc(answers={200: WorkerRules}, refuses=_refuses(404)),
    worker_rules.tell: Doc(answers={200: WorkerRules}, refuses=_refuses(404, 413), body=Rules, needs_body=True),
    worker_rules.clear: Doc(answers={200: WorkerRules}, refuses=_refuses(404)),
    enrolment.invite: Doc(answers={201: Invitation}, refuses=_refuses(409, 413), body=enrolment.InviteBody),
    enrolment.revoke: Doc(answers={200: WorkerRevoked}, refuses=_refuses(404, 409, 422)),
    publishers.listed: Doc(answers={200: NatsPublishers}, refuses=_refuses(409), uses_ledger=False),
    publishers.add: Doc(
        answers={200: PublisherAdded, 201: PublisherAdded}, refuses=_refuses(409, 413), body=publishers.PublisherBody
    ),
    publishers.revoke: Doc(answers={200: PublisherRevoked}, refuses=_refuses(404, 409, 422)),
    tokens.listed: Doc(answers={200: Tokens}),
    tokens.make: Doc(answers={201: NewToken}, refuses=_refuses(409, 413), body=tokens.TokenBody),
    tokens.revoke: Doc(answers={200: TokenRevoked}, refuses=_refuses(404)),
    operations.lanes: Doc(answers={200: Lanes}),
    operations.pause_lane: Doc(answers={200: LaneOrdered}, refuses=_refuses(404)),
    operations.rejected: Doc(answers={200: Rejected}, query=LimitQuery),
    operations.undelivered: Doc(answers={200: Undelivered}, query=LimitQuery),
    operations.status: Doc(answers={200: Status}, uses_ledger=False),
    operations.metrics: Doc(answers={200: None}, media="text/plain", uses_ledger=False),
    live.events: Doc(answers={200: None}, query=EventsQuery, media="text/event-stream"),
}

OPEN: Final[Mapping[tuple[str, str], tuple[Callable[..., Any], Doc]]] = {
    ("GET", "/healthz"): (operations.healthz, Doc(answers={200: Alive}, uses_ledger=False)),
    ("GET", "/readyz"): (operations.readyz, Doc(answers={200: Ready, 503: Ready}, uses_ledger=False)),
    ("POST", "/hooks/{source}"): (
        hooks.hook,
        Doc(answers={200: HookTaken, 202: HookTaken}, refuses=_refuses(401, 404, 413), body=dict[str, Any]),
    ),
    ("POST", "/v1/join"): (
        enrolment.join,
        Doc(answers={200: Welcome}, refuses=_refuses(404, 409, 413, 429), body=enrolment.JoinBody),
    ),
    ("PUT", "/v1/uploads/{job_id}/{epoch}/{name}"): (
        uploads.upload,
        Doc(
            answers={200: Stored, 201: Stored},
            refuses=_refuses(401, 404, 408, 409, 411, 413, 417, 422, 507),
            headers={"Digest": "sha-256=, and the digest of the whole file in base64"},
        ),
    ),
}
"""What `app.py` does not guard by roles, by method and path: probes, and what brings its own proof."""
