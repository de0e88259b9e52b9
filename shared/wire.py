"""The messages of PROTOCOL.md as pydantic models: what is parsed, what is refused, what is sent.

Between coordinator and agents unknown fields are ignored (rolling upgrades); submissions refuse them (typos).
`faults_of` turns a ValidationError into the list that every refusal carries.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from shared.ids import NAME_PATTERN
from shared.states import DenyReason, ErrorClass, LostReason, ReportOutcome, Verdict, WorkerState

KIND_PATTERN = r"^[a-z][a-z0-9_]*(-[a-z0-9_]+)*$"
"""No `--` and no `-` at the end, so that consumer names (`<kind>--<slug>`) can be read back."""

ARTIFACT_NAME_PATTERN = r"^[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,119}$"
"""One path segment that no file system misreads; no leading dot."""

SHA256_PATTERN = r"^[0-9a-f]{64}$"


def _no_nul(text: str) -> str:
    if "\x00" in text:
        msg = "text must not contain NUL"
        raise ValueError(msg)
    return text


Text = Annotated[str, AfterValidator(_no_nul)]
"""Text that Postgres can store."""

Kind = Annotated[str, Field(pattern=KIND_PATTERN, max_length=32)]
Epoch = Annotated[int, Field(ge=1, le=2**31 - 1)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Open(BaseModel):
    """A message between coordinator and agent: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Fault(Open):
    """One thing that is wrong with a message, and where: `spec.width`."""

    field: str
    message: str


class BadMessageError(ValueError):
    """A message was refused; `faults` names each reason, `code` is one word for all."""

    def __init__(self, code: str, faults: list[Fault]) -> None:
        """Keep the faults and sum them up in the text."""
        self.code = code
        self.faults = faults
        super().__init__("; ".join(f"{f.field}: {f.message}" if f.field else f.message for f in faults))


def faults_of(error: ValidationError, prefix: str = "") -> list[Fault]:
    """Return one Fault for each error in a pydantic ValidationError."""
    return [
        Fault(field=".".join([prefix, *map(str, e["loc"])]).strip("."), message=e["msg"].removeprefix("Value error, "))
        for e in error.errors(include_url=False, include_context=False, include_input=False)
    ]


# ----------------------------------------------------------------------------------------------------- take work


class Capability(Open):
    """What an agent can run: a kind, its models (`*` = each), and which executor does it."""

    kind: Kind
    models: list[Annotated[Text, Field(min_length=1, max_length=200)]] = Field(default=["*"], max_length=200)
    executor: str = ""


class Busy(Open):
    """A lease that the agent holds right now, a spooled result not yet answered included."""

    job_id: UUID
    epoch: Epoch
    stage: str = ""


class Presence(Open):
    """An agent announces itself, every `presence_s`."""

    protocol: int = 1
    version: str = ""
    instance: Text = Field(max_length=100)  # uuid of this process
    host: str = ""
    platform: str = ""
    slots: int = Field(default=1, ge=0, le=10_000)
    rank: int = Field(default=0, ge=0, le=9)  # priority of its pulls; 0 is served first
    state: WorkerState = WorkerState.READY
    capabilities: list[Capability] = Field(default=[], max_length=100)
    down: list[Capability] = Field(default=[], max_length=100)  # what it runs when their backends are back
    warm: list[str] = []
    busy: list[Busy] = Field(default=[], max_length=10_000)
    as_of: AwareDatetime | None = None  # what the last answer said: this was sent after it
    facts: dict[str, Any] = {}


class LaneOffer(Open):
    """A lane that the agent may pull from."""

    kind: str
    slug: str
    consumer: str
    pending: int = 0
    better_free: int | None = None  # free slots of ready agents of a better rank in this lane; None: not told


class PresenceReply(Open):
    """What the coordinator answers: lanes to pull from, the lease's times, and the state an operator wants."""

    lanes: list[LaneOffer]
    lease_ttl_s: float
    heartbeat_s: float
    presence_s: float = 10.0
    as_of: AwareDatetime | None = None  # the ledger's time; to be said in the next presence
    state: WorkerState = WorkerState.READY
    rules: dict[str, Any] | None = None  # shared/rules.py, instead of the agent's own; None: its own count


class RefusedPresence(Open):
    """The announcement can't be taken: it can't be read, or `replaced` by a newer process of the same name."""

    class Error(Open):
        """What is wrong."""

        code: str
        faults: list[Fault] = []

    error: Error


PresenceAnswer = TypeAdapter[PresenceReply | RefusedPresence](PresenceReply | RefusedPresence)


class Offer(Open):
    """Body of a WORK message."""

    job_id: UUID
    kind: str
    model: str | None = None


class Claim(Open):
    """Ask for the lease of an offered job."""

    job_id: UUID
    delivery: str = Field(max_length=400)  # the WORK message's reply subject
    instance: Text | None = Field(default=None, max_length=100)  # absent: the one of the last presence


class Upload(Open):
    """Where the files of this epoch go, and the right to put them there."""

    url: str
    token: str


class GrantedJob(Open):
    """The job as the agent gets it."""

    id: UUID
    kind: str
    model: str | None = None
    spec: dict[str, Any]
    labels: dict[str, str] = {}
    priority: str = "normal"


class Failure(Open):
    """What ended an attempt that is charged to the job."""

    code: str
    verdict: str | None = None  # its `detail.verdict`, if its agent said one
    here: bool = False  # it was the claiming worker's


class Granted(Open):
    """The claim's lease is the agent's."""

    verdict: Literal["granted"] = "granted"
    epoch: int
    attempt: int  # 1 = the first
    lease_ttl_s: float
    heartbeat_s: float
    deadline_s: float  # from now, for the whole attempt
    no_progress_s: float | None = None  # how long the generator may be silent, learned; None: the agent's own limit
    failures: list[Failure] | None = None  # what is charged to the job, the oldest first; None: that is not known
    upload: Upload
    job: GrantedJob


class Denied(Open):
    """The claim is refused; the agent forgets the message."""

    verdict: Literal["denied"] = "denied"
    reason: DenyReason
    retry_in_s: float | None = None


ClaimReply = TypeAdapter[Granted | Denied](Annotated[Granted | Denied, Field(discriminator="verdict")])


class LeaseQuestion(Open):
    """Ask whether a lease is still the asker's."""

    job_id: UUID
    epoch: Epoch
    instance: Text | None = Field(default=None, max_length=100)  # the asking process; another's lease is not its own
    version: Text | None = Field(default=None, max_length=100)  # the asker's; who says it is told the coordinator's


class LeaseReply(Open):
    """`held` extends the lease; `lost` is final for that epoch."""

    lease: Literal["held", "lost"]
    ttl_s: float | None = None
    reason: LostReason | None = None
    version: str | None = None  # the coordinator's, for who said its own; else, and from 0.1, None


# --------------------------------------------------------------------------------------------------------- report


class Artifact(Open):
    """A file of a result."""

    name: str = Field(pattern=ARTIFACT_NAME_PATTERN)
    media_type: Annotated[Text, Field(max_length=200)] = "application/octet-stream"
    size: int = Field(ge=0)  # bytes
    sha256: str = Field(pattern=SHA256_PATTERN)


class ReportedError(Open):
    """Why an attempt failed or was released."""

    code: Annotated[Text, Field(max_length=100)]
    message: Annotated[Text, Field(max_length=4000)] = ""
    error_class: ErrorClass = Field(default=ErrorClass.TRANSIENT, alias="class")
    detail: Any = None

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class StageMark(Open):
    """When a stage began, in seconds from the attempt's start."""

    stage: Annotated[Text, Field(max_length=64)]
    at_s: float


class Report(Open):
    """How an attempt ended, as its agent tells it."""

    job_id: UUID
    epoch: Epoch
    outcome: ReportOutcome
    elapsed_s: float = 0.0
    model: Text | None = None
    settings: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    artifacts: list[Artifact] = Field(default=[], max_length=100)
    stages: list[StageMark] = Field(default=[], max_length=1000)
    error: ReportedError | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Report":
        if self.outcome is ReportOutcome.FAILED and self.error is None:
            msg = "a failed report needs an error"
            raise ValueError(msg)
        return self


# -------------------------------------------------------------------------------------------------------- control


class Revoke(Open):
    """Stop working on this epoch: its lease is gone."""

    type: Literal["revoke"] = "revoke"
    job_id: UUID
    epoch: int
    reason: str
    instance: str | None = None  # the process that it is for, where only one of a worker's was refused


class VerdictMessage(Open):
    """What the ledger decided on a report."""

    type: Literal["verdict"] = "verdict"
    job_id: UUID
    epoch: int
    verdict: Verdict
    reason: str | None = None


class Order(Open):
    """An operator's order to the agent."""

    type: Literal["drain", "pause", "resume"]


ControlMessage = TypeAdapter[Revoke | VerdictMessage | Order](
    Annotated[Revoke | VerdictMessage | Order, Field(discriminator="type")]
)


# -------------------------------------------------------------------------------------------------------- results


class ResultArtifact(Artifact):
    """A file of a result, with where to fetch it."""

    url: str


class ResultMessage(Open):
    """A settled job, as RESULTS and callbacks tell it."""

    job_id: UUID
    epoch: int
    kind: str
    state: str
    key: str | None
    source: str
    labels: dict[str, str]
    worker: str | None
    model: str | None
    result: dict[str, Any] | None
    artifacts: list[ResultArtifact]
    error: dict[str, Any] | None
    finished_at: datetime
