"""How a running NATS server learns who may connect: its user files are written anew, and it is told to read them.

With `tandem up` the server is our child and gets a SIGHUP. A server of one's own reads the same files (nats.conf
includes `identities/`), and the setting `nats_reload` says how it is told. Called by `enrolment.py`.
"""

import asyncio
import contextlib
import os
import signal
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from coordinator.identities import Group, Identities, agents_in, holders_in, publishers_in
from shared.bus import Bus, BusDown
from shared.errors import TandemError

RELOAD_S = 8.0
"""By when servers must have read their users, the command that tells them included: a client of the HTTP side waits for
15 s."""

LOCAL_SOURCE = "local"
"""The publisher that `tandem up` itself makes, at each start if it must: its seed is in connection.json."""

_AGAIN_S = (0.05, 0.2, 0.5, 1.0)
_TOLD = 500


class NotReloadedError(TandemError):
    """The users are written, and a server may not have read them; the message says what is known of it."""


class NatsUsers(ABC):
    """Who may connect as an agent or a publisher: kept in `folder`/identities, where nats.conf includes from."""

    def __init__(self, folder: Path, *, own: frozenset[str] = frozenset()) -> None:
        """Keep them in this data folder; `own`: publishers whose keys are made there, and nowhere else."""
        self.own = own
        self._folder = folder
        self._turn = asyncio.Lock()
        self._doubtful: set[tuple[Group, str]] = set()  # removed, and a server may still let them in

    def agents(self) -> Mapping[str, str]:
        """Return the public key of each worker."""
        return agents_in(self._folder)

    def publishers(self) -> Mapping[str, str]:
        """Return the public key of each publisher, by its source."""
        return publishers_in(self._folder)

    def holders(self, public_key: str) -> set[str]:
        """Return who has this key: `agents/mini`, `publishers/blog` ...; a server refuses its users if two have it."""
        return holders_in(self._folder, public_key)

    async def add(self, worker: str, public_key: str) -> None:
        """Let a worker connect with this key, and with none that it had before; ValueError for what is no key."""
        async with self._turn:
            identities = Identities(self._folder)
            identities.add_agent(worker, public_key)
            await self._reload(identities, "agents")

    async def remove(self, worker: str) -> bool:
        """Let a worker connect no more, and end the connection that it has; return whether it could until now."""
        async with self._turn:
            identities = Identities(self._folder)
            known = worker in identities.agents
            identities.remove_agent(worker)
            return await self._forget(identities, "agents", worker, known=known)

    async def add_publisher(self, source: str, public_key: str) -> None:
        """Let a publisher connect; as `add`."""
        async with self._turn:
            identities = Identities(self._folder)
            identities.add_publisher(source, public_key)
            await self._reload(identities, "publishers")

    async def remove_publisher(self, source: str) -> bool:
        """Let a publisher connect no more; as `remove`."""
        async with self._turn:
            identities = Identities(self._folder)
            known = source in identities.publishers
            identities.remove_publisher(source)
            return await self._forget(identities, "publishers", source, known=known)

    async def _forget(self, identities: Identities, group: Group, name: str, *, known: bool) -> bool:
        if known:
            self._doubtful.add((group, name))
        await self._reload(identities, group)
        known = (group, name) in self._doubtful
        self._doubtful.discard((group, name))
        return known

    @abstractmethod
    async def _reload(self, identities: Identities, group: Group) -> None:
        """Return when every server goes by what was written of this group; NotReloadedError."""


class _Child(Protocol):
    """A server that is our child (`EmbeddedNats`)."""

    folder: Path

    def reload(self) -> None:
        """Have it read its users again."""

    async def reloaded(self) -> None:
        """Return when it has."""


class OurServer(NatsUsers):
    """The server of `tandem up`."""

    def __init__(self, nats: _Child) -> None:
        """Take the server, running or not."""
        super().__init__(nats.folder, own=frozenset({LOCAL_SOURCE}))
        self._nats = nats

    async def _reload(self, identities: Identities, group: Group) -> None:  # noqa: ARG002 - its log tells enough
        try:
            self._nats.reload()
            async with asyncio.timeout(RELOAD_S):
                await self._nats.reloaded()
        except ProcessLookupError:
            raise NotReloadedError("nats-server does not run") from None
        except TimeoutError:
            raise NotReloadedError("nats-server did not read its users; nats.log says why") from None


class OwnServer(NatsUsers):
    """A server (or several) that somebody else runs.

    That the command ended well says little: nats-server refuses a configuration that it can't read, and goes on with
    the one before. So each server must let in a user that was not there before (`Identities.add_witness`).
    """

    def __init__(self, folder: Path, command: Sequence[str], urls: str, tls: ssl.SSLContext | None = None) -> None:
        """`command` is run as it is, without a shell; `urls` has each server, with commas between."""
        super().__init__(folder)
        self._command = command
        self._urls = [url.strip() for url in urls.split(",")]
        self._tls = tls

    async def _reload(self, identities: Identities, group: Group) -> None:
        seed = identities.add_witness(group)
        deadline = asyncio.get_running_loop().time() + RELOAD_S
        await self._run()
        left_s = deadline - asyncio.get_running_loop().time()
        known = await asyncio.gather(*(self._is_known(url, seed, left_s) for url in self._urls))
        without = [url for url, is_known in zip(self._urls, known, strict=True) if not is_known]
        if without:
            msg = (
                f"nats_reload: {self._command[0]} ended well, but {', '.join(without)} did not let in a new user "
                f"within {RELOAD_S:g} s: it can't be reached, or refused to read its users, and its log says why"
            )
            raise NotReloadedError(msg)

    async def _is_known(self, url: str, seed: str, within_s: float) -> bool:
        async with Bus(url, name="tandem-witness", seed=seed, tls=self._tls, reconnect_delays_s=_AGAIN_S) as bus:
            try:
                await bus.wait_connected(within_s)
            except BusDown:
                return False
        return True

    async def _run(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            msg = f"nats_reload: {self._command[0]}: {error.strerror}"
            raise NotReloadedError(msg) from None
        try:
            async with asyncio.timeout(RELOAD_S):
                said, _ = await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it started, which may hold the pipe
            await process.wait()
            msg = f"nats_reload: {self._command[0]} did not end within {RELOAD_S:g} s"
            raise NotReloadedError(msg) from None
        if process.returncode:
            text = said.decode("utf-8", "replace").strip()[-_TOLD:]
            msg = f"nats_reload: {self._command[0]} ended with {process.returncode}: {text}"
            raise NotReloadedError(msg)
