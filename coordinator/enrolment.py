"""Enrolment: a worker is invited by one line, joins with a key of its own making, and is cut off again at a word.

    invite   a secret is made; the ledger keeps what seals with it, and when it is over      (`shared/joining.py`)
    join     the Mac sends its public key, sealed; NATS learns it; the Mac learns where NATS is, sealed
    revoke   its line is void; NATS forgets the key and drops the connection; leases end, and the worker is forgotten

Publishers over NATS come and go by the same desk, without a line: an administrator brings the public half of a key.

The order of a join: the invitation is used up first, then NATS learns the key. A crash between leaves a Mac that
repeats its request, which the same key may. The order of a revocation: first the line, then NATS, so that nothing that
the worker asks or says can bring it back; leases are ended until none is left, since what it had sent before may still
be granted. Joins and revocations take turns within this process, and no other does either: of several coordinators
one has `nats_identities`. Called by `web/enrolment.py` and `web/publishers.py`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from coordinator.identities import is_public_key
from coordinator.ledger.invitations import Invitations
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Done, Evict
from coordinator.ledger.queries import Queries
from coordinator.nats_users import NatsUsers
from coordinator.workers import Directory
from shared.addresses import is_loopback
from shared.bus import BusError
from shared.errors import TandemError
from shared.joining import invitation_id, invitation_key, is_sealed, line_of, new_secret, seal

_log = structlog.get_logger()


class UnmanagedError(TandemError):
    """This coordinator does not write NATS's users: its settings name no `nats_identities`."""

    def __init__(self) -> None:
        super().__init__("this coordinator does not write NATS's users: set nats_identities and nats_reload")


class EnrolledError(TandemError):
    """The worker or publisher has an identity already, or the key is somebody's."""


class NotEnrolledError(TandemError):
    """There is nobody of this name who could be cut off."""


class NoInvitationError(TandemError):
    """There is no such invitation, it is over, it was used with another key, or the seal is not its own."""

    def __init__(self) -> None:
        super().__init__("this invitation is unknown, over, or used up; ask for a new line")


@dataclass(frozen=True, slots=True)
class Invited:
    """An invitation that was made; its line is shown once and kept nowhere."""

    worker: str
    line: str
    expires_at: datetime
    warnings: list[str]  # what would keep the line from working elsewhere


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a Mac that joined is told."""

    worker: str
    nats: str  # URL
    ca: str  # certificates to trust (PEM); empty = the system's
    seal: str


async def _nothing(_: str) -> None:
    """Make nothing ready."""


@dataclass(slots=True)
class Enrolment:
    """Invites, lets join, revokes."""

    users: NatsUsers | None  # None: somebody else keeps them
    invitations: Invitations
    ledger: Ledger
    queries: Queries
    directory: Directory
    url: Callable[[], str]  # how agents reach the HTTP side
    nats: str  # how agents reach NATS
    ca: Path | None
    make_ready: Callable[[str], Awaitable[None]] = _nothing  # makes the consumer of a source's results
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def invite(self, worker: str, *, actor: str, good_s: float, replace: bool) -> Invited:
        """Make a line for a worker, in place of any that is open.

        EnrolledError unless `replace`: a join then gives the worker a new key, and its old one is good no more.
        """
        users = self._users()
        if worker in users.agents() and not replace:
            msg = f"{worker} has joined already: revoke it first, or replace its key (--replace)"
            raise EnrolledError(msg)
        secret, url = new_secret(), self.url()
        expires_at = await self.invitations.make(
            worker, invitation_id(secret), invitation_key(secret), actor=actor, good_s=good_s
        )
        _log.info("worker invited", worker=worker, actor=actor, expires_at=expires_at.isoformat())
        return Invited(worker, line_of(url, worker, secret), expires_at, _warnings(url, self.nats))

    async def join(self, invitation: str, public_key: str, shown: str) -> Welcome:
        """Let a Mac in; NoInvitationError says no, and no more than that."""
        users = self._users()
        found = await self.invitations.find(invitation)
        if found is None:
            raise NoInvitationError
        worker, key = found
        if not is_sealed(key, shown, "join", worker, public_key) or not is_public_key(public_key):
            raise NoInvitationError
        ca = self.ca.read_text() if self.ca else ""
        async with self._turn:
            others = users.holders(public_key) - {f"agents/{worker}"}
            if others or not await self.invitations.use(invitation, public_key):
                raise NoInvitationError
            await users.add(worker, public_key)
        _log.info("worker joined", worker=worker)
        return Welcome(worker, self.nats, ca, seal(key, "welcome", worker, public_key, self.nats, ca))

    async def revoke(self, worker: str, *, actor: str) -> int:
        """Cut a worker off; return how many leases it lost.

        NotReloadedError: NATS may still let it in, so it is not forgotten, and keeps its leases; its line is void.
        NotEnrolledError, when all of it is done: there was no key, no open line and no worker of this name.
        """
        users = self._users()
        async with self._turn:
            had_line = await self.invitations.void(worker)
            had_key = await users.remove(worker)
            ended = await self._evict(worker)
            was_known = await self.invitations.forget_worker(worker, actor=actor)
            await self.directory.once()
            ended += await self._evict(worker)
        if not (had_line or had_key or was_known or ended):
            msg = f"{worker} is not enrolled, and has no open line"
            raise NotEnrolledError(msg)
        _log.info("worker revoked", worker=worker, actor=actor, leases=ended)
        return ended

    def publishers(self) -> Mapping[str, str]:
        """Return the public key of each publisher that may connect to NATS."""
        return self._users().publishers()

    async def add_publisher(self, source: str, public_key: str, *, actor: str, replace: bool) -> bool:
        """Let a publisher connect with this key, its results kept for it from now on; return whether it is a new one.

        Harmless for the key that it has. EnrolledError unless `replace` for one that has another, and for a key that
        somebody else has; ValueError for what is no key; NotReloadedError: a server may not know it yet.
        """
        users = self._users()
        if source in users.own:
            msg = f"{source} is this coordinator's own publisher: connection.json has its key"
            raise EnrolledError(msg)
        async with self._turn:
            known = users.publishers().get(source)
            if known not in (None, public_key) and not replace:
                msg = f"{source} has a key already: revoke it first, or replace it (--replace)"
                raise EnrolledError(msg)
            if others := users.holders(public_key) - {f"publishers/{source}"}:
                msg = f"this key is in use: {', '.join(sorted(others))}; make one for each publisher"
                raise EnrolledError(msg)
            await users.add_publisher(source, public_key)
        with contextlib.suppress(BusError):  # else with the connection to NATS, or with its first result
            await self.make_ready(source)
        _log.info("publisher added", source=source, actor=actor)
        return known is None

    async def revoke_publisher(self, source: str, *, actor: str) -> None:
        """Cut a publisher off; its jobs go on, and its results stay as long as any.

        NotReloadedError: NATS may still let it in. NotEnrolledError: no publisher of this name had a key.
        """
        users = self._users()
        async with self._turn:
            if not await users.remove_publisher(source):
                msg = f"no publisher {source} has a key"
                raise NotEnrolledError(msg)
        _log.info("publisher revoked", source=source, actor=actor)

    async def _evict(self, worker: str) -> int:
        """End what a worker holds until it holds nothing, or what it holds can't be ended; return how much it was."""
        ended = 0
        while held := await self.queries.processing_of(worker):
            answers = await self.ledger.do_what_can([Evict(job_id=job_id, worker=worker) for job_id, _ in held])
            done = sum(isinstance(answer, Done) for answer in answers)
            if not done:
                break
            ended += done
        return ended

    def _users(self) -> NatsUsers:
        if self.users is None:
            raise UnmanagedError
        return self.users


def _warnings(url: str, nats: str) -> list[str]:
    """Say what keeps a line from working on another machine."""
    found = []
    servers = [address.strip() for address in nats.split(",")]
    for name, address in (("public_url", url), *(("nats_public_url", server) for server in servers)):
        if is_loopback(urlsplit(address).hostname or ""):
            found.append(f"{address} is this machine only: set {name} to what the Macs reach")
    return found
