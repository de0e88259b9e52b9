"""What crash tests work with: a world whose coordinator or agent dies at a failpoint, and what must hold after it."""

import asyncio
import hashlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from pydantic import SecretStr

from coordinator.artifacts import FolderStore
from coordinator.audit import audit
from shared import subjects
from shared.failpoints import Failpoint
from shared.streams import ensure_intake_consumers
from tests.support.agent_world import QUICK
from tests.support.agents import RunningAgent, agent
from tests.support.processes import clean_environment
from tests.support.world import World, eventually_async

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 40.0
WORKER = "mini"

LIVELY: dict[str, Any] = {
    "lease_ttl_s": 30.0,
    "heartbeat_s": 1.0,
    "presence_s": 30.0,
    "retry_base_s": 0.2,
    "reaper_s": 0.2,
    "reconcile_s": 1.0,
    "unclaimed_s": 1.0,
}
"""Every loop runs, and what would take minutes takes seconds. But a presence round is longer than any restart takes, so
that a claim that is being repeated is not taken for a ghost lease; and a lease is no shorter than that."""

IMAGES = {"prompt": "A harbour", "width": 64, "height": 64, "n": 2}


class Process:
    """A coordinator or agent that dies at a failpoint."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    async def died(self) -> None:
        """Return when it has died by the failpoint's SIGKILL, and of nothing else."""
        async with asyncio.timeout(PATIENCE_S):
            code = await self.process.wait()
        assert code == -signal.SIGKILL, f"exit status {code}: {self._log.read_text()[-4000:]}"


@asynccontextmanager
async def dying(
    program: str, point: Failpoint, log: Path, environment: dict[str, str], *, skip: int = 0
) -> AsyncIterator[Process]:
    """Run a program that dies at `point`; leaving the block waits for that."""
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.crash.programs", program, "--failpoint", point, "--skip", str(skip)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=clean_environment() | environment,
        )
    made = Process(process, log)
    try:
        yield made
        await made.died()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Rig:
    """One world, its coordinator on a port that it keeps over restarts; `world.http` reaches whoever listens there."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder

    # ---- the coordinator

    @asynccontextmanager
    async def dying_coordinator(self, point: Failpoint, *, skip: int = 0, **settings: Any) -> AsyncIterator[Process]:
        """Run a coordinator that dies at `point`."""
        wanted = {name: getattr(self.world.settings, name) for name in self.world.settings.model_fields_set} | settings
        environment = {f"TANDEM_{name.upper()}": _text(value) for name, value in wanted.items()}
        log = self.folder / "coordinator.log"
        async with dying("coordinator", point, log, environment, skip=skip) as process:
            yield process

    async def ready(self) -> None:
        """Wait until the coordinator, whoever it is, does its work."""

        async def asked() -> bool:
            with suppress(aiohttp.ClientError):
                async with self.world.http.get("/readyz") as answer:
                    return answer.status == 200
            return False

        await eventually_async(asked, within_s=PATIENCE_S)

    async def restart(self, **settings: Any) -> None:
        """Start a healthy coordinator. What its forerunner took and did not settle comes again half a second later."""
        self.world.settings = self.world.settings.model_copy(update=settings)
        await self.world.start_coordinator()
        await ensure_intake_consumers(self.world.coordinator.bus, ack_wait_s=0.5)

    async def post(self, path: str, body: Any = None) -> tuple[int, Any] | None:
        """Post; None when the coordinator died before it answered."""
        try:
            async with self.world.http.post(path, json=body) as answer:
                return answer.status, await answer.json()
        except aiohttp.ClientError:
            return None

    async def submit(self, kind: str = "image", key: str = "one", **spec: Any) -> str:
        """Submit, and again with the same key until somebody has answered, as a careful publisher does."""
        body = {"kind": kind, "key": key, "spec": (IMAGES if kind == "image" else {"prompt": "A tale"}) | spec}
        found: list[str] = []

        async def answered() -> bool:
            answer = await self.post("/v1/jobs", body)
            if answer is not None and answer[0] in (200, 201, 202):
                found.append(answer[1]["id"])
            return bool(found)

        await eventually_async(answered, within_s=PATIENCE_S)
        return found[0]

    # ---- the agent

    @asynccontextmanager
    async def dying_agent(self, point: Failpoint, *, skip: int = 0, **settings: Any) -> AsyncIterator[Process]:
        """Run an agent that dies at `point`."""
        async with self.world.servers.open(f"agent:{WORKER}"):
            pass  # makes its identity
        wanted = {
            **QUICK,
            "worker": WORKER,
            "nats": self.world.servers.nats.url,
            "seed": self.world.servers.nats.identities.add_agent(WORKER),
            "data": self.folder / WORKER,
            "executors": {"sketch": {}},
            **settings,
        }
        environment = {f"TANDEM_AGENT_{name.upper()}": _text(value) for name, value in wanted.items()}
        async with dying("agent", point, self.folder / "agent.log", environment, skip=skip) as process:
            yield process

    def agent(self, worker: str = WORKER, **settings: Any) -> AbstractAsyncContextManager[RunningAgent]:
        """Run a healthy agent; on the folder of the one that died it is that one's next process."""
        return agent(self.world.servers, worker, self.folder, **{**QUICK, **settings})

    def spooled(self) -> list[str]:
        return self._names("spool")

    def workspaces(self) -> list[str]:
        return self._names("work")

    def _names(self, folder: str) -> list[str]:
        path = self.folder / WORKER / folder
        return sorted(found.name for found in path.iterdir()) if path.exists() else []

    # ---- what must hold

    async def ended(self, job_id: str, outcomes: list[str], *, state: str = "completed", files: int = 0) -> Any:
        """Return the job, once it is settled: with exactly these attempts, so many files, and one message on RESULTS.

        And nothing is left over anywhere: no message, no spooled entry, no half file, no breach that the audit sees.
        """
        job = await self.world.until(job_id, state)
        query = "SELECT epoch, outcome FROM attempt WHERE job_id = $1 ORDER BY epoch"
        told = await self.world.pool.fetch(query, job_id)
        assert [(row["epoch"], row["outcome"]) for row in told] == list(enumerate(outcomes, 1))
        assert len(job["artifacts"]) == files
        for artifact in job["artifacts"]:
            async with self.world.http.get(artifact["url"]) as answer:
                assert hashlib.sha256(await answer.read()).hexdigest() == artifact["sha256"]
        await eventually_async(self._nothing_is_left)
        assert await self.messages("RESULTS", subjects.result("local", job["kind"], job["id"])) == 1
        return job

    async def count(self, table: str) -> int:
        found: int = await self.world.pool.fetchval(f"SELECT count(*) FROM {table}")
        return found

    async def _nothing_is_left(self) -> bool:
        if await self.world.pool.fetchval("SELECT count(*) FROM job WHERE unpublished"):
            return False
        if any([await self.messages(stream) for stream in ("SUBMIT", "WORK", "REPORTS")]):
            return False
        if self.spooled() or list((self.world.settings.artifacts / "incoming").iterdir()):
            return False
        store = FolderStore(self.world.settings.artifacts)
        try:
            return not await audit(self.world.pool, self.world.coordinator.bus, store, grace_s=0.0, unpublished_s=0.0)
        finally:
            store.close()

    async def messages(self, stream: str, subject: str = ">") -> int:
        found = await self.world.coordinator.bus.api(f"STREAM.INFO.{stream}", {"subjects_filter": subject})
        return sum((found["state"].get("subjects") or {}).values())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _text(value: Any) -> str:
    """Write a setting as the environment carries it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, frozenset):
        return orjson.dumps(sorted(value)).decode()
    return orjson.dumps(value).decode() if isinstance(value, tuple | dict | list) else str(value)
