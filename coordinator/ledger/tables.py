"""The ledger's tables: what stands in Postgres, and what Postgres itself refuses.

Declared here, made by the migrations (a test holds the two against each other), written by `ledger.py` and
`queries.py`. Words are `text` with a CHECK, instants `timestamptz` by Postgres's clock (`tandem_now()`).

No foreign keys: every row of `attempt`, `heartbeat` and `artifact` is written under the lock of its job's row or by the
holder of its lease, and a foreign key would cost a look-up and a share lock for each heartbeat to say so again.

Indexes on `job` are partial wherever a loop reads them, so that a million settled jobs cost the loops nothing. No index
names `lease_expires_at`: a heartbeat changes just that column, and stays a heap-only update without touching an index.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.dialects.postgresql import UUID as PG_UUID
from sqlalchemy.types import TypeEngine
from sqlmodel import Field, SQLModel

from shared.states import SETTLED, AttemptOutcome, JobState, Verdict, WorkerState

_INSTANT = TIMESTAMP(timezone=True)
_UUID = PG_UUID(as_uuid=True)

_Kind = TypeEngine[Any] | type[TypeEngine[Any]]


def _key(kind: _Kind) -> Column[Any]:
    return Column(kind, primary_key=True, nullable=False)


def _must(kind: _Kind, default: str | None = None) -> Column[Any]:
    return Column(kind, nullable=False, server_default=text(default) if default is not None else None)


def _may(kind: _Kind) -> Column[Any]:
    return Column(kind, nullable=True)


def _identity() -> Column[Any]:
    return Column(BigInteger, Identity(always=True), primary_key=True)


def _words(values: Iterable[StrEnum]) -> str:
    """Return enum members as an SQL list, in a stable order."""
    return ", ".join(f"'{value}'" for value in sorted(values))


def _check(rule: str, name: str) -> CheckConstraint:
    return CheckConstraint(text(rule), name=name)


_PENDING = text("state = 'pending' AND offered_at IS NULL")
_OFFERED = text("state = 'pending' AND offered_at IS NOT NULL")
_PROCESSING = text("state = 'processing'")
_CHOICES = text("state = 'pending' AND models IS NOT NULL")
_AT_ONCE: dict[str, Any] = {"postgresql_using": "gin", "postgresql_with": {"fastupdate": "off"}}
_ERROR_WORDS = "to_tsvector('simple', ((error ->> 'code') || ' ') || (error ->> 'message'))"
_REFUSED = text("state = 'pending' AND models IS NOT NULL AND excluded <> '{}'")


class JobTable(SQLModel, table=True):
    """A job: what it is made from, where it stands, and what came out."""

    __tablename__ = "job"
    __table_args__ = (
        _check(f"state IN ({_words(JobState)})", "job_state_known"),
        _check(
            "(state = 'processing') = (worker IS NOT NULL) AND (state = 'processing') = (lease_expires_at IS NOT NULL)",
            "job_lease_exactly_while_processing",
        ),
        _check(f"(state IN ({_words(SETTLED)})) = (finished_at IS NOT NULL)", "job_finished_exactly_when_settled"),
        _check("offered_at IS NULL OR state IN ('pending', 'processing')", "job_offered_only_while_live"),
        _check(
            "result_epoch IS NOT NULL OR (result IS NULL AND result_model IS NULL"
            " AND state NOT IN ('completed', 'awaiting_review'))",
            "job_result_has_its_epoch",
        ),
        _check("result_epoch IS NULL OR state NOT IN ('pending', 'processing')", "job_no_result_while_live"),
        _check(f"NOT unpublished OR state IN ({_words(SETTLED)})", "job_publishes_only_when_settled"),
        _check("priority BETWEEN 0 AND 3", "job_priority_known"),
        _check("spent_seq <= offered_seq", "job_spent_is_no_newer_than_offered"),
        _check(
            "epoch >= 0 AND attempt >= 0 AND lease_losses >= 0 AND (epoch > 0 OR state <> 'processing')",
            "job_counts_from_zero",
        ),
        _check("max_attempts >= 1 AND timeout_s > 0", "job_limits_positive"),
        # The backlog of a lane, read per priority: due ones in order (job_backlog.sql).
        Index("job_backlog", "lane", text("priority DESC"), "run_after", "id", postgresql_where=_PENDING),
        Index("job_offered", "lane", postgresql_where=_OFFERED),
        Index("job_processing", "id", postgresql_where=_PROCESSING),  # the reaper's
        Index("job_choices", "lane", "id", postgresql_where=_CHOICES),  # placement's
        Index("job_refused", "id", postgresql_where=_REFUSED),  # the same, of those that a worker refused
        Index("job_holder", "worker", postgresql_where=_PROCESSING),
        Index("job_outbox", "finished_at", "id", postgresql_where=text("unpublished")),
        Index(  # the forecast's
            "job_done", "lane", text("finished_at DESC"), postgresql_where=text("result_epoch IS NOT NULL")
        ),
        Index("job_failed", text("finished_at DESC"), "id", postgresql_where=text("state = 'failed'")),
        Index(  # retention's
            "job_settled",
            "finished_at",
            "id",
            postgresql_where=text("finished_at IS NOT NULL AND state <> 'awaiting_review' AND NOT unpublished"),
        ),
        Index("job_list", text("created_at DESC"), "id"),
        Index("job_list_by_lane", "lane", "state", text("created_at DESC"), "id"),
        # What people search by, beside the order of the list (job_list.py). GIN without a pending list: one commit in
        # thousands would pay for all of them.
        Index(
            "job_key",
            "key",
            postgresql_where=text("key IS NOT NULL"),
            postgresql_ops={"key": "text_pattern_ops"},
        ),
        Index("job_labels", "labels", postgresql_where=text("labels <> '{}'"), **_AT_ONCE),
        Index("job_error", text(_ERROR_WORDS), postgresql_where=text("error IS NOT NULL"), **_AT_ONCE),
    )

    id: UUID = Field(sa_column=_key(_UUID))
    source: str = Field(sa_column=_must(Text))
    key: str | None = Field(sa_column=_may(Text))
    kind: str = Field(sa_column=_must(Text))
    model: str | None = Field(sa_column=_may(Text))
    lane: str = Field(sa_column=_must(Text))
    priority: int = Field(sa_column=_must(SmallInteger))  # shared.states.PRIORITY_RANK
    state: str = Field(sa_column=_must(Text))
    content_sha256: bytes = Field(sa_column=_must(LargeBinary))
    spec: dict[str, Any] = Field(sa_column=_must(JSONB))
    labels: dict[str, Any] = Field(sa_column=_must(JSONB))
    callback_url: str | None = Field(sa_column=_may(Text))
    max_attempts: int = Field(sa_column=_must(Integer))
    timeout_s: float = Field(sa_column=_must(Double))
    review: bool = Field(sa_column=_must(Boolean))
    run_after: datetime = Field(sa_column=_must(_INSTANT))
    created_at: datetime = Field(sa_column=_must(_INSTANT))
    epoch: int = Field(sa_column=_must(Integer, "0"))
    attempt: int = Field(sa_column=_must(Integer, "0"))
    lease_losses: int = Field(sa_column=_must(Integer, "0"))
    silences: int = Field(sa_column=_must(Integer, "0"))
    excluded: list[str] = Field(sa_column=_must(ARRAY(Text), "'{}'"))
    offered_at: datetime | None = Field(sa_column=_may(_INSTANT))
    offered_seq: int = Field(sa_column=_must(BigInteger, "0"))
    spent_seq: int = Field(sa_column=_must(BigInteger, "0"))
    worker: str | None = Field(sa_column=_may(Text))
    lease_expires_at: datetime | None = Field(sa_column=_may(_INSTANT))
    finished_at: datetime | None = Field(sa_column=_may(_INSTANT))
    error: dict[str, Any] | None = Field(sa_column=_may(JSONB))
    result: dict[str, Any] | None = Field(sa_column=_may(JSONB))
    result_epoch: int | None = Field(sa_column=_may(Integer))
    result_model: str | None = Field(sa_column=_may(Text))
    unpublished: bool = Field(sa_column=_must(Boolean, "false"))  # settled, and RESULTS has not acknowledged it
    published_epoch: int | None = Field(sa_column=_may(Integer))  # the epoch that went out last
    models: list[str] | None = Field(sa_column=_may(ARRAY(Text)))  # in order of preference, `model` among them


class AttemptTable(SQLModel, table=True):
    """One epoch of a job: who held the lease, how it ended, and what its report said."""

    __tablename__ = "attempt"
    __table_args__ = (
        _check(f"outcome IN ({_words(AttemptOutcome)})", "attempt_outcome_known"),
        _check("(outcome IS NULL) = (ended_at IS NULL)", "attempt_ended_with_its_outcome"),
        _check("epoch >= 1 AND number >= 1", "attempt_counts_from_one"),
        Index("attempt_worker", "worker", text("claimed_at DESC")),
        # How the last day went (ended.py). It names what changes at the end, and still leaves that a heap-only update.
        Index("attempt_ended", "ended_at", postgresql_using="brin", postgresql_with={"autosummarize": "on"}),
    )

    job_id: UUID = Field(sa_column=_key(_UUID))
    epoch: int = Field(sa_column=_key(Integer))
    number: int = Field(sa_column=_must(Integer))
    worker: str = Field(sa_column=_must(Text))
    instance: str | None = Field(sa_column=_may(Text))
    delivery: str = Field(sa_column=_must(Text))
    claimed_at: datetime = Field(sa_column=_must(_INSTANT))
    deadline_at: datetime = Field(sa_column=_must(_INSTANT))
    outcome: str | None = Field(sa_column=_may(Text))
    ended_at: datetime | None = Field(sa_column=_may(_INSTANT))
    error: dict[str, Any] | None = Field(sa_column=_may(JSONB))
    result_sha256: bytes | None = Field(sa_column=_may(LargeBinary))
    stage: str | None = Field(sa_column=_may(Text))
    progress: float | None = Field(sa_column=_may(Double))
    heartbeats: int = Field(sa_column=_must(Integer, "0"))
    heartbeat_at: datetime | None = Field(sa_column=_may(_INSTANT))
    # From the report that ended it:
    elapsed_s: float | None = Field(sa_column=_may(Double))
    model: str | None = Field(sa_column=_may(Text))
    settings: dict[str, Any] | None = Field(sa_column=_may(JSONB))
    stages: list[dict[str, Any]] | None = Field(sa_column=_may(JSONB))  # [{"stage", "at_s"}]
    bytes: int | None = Field(sa_column=_may(BigInteger))  # sum of the returned files


class HeartbeatTable(SQLModel, table=True):
    """The history of heartbeats; trimmed by age."""

    __tablename__ = "heartbeat"
    __table_args__ = (Index("heartbeat_job", "job_id", "at"),)

    id: int = Field(sa_column=_identity())
    job_id: UUID = Field(sa_column=_must(_UUID))
    epoch: int = Field(sa_column=_must(Integer))
    worker: str = Field(sa_column=_must(Text))
    at: datetime = Field(sa_column=_must(_INSTANT))
    stage: str = Field(sa_column=_must(Text))
    elapsed_s: float = Field(sa_column=_must(Double))
    progress: float | None = Field(sa_column=_may(Double))
    detail: str | None = Field(sa_column=_may(Text))


class ArtifactTable(SQLModel, table=True):
    """A stored file of one epoch; part of a result only if `linked`.

    Rows of the nil job are no files: they announce that a content is being removed (artifact_doom.sql).
    """

    __tablename__ = "artifact"
    __table_args__ = (
        _check("size >= 0", "artifact_size_positive"),
        Index("artifact_sha256", "sha256"),
        Index("artifact_unlinked", "stored_at", postgresql_where=text("NOT linked")),  # the sweeper's
        Index("artifact_kept", "stored_at", postgresql_where=text("linked AND trimmed_at IS NULL")),  # retention's
    )

    job_id: UUID = Field(sa_column=_key(_UUID))
    epoch: int = Field(sa_column=_key(Integer))
    name: str = Field(sa_column=_key(Text))
    worker: str = Field(sa_column=_must(Text))
    media_type: str = Field(sa_column=_must(Text))
    size: int = Field(sa_column=_must(BigInteger))
    sha256: str = Field(sa_column=_must(Text))
    stored_at: datetime = Field(sa_column=_must(_INSTANT))
    linked: bool = Field(sa_column=_must(Boolean, "false"))  # set by the accepted report and by nothing else
    trimmed_at: datetime | None = Field(sa_column=_may(_INSTANT))  # since then its content is not kept


class RejectedResultTable(SQLModel, table=True):
    """A report that was not accepted."""

    __tablename__ = "rejected_result"
    __table_args__ = (
        _check(f"verdict IN ({_words([v for v in Verdict if v != Verdict.ACCEPTED])})", "rejected_result_verdict"),
        Index("rejected_result_at", text("at DESC"), "id"),
        Index("rejected_result_job", "job_id"),
    )

    id: int = Field(sa_column=_identity())
    job_id: UUID | None = Field(sa_column=_may(_UUID))  # as reported: there may be no such job, or no readable id
    epoch: int | None = Field(sa_column=_may(BigInteger))  # as reported, hence wider than ours
    worker: str = Field(sa_column=_must(Text))
    verdict: str = Field(sa_column=_must(Text))
    reason: str = Field(sa_column=_must(Text))
    current_epoch: int = Field(sa_column=_must(Integer))
    at: datetime = Field(sa_column=_must(_INSTANT))
    report: dict[str, Any] = Field(sa_column=_must(JSONB))  # at most 64 KiB: long results are cut


class RejectedSubmissionTable(SQLModel, table=True):
    """A submission that was refused at the door."""

    __tablename__ = "rejected_submission"
    __table_args__ = (Index("rejected_submission_at", text("at DESC"), "id"),)

    id: int = Field(sa_column=_identity())
    source: str = Field(sa_column=_must(Text))
    at: datetime = Field(sa_column=_must(_INSTANT))
    code: str = Field(sa_column=_must(Text))
    reason: str = Field(sa_column=_must(Text))
    faults: list[dict[str, Any]] = Field(sa_column=_must(JSONB))  # [{"field", "message"}]
    body: bytes = Field(sa_column=_must(LargeBinary))  # its first 64 KiB
    size: int = Field(sa_column=_must(BigInteger))  # of the whole body, bytes


class WorkerTable(SQLModel, table=True):
    """An agent as it was last heard of, and what an operator wants of it."""

    __tablename__ = "worker"
    __table_args__ = (
        _check(
            f"wanted IN ({_words([w for w in WorkerState if w != WorkerState.UNHEALTHY])})",
            "worker_wanted_known",
        ),
    )

    name: str = Field(sa_column=_key(Text))
    nkey: str | None = Field(sa_column=_may(Text))  # as the server stamped it
    instance: str | None = Field(sa_column=_may(Text))
    retired: list[str] = Field(sa_column=_must(ARRAY(Text), "'{}'"))  # processes that a newer one has replaced
    first_seen_at: datetime | None = Field(sa_column=_may(_INSTANT))  # None: only an operator spoke of it so far
    seen_at: datetime | None = Field(sa_column=_may(_INSTANT))
    presence: dict[str, Any] | None = Field(sa_column=_may(JSONB))  # its last message
    wanted: str = Field(sa_column=_must(Text, "'ready'"))
    resumed_at: datetime | None = Field(sa_column=_may(_INSTANT))  # failures of attempts from before count no more
    rules: dict[str, Any] | None = Field(sa_column=_may(JSONB))  # when it shall work; None: its own rules count


class InvitationTable(SQLModel, table=True):
    """A line that lets one Mac join as this worker, once; the newest of a worker is the one that counts."""

    __tablename__ = "invitation"
    __table_args__ = (
        _check("(public_key IS NULL) = (used_at IS NULL)", "invitation_used_by_a_key"),
        Index("invitation_id", "id", unique=True),
    )

    worker: str = Field(sa_column=_key(Text))
    id: str = Field(sa_column=_must(Text))  # of the line's secret; says nothing about it
    key: bytes = Field(sa_column=_must(LargeBinary))  # what both sides seal with (shared/joining.py)
    made_by: str = Field(sa_column=_must(Text))
    made_at: datetime = Field(sa_column=_must(_INSTANT))
    expires_at: datetime = Field(sa_column=_must(_INSTANT))
    public_key: str | None = Field(sa_column=_may(Text))  # that it was used with; only this one may repeat
    used_at: datetime | None = Field(sa_column=_may(_INSTANT))


class AccessTokenTable(SQLModel, table=True):
    """A token that lets somebody in over HTTP; only its digest is kept, and its row for ever."""

    __tablename__ = "access_token"
    __table_args__ = (
        _check("role IN ('admin', 'publisher', 'viewer')", "access_token_role_known"),
        Index("access_token_digest", "digest", unique=True),
    )

    id: str = Field(sa_column=_key(Text))  # by which it is listed and revoked
    role: str = Field(sa_column=_must(Text))
    name: str = Field(sa_column=_must(Text))  # source of what it submits, actor of what it does
    digest: bytes = Field(sa_column=_must(LargeBinary))  # SHA-256
    made_by: str = Field(sa_column=_must(Text))
    made_at: datetime = Field(sa_column=_must(_INSTANT))
    last_used_at: datetime | None = Field(sa_column=_may(_INSTANT))
    revoked_at: datetime | None = Field(sa_column=_may(_INSTANT))


class RestoredTable(SQLModel, table=True):
    """A restore of this ledger from a backup: what was granted between the two is not known here."""

    __tablename__ = "restored"

    epoch_floor: int = Field(
        sa_column=Column(Integer, primary_key=True, nullable=False, autoincrement=False)
    )  # no epoch below it is granted any more
    at: datetime = Field(sa_column=_must(_INSTANT))
    made_at: datetime = Field(sa_column=_must(_INSTANT))  # when the backup was


class LaneTable(SQLModel, table=True):
    """A lane that has ever had a job."""

    __tablename__ = "lane"

    name: str = Field(sa_column=_key(Text))
    paused: bool = Field(sa_column=_must(Boolean, "false"))


class CallbackTable(SQLModel, table=True):
    """What a settled job's `callback_url` is told, once for each state that it settles in, and how that goes."""

    __tablename__ = "callback"
    __table_args__ = (
        _check("num_nonnulls(next_at, delivered_at, given_up_at) = 1", "callback_one_end"),
        Index(  # retention's
            "callback_kept",
            text("coalesce(delivered_at, given_up_at)"),
            postgresql_where=text("next_at IS NULL AND octet_length(body) > 0"),
        ),
        Index("callback_due", "next_at", postgresql_where=text("next_at IS NOT NULL")),
        Index(
            "callback_given_up", text("given_up_at DESC"), "job_id", postgresql_where=text("given_up_at IS NOT NULL")
        ),
    )

    job_id: UUID = Field(sa_column=_key(_UUID))
    epoch: int = Field(sa_column=_key(Integer))
    state: str = Field(sa_column=_key(Text))
    webhook_id: str = Field(sa_column=_must(Text))
    source: str = Field(sa_column=_must(Text))
    url: str = Field(sa_column=_must(Text))
    host: str = Field(sa_column=_must(Text))  # of the url: so many at once
    body: bytes = Field(sa_column=_must(LargeBinary))  # as RESULTS has it
    since: datetime = Field(sa_column=_must(_INSTANT))  # of the first try, or of the first since a person's "again"
    attempts: int = Field(sa_column=_must(Integer, "0"))
    next_at: datetime | None = Field(sa_column=_may(_INSTANT))  # while one tries: when the next may
    tried_at: datetime | None = Field(sa_column=_may(_INSTANT))
    delivered_at: datetime | None = Field(sa_column=_may(_INSTANT))
    given_up_at: datetime | None = Field(sa_column=_may(_INSTANT))
    status: int | None = Field(sa_column=_may(Integer))  # the last answer's
    error: str | None = Field(sa_column=_may(Text))  # why the last try failed


class PublicationTable(SQLModel, table=True):
    """A completed job that is published in its source's CMS, and how far that is."""

    __tablename__ = "publication"
    __table_args__ = (
        _check("num_nonnulls(next_at, published_at, failed_at) = 1", "publication_one_end"),
        Index("publication_due", "next_at", postgresql_where=text("next_at IS NOT NULL")),
        Index("publication_undone", text("since DESC"), "job_id", postgresql_where=text("published_at IS NULL")),
        Index("publication_of_post", "source", "post", "kind", "asked_at"),
    )

    job_id: UUID = Field(sa_column=_key(_UUID))
    epoch: int = Field(sa_column=_key(Integer))
    source: str = Field(sa_column=_must(Text))
    kind: str = Field(sa_column=_must(Text))
    post: str | None = Field(sa_column=_may(Text))  # the label wordpress_post
    asked_at: datetime = Field(sa_column=_must(_INSTANT))  # of the job: an older one never overwrites a newer one
    since: datetime = Field(sa_column=_must(_INSTANT))  # of the first try, or of the first since a person's "again"
    attempts: int = Field(sa_column=_must(Integer, "0"))
    next_at: datetime | None = Field(sa_column=_may(_INSTANT))  # while one tries: when the next may
    tried_at: datetime | None = Field(sa_column=_may(_INSTANT))
    published_at: datetime | None = Field(sa_column=_may(_INSTANT))
    failed_at: datetime | None = Field(sa_column=_may(_INSTANT))
    error: str | None = Field(sa_column=_may(Text))  # why the last try failed
    steps: dict[str, Any] = Field(sa_column=_must(JSONB, "'{}'"))  # done already, with the ids that the CMS gave


class PausedSiteTable(SQLModel, table=True):
    """A source whose CMS refuses us as we are: nothing is published there until a check finds it mended."""

    __tablename__ = "paused_site"

    source: str = Field(sa_column=_key(Text))
    reason: str = Field(sa_column=_must(Text))
    since: datetime = Field(sa_column=_must(_INSTANT))
    check_at: datetime = Field(sa_column=_must(_INSTANT))  # when it is asked next


class OperatorActionTable(SQLModel, table=True):
    """What a person did."""

    __tablename__ = "operator_action"
    __table_args__ = (
        Index("operator_action_at", text("at DESC"), "id"),
        Index("operator_action_job", "job_id", postgresql_where=text("job_id IS NOT NULL")),
    )

    id: int = Field(sa_column=_identity())
    at: datetime = Field(sa_column=_must(_INSTANT))
    actor: str = Field(sa_column=_must(Text))
    action: str = Field(sa_column=_must(Text))
    job_id: UUID | None = Field(sa_column=_may(_UUID))
    subject: str = Field(sa_column=_must(Text))  # "job", "worker mini", "lane article.any"
    note: str | None = Field(sa_column=_may(Text))  # why, in the person's words


metadata = SQLModel.metadata
