"""What chaos breaks: NATS, Postgres, two coordinators and four agents as processes on 127.0.0.1, a proxy on each link.

    nats:<agent>   http:<coordinator>   nats:<coordinator>   postgres:<coordinator>      the links, each a Proxy

Three agents run the tests' own generator, as a plugin of the real `tandem-agent run`; `sketch` is one as it comes.
Ports are fixed and below the range that outgoing connections take theirs from: a port that is free while its server is
down must not be taken by somebody's retry.
"""

import asyncio
import json
import random
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psutil

from coordinator.embedded import EmbeddedNats, EmbeddedPostgres
from coordinator.settings import CoordinatorSettings
from shared.errors import UnreachableError
from tests.crash.chaos.program import AGENT, COORDINATOR, ROOT, Program
from tests.support.proxy import Proxy
from tests.support.servers import TEST_POSTGRES, TandemServers

SOURCE = "chaos"
PUBLISHER_TOKEN = "chaos-publisher-token-0123456789"
ADMIN_TOKEN = "chaos-admin-token-0123456789"
PLANNED = ("amber", "birch", "cedar")
SKETCH = "sketch"
AGENTS = (*PLANNED, SKETCH)
COORDINATORS = ("north", "south")
READY_S = 60.0
_PLUGIN = "tests.crash.chaos.generator:PlannedExecutor"

QUICK_COORDINATOR: Mapping[str, object] = {
    "lease_ttl_s": 4, "heartbeat_s": 1.2, "presence_s": 1, "max_attempts": 50, "max_lease_losses": 100,
    "max_silences": 200, "retry_base_s": 0.3, "retry_max_s": 2, "timeout_s": 60, "reaper_s": 0.5, "reconcile_s": 5,
    "unclaimed_s": 3, "disconnect_grace_s": 1, "quarantine_s": 1, "quarantine_most_s": 5,
}  # fmt: skip
"""Times in which much can happen; limits that no fault of the machinery reaches."""

QUICK_AGENT: Mapping[str, object] = {
    "presence_s": 1, "presence_timeout_s": 1.5, "linger_s": 1, "linger_many_s": 0.3, "claim_timeout_s": 1.5,
    "lease_timeout_s": 1.5, "report_timeout_s": 2, "verdict_timeout_s": 2, "resend_s": [0.2, 0.5, 1, 2],
    "reconnect_s": [0.1, 0.3, 1, 2], "upload_connect_s": 2, "upload_stall_s": 3, "drain_limit_s": 1,
    "release_limit_s": 2, "hang_s": 40, "wake_grace_s": 1, "slots": 2,
}  # fmt: skip


@dataclass
class Rig:
    folder: Path
    nats: EmbeddedNats
    postgres: EmbeddedPostgres
    servers: TandemServers
    coordinator_settings: Mapping[str, object]
    agent_settings: Mapping[str, object]
    heard: Callable[[str, bytes], None] | None = None
    coordinators: dict[str, Program] = field(default_factory=dict)
    agents: dict[str, Program] = field(default_factory=dict)
    links: dict[str, Proxy] = field(default_factory=dict)
    wiped: Callable[[], None] = lambda: None  # called when NATS is back after its store was wiped
    http: dict[str, str] = field(default_factory=dict)  # the coordinators' own addresses, past the proxies

    @property
    def programs(self) -> dict[str, Program]:
        return {**self.coordinators, **self.agents}

    @property
    def side(self) -> Path:
        """Where the generators leave their lines."""
        return self.folder / "side"

    async def open_links(self, stack: AsyncExitStack) -> None:
        for name in (*AGENTS, *COORDINATORS):
            await self._open_link(stack, f"nats:{name}", self.nats.port)
        for name in COORDINATORS:
            port = low_port()
            self.http[name] = f"http://127.0.0.1:{port}"
            await self._open_link(stack, f"http:{name}", port)
            await self._open_link(stack, f"postgres:{name}", self.postgres.port)

    async def _open_link(self, stack: AsyncExitStack, name: str, port: int) -> None:
        self.links[name] = await stack.enter_async_context(Proxy("127.0.0.1", port))

    def start_coordinator(self, name: str) -> None:
        identities, links = self.nats.identities, self.links
        dsn = self.postgres.dsn.replace(f":{self.postgres.port}/", f":{links[f'postgres:{name}'].port}/")
        settings: dict[str, object] = {
            **self.coordinator_settings,
            "postgres": dsn,
            "nats": f"nats://127.0.0.1:{links[f'nats:{name}'].port}",
            "nats_seed": identities.coordinator,
            "nats_provisioner_seed": identities.provisioner,
            "nats_watcher_seed": identities.watcher,
            "http": self.http[name].removeprefix("http://"),
            "public_url": f"http://127.0.0.1:{links[f'http:{name}'].port}",
            "tokens": {f"publisher:{SOURCE}": PUBLISHER_TOKEN, "admin:admin": ADMIN_TOKEN},
            "artifacts": self.folder / "artifacts",
            "secrets": self.folder / "secrets",
            "kinds": ["render"],
        }
        known = {name: value for name, value in settings.items() if name in CoordinatorSettings.model_fields}
        self.coordinators[name] = Program(name, COORDINATOR, _environment("TANDEM_", known), self.folder, self.heard)
        self.coordinators[name].start()

    def start_agent(self, name: str) -> None:
        data = self.folder / "agents" / name
        planned = {"planned": {"worker": name, "side": str(self.side), "data": str(data)}}
        settings: dict[str, object] = {
            **self.agent_settings,
            "worker": name,
            "nats": f"nats://127.0.0.1:{self.links[f'nats:{name}'].port}",
            "seed": self.nats.identities.agent_seed(name),
            "data": data,
            "executors": {"sketch": {}} if name == SKETCH else planned,
        }
        environment = _environment("TANDEM_AGENT_", settings)
        environment["PYTHONPATH"] = f"{self.folder / 'plugins'}:{ROOT}"
        self.agents[name] = Program(name, AGENT, environment, self.folder, self.heard)
        self.agents[name].start()

    async def until_ready(self, *, within_s: float = READY_S) -> None:
        """Return when the coordinators that were started are ready and know the agents that were started."""
        async with asyncio.timeout(within_s):
            for name in self.coordinators:
                while await self.get(name, "/readyz") is None:  # noqa: ASYNC110 - another process's state
                    await asyncio.sleep(0.1)
            asked = next(iter(self.coordinators))
            while not set(self.agents) <= _present(await self.get(asked, "/v1/workers")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def get(self, coordinator: str, path: str) -> Any:
        """Return what a coordinator answers, None if it does not or refuses."""
        return await self._ask("GET", coordinator, path)

    async def post(self, coordinator: str, path: str, body: bytes = b"") -> Any:
        """Ask for a change, as an operator; None if there was no answer or a refusal."""
        return await self._ask("POST", coordinator, path, body)

    async def _ask(self, method: str, coordinator: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with (
                aiohttp.ClientSession(self.http[coordinator], headers=headers, timeout=timeout) as http,
                http.request(method, path, data=body) as answer,
            ):
                return await answer.json(content_type=None) if answer.ok else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def sql(self, statement: str, *arguments: object, timeout_s: float = 60.0) -> list[asyncpg.Record]:
        """Ask the ledger directly; OSError, PostgresError or TimeoutError while it is away."""
        async with asyncio.timeout(timeout_s):
            connection = await asyncpg.connect(self.postgres.dsn)
            try:
                rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
                return rows
            finally:
                connection.terminate()

    def postgres_processes(self) -> list[psutil.Process]:
        """Return the postmaster and all its children."""
        with suppress(psutil.NoSuchProcess, RuntimeError):
            postmaster = psutil.Process(self.postgres.pid)
            return [postmaster, *postmaster.children(recursive=True)]
        return []

    async def start_server(self, server: EmbeddedNats | EmbeddedPostgres) -> None:
        """Start a server that was ended, again if it does not succeed at once."""
        for left in reversed(range(5)):
            try:
                await server.start()
            except UnreachableError:
                if not left:
                    raise
                await asyncio.sleep(1.0)
            else:
                return

    async def stop(self) -> None:
        """Stop the programs in good order, agents first."""
        await asyncio.gather(*(agent.stop() for agent in self.agents.values()))
        await asyncio.gather(*(coordinator.stop() for coordinator in self.coordinators.values()))


@asynccontextmanager
async def rig(
    *,
    coordinator: Mapping[str, object] = QUICK_COORDINATOR,
    agent: Mapping[str, object] = QUICK_AGENT,
    coordinators: tuple[str, ...] = COORDINATORS,
    agents: tuple[str, ...] = AGENTS,
    heard: Callable[[str, bytes], None] | None = None,
    keep: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Rig]:
    """Run all of it, ready; the folder is removed afterwards, unless `keep` says otherwise."""
    folder = _make_folder()
    nats = EmbeddedNats(folder, port=low_port())
    postgres = EmbeddedPostgres(folder, port=low_port(), settings=TEST_POSTGRES)
    try:
        for name in AGENTS:
            nats.identities.add_agent(name)
        nats.identities.add_publisher(SOURCE)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(postgres)
            await stack.enter_async_context(nats)
            servers = TandemServers(nats, postgres)
            made = Rig(folder, nats, postgres, servers, coordinator, agent, heard)
            await made.open_links(stack)
            stack.push_async_callback(made.stop)
            for name in coordinators:
                made.start_coordinator(name)
            for name in agents:
                made.start_agent(name)
            await made.until_ready()
            yield made
    finally:
        if not keep():
            shutil.rmtree(folder, ignore_errors=True)


def low_port() -> int:
    """Return a free port below those that the system gives to outgoing connections."""
    while True:
        port = random.randint(10_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _present(answer: Any) -> set[str]:
    return {worker["name"] for worker in answer["workers"] if worker["present"]} if answer else set()


def _environment(prefix: str, settings: Mapping[str, object]) -> dict[str, str]:
    return {f"{prefix}{n.upper()}": v if isinstance(v, str) else _text(v) for n, v in settings.items()}


def _text(value: object) -> str:
    return str(value) if isinstance(value, Path) else json.dumps(value)


def _make_folder() -> Path:
    """Make the folder of a run, in which the generator is announced as an installed plugin is."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-chaos-"))
    folder.chmod(0o711)  # Postgres may run as a user of its own
    (folder / "side").mkdir()
    info = folder / "plugins" / "tandem_chaos-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tandem-chaos\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[tandem.executors]\nplanned = {_PLUGIN}\n")
    return folder
