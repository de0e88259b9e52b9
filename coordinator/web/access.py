"""Who may ask what: bearer tokens with a role, or, with none configured, everyone on this machine and nobody else.

Pure but for `check_listen`, which resolves a name at start.
"""

import hashlib
import hmac
import ipaddress
import re
import socket
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from pydantic import SecretStr

from shared.errors import ConfigurationError
from shared.ids import NAME_PATTERN

LOCAL = "local"
"""The source and actor of everyone on this machine while no token is configured."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


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
class Caller:
    """Who a request comes from."""

    name: str
    role: Role

    @property
    def source(self) -> str | None:
        """The one source that the caller may see; None = all."""
        return self.name if self.role is Role.PUBLISHER else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is nobody's: 401 or 403, and the reason in words."""

    status: int
    reason: str


class Access:
    """Tells who a request comes from. Without tokens: whoever is on this machine is admin."""

    def __init__(self, tokens: Sequence[AccessToken] = ()) -> None:
        for token in tokens:
            if not re.fullmatch(NAME_PATTERN, token.name):
                msg = f"a token's name is a source: {token.name!r} does not match {NAME_PATTERN}"
                raise ConfigurationError(msg)
            if not token.secret.get_secret_value():
                msg = f"the token of {token.name!r} is empty"
                raise ConfigurationError(msg)
        self._callers = [(_digest(t.secret.get_secret_value()), Caller(t.name, t.role)) for t in tokens]
        if len({digest for digest, _ in self._callers}) < len(self._callers):
            msg = "two tokens have the same secret"
            raise ConfigurationError(msg)

    @property
    def open(self) -> bool:
        """Whether no token is configured, so that only this machine is let in."""
        return not self._callers

    def identify(self, method: str, headers: Mapping[str, str], remote: str | None) -> Caller | Refusal:
        """Return who sent a request, or why nobody may.

        A page of another site can make a browser send requests here. So nothing that changes anything is taken from
        another origin, a password that browsers keep (Basic) only reads, and while there are no tokens the Host must
        name this machine (a foreign name that resolves to it is DNS rebinding).
        """
        if method not in _SAFE and _is_cross_site(headers):
            return Refusal(403, "requests from pages of other origins are refused")
        if self.open:
            if not (_is_loopback(remote or "") and _is_loopback(_host_of(headers.get("Host", "")))):
                return Refusal(403, "without configured tokens only requests to and from this machine are answered")
            return Caller(LOCAL, Role.ADMIN)
        presented = _presented(method, headers.get("Authorization", ""))
        if presented is None:
            return Refusal(401, "a bearer token is needed")
        digest, found = _digest(presented), None
        for known, caller in self._callers:  # all of them, always: the time says nothing
            if hmac.compare_digest(known, digest):
                found = caller
        return found or Refusal(401, "unknown token")


def check_listen(host: str, access: Access) -> None:
    """Refuse (ConfigurationError) to listen beyond this machine while no token is configured."""
    if not access.open:
        return
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        msg = f"can't resolve the listen address {host!r}: {error}"
        raise ConfigurationError(msg) from error
    beyond = sorted({str(a[4][0]) for a in found if not _is_loopback(str(a[4][0]))})
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


def _is_cross_site(headers: Mapping[str, str]) -> bool:
    origin = headers.get("Origin")
    try:
        if origin is not None and urlsplit(origin).netloc != headers.get("Host"):
            return True
    except ValueError:  # no URL at all
        return True
    return headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")


def _host_of(host: str) -> str:
    """Take the port off a Host header: `localhost:8420`, `127.0.0.1`, `[::1]:8420`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
