"""A whole Tandem for one test: a NATS of its own, a fresh ledger, a coordinator in this process, puppets, a clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
from pydantic import SecretStr

from coordinator.service import Coordinator, running
from coordinator.settings import CoordinatorSettings
from shared import subjects
from shared.streams import last_message_seq
from tests.support.ledger import set_clock_offset
from tests.support.puppet import Puppet, puppet
from tests.support.servers import TandemServers, eventually

NEVER_S = 86400.0
"""Loops that a test drives by hand."""


class World:
    """What a test holds in its hands."""

    def __init__(
        self,
        servers: TandemServers,
        dsn: str,
        pool: asyncpg.Pool,
        folder: Path,
        stack: AsyncExitStack,
        **settings: Any,
    ) -> None:
        self.servers = servers
        self.dsn = dsn
        self.pool = pool
        self._stack = stack
        self._offset_s = 0.0
        self._coordinator: AsyncExitStack | None = None
        self.coordinator: Coordinator
        identities = servers.nats.identities
        self.settings = CoordinatorSettings(
            **{
                "postgres": SecretStr(dsn),
                "nats": servers.nats.url,
                "nats_seed": SecretStr(identities.coordinator),
                "nats_provisioner_seed": SecretStr(identities.provisioner),
                "nats_watcher_seed": SecretStr(identities.watcher),
                "http": "127.0.0.1:0",
                "artifacts": folder / "artifacts",
                "secrets": folder / "secrets",
                "reaper_s": NEVER_S,
                "reconcile_s": NEVER_S,
                "sources": frozenset({"local"}),
                **settings,
            }
        )

    async def start_coordinator(self) -> None:
        """Start the coordinator, and return when its streams are there."""
        self._coordinator = AsyncExitStack()
        self.coordinator = await self._coordinator.enter_async_context(running(self.settings))
        self.http = await self._coordinator.enter_async_context(aiohttp.ClientSession(self.coordinator.url))
        started = self.coordinator
        await eventually(lambda: not started.unready() and all(loop.rounds for loop in started.loops))

    async def stop_coordinator(self) -> None:
        """Stop it in good order."""
        if self._coordinator is not None:
            await self._coordinator.aclose()
            self._coordinator = None

    async def puppet(self, worker: str, **announcement: Any) -> Puppet:
        """Connect a worker and announce it."""
        made = await self._stack.enter_async_context(puppet(self.servers, worker))
        await made.announce(**announcement)
        return made

    async def submit(self, kind: str = "article", *, expect: int = 201, **more: Any) -> dict[str, Any]:
        """Submit over HTTP; return the answer's body."""
        body = {"kind": kind, "spec": {"prompt": "A story"}, **more}
        async with self.http.post("/v1/jobs", json=body) as answer:
            assert answer.status == expect, await answer.text()
            decoded: dict[str, Any] = await answer.json()
            return decoded

    async def job(self, job_id: str | UUID) -> dict[str, Any]:
        """Return a job as the API shows it."""
        async with self.http.get(f"/v1/jobs/{job_id}") as answer:
            assert answer.status == 200, await answer.text()
            decoded: dict[str, Any] = await answer.json()
            return decoded

    async def page(self, path: str) -> str:
        """Return a page for people."""
        async with self.http.get(path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def act(self, job_id: str, action: str, *, expect: int = 200) -> dict[str, Any]:
        """Cancel, retry, approve or reject."""
        async with self.http.post(f"/v1/jobs/{job_id}/{action}") as answer:
            assert answer.status == expect, await answer.text()
            decoded: dict[str, Any] = await answer.json()
            return decoded

    async def until(self, job_id: str, state: str) -> dict[str, Any]:
        """Return the job once it is in this state."""
        found: dict[str, Any] = {}

        async def look() -> bool:
            found.update(await self.job(job_id))
            return found["state"] == state

        await eventually_async(look)
        return found

    async def move_clock(self, seconds: float) -> None:
        """Move the ledger's clock."""
        self._offset_s += seconds
        await set_clock_offset(self.pool, self._offset_s)

    async def pass_time(self, seconds: float) -> None:
        """Move the ledger's clock, then let the reaper look."""
        await self.move_clock(seconds)
        await self.coordinator.reaper.once()

    async def offered_after(self, subject: str, seq: int) -> int:
        """Return the sequence of the message on a WORK subject once there is one above `seq`, and the ledger knows."""
        found = 0

        async def look() -> bool:
            nonlocal found
            found = await last_message_seq(self.coordinator.bus, subject) or 0
            job_id = subjects.job_of_work(subject)
            known = await self.pool.fetchval("SELECT offered_seq FROM job WHERE id = $1", job_id)
            return found > seq and known == found

        await eventually_async(look)
        return found

    async def reconnected(self, *puppets: Puppet) -> None:
        """Wait until the coordinator and the puppets are connected, and the coordinator has looked at everything."""
        bus = self.coordinator.bus
        await bus.wait_connected(20)
        for one in puppets:
            await one.bus.wait_connected(20)
        await eventually(lambda: not self.coordinator.unready())


async def eventually_async(condition: Any, *, within_s: float = 30.0) -> None:
    """Return once the awaited condition holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - what the ledger shows is announced by no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def world(servers: TandemServers, dsn: str, folder: Path, **settings: Any) -> AsyncIterator[World]:
    """Run a world until the block is left."""
    async with AsyncExitStack() as stack:
        pool = await asyncpg.create_pool(dsn, min_size=0, max_size=2)
        stack.callback(pool.terminate)
        made = World(servers, dsn, pool, folder, stack, **settings)
        await made.start_coordinator()
        try:
            yield made
        finally:
            await made.stop_coordinator()
