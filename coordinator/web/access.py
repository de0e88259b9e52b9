"""Who may ask what: bearer tokens with a role, or, with none configured, everyone on this machine and nobody else.

A browser shows its token once (`log_in`) and then a cookie, signed over the token's digest: it ends with the token.
Pure but for `check_listen`, which resolves a name at start.
"""

import hashlib
import hmac
import re
import secrets
import socket
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from pydantic import SecretStr

from shared.addresses import is_loopback
from shared.errors import ConfigurationError
from shared.ids import NAME_PATTERN

LOCAL = "local"
"""The source and actor of everyone on this machine while no token is configured."""

SESSION_S = 7 * 86400.0
"""A browser shows its token again after so long."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSION = re.compile(r"(?P<ends_at>[0-9]{1,12})\.(?P<role>[a-z]+)\.(?P<name>[^.]+)\.(?P<seal>[0-9a-f]{64})")


class Role(StrEnum):
    """What a token allows."""

    PUBLISHER = "publisher"  # submits; sees and acts on its own source's jobs
    VIEWER = "viewer"  # reads everything
    ADMIN = "admin"  # everything


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A configured token; `name` is the source of what it submits and the actor of what it does."""

    name: str
    role: Role
    secret: SecretStr


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that was made while the coordinator ran, as the ledger has it."""

    id: str
    name: str
    role: Role
    digest: bytes  # SHA-256 of the token, which is nowhere


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from."""

    name: str
    role: Role
    token: str = field(default="", compare=False)  # which of its tokens it showed: an issued one's id

    @property
    def source(self) -> str | None:
        """The one source that the caller may see; None = all."""
        return self.name if self.role is Role.PUBLISHER else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is nobody's: 401 or 403, and the reason in words."""

    status: int
    reason: str
    is_guess: bool = False  # a token was shown, and it is nobody's


class Access:
    """Tells who a request comes from. Without tokens: whoever is on this machine is admin."""

    def __init__(
        self, tokens: Sequence[AccessToken] = (), key: bytes | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`key` signs the sessions; all coordinators of one ledger need the same. None: they end with the process."""
        for token in tokens:
            if not re.fullmatch(NAME_PATTERN, token.name):
                msg = f"a token's name is a source: {token.name!r} does not match {NAME_PATTERN}"
                raise ConfigurationError(msg)
            if not token.secret.get_secret_value():
                msg = f"the token of {token.name!r} is empty"
                raise ConfigurationError(msg)
        self.configured = [Caller(t.name, t.role) for t in tokens]
        digests = [_digest(t.secret.get_secret_value()) for t in tokens]
        if len(set(digests)) < len(digests):
            msg = "two tokens have the same secret"
            raise ConfigurationError(msg)
        self._configured = list(zip(digests, self.configured, strict=True))
        self._callers = self._configured
        self._ever_issued = False
        self.used: set[str] = set()  # issued tokens that were shown since somebody emptied this
        self._key = key or secrets.token_bytes(32)
        self._clock = clock
        self._ended: dict[str, int] = {}  # sessions that were logged out here, with when they would have ended

    @property
    def open(self) -> bool:
        """Whether there is no token and never was one, so that only this machine is let in."""
        return not self._callers and not self._ever_issued

    def learn(self, issued: Sequence[IssuedToken], *, ever: bool) -> None:
        """Let in those who have these tokens beside the configured ones; `ever`: there were some, revoked or not."""
        found = [(one.digest, Caller(one.name, one.role, one.id)) for one in issued]
        self._callers = [*self._configured, *found]
        self._ever_issued = ever

    def identify(
        self, method: str, headers: Mapping[str, str], remote: str | None, session: str | None = None
    ) -> Caller | Refusal:
        """Return who sent a request, or why nobody may; `session` counts where no token is presented.

        A page of another site can make a browser send requests here. So nothing that changes anything is taken from
        another origin, a password that browsers keep (Basic) only reads, and while there are no tokens the Host must
        name this machine (a foreign name that resolves to it is DNS rebinding).
        """
        if method not in _SAFE and self.is_cross_site(headers):
            return Refusal(403, "requests from pages of other origins are refused")
        if self.open:
            if not (is_loopback(remote or "") and is_loopback(_host_of(headers.get("Host", "")))):
                return Refusal(403, "without configured tokens only requests to and from this machine are answered")
            return Caller(LOCAL, Role.ADMIN)
        presented = _presented(method, headers.get("Authorization", ""))
        if presented is None:
            return self._seen(self._in_session(session)) or Refusal(401, "a bearer token is needed")
        digest, found = _digest(presented), None
        for known, caller in self._callers:  # all of them, always: the time says nothing
            if hmac.compare_digest(known, digest):
                found = caller
        return self._seen(found) or Refusal(401, "unknown token", is_guess=True)

    def _seen(self, caller: Caller | None) -> Caller | None:
        if caller is not None and caller.token:
            self.used.add(caller.token)
        return caller

    @staticmethod
    def is_cross_site(headers: Mapping[str, str]) -> bool:
        """Say whether a page of another origin made the browser send this."""
        origin = headers.get("Origin")
        try:
            if origin is not None and urlsplit(origin).netloc != headers.get("Host"):
                return True
        except ValueError:  # no URL at all
            return True
        return headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")

    def log_in(self, secret: str) -> tuple[Caller, str] | None:
        """Return who has this token and a session for it; None if nobody has it."""
        digest, found = _digest(secret), None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                ends_at = int(self._clock() + SESSION_S)
                found = caller, f"{ends_at}.{caller.role}.{caller.name}.{self._seal(caller, known, ends_at)}"
        self._seen(found and found[0])
        return found

    def log_out(self, session: str) -> None:
        """End a session for this process, whoever has kept its cookie; elsewhere it ends with the cookie."""
        if self._in_session(session) is None:
            return
        now = self._clock()
        self._ended = {one: ends_at for one, ends_at in self._ended.items() if ends_at >= now}
        self._ended[session] = int(session.partition(".")[0])

    def form_token(self, session: str | None) -> str:
        """Return what every form of a session carries, so that a page elsewhere can't make one up."""
        return hmac.new(self._key, f"form\n{session or ''}".encode(), hashlib.sha256).hexdigest()

    def _in_session(self, session: str | None) -> Caller | None:
        found = _SESSION.fullmatch(session or "")
        if found is None or int(found["ends_at"]) < self._clock() or session in self._ended:
            return None
        for digest, caller in self._callers:
            is_named = (found["role"], found["name"]) == (caller.role, caller.name)
            if is_named and hmac.compare_digest(found["seal"], self._seal(caller, digest, int(found["ends_at"]))):
                return caller
        return None

    def _seal(self, caller: Caller, digest: bytes, ends_at: int) -> str:
        said = f"session\n{ends_at}\n{caller.role}\n{caller.name}\n".encode() + digest
        return hmac.new(self._key, said, hashlib.sha256).hexdigest()


def check_listen(host: str, access: Access, *, encrypted: bool) -> None:
    """Refuse (ConfigurationError) to listen beyond this machine without TLS, or while there is no token."""
    if encrypted and not access.open:
        return
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        msg = f"can't resolve the listen address {host!r}: {error}"
        raise ConfigurationError(msg) from error
    beyond = sorted({str(a[4][0]) for a in found if not is_loopback(str(a[4][0]))})
    if beyond and not encrypted:
        msg = (
            f"listening on {host!r} ({', '.join(beyond)}) without TLS: tokens would cross the network in the clear."
            " Listen on 127.0.0.1, with Caddy before it on this machine, or set https, https_cert and https_key"
        )
        raise ConfigurationError(msg)
    if beyond:
        msg = f"listening on {host!r} ({', '.join(beyond)}) needs a token: without one, anybody there would be admin"
        raise ConfigurationError(msg)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _presented(method: str, authorization: str) -> str | None:
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value or None
    if scheme.lower() == "basic" and method in _SAFE:
        try:
            return b64decode(value, validate=True).decode().partition(":")[2] or None
        except ValueError:
            return None
    return None


def _host_of(host: str) -> str:
    """Take the port off a Host header: `localhost:8420`, `127.0.0.1`, `[::1]:8420`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
