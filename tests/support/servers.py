"""Real servers for tests: NATS and Postgres out of their wheels, and buses for each role.

`conftest.py` imports the fixtures `nats_server`, `postgres_server` and `servers` from here. A test that kills, wipes or
reconfigures a server takes one of its own: `async with own_servers() as servers: ...` (NATS needs 20 ms to start).
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest_asyncio

from coordinator.embedded import EmbeddedNats, EmbeddedPostgres
from coordinator.identities import JOBS_JS_PREFIX, OUTSIDE_JS_PREFIX
from shared.bus import ApiError, Bus
from shared.streams import STREAM_NOT_FOUND, STREAMS, ensure_intake_consumers, ensure_streams

QUICK_S = (0.02, 0.05)
"""Reconnect delays for tests."""

NO_STORE = 10049
"""JetStream's "error creating store for stream"."""

TEST_POSTGRES = ("fsync=off", "full_page_writes=off")
"""Tests kill the process, not the machine: what the page cache has survives that."""


class TandemServers:
    """A NATS server, maybe a Postgres, and clients of every role. `bus(...)` returns a Bus to be entered."""

    def __init__(self, nats: EmbeddedNats, postgres: EmbeddedPostgres | None = None) -> None:
        self.nats = nats
        self.postgres = postgres

    def bus(self, role: str, *, url: str | None = None, **options: Any) -> Bus:
        """Return a bus as `coordinator`, `provisioner`, `watcher`, `agent:<worker>` or `publisher:<source>`.

        Agents and publishers get their identity on first use. `url` goes through a proxy, `options` go to Bus.
        """
        kind, _, name = role.partition(":")
        identities = self.nats.identities
        if kind == "agent":
            seed, prefix, js_prefix = self._seed("agent", name), f"_INBOX.{name}", OUTSIDE_JS_PREFIX
        elif kind == "publisher":
            seed, prefix, js_prefix = self._seed("publisher", name), f"_INBOX.{name}", OUTSIDE_JS_PREFIX
        else:
            seed, prefix, js_prefix = getattr(identities, kind), f"_INBOX.{kind}", JOBS_JS_PREFIX
        options = {"reconnect_delays_s": QUICK_S, "name": role, **options}
        return Bus(url or self.nats.url, seed=seed, inbox_prefix=prefix, js_prefix=js_prefix, **options)

    @asynccontextmanager
    async def open(self, role: str, **options: Any) -> AsyncIterator[Bus]:
        """Open a bus, connected: `async with servers.open("agent:mini") as bus`."""
        bus = self.bus(role, **options)
        await self.nats.reloaded()
        async with bus:
            await bus.wait_connected(10)
            yield bus

    async def reset_streams(self, *, first_seq: int = 1) -> None:
        """Make all streams anew, empty, with the coordinators' consumers."""
        async with self.open("provisioner") as bus:
            for name in STREAMS:
                try:
                    await bus.api(f"STREAM.DELETE.{name}")
                except ApiError as error:
                    if error.err_code != STREAM_NOT_FOUND:
                        raise
            async with asyncio.timeout(10):
                while not await self._made(bus, first_seq):  # noqa: ASYNC110 - the server announces nothing
                    await asyncio.sleep(0.01)
            await ensure_intake_consumers(bus)

    async def _made(self, bus: Bus, first_seq: int) -> bool:
        """Make the streams; nats-server 2.15.1 now and then can't, right after it has deleted one of the name."""
        try:
            await ensure_streams(bus, first_seq=first_seq)
        except ApiError as error:
            if error.err_code != NO_STORE:
                raise
            return False
        return True

    def _seed(self, group: str, name: str) -> str:
        identities = self.nats.identities
        known = identities.agents if group == "agent" else identities.publishers
        seed = identities.add_agent(name) if group == "agent" else identities.add_publisher(name)
        if name not in known:
            self.nats.reload()
        assert seed is not None
        return seed


@asynccontextmanager
async def own_servers(*, postgres: bool = False, **nats_options: Any) -> AsyncIterator[TandemServers]:
    """Run servers of one's own, on free ports, in a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    nats_options.setdefault("port", 0)
    try:
        async with EmbeddedNats(folder, **nats_options) as nats:
            if not postgres:
                yield TandemServers(nats)
                return
            async with EmbeddedPostgres(folder, settings=TEST_POSTGRES) as database:
                yield TandemServers(nats, database)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nats_server() -> AsyncIterator[EmbeddedNats]:
    async with own_servers() as servers:
        yield servers.nats


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server() -> AsyncIterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    try:
        async with EmbeddedPostgres(folder, settings=TEST_POSTGRES) as database:
            yield database
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="session")
async def servers(nats_server: EmbeddedNats) -> TandemServers:
    """The session's NATS with all streams empty."""
    shared = TandemServers(nats_server)
    await shared.reset_streams()
    return shared


async def eventually(condition: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Return once the condition holds; TimeoutError if it does not in time. For what no event announces."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - such as a server's own view of things
            await asyncio.sleep(0.005)
