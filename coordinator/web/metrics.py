"""`GET /metrics` for Prometheus, and what is noted of each HTTP answer: a count, and a line if it was an error.

The one line (warning) is for answers that somebody should look at: 401, 403, and 5xx. Other refusals are part of the
conversation; they are counted by route and status.
"""

import asyncio
import time

import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from coordinator.ledger import views
from coordinator.metrics_state import Families, of_coordinator, of_hooks, of_ledger, of_workers
from coordinator.web.access import Caller
from coordinator.web.context import WebContext
from coordinator.web.errors import Handler
from shared.errors import LedgerDownError

_log = structlog.get_logger()

_UNMATCHED = "unmatched"
_HERE = frozenset({"127.0.0.1", "::1"})
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


async def scrape(context: WebContext, _: web.Request, __: Caller | None = None) -> web.Response:
    """Tell all numbers in Prometheus's text form; without those of the ledger while it is away."""
    rows: list[views.Row] | None
    try:
        rows = await context.sparing.ask("metrics", lambda: views.metrics_jobs(context.pool))
    except LedgerDownError:
        rows = None
    families = Families(
        context.metrics.registry.collect(),
        of_coordinator(context.health(), ready=not context.ready(), ledger_up=rows is not None),
        of_workers(context.worker_states()),
        of_hooks(dict(context.hooks.counts) if context.hooks else {}),
        of_ledger(rows) if rows is not None else (),
    )
    body = await asyncio.to_thread(generate_latest, families)
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})


def for_prometheus(context: WebContext, guarded: Handler) -> Handler:
    """Let in whoever `guarded` does; if the settings say so, everyone on this machine, but for what a proxy passes."""

    async def handle(request: web.Request) -> web.StreamResponse:
        direct = request.remote in _HERE and not any(name in request.headers for name in _FORWARDED)
        if context.metrics_open and direct:
            return await scrape(context, request)
        return await guarded(request)

    return handle


def noting(context: WebContext) -> Middleware:
    """Return the middleware that counts every answer; it stands around all others."""

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        began, served = time.perf_counter(), context.metrics.served
        try:
            response = await handler(request)
        except ConnectionError:
            raise  # the client is gone
        except Exception:  # answered by the connection, which logs it
            served(request.method, _route_of(request), 500, time.perf_counter() - began)
            raise
        streams = response.content_type == "text/event-stream"
        took_s = None if streams else time.perf_counter() - began
        served(request.method, _route_of(request), response.status, took_s)
        if response.status in (401, 403) or response.status >= 500:  # noqa: PLR2004
            _log.warning(
                "request refused" if response.status < 500 else "request not served",  # noqa: PLR2004
                method=request.method,
                path=request.path[:200],
                status=response.status,
                remote=request.remote,
            )
        return response

    return note


def _route_of(request: web.Request) -> str:
    """Return the pattern of a path, which bounds how many there are."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else _UNMATCHED
