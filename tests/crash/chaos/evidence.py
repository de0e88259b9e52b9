"""What is left after a run, read from where it lies: Postgres, the streams, the files, the journal, the lines.

Own statements, raw stream messages, files read anew: nothing here asks Tandem what it thinks of itself, but for
`coordinator.audit`, which must find nothing either. `verdict.py` judges; this only reads.
"""

import asyncio
import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from coordinator.artifacts import FolderStore
from coordinator.audit import audit
from shared.bus import ApiError, Bus
from shared.streams import NO_MESSAGE_FOUND
from tests.crash.chaos.rig import Rig

_JOBS = """
SELECT id, kind, lane, state, epoch, attempt, max_attempts, excluded, run_after, created_at, finished_at, offered_at,
    worker, lease_expires_at, result_epoch, result, labels, unpublished
FROM job
"""
_ATTEMPTS = """
SELECT job_id, epoch, worker, instance, claimed_at, deadline_at, outcome, ended_at, heartbeat_at, error FROM attempt
"""
_FILES = "SELECT job_id, epoch, name, size, sha256 FROM artifact WHERE linked"
_REJECTED = "SELECT job_id, epoch, worker, verdict FROM rejected_result"
_REFUSED = "SELECT body FROM rejected_submission"
_ACTIONS = "SELECT job_id, action FROM operator_action WHERE job_id IS NOT NULL"
_WORKERS = """
SELECT name, presence, wanted, extract(epoch FROM now() - seen_at)::float8 AS age_s
FROM worker WHERE seen_at IS NOT NULL
"""


class Line(NamedTuple):
    """What a generator wrote down."""

    word: str
    job_id: UUID
    epoch: int
    worker: str
    instance: str
    attempt: int
    pid: int
    monotonic_s: float


class Published(NamedTuple):
    """A message in RESULTS."""

    seq: int
    job_id: UUID
    epoch: int
    state: str
    result: dict[str, Any] | None
    files: frozenset[tuple[str, int, str]]  # name, size, sha256


class StoredFile(NamedTuple):
    """A file of an accepted result, as the ledger has it, and what lies there: size and digest, None if nothing."""

    job_id: UUID
    epoch: int
    name: str
    size: int
    sha256: str
    found: tuple[int, str] | None


@dataclass
class Evidence:
    now: datetime
    jobs: dict[UUID, dict[str, Any]] = field(default_factory=dict)
    attempts: dict[tuple[UUID, int], dict[str, Any]] = field(default_factory=dict)
    files: list[StoredFile] = field(default_factory=list)
    rejected: Counter[tuple[UUID, int, str, str]] = field(default_factory=Counter)
    refused: list[bytes] = field(default_factory=list)
    actions: Counter[tuple[UUID, str]] = field(default_factory=Counter)
    workers: list[dict[str, Any]] = field(default_factory=list)
    results: list[Published] = field(default_factory=list)
    work: list[str] = field(default_factory=list)  # WORK's subjects
    waiting: dict[str, int] = field(default_factory=dict)  # messages left in SUBMIT and REPORTS
    journal: list[dict[str, Any]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    judged: list[dict[str, Any]] = field(default_factory=list)  # the coordinators' log of reports not accepted
    audited: list[str] = field(default_factory=list)


async def gather(rig: Rig, judged: Sequence[dict[str, Any]]) -> Evidence:
    """Read everything: the streams first, then the ledger, so that what the ledger says is the later word."""
    async with rig.servers.open("coordinator") as bus:
        results = [_published(seq, data) async for seq, _, data in _messages(bus, "RESULTS")]
        work = [subject async for _, subject, _ in _messages(bus, "WORK")]
        waiting = {name: await _count(bus, name) for name in ("SUBMIT", "REPORTS")}
        pool = await asyncpg.create_pool(rig.postgres.dsn, min_size=0, max_size=2)
        store = await FolderStore.open(rig.folder / "artifacts")
        try:
            found = await _ledger(pool, rig.folder / "artifacts")
            found.audited = [str(breach) for breach in await audit(pool, bus, store)]
        finally:
            store.close()
            pool.terminate()
    found.results, found.work, found.waiting, found.judged = results, work, waiting, list(judged)
    found.journal = [orjson.loads(line) for line in (rig.folder / "journal.jsonl").read_bytes().splitlines()]
    found.lines = list(_lines(rig.side))
    return found


async def _ledger(pool: asyncpg.Pool, artifacts: Path) -> Evidence:
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=str, decoder=orjson.loads)
        found = Evidence(await connection.fetchval("SELECT now()"))
        found.jobs = {row["id"]: dict(row) for row in await connection.fetch(_JOBS)}
        found.attempts = {(row["job_id"], row["epoch"]): dict(row) for row in await connection.fetch(_ATTEMPTS)}
        found.rejected = Counter(tuple(row) for row in await connection.fetch(_REJECTED))
        found.refused = [bytes(row["body"]) for row in await connection.fetch(_REFUSED)]
        found.actions = Counter(tuple(row) for row in await connection.fetch(_ACTIONS))
        found.workers = [dict(row) for row in await connection.fetch(_WORKERS)]
        rows = [tuple(row) for row in await connection.fetch(_FILES)]
    there = await asyncio.to_thread(_read_all, artifacts, {row[4] for row in rows})
    found.files = [StoredFile(*row, there[row[4]]) for row in rows]
    return found


def _read_all(artifacts: Path, digests: set[str]) -> dict[str, tuple[int, str] | None]:
    found: dict[str, tuple[int, str] | None] = {}
    for sha256 in digests:
        path = artifacts / "sha256" / sha256[:2] / sha256[2:]
        data = path.read_bytes() if path.exists() else None
        found[sha256] = None if data is None else (len(data), hashlib.sha256(data).hexdigest())
    return found


async def _messages(bus: Bus, stream: str) -> Any:
    """Yield sequence, subject and body of each message that is in a stream."""
    seq = 0
    while True:
        try:
            answer = await bus.api(f"STREAM.MSG.GET.{stream}", {"seq": seq + 1, "next_by_subj": ">"})
        except ApiError as error:
            if error.err_code == NO_MESSAGE_FOUND:
                return
            raise
        message = answer["message"]
        seq = message["seq"]
        yield seq, message["subject"], base64.b64decode(message.get("data", ""))


async def _count(bus: Bus, stream: str) -> int:
    return int((await bus.api(f"STREAM.INFO.{stream}"))["state"]["messages"])


def _published(seq: int, data: bytes) -> Published:
    body = orjson.loads(data)
    files = frozenset((file["name"], file["size"], file["sha256"]) for file in body["artifacts"])
    return Published(seq, UUID(body["job_id"]), body["epoch"], body["state"], body["result"], files)


def _lines(side: Path) -> Iterator[Line]:
    for path in sorted(side.iterdir()):
        for text in path.read_text().splitlines():
            word, job_id, epoch, worker, instance, attempt, pid, at_s = text.split(" ")
            yield Line(word, UUID(job_id), int(epoch), worker, instance, int(attempt), int(pid), float(at_s))
