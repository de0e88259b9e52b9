"""Where a request that somebody else asked for may go: to public addresses, and to networks that the settings allow.

Else a publisher could have the coordinator talk to what only the coordinator reaches: its own machine, its cloud's
metadata. Pure. Called when a submission comes (`intake.py`), and for each connection (`callbacks.py`).
"""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Network = IPv4Network | IPv6Network

_LOCAL: Final = frozenset({"localhost", "ip6-localhost"})
_NAT64: Final = IPv6Network("64:ff9b::/96")
_INSIDE: Final = (
    IPv4Network("192.0.0.0/24"),
    IPv6Network("::/96"),
    IPv6Network("64:ff9b:1::/48"),
    IPv6Network("fec0::/10"),
)
"""Of protocols, old IPv4 in IPv6, a network's own NAT64, old site-local ones: Python 3.11 takes these for public."""


def is_allowed(address: IPv4Address | IPv6Address, allowed: Collection[Network]) -> bool:
    """Say whether a callback may go to an address: a public one, or one that the settings name."""
    real = _real(address)
    public = real.is_global and not real.is_multicast and not any(real in network for network in _INSIDE)
    return public or is_named(real, allowed)


def is_named(address: IPv4Address | IPv6Address, allowed: Collection[Network]) -> bool:
    """Say whether the settings name an address's network."""
    return any(_real(address) in network for network in allowed)


def refused_host(host: str, allowed: Collection[Network]) -> bool:
    """Say whether a host can be refused before it is looked up: an address that is not allowed, or this machine."""
    if host.rstrip(".").lower() in _LOCAL:
        return not any(IPv4Address("127.0.0.1") in network for network in allowed)
    try:
        return not is_allowed(ip_address(host.strip("[]")), allowed)
    except ValueError:
        return False


def _real(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does for one."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        inner = inner or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        return inner or address
    return address
