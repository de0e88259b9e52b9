"""How a running NATS server learns who may connect: its user files are written anew, and it is told to read them.

With `tandem up` the server is our child and gets a SIGHUP. A server of one's own reads the same files (nats.conf
includes `identities/`), and the setting `nats_reload` says how it is told. Called by `enrolment.py`.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from coordinator.identities import Identities, agents_in
from shared.bus import Bus, BusDown
from shared.errors import TandemError

RELOAD_S = 12.0
"""By when servers of one's own must have read their users, the command that tells them included: a client of the HTTP
side waits for 15 s."""

_AGAIN_S = (0.05, 0.2, 0.5, 1.0)
_TOLD = 500


class NotReloadedError(TandemError):
    """The users are written, and a server may not have read them; the message says what is known of it."""


class NatsUsers(ABC):
    """Who may connect as an agent: kept in `folder`/identities, where nats.conf includes from."""

    def __init__(self, folder: Path) -> None:
        """Keep them in this data folder."""
        self._folder = folder
        self._turn = asyncio.Lock()

    def agents(self) -> Mapping[str, str]:
        """Return the public key of each worker."""
        return agents_in(self._folder)

    async def add(self, worker: str, public_key: str) -> None:
        """Let a worker connect with this key, and with none that it had before; ValueError for what is no key."""
        async with self._turn:
            identities = Identities(self._folder)
            identities.add_agent(worker, public_key)
            await self._reload(identities)

    async def remove(self, worker: str) -> None:
        """Let a worker connect no more, and end the connection that it has."""
        async with self._turn:
            identities = Identities(self._folder)
            identities.remove_agent(worker)
            await self._reload(identities)

    @abstractmethod
    async def _reload(self, identities: Identities) -> None:
        """Return when every server goes by what was written; NotReloadedError."""


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
        super().__init__(nats.folder)
        self._nats = nats

    async def _reload(self, identities: Identities) -> None:  # noqa: ARG002 - our own server's log tells enough
        try:
            self._nats.reload()
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

    async def _reload(self, identities: Identities) -> None:
        seed = identities.add_witness()
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
            )
        except OSError as error:
            msg = f"nats_reload: {self._command[0]}: {error.strerror}"
            raise NotReloadedError(msg) from None
        try:
            async with asyncio.timeout(RELOAD_S):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            msg = f"nats_reload: {self._command[0]} did not end within {RELOAD_S:g} s"
            raise NotReloadedError(msg) from None
        if process.returncode:
            text = said.decode("utf-8", "replace").strip()[-_TOLD:]
            msg = f"nats_reload: {self._command[0]} ended with {process.returncode}: {text}"
            raise NotReloadedError(msg)
