"""A whole Tandem as processes, with agents that write by a real language model."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from coordinator.demo_model import MODEL, ModelServer
from shared.client import Client, JobView
from tests.support.processes import UpProcess, clean_environment, tandem, tandem_up
from tests.support.servers import eventually
from tests.support.world import eventually_async

WORKERS = ("macbook", "mini")
PATIENCE_S = 200.0
"""An article takes 5 s on a free core; others may need the cores more."""

PROMPT = """\
Title: Why Small Harbours Matter
Category: Travel

Small harbours are the heart of many coastal towns. They give fishing boats a safe place, they bring visitors, \
and they keep old crafts alive. In this article we look at three reasons why small harbours matter.

1. They keep the fishing tradition alive."""

ARTICLE = {
    "kind": "article",
    "model": MODEL,
    "spec": {
        "prompt": PROMPT,
        "options": {
            "max_tokens": 1000,  # 237 where this was tried; the same seed writes another text with another CPU
            "allow_length": False,
            "temperature": 0.5,
            "top_k": 40,
            "top_p": 1.0,
            "min_p": 0.1,
            "repeat_penalty": 1.12,
            "repeat_last_n": 256,
            "seed": 4,
            "cache_prompt": False,
            "stop": ["<start_of_image>", "\n\n\n", "\n4.", "http", "[", "©"],
        },
    },
}

_SETTINGS = {"TANDEM_LEASE_TTL_S": "10", "TANDEM_HEARTBEAT_S": "1", "TANDEM_PRESENCE_S": "1"}


class AgentRun:
    """A `tandem-agent run` with a settings file."""

    def __init__(self, up: UpProcess, worker: str, model: ModelServer) -> None:
        settings = up.data.parent / f"{worker}.toml"
        table = {
            "worker": worker,
            "nats": up.connection["nats"],
            "seed_file": str(up.data / "identities" / "agents" / f"{worker}.seed"),
            "data": str(up.data.parent / worker),
        }
        executors = [
            f"[executors.{name}]\n{_toml({**said, 'first_s': PATIENCE_S})}" for name, said in model.executors.items()
        ]
        settings.write_text(_toml(table) + "\n".join(executors))
        self.log = up.data.parent / f"{worker}.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from agent.cli import main; main()", "run", "--config", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=clean_environment(),
            )

    async def killed(self) -> None:
        """End it as a crash does."""
        await self.ended(signal.SIGKILL)

    async def ended(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, and wait for its end."""
        self.process.send_signal(number)
        await eventually(lambda: self.process.poll() is not None)


class Rig:
    """What a test works with."""

    def __init__(self, up: UpProcess, client: Client, agents: dict[str, AgentRun]) -> None:
        self.up = up
        self.client = client
        self.agents = agents

    async def settled(self, job_id: UUID) -> JobView:
        """Return the job once it is."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.client.wait(job_id)

    async def article(self, job_id: UUID) -> bytes:
        """Return the job's article.md, as a reader gets it."""
        return b"".join([chunk async for chunk in self.client.artifact(job_id, "article.md")])

    async def audit(self) -> tuple[int, str]:
        """Hold everything against the promises; return the exit status, and what was found."""
        status, out, error = await tandem("audit", "--data", str(self.up.data))
        return status, out + error


@asynccontextmanager
async def tandem_with(model: ModelServer, folder: Path) -> AsyncIterator[Rig]:
    """Run it until the block is left; both agents offer the model when the block begins."""
    flags = [flag for worker in WORKERS for flag in ("--worker", worker)]
    async with (
        tandem_up(folder / "data", *flags, **_SETTINGS) as up,
        Client(up.connection["http"], up.connection["tokens"]["admin"]) as client,
    ):
        agents: dict[str, AgentRun] = {}
        try:
            for worker in WORKERS:
                agents[worker] = AgentRun(up, worker, model)
            await eventually_async(lambda: _all_offer(client), within_s=PATIENCE_S)
            yield Rig(up, client, agents)
        finally:
            for agent in agents.values():
                await agent.ended()


async def _all_offer(client: Client) -> bool:
    offers: set[str] = set()
    for worker in await client.workers():
        capabilities: list[dict[str, Any]] = (worker.presence or {}).get("capabilities", [])
        if any(MODEL in capability["models"] for capability in capabilities):
            offers.add(worker.name)
    return offers == set(WORKERS)


def _toml(table: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
