"""What the bench runs on: NATS and Postgres from their wheels, the real programs as processes of their own, one folder.

Postgres is as `tandem up` runs it (fsync on); NATS with the sync_interval that a part is measured with.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psutil

from coordinator.child import Child
from coordinator.embedded import EmbeddedNats, EmbeddedPostgres
from coordinator.ledger.database import sql
from coordinator.ledger.migrate import migrate
from shared.bus import ApiError
from shared.streams import STREAM_NOT_FOUND, consumer_info, ensure_streams
from tests.support.servers import TandemServers

READY_S = 60.0
"""A coordinator that starts on a full ledger reads it once."""

STOP_S = 20.0
ROOT = Path(__file__).parents[2]
_COORDINATOR = "from coordinator.cli import main; main()"
_AGENT = "from agent.cli import main; main()"


_LEFT = """
SELECT state, count(*) AS jobs, count(offered_at) AS offered, min(epoch) AS epoch, count(*) FILTER (WHERE unpublished)
    AS unpublished, max(now() - created_at)::text AS age, min(id::text) AS one
FROM job WHERE source = 'bench' AND (state <> 'completed' OR unpublished) GROUP BY state
"""


class StuckError(Exception):
    """Jobs of the bench's own did not end in time."""


class Rig:
    def __init__(self, folder: Path, postgres: EmbeddedPostgres, log_level: str) -> None:
        self.folder = folder
        self.postgres = postgres
        self.log_level = log_level
        self.jobs = 10_000
        self.runs = 0
        self.servers: TandemServers

    @property
    def nats(self) -> EmbeddedNats:
        return self.servers.nats

    @asynccontextmanager
    async def nats_with(self, sync: str) -> AsyncIterator[None]:
        """Run a fresh NATS with this sync_interval, streams made: what the ledger holds is not to go out once more."""
        self.runs += 1
        async with EmbeddedNats(self.folder / f"nats-{self.runs}", port=0, sync_interval=sync) as nats:
            self.servers = TandemServers(nats, self.postgres)
            (highest,) = await self.sql(sql("highest_seq"))
            async with self.servers.open("provisioner") as bus:
                await ensure_streams(bus, first_seq=highest["seq"] + 1)
            yield

    @asynccontextmanager
    async def coordinator(self, port: int = 0, **settings: Any) -> AsyncIterator["Process"]:
        """Run `tandem coordinator` until the block is left; it serves when the block begins."""
        port, identities = port or free_port(), self.nats.identities
        environment = {
            "TANDEM_POSTGRES": self.postgres.dsn,
            "TANDEM_NATS": self.nats.url,
            "TANDEM_NATS_SEED": identities.coordinator,
            "TANDEM_NATS_PROVISIONER_SEED": identities.provisioner,
            "TANDEM_HTTP": f"127.0.0.1:{port}",
            "TANDEM_ARTIFACTS": str(self.folder / "artifacts"),
            "TANDEM_SECRETS": str(self.folder / "secrets"),
            "TANDEM_SOURCES": '["bench"]',
            "TANDEM_KINDS": '["noop"]',
            "TANDEM_LOG_LEVEL": self.log_level,
            **{f"TANDEM_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = [sys.executable, "-c", _COORDINATOR, "coordinator", "--json-log"]
        async with self.process("coordinator", command, environment, f"http://127.0.0.1:{port}") as process:
            await process.until_ready()
            await self._streams()
            yield process

    @asynccontextmanager
    async def agent(self, *, slots: int, command: list[str] | None = None, **settings: Any) -> AsyncIterator["Process"]:
        """Run `tandem-agent run` with the noop kind until the block is left, or a `command` in its place."""
        worker = f"bench-{self.runs}"
        seed = await self.identity("agent", worker)
        environment = {
            "TANDEM_AGENT_WORKER": worker,
            "TANDEM_AGENT_NATS": self.nats.url,
            "TANDEM_AGENT_SEED": seed,
            "TANDEM_AGENT_DATA": str(self.folder / f"agent-{self.runs}"),
            "TANDEM_AGENT_SLOTS": str(slots),
            "TANDEM_AGENT_EXECUTORS": json.dumps({"sketch": {"kinds": ["noop"]}}),
            "TANDEM_AGENT_LOG_LEVEL": self.log_level,
            **{f"TANDEM_AGENT_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = command or [sys.executable, "-c", _AGENT, "run", "--json-log"]
        async with self.process("agent", command, environment) as process:
            yield process

    @asynccontextmanager
    async def process(
        self, name: str, command: list[str], environment: Mapping[str, str], url: str = ""
    ) -> AsyncIterator["Process"]:
        child = Child(self.folder, name)
        child.lock()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
        child.spawn(command, cwd=ROOT, env={**clean, **environment})
        try:
            yield Process(child, url)
        finally:
            await child.stop([(signal.SIGTERM, STOP_S)])
            child.unlock()

    async def identity(self, role: str, name: str) -> str:
        """Return the seed of an agent or publisher that the server knows by now."""
        async with self.servers.open(f"{role}:{name}"):
            pass
        identities = self.nats.identities
        seed = identities.add_agent(name) if role == "agent" else identities.add_publisher(name)
        assert seed is not None
        return seed

    async def publish(self, **order: Any) -> dict[str, Any]:
        """Have a publisher process submit; return what it says."""
        order |= {"nats": self.nats.url, "seed": await self.identity("publisher", "bench")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.publisher", json.dumps(order), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        answer: dict[str, Any] = json.loads(said)
        return answer

    async def sql(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.postgres.dsn)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *args, timeout=120)
            return rows
        finally:
            await connection.close()

    async def results(self, count: int, *, within_s: float) -> None:
        """Return when RESULTS holds so many messages: cheap to ask, even beside a full ledger.

        StuckError with what the ledger says of the others when they are not there in time.
        """
        try:
            async with asyncio.timeout(within_s), self.servers.open("coordinator") as bus:
                while (await bus.api("STREAM.INFO.RESULTS"))["state"]["messages"] < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            left = [dict(row) for row in await self.sql(_LEFT)]
            msg = f"not {count} results within {within_s} s; the ledger has of its unfinished: {left}"
            raise StuckError(msg) from None

    async def _streams(self) -> None:
        """Return when there are streams: the coordinator says that it is ready a little earlier."""
        async with asyncio.timeout(READY_S), self.servers.open("coordinator") as bus:
            while True:
                try:
                    if await consumer_info(bus, "RESULTS", "results-bench") is not None:
                        return
                except ApiError as error:
                    if error.err_code != STREAM_NOT_FOUND:
                        raise
                await asyncio.sleep(0.02)

    async def clear(self) -> None:
        """Remove all that the bench's own source had in the ledger; the filling stays."""
        for statement in (
            "DELETE FROM heartbeat",
            "DELETE FROM attempt WHERE job_id IN (SELECT id FROM job WHERE source = 'bench')",
            "DELETE FROM artifact WHERE job_id IN (SELECT id FROM job WHERE source = 'bench')",
            "DELETE FROM job WHERE source = 'bench'",
            "VACUUM ANALYZE job",
            "VACUUM ANALYZE attempt",
            "VACUUM heartbeat",
            "CHECKPOINT",
        ):
            await self.sql(statement)
        async with self.servers.open("provisioner") as bus:
            for stream in ("SUBMIT", "WORK", "REPORTS", "RESULTS"):
                await bus.api(f"STREAM.PURGE.{stream}")

    def cpu_s(self, **processes: "Process") -> dict[str, float]:
        """Return the processor time of everybody so far."""
        found = {name: process.cpu_s() for name, process in processes.items()}
        return {**found, "nats": _cpu_s(self.nats.pid), "postgres": _cpu_s(self.postgres.pid)}


class Process:
    def __init__(self, child: Child, url: str) -> None:
        self._child = child
        self.url = url

    @property
    def pid(self) -> int:
        return self._child.pid

    def cpu_s(self) -> float:
        return _cpu_s(self.pid)

    def resident_mib(self) -> float:
        return float(round(psutil.Process(self.pid).memory_info().rss / 2**20, 1))

    async def until_ready(self) -> None:
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as http:
            while True:
                if not self._child.running:
                    raise self._child.failed("did not start")
                try:
                    async with http.get(f"{self.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)


def _cpu_s(pid: int) -> float:
    """Return user and system time of a process and its children, those that ended included (Postgres's backends)."""
    process = psutil.Process(pid)
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    ended = process.cpu_times()
    return total + getattr(ended, "children_user", 0.0) + getattr(ended, "children_system", 0.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def rig(*, log_level: str) -> AsyncIterator[Rig]:
    """Make a folder and a Postgres with the schema; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-bench-"))
    try:
        async with EmbeddedPostgres(folder) as postgres:
            await migrate(postgres.dsn)
            yield Rig(folder, postgres, log_level)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
