"""How a running NATS server learns who may connect: its user files are written anew, and it is told to read them.

With `tandem up` the server is our child and gets a SIGHUP. A server of one's own reads the same files (nats.conf
includes `identities/`), and the setting `nats_reload` says how it is told. Called by `enrolment.py`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coordinator.identities import Identities
from shared.errors import TandemError

RELOAD_S = 30.0
"""How long the command that has a server of one's own read its users may take."""

_TOLD = 500


class NotReloadedError(TandemError):
    """The users are written, and the server was not told; the message says what its reload said."""


class NatsUsers(Protocol):
    """Who may connect as an agent."""

    def agents(self) -> Mapping[str, str]:
        """Return the public key of each worker."""

    async def add(self, worker: str, public_key: str) -> None:
        """Let a worker connect with this key, and with none that it had before; ValueError for what is no key."""

    async def remove(self, worker: str) -> None:
        """Let a worker connect no more, and end the connection that it has."""


class _Reloaded(Protocol):
    """A server that is our child (`EmbeddedNats`)."""

    identities: Identities

    def reload(self) -> None:
        """Have it read its users again."""

    async def reloaded(self) -> None:
        """Return when it has."""


@dataclass(slots=True)
class OurServer:
    """The server of `tandem up`."""

    nats: _Reloaded
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def agents(self) -> Mapping[str, str]:
        """Return the public key of each worker."""
        return self.nats.identities.agents

    async def add(self, worker: str, public_key: str) -> None:
        """Let a worker connect with this key alone."""
        async with self._turn:
            self.nats.identities.add_agent(worker, public_key)
            await self._reload()

    async def remove(self, worker: str) -> None:
        """Cut a worker off."""
        async with self._turn:
            self.nats.identities.remove_agent(worker)
            await self._reload()

    async def _reload(self) -> None:
        try:
            self.nats.reload()
            await self.nats.reloaded()
        except ProcessLookupError:
            raise NotReloadedError("nats-server does not run") from None
        except TimeoutError:
            raise NotReloadedError("nats-server did not read its users; nats.log says why") from None


@dataclass(slots=True)
class OwnServer:
    """A server (or several) that somebody else runs: `folder`/identities is where its nats.conf includes from."""

    folder: Path
    command: Sequence[str]  # run as it is, without a shell
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def agents(self) -> Mapping[str, str]:
        """Return the public key of each worker."""
        return Identities(self.folder).agents

    async def add(self, worker: str, public_key: str) -> None:
        """Let a worker connect with this key alone."""
        async with self._turn:
            Identities(self.folder).add_agent(worker, public_key)
            await self._reload()

    async def remove(self, worker: str) -> None:
        """Cut a worker off."""
        async with self._turn:
            Identities(self.folder).remove_agent(worker)
            await self._reload()

    async def _reload(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            msg = f"nats_reload: {self.command[0]}: {error.strerror}"
            raise NotReloadedError(msg) from None
        try:
            async with asyncio.timeout(RELOAD_S):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            msg = f"nats_reload: {self.command[0]} did not end within {RELOAD_S:g} s"
            raise NotReloadedError(msg) from None
        if process.returncode:
            text = said.decode("utf-8", "replace").strip()[-_TOLD:]
            msg = f"nats_reload: {self.command[0]} ended with {process.returncode}: {text}"
            raise NotReloadedError(msg)
