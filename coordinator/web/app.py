"""The coordinator's HTTP side: its routes, who may use which, and the server that answers them.

`service.py` hands it all that it needs as one WebContext. It changes jobs only by commands to the ledger and reads
through `coordinator.ledger.views`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from coordinator.web import downloads, jobs, operations, page, uploads
from coordinator.web.access import Refusal, Role, check_listen
from coordinator.web.context import Endpoint, WebContext
from coordinator.web.errors import Handler, JsonServer, RefusedError, errors_as_json

__all__ = ["Runner", "WebContext", "make_app", "serve"]

_IDLE_S = 75.0
"""A connection without a whole request head for this long is closed; longer than reverse proxies keep theirs idle."""

_STOP_S = 5.0
_MAX_HEAD_BYTES = 8190  # of the request line, and of each header
_MAX_HEADERS = 64

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
_CONTEXT = web.AppKey("context", WebContext)

_ALL = frozenset(Role)
_PUBLISH = frozenset({Role.PUBLISHER, Role.ADMIN})
_READ = frozenset({Role.VIEWER, Role.ADMIN})
_OPERATE = frozenset({Role.ADMIN})

_JOB = "/v1/jobs/{job_id:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}}"
_UPLOAD = _JOB.replace("/v1/jobs/", "/v1/uploads/") + r"/{epoch:[0-9]{1,9}}/{name}"

_ROUTES: tuple[tuple[str, str, Endpoint, frozenset[Role]], ...] = (
    ("POST", "/v1/jobs", jobs.submit, _PUBLISH),
    ("GET", "/v1/jobs", jobs.search, _ALL),
    ("GET", _JOB, jobs.show, _ALL),
    ("GET", _JOB + "/attempts", jobs.attempts, _ALL),
    ("GET", _JOB + "/heartbeats", jobs.heartbeats, _ALL),
    ("GET", _JOB + "/artifacts/{name}", downloads.download, _ALL),
    ("GET", _JOB + "/callbacks", jobs.callbacks, _ALL),
    ("POST", _JOB + "/callbacks/again", jobs.callback_again, _PUBLISH),
    ("POST", _JOB + "/{action:cancel|retry|approve|reject}", jobs.act, _PUBLISH),
    ("GET", "/v1/workers", operations.workers, _READ),
    ("POST", "/v1/workers/{worker}/{order:drain|pause|resume}", operations.order, _OPERATE),
    ("GET", "/v1/lanes", operations.lanes, _READ),
    ("POST", "/v1/lanes/{lane}/{order:pause|resume}", operations.pause_lane, _OPERATE),
    ("GET", "/v1/rejected", operations.rejected, _ALL),
    ("GET", "/v1/callbacks", operations.undelivered, _ALL),
    ("GET", "/status", operations.status, _READ),
    ("GET", "/metrics", operations.metrics, _READ),
    ("GET", "/", page.overview, _READ),
)


def make_app(context: WebContext) -> web.Application:
    """Return the application with every route."""
    app = web.Application(middlewares=[_timed(context), errors_as_json])
    app[_CONTEXT] = context
    for method, path, endpoint, roles in _ROUTES:
        app.router.add_route(method, path, _guarded(context, endpoint, roles))
        if method == "GET":
            app.router.add_route("HEAD", path, _guarded(context, endpoint, roles))
    # Probes have no token and learn no more than a word; uploads bring their own token, and are answered before
    # `100 Continue` is.
    app.router.add_get("/healthz", operations.healthz)
    app.router.add_get("/readyz", _bound(context, operations.readyz))
    app.router.add_put(_UPLOAD, _bound(context, uploads.upload), expect_handler=uploads.expect_later)
    return app


def _timed(context: WebContext) -> Middleware:
    """Note how long each answer took, by the pattern of its route: paths are endless."""

    @web.middleware
    async def timed(request: web.Request, handler: Handler) -> web.StreamResponse:
        began_at = time.perf_counter()
        status = 0  # nobody waited for the answer
        try:
            answer = await handler(request)
            status = answer.status
            return answer
        finally:
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else "none"
            method = request.method if request.method in _METHODS else "other"
            context.metrics.answered(method, route, status, time.perf_counter() - began_at)

    return timed


def _guarded(context: WebContext, endpoint: Endpoint, roles: frozenset[Role]) -> Handler:
    """Let in only callers with one of these roles."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        caller = context.access.identify(request.method, request.headers, request.remote)
        if isinstance(caller, Refusal):
            code, headers = "forbidden", {}
            if caller.status == 401:  # noqa: PLR2004
                code, headers = "unauthorized", {"WWW-Authenticate": 'Bearer realm="tandem", Basic realm="tandem"'}
            raise RefusedError(caller.status, code, caller.reason, headers=headers)
        if caller.role not in roles:
            raise RefusedError(403, "forbidden", f"a token with the role {caller.role} does not allow this")
        return await endpoint(context, request, caller)

    return guarded


def _bound(context: WebContext, open_endpoint: Callable[[WebContext, web.Request], Awaitable[web.Response]]) -> Handler:
    async def bound(request: web.Request) -> web.StreamResponse:
        return await open_endpoint(context, request)

    return bound


class Runner(web.AppRunner):
    """A listening server; `url` says where, `cleanup()` ends it."""

    url: str = ""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = JsonServer  # aiohttp 3.14 has no other way to choose the class of a connection
        return server


async def serve(app: web.Application, host: str, port: int) -> Runner:
    """Listen; port 0 = any free one. The caller ends it with `cleanup()`.

    Raises OSError if the address can't be had, ConfigurationError if it needs a token (see `check_listen`).
    """
    await asyncio.to_thread(check_listen, host, app[_CONTEXT].access)
    runner = Runner(
        app,
        access_log=None,
        handler_cancellation=False,
        keepalive_timeout=_IDLE_S,
        lingering_time=5.0,
        max_line_size=_MAX_HEAD_BYTES,
        max_field_size=_MAX_HEAD_BYTES,
        max_headers=_MAX_HEADERS,
        shutdown_timeout=_STOP_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    address = runner.addresses[0]
    shown = "127.0.0.1" if address[0] in ("0.0.0.0", "::") else address[0]  # noqa: S104 - compared, not listened on
    runner.url = f"http://[{shown}]:{address[1]}" if ":" in shown else f"http://{shown}:{address[1]}"
    return runner
