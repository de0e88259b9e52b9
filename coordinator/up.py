"""`tandem up`: NATS, Postgres, the coordinator and local agents on one data folder, started and stopped in order.

    start   folder's lock → certificates → Postgres → NATS → coordinator → agents → connection.json
    stop    connection.json away → agents drain → coordinator → NATS → Postgres

Everything that must last is in the folder, so a later start finds it all. What dies by itself is reported: an agent is
started again, a server ends the program. Called by `cli_serve.py` and `demo.py`.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic import SecretStr

from coordinator.embedded import EmbeddedNats, EmbeddedPostgres
from coordinator.nats_users import LOCAL_SOURCE, OurServer
from coordinator.service import Coordinator, running
from coordinator.settings import CoordinatorSettings
from coordinator.up_agents import LocalAgents
from coordinator.up_beyond import host_for, listen_beyond
from coordinator.up_folder import AUDIT, CONNECTION, only_one, refuse_unfinished, tokens_of, write_private
from shared.addresses import is_loopback
from shared.errors import ConfigurationError, TandemError, UnreachableError

_log = structlog.get_logger()

SOURCE = LOCAL_SOURCE
"""The source of everything that is submitted with the folder's publisher token or key."""

SOURCES = "sources.toml"
"""Which CMS may post to /hooks, if this file is in the folder."""

_READY_S = 20.0
_AUDITED = ("nats_ca", "presence_s", "quarantine_failures", "quarantine_s", "quarantine_most_s")


class ServerDiedError(TandemError):
    """A server that was not told to stop has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, and where."""

    data: Path
    http: str = "127.0.0.1:8420"  # HOST:PORT; port 0 = any free one
    nats: str | None = None  # HOST:PORT; None = 4222, on every address if `listen`, else on loopback only
    listen: str | None = None  # NAME or NAME:PORT, as other machines reach this one, by TLS; None = they don't
    agents: tuple[str, ...] = ()  # local agents to start, by name
    workers: tuple[str, ...] = ()  # identities for agents that are started elsewhere
    coordinator: Mapping[str, Any] = field(default_factory=dict)  # settings that win over the environment
    agent_environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Up:
    """A running Tandem."""

    data: Path
    coordinator: Coordinator
    nats: EmbeddedNats
    postgres: EmbeddedPostgres
    agents: LocalAgents
    connection: Mapping[str, Any]

    @property
    def url(self) -> str:
        """Where the page and the API are."""
        return self.coordinator.url

    def token(self, role: str) -> str:
        """Return the token of a role: admin, publisher, viewer."""
        return str(self.connection["tokens"][role])

    async def until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; ServerDiedError when a server ends before."""
        waits = {
            asyncio.create_task(stop.wait(), name="stop"): "",
            asyncio.create_task(self.nats.died(), name="nats died"): "NATS",
            asyncio.create_task(self.postgres.died(), name="postgres died"): "Postgres",
        }
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        died = [f"{waits[task]} ended by itself (exit code {task.result()})" for task in done if waits[task]]
        if died and not stop.is_set():
            msg = f"{', '.join(died)}; its log is in {self.data}"
            raise ServerDiedError(msg)


@asynccontextmanager
async def running_up(plan: Plan) -> AsyncIterator[Up]:
    """Run it until the block is left; yields when everything is ready and connection.json is written.

    ConfigurationError for what a person must change (folder or port in use), UnreachableError when a server does not
    come up.
    """
    host = host_for(plan.listen) if plan.listen is not None else "127.0.0.1"
    nats_host, nats_port = address_of(plan.nats or f"{host}:4222", "--nats")
    http_host, http_port = address_of(plan.http, "--http")
    _refuse_beyond(http_host, "--http")
    if plan.listen is None:
        _refuse_beyond(nats_host, "--nats")
    data = plan.data.expanduser().resolve()
    async with AsyncExitStack() as stack:
        stack.enter_context(only_one(data))
        refuse_unfinished(data)
        (data / CONNECTION).unlink(missing_ok=True)
        _refuse_taken(http_host, http_port, "HTTP", "--http")
        beyond = listen_beyond(plan.listen, data) if plan.listen is not None else None
        if beyond is not None:
            _refuse_taken(host, beyond.port, "HTTPS", "--listen")
        nats = EmbeddedNats(data, host=nats_host, port=nats_port, tls=beyond.pair if beyond else None)
        for worker in (*plan.agents, *plan.workers):
            _add_agent(nats, worker)
        nats.identities.add_publisher(SOURCE)
        postgres = await stack.enter_async_context(EmbeddedPostgres(data))
        await _start_nats(stack, nats)
        tokens = tokens_of(data)
        more = {**plan.coordinator, **(beyond.settings(nats.port) if beyond else {})}
        settings = _settings(plan.http, more, data, postgres, nats, tokens)
        coordinator = await stack.enter_async_context(running(settings, OurServer(nats)))
        await _settled(coordinator)
        environment = {"TANDEM_AGENT_LOG_FILE": "logs/agent.jsonl", **plan.agent_environment}
        if beyond is not None:
            environment["TANDEM_AGENT_CA_FILE"] = str(beyond.ca)
        agents = LocalAgents(data / "agents", nats.identities.folder / "agents", nats.url, environment)
        stack.push_async_callback(agents.stop)
        await LocalAgents.stop_orphans_in(data / "agents")
        for worker in plan.agents:
            await agents.start(worker)
        connection = _connection(coordinator, nats, postgres, tokens)
        for name in (AUDIT, CONNECTION):
            stack.callback((data / name).unlink, missing_ok=True)
        write_private(data / AUDIT, _for_the_audit(settings))
        write_private(data / CONNECTION, connection)
        yield Up(data, coordinator, nats, postgres, agents, connection)


def address_of(text: str, flag: str) -> tuple[str, int]:
    """Read HOST:PORT; ConfigurationError naming the flag if it is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004
        msg = f"{flag}: not HOST:PORT: {text!r}"
        raise ConfigurationError(msg)
    return host.strip("[]"), int(port)


def _add_agent(nats: EmbeddedNats, worker: str) -> None:
    try:
        nats.identities.add_agent(worker)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


async def _start_nats(stack: AsyncExitStack, nats: EmbeddedNats) -> None:
    """Start NATS; whoever else listens on its port is named as the reason."""
    try:
        await stack.enter_async_context(nats)
    except UnreachableError as error:
        if "address already in use" not in str(error).lower():
            raise
        raise _taken(nats.host, nats.port, "NATS", "--nats") from None


def _refuse_taken(host: str, port: int, what: str, flag: str) -> None:
    """Refuse early, before servers are started, when somebody listens there; ConfigurationError."""
    if port == 0:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _taken(host, port, what, flag) from None
            msg = f"{flag} {host}:{port}: {error.strerror or error}"
            raise ConfigurationError(msg) from None


def _refuse_beyond(host: str, flag: str) -> None:
    """Refuse what would cross a network in the clear; ConfigurationError."""
    if not is_loopback(host):
        msg = f"{flag} {host}: for this machine only; --listen NAME serves others, by TLS"
        raise ConfigurationError(msg)


def _taken(host: str, port: int, what: str, flag: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what}: {host}:{port} is in use; stop what listens there, or choose another: {flag} HOST:PORT (port 0 = any)"
    )


def _settings(
    http: str,
    more: Mapping[str, Any],
    data: Path,
    postgres: EmbeddedPostgres,
    nats: EmbeddedNats,
    tokens: Mapping[str, str],
) -> CoordinatorSettings:
    found = data / SOURCES
    return CoordinatorSettings.load(
        None,
        **{"sources_file": found if found.exists() else None, **_logs(data), **more},
        postgres=SecretStr(postgres.dsn),
        nats=nats.url,
        nats_seed=SecretStr(nats.identities.coordinator),
        nats_provisioner_seed=SecretStr(nats.identities.provisioner),
        nats_watcher_seed=SecretStr(nats.identities.watcher),
        http=http,
        tokens={
            f"publisher:{SOURCE}": SecretStr(tokens["publisher"]),
            "viewer:viewer": SecretStr(tokens["viewer"]),
            "admin:admin": SecretStr(tokens["admin"]),
        },
        artifacts=data / "artifacts",
        secrets=data / "secrets",
        sources=frozenset({SOURCE}),
    )


def _logs(data: Path) -> dict[str, Path]:
    """Return where the coordinator logs to, and where its agents' logs lie, unless the environment says so."""
    known = {"log_file": data / "logs" / "coordinator.jsonl", "log_agents": data / "agents"}
    return {name: path for name, path in known.items() if f"TANDEM_{name.upper()}" not in os.environ}


async def _settled(coordinator: Coordinator) -> None:
    """Wait until the coordinator can take work and give it: connected, streams made, each loop of that once round."""
    deadline = asyncio.get_running_loop().time() + _READY_S
    needed = [loop for loop in coordinator.loops if loop.max_failures]  # not the brooms: they may have hours to do
    while reasons := coordinator.unready() or [loop.name for loop in needed if not loop.rounds]:
        if asyncio.get_running_loop().time() > deadline:
            msg = f"the coordinator is not ready after {_READY_S:g} s: {'; '.join(reasons)}"
            raise UnreachableError(msg)
        await asyncio.sleep(0.02)


def _for_the_audit(settings: CoordinatorSettings) -> dict[str, Any]:
    """Return what `tandem audit` must know besides: where the files are, and when a worker counts as away or broken."""
    names = {*_AUDITED, *(name for name in CoordinatorSettings.model_fields if name.startswith("artifacts_"))}
    given = {name: getattr(settings, name) for name in sorted(names & settings.model_fields_set)}
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return str(value)
        case _:
            return value


def _connection(
    coordinator: Coordinator, nats: EmbeddedNats, postgres: EmbeddedPostgres, tokens: Mapping[str, str]
) -> dict[str, Any]:
    seeds: dict[str, dict[str, str]] = {}
    for worker in nats.identities.agents:
        with contextlib.suppress(FileNotFoundError):  # a key that was made elsewhere: only its public half is here
            seeds[worker] = {"seed": nats.identities.agent_seed(worker)}
    return {
        "http": coordinator.url,
        "nats": nats.url,
        "postgres": postgres.dsn,
        "tokens": dict(tokens),
        "nkeys": {
            "publisher": {"source": SOURCE, "seed": nats.identities.publisher_seed(SOURCE)},
            "agents": seeds,
        },
    }
