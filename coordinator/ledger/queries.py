"""What the loops read of the ledger, and the few writes that are no transition of a job. No locks, no decisions.

Every method is one statement on a free connection of the pool. All raise LedgerDownError when Postgres is away.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from coordinator.ledger.database import fetch
from shared.errors import LedgerDownError
from shared.rules import Rules
from shared.states import JobState, WorkerState
from shared.subjects import lane_of_consumer
from shared.wire import Presence

MAX_KEPT_BYTES = 64 * 1024
"""How much of a refused body is kept."""

COUNT_LIMIT = 100
"""Waiting jobs are counted up to this, per lane and priority."""

_MAX_REASON = 4000
_MAX_NAME = 200
_REPUBLISH_BATCH = 5000


@dataclass(frozen=True, slots=True)
class LaneWork:
    """What there is to do in a lane that has anything to do."""

    lane: str
    waiting: int  # due and not offered; counted up to COUNT_LIMIT a priority
    offered: int  # in WORK, unclaimed


@dataclass(frozen=True, slots=True)
class OfferRow:
    """An offer that nobody has claimed."""

    job_id: UUID
    lane: str
    offered_at: datetime
    offered_seq: int
    age_s: float
    excluded: frozenset[str]


@dataclass(frozen=True, slots=True)
class LightJob:
    """Where a job stands, for holding it against its message in WORK."""

    id: UUID
    state: JobState
    lane: str
    epoch: int
    worker: str | None
    offered_at: datetime | None
    offered_seq: int
    spent_seq: int


@dataclass(frozen=True, slots=True)
class UnpublishedRow:
    """A settled job as its RESULTS message tells it."""

    id: UUID
    epoch: int
    kind: str
    state: JobState
    key: str | None
    source: str
    labels: dict[str, str]
    worker: str | None  # of the last attempt
    model: str | None  # that made the result, else that was asked for
    result: dict[str, Any] | None
    artifacts: list[dict[str, Any]]  # name, media_type, size, sha256; of the accepted report
    error: dict[str, Any] | None
    finished_at: datetime
    published_epoch: int | None  # the epoch that went out last
    callback_url: str | None


@dataclass(frozen=True, slots=True)
class CallbackRow:
    """A callback that is to be sent now."""

    job_id: UUID
    epoch: int
    state: str
    webhook_id: str
    source: str
    url: str
    host: str
    body: bytes
    attempts: int  # this one included
    age_s: float  # since the first try


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """An agent as it was last heard of."""

    name: str
    nkey: str | None  # who its connection was authenticated as
    instance: str | None
    retired: frozenset[str]  # processes that a newer one has replaced
    first_seen_at: datetime | None
    seen_at: datetime | None
    presence: Presence | None  # None: never announced itself
    wanted: WorkerState  # the operator's word
    age_s: float  # since its last presence, when this was read
    rules: dict[str, Any] | None = None  # the operator's, as `shared.rules` writes them; None: the agent's own count


@dataclass(frozen=True, slots=True)
class DurationRow:
    """How long a result took."""

    lane: str
    worker: str
    took_s: float  # from the grant until the report was accepted
    elapsed_s: float | None  # from the grant until the generator was done, as its agent told it
    stages: list[dict[str, Any]] | None  # [{"stage", "at_s"}] by the agent's clock; None: not told, or very many


@dataclass(frozen=True, slots=True)
class HeldRow:
    """How far a job is that somebody works on."""

    lane: str
    worker: str
    claimed_at: datetime
    stage: str | None
    progress: float | None  # of the stage
    heartbeat_at: datetime | None


@dataclass(frozen=True, slots=True)
class Streak:
    """A worker's last attempts in a lane, all of which failed in a way that may be the machine's."""

    worker: str
    lane: str
    failures: int  # in a row, counted back to the last success
    code: str | None  # of the last one
    message: str | None
    age_s: float  # since the last one
    empty: bool  # the newest ones were answers without content
    others: bool  # another worker succeeded in the lane meanwhile


@dataclass(frozen=True, slots=True)
class Placing:
    """Where a job waits, and where else it might."""

    kind: str
    lane: str
    model: str | None
    models: tuple[str, ...]  # in order of preference; empty = there is no choice


@dataclass(frozen=True, slots=True)
class MovableRow:
    """A waiting job that has a choice of models."""

    id: UUID
    kind: str
    lane: str
    model: str
    models: list[str]
    excluded: frozenset[str]
    offered_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A file that is stored for one epoch."""

    name: str
    worker: str
    media_type: str
    size: int
    sha256: str
    stored_at: datetime
    linked: bool  # part of the job's result


class Queries:
    """The read side of the ledger."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    # ---- the loops

    async def now(self) -> datetime:
        """Return the ledger's time; LedgerDownError also while Postgres takes no writes, as a standby does."""
        row = await self._one("now")
        if row["read_only"]:
            msg = "Postgres takes no writes: it is a standby, or set to be read-only"
            raise LedgerDownError(msg)
        return row["now"]  # type: ignore[no-any-return]

    async def expired(self, limit: int, after: UUID | None = None) -> list[UUID]:
        """Return jobs whose lease is over, in id order, from beyond `after` on."""
        return [row["id"] for row in await self._all("expired", limit, after)]

    async def backlog(self, lane: str, limit: int, free: Sequence[str] | None = None) -> list[UUID]:
        """Return the jobs of a lane that are due and not offered, in the order priority, run_after, id.

        With `free` only those that one of these workers may take.
        """
        return [row["id"] for row in await self._all("backlog", lane, limit, free)]

    async def lanes_with_work(self) -> list[LaneWork]:
        """Return every lane with a job that waits, is offered or is held."""
        return [LaneWork(**row) for row in await self._all("lanes_with_work", COUNT_LIMIT)]

    async def known_lanes(self) -> list[str]:
        """Return every lane that ever had a job or was spoken of, by name."""
        return [row["name"] for row in await self._all("known_lanes")]

    async def placing_of(self, job_id: UUID) -> Placing | None:
        """Return where a job belongs; None if there is no such job."""
        rows = await self._all("placing_of", job_id)
        return Placing(**{**rows[0], "models": tuple(rows[0]["models"] or ())}) if rows else None

    async def movable(self, lanes: Sequence[str], after: UUID | None, limit: int) -> list[MovableRow]:
        """Return waiting jobs that have a choice, in one of `lanes` or refused by a worker; by id, beyond `after`."""
        rows = await self._all("movable", after, lanes, limit)
        return [MovableRow(**{**row, "excluded": frozenset(row["excluded"])}) for row in rows]

    async def streaks(
        self, *, within_s: float, attempts: int, failures: int, empty: Sequence[str], recently_s: float
    ) -> list[Streak]:
        """Return who failed `failures` times in a row or more, and in which lane; reads the last `attempts` of each
        worker. `empty`: codes of answers without content. `recently_s`: how long another's success counts.
        """
        rows = await self._all("streaks", within_s, attempts, failures, empty, recently_s)
        found = [{**row, "lane": lane_of_consumer(row["consumer"])} for row in rows]
        return [Streak(**{name: value for name, value in row.items() if name != "consumer"}) for row in found]

    async def offers(self, older_than_s: float) -> list[OfferRow]:
        """Return the offers that nobody has claimed for so long, the oldest first."""
        rows = await self._all("offers", older_than_s)
        return [OfferRow(**{**row, "excluded": frozenset(row["excluded"])}) for row in rows]

    async def jobs_light(self, ids: Sequence[UUID]) -> dict[UUID, LightJob]:
        """Return where these jobs stand; unknown ids are missing."""
        rows = await self._all("jobs_light", ids)
        return {row["id"]: LightJob(**{**row, "state": JobState(row["state"])}) for row in rows}

    async def processing_of(self, worker: str) -> list[tuple[UUID, int]]:
        """Return the leases that a worker holds: (job, epoch)."""
        return [(row["id"], row["epoch"]) for row in await self._all("processing_of", worker)]

    async def lapsed_of(self, worker: str, jobs: Sequence[UUID]) -> list[tuple[UUID, int]]:
        """Return those of `jobs` whose newest lease lapsed in this worker's hands: (job, epoch)."""
        return [(row["id"], row["epoch"]) for row in await self._all("lapsed_of", worker, jobs)]

    async def held_by_silent(self, worker: str, instance: str, since: datetime) -> list[UUID]:
        """Return what a process holds, unless it has announced itself `since`."""
        return [row["id"] for row in await self._all("held_by_silent", worker, instance, since)]

    async def offers_beyond(self, lane: str, workers: Iterable[str]) -> int:
        """Return how many offers of a lane are for none of these workers."""
        offers: int = (await self._one("offers_beyond", lane, list(workers)))["offers"]
        return offers

    async def ahead(self, limit: int) -> list[UUID]:
        """Return jobs that were due when they were admitted and are not now: the clock was set back."""
        return [row["id"] for row in await self._all("ahead", limit)]

    async def processing_ids(self) -> list[UUID]:
        """Return all jobs that are held by somebody, in id order."""
        return [row["id"] for row in await self._all("processing_ids")]

    # ---- the outbox

    async def unpublished(self, limit: int) -> list[UnpublishedRow]:
        """Return settled jobs that RESULTS has not acknowledged, the oldest first."""
        rows = await self._all("unpublished", limit)
        return [UnpublishedRow(**{**row, "state": JobState(row["state"])}) for row in rows]

    async def mark_published(
        self, sent: Sequence[tuple[UUID, int, str, str, bytes]], publishing: Iterable[str] = ()
    ) -> None:
        """Note that RESULTS has these, and have their callbacks begin; one that has moved on since stays to go out.

        Each is job, epoch, state, the callback's host and body; both empty where there is no `callback_url`. What the
        sources `publishing` have completed begins to be published (`publications.py`).
        """
        await self._all("mark_published", *([row[column] for row in sent] for column in range(5)), list(publishing))

    # ---- callbacks

    async def take_callbacks(self, most: int, per_host: int, busy: Sequence[str], for_s: float) -> list[CallbackRow]:
        """Take callbacks that are due, so that nobody else takes them `for_s`; none of the hosts `busy`."""
        return [CallbackRow(**row) for row in await self._all("callback_take", most, per_host, busy, for_s)]

    async def end_callback(
        self, row: CallbackRow, status: int | None, error: str | None, again_s: float | None
    ) -> None:
        """Note how a try ended: no `error` = delivered, else it is tried again in `again_s`, None = never."""
        await self._all("callback_end", row.job_id, row.epoch, row.state, row.attempts, status, error, again_s)

    async def callback_again(self, job_id: UUID, *, actor: str) -> bool:
        """Have a job's last callback sent again; False if it never had one."""
        return bool(await self._all("callback_again", job_id, actor))

    async def republish(self, age_s: float) -> int:
        """Have everything that was settled within `age_s` go out again, RESULTS being lost; return how many."""
        count, after = 0, None
        while rows := await self._all("republish", age_s, after, _REPUBLISH_BATCH):
            count += len(rows)
            after = max(row["id"] for row in rows)
        return count

    async def republish_jobs(self, job_ids: Sequence[UUID]) -> frozenset[UUID]:
        """Have these settled jobs go out again, under another message id than before; return which were out."""
        return frozenset(row["id"] for row in await self._all("republish_jobs", sorted(job_ids)))

    async def highest_seq(self) -> int:
        """Return the highest WORK sequence that the ledger has seen; 0 = none (rule 9). Reads the whole table."""
        return (await self._one("highest_seq"))["seq"]  # type: ignore[no-any-return]

    # ---- the forecast

    async def durations(self, most_lanes: int, per_lane: int) -> list[DurationRow]:
        """Return how long the last results of each lane took."""
        return [DurationRow(**row) for row in await self._all("forecast_durations", most_lanes, per_lane)]

    async def queues(self, lanes: Sequence[str], per_lane: int) -> dict[str, list[UUID]]:
        """Return the first jobs that wait in each of these lanes, in the order in which they are taken."""
        found: dict[str, list[UUID]] = {lane: [] for lane in lanes}
        for row in await self._all("forecast_queue", lanes, per_lane):
            found[row["lane"]].append(row["id"])
        return found

    async def held_by(self, workers: Sequence[str], limit: int) -> list[HeldRow]:
        """Return how far what these workers hold is."""
        return [HeldRow(**row) for row in await self._all("forecast_held", workers, limit)]

    # ---- workers and lanes

    async def save_presence(self, worker: str, sender: str | None, presence: Presence) -> WorkerRow | None:
        """Keep a worker's presence, and who was authenticated as its sender (None: keep what is known).

        Returns None, and keeps nothing, if a newer process of this worker has announced itself since.
        """
        rows = await self._all("presence_save", worker, sender, presence.instance, presence.model_dump(mode="json"))
        return _worker(rows[0]) if rows else None

    async def save_sender(self, worker: str, sender: str) -> None:
        """Keep who a worker's connection is authenticated as."""
        await self._all("sender_save", worker, sender)

    async def workers(self) -> list[WorkerRow]:
        """Return every worker that was ever heard or spoken of, by name."""
        return [_worker(row) for row in await self._all("workers")]

    async def set_wanted(self, worker: str, state: WorkerState, *, actor: str) -> None:
        """Keep what an operator wants of a worker (ready, paused or draining), and that `actor` said so."""
        await self._all("wanted_set", worker, str(state), actor)

    async def set_rules(self, worker: str, rules: Rules | None, *, actor: str) -> bool:
        """Keep by which rules a worker shall work (None: its own), and that `actor` said so; False: no such worker."""
        said = None if rules is None else rules.said()
        note = "its own" if said is None else orjson.dumps(said).decode()
        return bool(await self._all("rules_set", worker, said, actor, note))

    async def set_lane_paused(self, lane: str, *, paused: bool, actor: str) -> None:
        """Pause or resume a lane, and keep that `actor` said so."""
        await self._all("lane_paused_set", lane, paused, actor)

    async def paused_lanes(self) -> frozenset[str]:
        """Return the lanes that are paused."""
        return frozenset(row["name"] for row in await self._all("paused_lanes"))

    # ---- what was refused

    async def record_rejected_submission(
        self, source: str, code: str, reason: str, faults: Sequence[dict[str, str]], body: bytes
    ) -> None:
        """Keep a refused submission, its body up to MAX_KEPT_BYTES."""
        name, text = _text(source, _MAX_NAME), _text(reason, _MAX_REASON)
        kept = [{k: _text(v, _MAX_REASON) for k, v in fault.items()} for fault in faults[:100]]
        await self._all("rejected_submission_insert", name, code, text, kept, body[:MAX_KEPT_BYTES], len(body))

    async def record_rejected_report(self, worker: str, named: str, reason: str, body: bytes) -> None:
        """Keep a report that could not be read; `named` is the job of its subject, as it stands there."""
        try:
            job_id = UUID(named)
        except ValueError:
            job_id = None
        report = {"unreadable": body[: MAX_KEPT_BYTES // 2].decode(errors="replace"), "size": len(body)}
        name, text = _text(worker, _MAX_NAME), _text(reason, _MAX_REASON)
        await self._all("rejected_report_insert", job_id, name, text, report)

    # ---- artifacts

    async def upload_allowed(self, job_id: UUID, epoch: int, worker: str) -> bool:
        """Say whether a worker may add files to this epoch: it is the newest and open, or lapsed and not taken."""
        return (await self._one("upload_allowed", job_id, epoch, worker))["allowed"]  # type: ignore[no-any-return]

    async def record_artifact(
        self, job_id: UUID, epoch: int, name: str, worker: str, *, media_type: str, size: int, sha256: str
    ) -> bool:
        """Note a stored file of an open epoch; False if the epoch takes none any more (`upload_allowed`), or has this
        one linked. A second file under the name takes the place of the first.
        """
        return bool(await self._all("artifact_record", job_id, epoch, name, worker, media_type, size, sha256))

    async def artifacts_of(self, job_id: UUID, epoch: int) -> list[StoredArtifact]:
        """Return the files that are stored for an epoch, by name."""
        return [StoredArtifact(**row) for row in await self._all("artifacts_of", job_id, epoch)]

    async def forget_artifact(self, job_id: UUID, epoch: int, name: str, sha256: str) -> None:
        """Take back what `record_artifact` noted, the content not being in the store."""
        await self._all("artifact_forget", job_id, epoch, name, sha256)

    async def sweep_artifacts(self, older_than_s: float, limit: int) -> list[str]:
        """Forget files that no result can need any more; return the SHA-256 of each, at most `limit`."""
        return [row["sha256"] for row in await self._all("artifact_sweep", older_than_s, limit)]

    async def doom(self, sha256s: Sequence[str], owner: str) -> list[str]:
        """Announce that `owner` removes contents that are no file of any job; return those that are its to remove.

        To be followed by `unheld`, the removal, and `spare`.
        """
        return [row["sha256"] for row in await self._all("artifact_doom", sha256s, owner)]

    async def unheld(self, sha256s: Sequence[str]) -> list[str]:
        """Return those contents that are no file of any job, in order."""
        return [row["sha256"] for row in await self._all("artifact_unheld", sha256s)]

    async def spare(self, sha256s: Sequence[str], owner: str) -> None:
        """Say that `owner` does not remove these contents (any more)."""
        await self._all("artifact_spare", sha256s, owner)

    async def spare_old(self, older_than_s: float) -> None:
        """Say the same of all that were announced so long ago that who did it is gone."""
        await self._all("artifact_spare_old", older_than_s)

    async def is_doomed(self, sha256: str) -> bool:
        """Say whether a content is being removed: asked after a file was recorded, before its size is."""
        return (await self._one("artifact_is_doomed", sha256))["doomed"]  # type: ignore[no-any-return]

    async def unlink_stray(self, job_ids: Sequence[UUID]) -> frozenset[tuple[UUID, int]]:
        """Unlink files of other epochs than the result's, where that is sure; return (job, epoch) of each."""
        rows = await self._all("artifact_unlink_stray", sorted(job_ids))
        return frozenset((row["job_id"], row["epoch"]) for row in rows)

    async def _all(self, name: str, *args: Any) -> list[asyncpg.Record]:
        return await fetch(self._pool, name, *args)

    async def _one(self, name: str, *args: Any) -> asyncpg.Record:
        return (await fetch(self._pool, name, *args))[0]


def _worker(row: asyncpg.Record) -> WorkerRow:
    presence = row["presence"]
    if presence is not None and not isinstance(presence, str):  # text: out of a pool that `open_pool` did not make
        presence = orjson.dumps(presence)
    return WorkerRow(
        name=row["name"],
        nkey=row["nkey"],
        instance=row["instance"],
        retired=frozenset(row["retired"]),
        first_seen_at=row["first_seen_at"],
        seen_at=row["seen_at"],
        presence=Presence.model_validate_json(presence) if presence is not None else None,
        wanted=WorkerState(row["wanted"]),
        age_s=row["age_s"] if row["age_s"] is not None else math.inf,
        rules=row["rules"],
    )


def _text(value: str, most: int) -> str:
    """Cut what others wrote to what a text column takes."""
    return value.replace("\x00", "\ufffd")[:most]
