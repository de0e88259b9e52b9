"""Which addresses are this machine's, and which would take something across a network without TLS. Pure.

Both sides refuse to start with such an address, and the client to be made (docs/decisions.md 57).
"""

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_ENCRYPTED: Final = frozenset({"https", "tls", "wss", "natss"})


def is_loopback(host: str) -> bool:
    """Say whether a host, named or by its address, is this machine and no other."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def in_the_clear(urls: str) -> str | None:
    """Return the first of these URLs (several with commas) that leads off this machine without TLS; None = none.

    What it returns has no user and no password.
    """
    for url in filter(None, map(str.strip, urls.split(","))):
        parts = urlsplit(url if "://" in url else f"//{url}")
        if parts.scheme not in _ENCRYPTED and not is_loopback(parts.hostname or ""):
            place = parts.netloc.rpartition("@")[2]
            return f"{parts.scheme}://{place}" if parts.scheme else place
    return None
