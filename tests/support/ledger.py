"""A ledger for tests: a database of its own on the session's Postgres, a clock to move, and commands in short.

`conftest.py` imports the fixtures `ledger_template`, `ledger_dsn`, `ledger_pool` and `desk` from here.
"""

import asyncio
import contextlib
import hashlib
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest_asyncio

from coordinator.embedded import EmbeddedPostgres
from coordinator.ledger.database import open_pool
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.migrate import migrate
from coordinator.ledger.model import Admit, Answer, Claim, Command, Effect, FileReport, Grant, Heartbeat, Job, Offered
from coordinator.ledger.queries import Queries
from shared.lease import Policy
from shared.subjects import consumer_of, parse_delivery
from shared.wire import Report

POLICY = Policy(lease_ttl_s=90, heartbeat_s=30, max_attempts=3, max_lease_losses=3, max_silences=5)

_TEMPLATE = "ledger_template"
_names = itertools.count(1)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ledger_template(postgres_server: EmbeddedPostgres) -> str:
    """A migrated, empty database, for copying; returns its name."""
    await _admin(postgres_server.dsn, f"CREATE DATABASE {_TEMPLATE}")
    await migrate(postgres_server.dsn_of(_TEMPLATE))
    return _TEMPLATE


@asynccontextmanager
async def database(server: EmbeddedPostgres, template: str) -> AsyncIterator[str]:
    """Copy the template and yield the copy's dsn; it is dropped afterwards, whoever is still connected."""
    name = f"ledger_{next(_names)}"
    await _admin(server.dsn, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.dsn_of(name)
    finally:
        await _admin(server.dsn, f"DROP DATABASE {name} WITH (FORCE)")


async def _admin(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest_asyncio.fixture(loop_scope="session")
async def ledger_dsn(postgres_server: EmbeddedPostgres, ledger_template: str) -> AsyncIterator[str]:
    """A migrated, empty database of the test's own."""
    async with database(postgres_server, ledger_template) as dsn:
        yield dsn


@pytest_asyncio.fixture(loop_scope="session")
async def ledger_pool(ledger_dsn: str) -> AsyncIterator[asyncpg.Pool]:
    pool = await open_pool(ledger_dsn)
    try:
        yield pool
    finally:
        pool.terminate()


@pytest_asyncio.fixture(loop_scope="session")
async def desk(ledger_pool: asyncpg.Pool) -> AsyncIterator["Desk"]:
    async with open_desk(ledger_pool) as made:
        yield made


async def set_clock_offset(pool: asyncpg.Pool, seconds: float) -> None:
    """Move the ledger's clock, for every process that uses this database: it runs `seconds` ahead of the real one."""
    await pool.execute(
        "CREATE OR REPLACE FUNCTION tandem_now() RETURNS timestamptz LANGUAGE sql STABLE AS "
        f"'SELECT now() + make_interval(secs => {float(seconds)!r})'"
    )


@asynccontextmanager
async def open_desk(pool: asyncpg.Pool, policy: Policy = POLICY, **options: Any) -> AsyncIterator["Desk"]:
    """Open a ledger on the pool, with all that it hands on kept."""
    made = Desk(pool)
    async with Ledger(
        pool, policy, on_effects=made.effects.extend, on_changes=lambda *change: made.changes.append(change), **options
    ) as made.ledger:
        yield made


@dataclass(slots=True)
class Desk:
    """A ledger, and the coordinator's desks in short: each method is one command."""

    pool: asyncpg.Pool
    effects: list[Effect] = field(default_factory=list)
    changes: list[tuple[Job | None, Job]] = field(default_factory=list)
    ledger: Ledger = field(init=False)

    @property
    def queries(self) -> Queries:
        return Queries(self.pool)

    async def do(self, command: Command) -> Answer:
        return await self.ledger.do(command)

    async def admit(self, **fields: Any) -> uuid.UUID:
        """Admit a job and return its id."""
        command = admit(**fields)
        await self.do(command)
        return command.job_id

    async def offered(self, seq: int = 1, **fields: Any) -> uuid.UUID:
        """Admit a job, offered, its message at `seq`."""
        job_id = await self.admit(offer=True, **fields)
        await self.do(Offered(job_id=job_id, seq=seq))
        return job_id

    async def held(self, worker: str = "mini", seq: int = 1, **fields: Any) -> uuid.UUID:
        """Admit a job that a worker has claimed, as epoch 1."""
        job_id = await self.offered(seq, **fields)
        lane = fields.get("lane", "article.any")
        assert isinstance(await self.do(claim(job_id, worker, seq, lane=lane)), Grant)
        return job_id

    async def row(self, job_id: uuid.UUID) -> asyncpg.Record:
        return await self.pool.fetchrow("SELECT * FROM job WHERE id = $1", job_id)

    async def rows(self, table: str, job_id: uuid.UUID) -> list[asyncpg.Record]:
        return await self.pool.fetch(f"SELECT * FROM {table} WHERE job_id = $1 ORDER BY 1, 2", job_id)

    def took(self, kind: type[Effect]) -> list[Any]:
        """Return the effects of a kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]


def admit(job_id: uuid.UUID | None = None, **fields: Any) -> Admit:
    """An admission of an article; `fields` change it."""
    given: dict[str, Any] = {
        "job_id": job_id or uuid.UUID(int=random.getrandbits(128)),
        "source": "cms",
        "key": None,
        "kind": "article",
        "model": None,
        "lane": "article.any",
        "priority": 1,
        "content_sha256": b"content",
        "spec": {"prompt": "Write about bees."},
        "labels": {"post": "812"},
        "run_after": None,
        "max_attempts": 3,
        "timeout_s": 1800.0,
        "review": False,
        "callback_url": None,
    }
    return Admit(**{**given, **fields})


def delivery(seq: int, count: int = 1, lane: str = "article.any") -> str:
    """The reply subject of the `count`-th delivery of the message at `seq`."""
    return f"$JS.ACK.WORK.{consumer_of(lane)}.{count}.{seq}.{seq}.1700000000000000000.0"


def claim(
    job_id: uuid.UUID, worker: str = "mini", seq: int = 1, count: int = 1, lane: str = "article.any", **fields: Any
) -> Claim:
    """A claim through a delivery, by the one process of the worker."""
    reply = delivery(seq, count, lane)
    token = parse_delivery(reply)
    assert token is not None
    given = {"instance": f"{worker}-1", "delivery": reply, "token": token}
    return Claim(job_id=job_id, worker=worker, **{**given, **fields})


def beat(
    job_id: uuid.UUID, epoch: int = 1, worker: str = "mini", stage: str | None = "generating_text", **fields: Any
) -> Heartbeat:
    return Heartbeat(job_id=job_id, worker=worker, epoch=epoch, stage=stage, **fields)


def completed(
    job_id: uuid.UUID, epoch: int = 1, worker: str = "mini", text: str = "Bees.", **fields: Any
) -> FileReport:
    body = {"outcome": "completed", "result": {"text": text}, "model": "llama3.1:8b", **fields}
    return file_report(job_id, epoch, worker, body)


def failed(
    job_id: uuid.UUID,
    epoch: int = 1,
    worker: str = "mini",
    error_class: str = "transient",
    capable: frozenset[str] = frozenset({"mini", "book"}),
) -> FileReport:
    body = {"outcome": "failed", "error": {"code": "broken", "message": "It broke.", "class": error_class}}
    return file_report(job_id, epoch, worker, body, capable)


def released(job_id: uuid.UUID, epoch: int = 1, worker: str = "mini") -> FileReport:
    return file_report(job_id, epoch, worker, {"outcome": "released"})


def file_report(
    job_id: uuid.UUID,
    epoch: int,
    worker: str,
    body: dict[str, Any],
    capable: frozenset[str] = frozenset({"mini", "book"}),
) -> FileReport:
    report = Report.model_validate({"job_id": job_id, "epoch": epoch, **body})
    sha256 = hashlib.sha256(repr([job_id, epoch, body]).encode()).digest()
    return FileReport(job_id=job_id, worker=worker, report=report, sha256=sha256, capable=capable)


def artifact(name: str = "image-1.png", size: int = 3, sha256: str = "a" * 64) -> dict[str, Any]:
    """A file as a report names it."""
    return {"name": name, "media_type": "image/png", "size": size, "sha256": sha256}


async def store(
    queries: Queries, job_id: uuid.UUID, *files: dict[str, Any], epoch: int = 1, worker: str = "mini"
) -> Sequence[bool]:
    """Record files as the upload endpoint does; says of each whether it was taken."""
    return [
        await queries.record_artifact(
            job_id,
            epoch,
            file["name"],
            worker,
            media_type=file["media_type"],
            size=file["size"],
            sha256=file["sha256"],
        )
        for file in files
    ]


async def waits_for_a_lock(pool: asyncpg.Pool, sessions: int = 1) -> None:
    """Return once so many sessions on this database wait for a lock; TimeoutError after 10 s."""
    async with asyncio.timeout(10):
        while sessions > await pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            pass


@contextlib.contextmanager
def seeded(seed: int | None = None) -> Any:
    """Yield a random generator, and print its seed, which a failing test shows."""
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")  # noqa: T201 - pytest shows it with a failure
    yield random.Random(seed)
