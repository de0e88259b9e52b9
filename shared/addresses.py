"""Which addresses are this machine's, and which would take something across a network without TLS. Pure.

Both sides refuse to start with such an address, and the client to be made (docs/decisions.md 57). What is returned has
no user and no password, and what is raised repeats nothing: it is shown.
"""

from collections.abc import Collection
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_HTTP: Final = frozenset({"https"})
_NATS: Final = frozenset({"tls", "wss"})
_NATS_WITH_CA: Final = _NATS | {"nats", ""}
"""With certificates of its own to hold a server against, a link without TLS is refused (`bus_link.py`)."""


def is_loopback(host: str) -> bool:
    """Say whether a host, named or by its address, is this machine and no other."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def http_in_the_clear(url: str) -> str | None:
    """Return where a URL leads, if that is off this machine and without TLS; ValueError if it is no URL."""
    return _in_the_clear(url, _HTTP)


def nats_in_the_clear(servers: str, *, has_ca: bool) -> str | None:
    """Return the first of these servers (with commas) that is off this machine and without TLS; ValueError as above."""
    encrypted = _NATS_WITH_CA if has_ca else _NATS
    found = (_in_the_clear(url, encrypted) for url in map(str.strip, servers.split(",")) if url)
    return next(filter(None, found), None)


def _in_the_clear(url: str, encrypted: Collection[str]) -> str | None:
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        msg = "that is no URL"
        raise ValueError(msg) from None
    if scheme in encrypted or is_loopback(host):
        return None
    return "".join((scheme, mark, f"[{host}]" if ":" in host else host, f":{port}" if port else ""))
