"""Logging in with a token, and out. Who shows wrong tokens too often waits a moment."""

import ipaddress
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from aiohttp import web

from coordinator.web.access import Caller, Role
from coordinator.web.context import WebContext
from coordinator.web.errors import RefusedError
from coordinator.web.html import own_path, render, see_other
from coordinator.web.sessions import end_session, form_of, keep_session

MOST_FAILURES: Final = 10
WITHIN_S: Final = 60.0
_MOST_ADDRESSES: Final = 1000
_V6_NETWORK: Final = 64  # bits; one machine has all addresses behind them


class Failures:
    """The failed logins of the last minute by remote address; a proxy's, if there is one between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, deque[float]] = {}  # the last to fail comes last

    def wait_s(self, remote: str | None) -> int:
        """Return after how many seconds the next try is looked at; 0: now."""
        failed = self._of.get(_network(remote))
        if failed is None or len(failed) < MOST_FAILURES:
            return 0
        return max(0, math.ceil(failed[0] + WITHIN_S - self._clock()))

    def note(self, remote: str | None) -> None:
        """Count one more; of too many addresses, the one that failed the longest ago is forgotten."""
        network = _network(remote)
        failed = self._of.pop(network, deque(maxlen=MOST_FAILURES))
        failed.append(self._clock())
        self._of[network] = failed
        if len(self._of) > _MOST_ADDRESSES:
            del self._of[next(iter(self._of))]


FAILURES: Final = web.AppKey("failures", Failures)


async def show(context: WebContext, request: web.Request) -> web.Response:
    """Ask for a token; without configured tokens there is nothing to ask."""
    where = own_path(request.query.get("next", ""), "/")
    if context.access.open:
        return see_other(request, where)
    return _form(context, request, where)


async def log_in(context: WebContext, request: web.Request) -> web.Response:
    """Begin a session, and go to the page that was wanted."""
    if context.access.is_cross_site(request.headers):
        raise RefusedError(403, "forbidden", "requests from pages of other origins are refused")
    form = await form_of(request)
    where = own_path(str(form.get("next", "")), "/")
    failures = request.app[FAILURES]
    if wait_s := failures.wait_s(request.remote):
        response = _form(context, request, where, 429, f"Too many wrong tokens from here: try again in {wait_s} s.")
        response.headers["Retry-After"] = str(wait_s)
        return response
    found = context.access.log_in(str(form.get("token", "")).strip())
    if found is None:
        failures.note(request.remote)
        return _form(context, request, where, 403, "Nobody has this token.")
    caller, session = found
    if caller.role is Role.PUBLISHER:
        fault = "This is a publisher's token: it submits over HTTP, and opens no pages."
        return _form(context, request, where, 403, fault)
    response = see_other(request, where)
    keep_session(request, response, session, context.base_url)
    return response


async def log_out(_: WebContext, request: web.Request, __: Caller) -> web.Response:
    """End the session."""
    await form_of(request)
    response = see_other(request, "/login", "Logged out.")
    end_session(request, response)
    return response


def _form(context: WebContext, request: web.Request, where: str, status: int = 200, fault: str = "") -> web.Response:
    return render(context, request, None, "login.html", status=status, fault=fault, where=where)


def _network(remote: str | None) -> str:
    try:
        address = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _V6_NETWORK), strict=False))
