"""How often somebody may ask: a bucket of tries for each name, refilled steadily. Kept in memory, by each coordinator.

`take` answers how long to wait; `app.py`, `login.py` and `enrolment.py` make a 429 with Retry-After of it.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from aiohttp import web

from coordinator.web.errors import RefusedError

_MOST_NAMES: Final = 10_000
"""Buckets kept; past it those that were asked for least lately are forgotten (and full again)."""


class Rates:
    """Lets `burst` through at once, then one every 1 / `per_s` seconds, for each name."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, as of when

    def take(self, name: str) -> float:
        """Take one; return 0.0, or the seconds after which there is one again (then none was taken)."""
        left, now = self._now(name)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self._per_s
        self._left[name] = (left if wait_s else left - 1.0, now)
        self._left.move_to_end(name)
        if len(self._left) > _MOST_NAMES:
            self._left.popitem(last=False)
        return wait_s

    def give_back(self, name: str) -> None:
        """Let what was taken last not count: it was no guess."""
        left, now = self._now(name)
        self._left[name] = (min(self._burst, left + 1.0), now)

    def _now(self, name: str) -> tuple[float, float]:
        now = self._clock()
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + (now - at) * self._per_s), now


def too_many(wait_s: float, what: str) -> RefusedError:
    """Return the answer to one who must wait."""
    seconds = max(1, math.ceil(wait_s))
    message = f"{what}; try again in {seconds} s"
    return RefusedError(429, "too_many_requests", message, headers={"Retry-After": str(seconds)})


def address_of(request: web.Request) -> str:
    """Return the address that a request came from, a network for IPv6, whose users have millions.

    A proxy on this machine (Caddy) is believed what it says of its client; nobody else is. Its own word is the last,
    whether it adds it to the client's line or adds a line.
    """
    address = _ip(request.remote or "")
    if address is None:
        return request.remote or "unknown"
    if address.is_loopback:
        told = request.headers.getall("X-Forwarded-For", [""])[-1].rpartition(",")[2]
        address = _ip(told.strip()) or address
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))  # noqa: PLR2004


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an address; an IPv4 one that is written as IPv6 is that."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
