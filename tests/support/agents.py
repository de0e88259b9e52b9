"""Real agents in this process, with the `sketch` executor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from agent.service import run_agent
from agent.settings import AgentSettings
from tests.support.servers import QUICK_S, TandemServers


class RunningAgent:
    """An agent in this process; `drain()` is what SIGTERM does."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and return when the coordinator has answered."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(
            run_agent(self.settings, stop=self._stop, ready=ready), name=f"agent:{self.settings.worker}"
        )
        async with asyncio.timeout(20):
            await ready.wait()

    async def drain(self) -> None:
        """Stop it as SIGTERM does, and return when it has ended."""
        self._stop.set()
        if self._task is not None:
            await self._task


@asynccontextmanager
async def agent(servers: TandemServers, worker: str, folder: Path, **settings: Any) -> AsyncIterator[RunningAgent]:
    """Run an agent until the block is left; it is ready when the block begins."""
    async with servers.open(f"agent:{worker}"):
        pass  # makes its identity
    made = RunningAgent(
        AgentSettings(
            **{
                "worker": worker,
                "nats": servers.nats.url,
                "seed": SecretStr(servers.nats.identities.add_agent(worker)),
                "data": folder / worker,
                "executors": {"sketch": {}},
                "reconnect_s": QUICK_S,
                "linger_many_s": 0.1,
                "hang_s": 0,
                **settings,
            }
        )
    )
    try:
        await made.start()
        yield made
    finally:
        await made.drain()
