"""Real agent processes (`agent_program.py`) for one world: started, stopped, frozen and killed by their pid."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psutil

from shared.streams import consumer_info
from tests.support.agent_program import KIND
from tests.support.agent_world import QUICK
from tests.support.processes import clean_environment
from tests.support.servers import TandemServers, eventually
from tests.support.world import World

LANE = f"{KIND}.any"
CONSUMER = f"{KIND}--any"
PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]


class Start(NamedTuple):
    """A line of the journal: an execution began."""

    job_id: str
    epoch: int
    pid: int


class AgentProcess:
    """One agent in a process of its own. Its journal, log and data folder live in `folder`, over all its starts."""

    def __init__(self, servers: TandemServers, worker: str, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.worker = worker
        self.journal = folder / f"{worker}.journal"
        self.log = folder / f"{worker}.log"
        self.data = folder / worker
        given = {
            **QUICK,
            "worker": worker,
            "nats": servers.nats.url,
            "seed": servers.nats.identities.add_agent(worker),
            "data": self.data,
            **settings,
        }
        self._environment = {f"TANDEM_AGENT_{name.upper()}": _text(value) for name, value in given.items()}
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it, or the next one of the same name."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.agent_program", str(self.journal)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=clean_environment() | self._environment,
            )

    async def restarted(self, world: World) -> None:
        """Start it, and wait until this very process has announced itself."""
        before = world.coordinator.directory.instance_of(self.worker)
        self.start()

        def announced() -> bool:
            return world.coordinator.directory.instance_of(self.worker) != before

        await eventually(lambda: announced() or self.process.poll() is not None, within_s=PATIENCE_S)
        assert announced(), self.log.read_text()

    @property
    def starts(self) -> list[Start]:
        """The executions that its processes began, in order."""
        if not self.journal.exists():
            return []
        lines = (line.split() for line in self.journal.read_text().splitlines())
        return [Start(job_id, int(epoch), int(pid)) for job_id, epoch, pid in lines]

    @property
    def spooled(self) -> list[str]:
        """What lies in its spool."""
        spool = self.data / "spool"
        return [path.name for path in spool.iterdir() if not path.name.startswith(".")] if spool.exists() else []

    async def began(self, job_id: str) -> None:
        """Wait until it has begun this job."""
        await eventually(lambda: job_id in {start.job_id for start in self.starts}, within_s=PATIENCE_S)

    async def ended(self) -> int:
        """Return the exit status."""
        await eventually(lambda: self.process.poll() is not None, within_s=PATIENCE_S)
        return self.process.returncode

    async def terminated(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.terminate()
        return await self.ended()

    async def killed(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        await self.ended()

    async def frozen(self) -> None:
        """Stop it as a whole, like a Mac that sleeps."""
        self.process.send_signal(signal.SIGSTOP)
        await eventually(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def agent_process(world: World, worker: str, folder: Path, **settings: Any) -> AsyncIterator[AgentProcess]:
    """Run one until the block is left; it has announced itself when the block begins."""
    async with world.servers.open(f"agent:{worker}"):
        pass  # makes its identity
    made = AgentProcess(world.servers, worker, folder, **settings)
    try:
        await made.restarted(world)
        yield made
    finally:
        made.process.kill()  # ends a frozen one too; nothing happens if it has ended
        await asyncio.to_thread(made.process.wait, PATIENCE_S)


async def pulls_open(world: World) -> int:
    """Return how many pulls wait on the lane."""
    info = await consumer_info(world.coordinator.bus, "WORK", CONSUMER)
    return 0 if info is None else int(info["num_waiting"])


async def offers_out(world: World) -> int:
    """Return how many messages of the lane were delivered and are not settled."""
    info = await consumer_info(world.coordinator.bus, "WORK", CONSUMER)
    return 0 if info is None else int(info["num_ack_pending"])


def _text(value: Any) -> str:
    return orjson.dumps(value).decode() if isinstance(value, tuple) else str(value)
