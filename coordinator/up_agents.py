"""Local agents of `tandem up`: processes of their own with the sketch executor, started again when they crash.

    DIR/agents/<worker>/      its own folder: spool, workspaces
    DIR/agents/<worker>.log   what it says
    DIR/agents/<worker>.pid   by which the next `tandem up` finds and stops what a SIGKILLed one left running

An agent here is an ordinary `tandem-agent run`; it gets its settings by environment.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from coordinator.child import Child
from shared.backoff import reconnect_delay_s

_log = structlog.get_logger()

_ORPHAN_S = 5.0
_DRAIN_S = "3"
_RELEASE_S = "2"
_PATIENCE_S = 12.0
"""An agent that was told to stop has drained and released by then; else it is killed, and its spool keeps the rest."""

_STEADY_S = 30.0
"""An agent that lived this long crashes for the first time."""

_COMMAND = (sys.executable, "-c", "from agent.cli import main; main()", "run", "--json-log")


class LocalAgent:
    """One agent process and whoever starts it again."""

    def __init__(self, folder: Path, worker: str, environment: Mapping[str, str]) -> None:
        """`folder`: that of all local agents; `environment`: its settings, added to ours."""
        self.worker = worker
        self.folder = folder / worker
        self.log = folder / f"{worker}.log"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._environment = environment
        self._child = Child(folder, worker)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Its pid, while it runs."""
        return self._child.pid

    async def start(self) -> None:
        """Start it, and keep it running until `stop` or `kill`."""
        self._child.lock()
        await self._child.stop_orphan(signal.SIGTERM, _ORPHAN_S)
        self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name=f"agent:{self.worker}")

    async def stop(self) -> None:
        """Have it drain, and wait for its end."""
        await self._let_go()
        if self._child.running:
            os.kill(self._child.pid, signal.SIGCONT)  # a frozen one can't drain
        await self._child.stop([(signal.SIGTERM, _PATIENCE_S)])
        self._child.unlock()

    async def kill(self) -> None:
        """End it as a crash would (SIGKILL), and leave it so until `start`."""
        await self._let_go()
        await self._child.stop([(signal.SIGKILL, _ORPHAN_S)])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._child.running:
            os.kill(self._child.pid, number)

    async def _let_go(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def _keep(self) -> None:
        """Start it again each time it ends by itself, at growing intervals."""
        loop = asyncio.get_running_loop()
        crashes = 0
        while True:
            began_at = loop.time()
            code = await self._child.died()
            crashes = 0 if loop.time() - began_at > _STEADY_S else crashes + 1
            pause_s = reconnect_delay_s(crashes - 1, 0)
            _log.warning("agent ended", worker=self.worker, code=code, again_in_s=pause_s, log=str(self.log))
            await asyncio.sleep(pause_s)
            self._spawn()

    def _spawn(self) -> None:
        self._child.spawn(_COMMAND, cwd=self.folder, env={**os.environ, **self._environment})
        _log.info("agent started", worker=self.worker, pid=self._child.pid)


class LocalAgents:
    """All local agents of one folder."""

    def __init__(self, folder: Path, seeds: Path, nats: str, environment: Mapping[str, str]) -> None:
        """`seeds`: where each worker's `<worker>.seed` lies; `environment`: more settings for all of them."""
        self._folder = folder
        self._seeds = seeds
        self._nats = nats
        self._environment = environment
        self._agents: dict[str, LocalAgent] = {}

    def __getitem__(self, worker: str) -> LocalAgent:
        """Return the agent of this name."""
        return self._agents[worker]

    @staticmethod
    async def stop_orphans_in(folder: Path) -> None:
        """Stop every agent that a SIGKILLed predecessor left running here."""
        await asyncio.gather(*(child.stop_orphan(signal.SIGTERM, _ORPHAN_S) for child in _recorded(folder)))

    async def start(self, worker: str) -> LocalAgent:
        """Start an agent whose identity NATS knows."""
        agent = LocalAgent(self._folder, worker, self._settings_of(worker))
        self._agents[worker] = agent
        await agent.start()
        return agent

    async def stop(self) -> None:
        """Have all of them drain, side by side."""
        if self._agents:
            _log.info("agents drain", agents=len(self._agents))
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))

    def hurry(self) -> None:
        """Have them give back what they still do; whoever is told twice ends at once."""
        for agent in self._agents.values():
            agent.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End them at once."""
        for agent in self._agents.values():
            agent.signal(signal.SIGKILL)

    def _settings_of(self, worker: str) -> dict[str, str]:
        settings = {
            "TANDEM_AGENT_WORKER": worker,
            "TANDEM_AGENT_NATS": self._nats,
            "TANDEM_AGENT_SEED_FILE": str(self._seeds / f"{worker}.seed"),
            "TANDEM_AGENT_DATA": str(self._folder / worker),
            "TANDEM_AGENT_EXECUTORS": '{"sketch": {}}',
        }
        for name, value in {"DRAIN_LIMIT_S": _DRAIN_S, "RELEASE_LIMIT_S": _RELEASE_S}.items():
            settings[f"TANDEM_AGENT_{name}"] = os.environ.get(f"TANDEM_AGENT_{name}", value)
        return {**settings, **self._environment}


def _recorded(folder: Path) -> list[Child]:
    return [Child(folder, path.stem) for path in folder.glob("*.pid")]
