"""The coordinator's HTTP side: its routes, who may use which, and the server that answers them.

`service.py` hands it all that it needs as one WebContext. It changes jobs only by commands to the ledger and reads
through `coordinator.ledger.views`.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from coordinator.web import (
    downloads,
    enrolment,
    hooks,
    jobs,
    live,
    login,
    logs,
    openapi,
    operations,
    page,
    page_actions,
    pages_job,
    pages_jobs,
    pages_refused,
    pages_rules,
    pages_workers,
    publications,
    publishers,
    review,
    submit_form,
    tokens,
    uploads,
    worker_rules,
)
from coordinator.web.access import Refusal, Role, check_listen
from coordinator.web.context import Endpoint, WebContext
from coordinator.web.errors import Handler, JsonServer, RefusedError, errors_as_json
from coordinator.web.html import errors_as_pages, prepare, static_file, to_log_in, wants_page
from coordinator.web.rates import address_of, too_many
from coordinator.web.sessions import ACCESS, session_of
from shared.ids import NAME_PATTERN

__all__ = ["Runner", "Secured", "WebContext", "make_app", "serve"]

_IDLE_S = 75.0
"""A connection without a whole request head for this long is closed; longer than reverse proxies keep theirs idle."""

_STOP_S = 5.0
_MAX_HEAD_BYTES = 8190  # of the request line, and of each header
_MAX_HEADERS = 64

_log = structlog.get_logger()
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
_DENIED = frozenset({401, 403})
_CONTEXT = web.AppKey("context", WebContext)

_ALL = frozenset(Role)
_PUBLISH = frozenset({Role.PUBLISHER, Role.ADMIN})
_READ = frozenset({Role.VIEWER, Role.ADMIN})
_OPERATE = frozenset({Role.ADMIN})

_JOB = "/v1/jobs/{job_id:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}}"
_UPLOAD = _JOB.replace("/v1/jobs/", "/v1/uploads/") + r"/{epoch:[0-9]{1,9}}/{name}"
_SOURCE = f"{{source:{NAME_PATTERN.strip('^$')}}}"
_JOB_PAGE = _JOB.replace("/v1/jobs/", "/jobs/")

_ROUTES: tuple[tuple[str, str, Endpoint, frozenset[Role]], ...] = (
    ("POST", "/v1/jobs", jobs.submit, _PUBLISH),
    ("GET", "/v1/jobs", jobs.search, _ALL),
    ("GET", _JOB, jobs.show, _ALL),
    ("GET", _JOB + "/attempts", jobs.attempts, _ALL),
    ("GET", _JOB + "/heartbeats", jobs.heartbeats, _ALL),
    ("GET", _JOB + "/logs", logs.of_job, _ALL),
    ("GET", _JOB + "/artifacts/{name}", downloads.download, _ALL),
    ("GET", _JOB + "/callbacks", jobs.callbacks, _ALL),
    ("POST", _JOB + "/callbacks/again", jobs.callback_again, _PUBLISH),
    ("GET", _JOB + "/publications", publications.of_job, _ALL),
    ("POST", _JOB + "/publications/again", publications.again, _PUBLISH),
    ("POST", _JOB + "/{action:cancel|retry|approve|reject|priority}", jobs.act, _PUBLISH),
    ("GET", "/v1/workers", operations.workers, _READ),
    ("POST", "/v1/workers/{worker}/{order:drain|pause|resume}", operations.order, _OPERATE),
    ("GET", "/v1/workers/{worker}/rules", worker_rules.show, _READ),
    ("PUT", "/v1/workers/{worker}/rules", worker_rules.tell, _OPERATE),
    ("DELETE", "/v1/workers/{worker}/rules", worker_rules.clear, _OPERATE),
    ("POST", "/v1/invitations/{worker}", enrolment.invite, _OPERATE),
    ("DELETE", "/v1/workers/{worker}", enrolment.revoke, _OPERATE),
    ("GET", "/v1/publishers", publishers.listed, _OPERATE),
    ("PUT", "/v1/publishers/{source}", publishers.add, _OPERATE),
    ("DELETE", "/v1/publishers/{source}", publishers.revoke, _OPERATE),
    ("GET", "/v1/tokens", tokens.listed, _OPERATE),
    ("POST", "/v1/tokens", tokens.make, _OPERATE),
    ("DELETE", "/v1/tokens/{id}", tokens.revoke, _OPERATE),
    ("GET", "/v1/lanes", operations.lanes, _READ),
    ("POST", "/v1/lanes/{lane}/{order:pause|resume}", operations.pause_lane, _OPERATE),
    ("GET", "/v1/rejected", operations.rejected, _ALL),
    ("GET", "/v1/callbacks", operations.undelivered, _ALL),
    ("GET", "/v1/publications", publications.undone, _ALL),
    ("POST", f"/v1/publications/{_SOURCE}/check", publications.check, _OPERATE),
    ("GET", "/status", operations.status, _READ),
    ("GET", "/v1/events", live.events, _ALL),
    ("GET", "/metrics", operations.metrics, _READ),
    ("GET", "/", page.overview, _READ),
    ("GET", "/live/{page}", live.stream, _READ),
    ("GET", "/live/{page}/{which}", live.stream, _READ),
    ("POST", "/logout", login.log_out, _ALL),
    ("GET", "/workers", pages_workers.page, _READ),
    ("GET", "/workers/{worker}/{order:drain|pause|resume}", pages_workers.ask_worker, _OPERATE),
    ("POST", "/workers/{worker}/{order:drain|pause|resume}", pages_workers.order_worker, _OPERATE),
    ("GET", "/workers/{worker}/rules", pages_rules.show, _OPERATE),
    ("POST", "/workers/{worker}/rules", pages_rules.tell, _OPERATE),
    ("GET", "/workers/{worker}/rules/clear", pages_rules.ask_clear, _OPERATE),
    ("POST", "/workers/{worker}/rules/clear", pages_rules.clear, _OPERATE),
    ("GET", "/lanes/{lane}/{order:pause|resume}", pages_workers.ask_lane, _OPERATE),
    ("POST", "/lanes/{lane}/{order:pause|resume}", pages_workers.order_lane, _OPERATE),
    ("GET", "/refused", pages_refused.page, _READ),
    ("GET", "/jobs", pages_jobs.page, _READ),
    ("POST", "/jobs/actions", page_actions.act_on_selection, _OPERATE),
    ("GET", _JOB_PAGE, pages_job.page, _READ),
    ("POST", _JOB_PAGE + "/{action:cancel|retry|approve|reject|priority}", page_actions.act, _OPERATE),
    ("GET", _JOB_PAGE + "/{again:callback|publication}", pages_refused.ask_again, _OPERATE),
    ("POST", _JOB_PAGE + "/callback", page_actions.callback_again, _OPERATE),
    ("POST", _JOB_PAGE + "/publication", page_actions.publish_again, _OPERATE),
    ("GET", f"/sites/{_SOURCE}/check", pages_refused.ask_site, _OPERATE),
    ("POST", f"/sites/{_SOURCE}/check", pages_refused.check_site, _OPERATE),
    ("GET", "/submit", submit_form.show, _OPERATE),
    ("POST", "/submit", submit_form.submit, _OPERATE),
    ("GET", "/review", review.page, _READ),
)


def make_app(context: WebContext) -> web.Application:
    """Return the application with every route."""
    prepare()
    app = web.Application(middlewares=[_noted(context), errors_as_pages(context), errors_as_json])
    app[_CONTEXT], app[ACCESS] = context, context.access
    app.on_shutdown.append(lambda _: context.live.close())
    app.on_cleanup.append(lambda _: context.sparing.close())
    for method, path, endpoint, roles in _ROUTES:
        app.router.add_route(method, path, _guarded(context, endpoint, roles))
        if method == "GET":
            app.router.add_route("HEAD", path, _guarded(context, endpoint, roles))
    # Probes have no token and learn no more than a word; uploads bring their own token, and are answered before
    # `100 Continue` is.
    app.router.add_get("/healthz", operations.healthz)
    app.router.add_get("/openapi.json", openapi.endpoint(_ROUTES))
    app.router.add_get("/static/{name}", static_file)
    app.router.add_get("/login", _bound(context, login.show))
    app.router.add_post("/login", _bound(context, login.log_in))
    app.router.add_get("/readyz", _bound(context, operations.readyz))
    app.router.add_post("/hooks/{source}", _bound(context, hooks.hook))  # brings its own proof
    app.router.add_post("/v1/join", _bound(context, enrolment.join))  # the same
    app.router.add_put(_UPLOAD, _bound(context, uploads.upload), expect_handler=uploads.expect_later)
    return app


def _noted(context: WebContext) -> Middleware:
    """Count each answer and how long it took, by the pattern of its route: paths are endless. Log who was refused."""

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        began_at = time.perf_counter()
        status, is_stream = 0, False  # 0: nobody waited for the answer
        try:
            answer = await handler(request)
            status, is_stream = answer.status, answer.content_type == "text/event-stream"
            return answer
        finally:
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else "none"
            method = request.method if request.method in _METHODS else "other"
            if not is_stream:
                context.metrics.answered(method, route, status, time.perf_counter() - began_at)
            if status in _DENIED:
                _log.warning(
                    "request refused", method=method, path=request.path[:200], status=status, remote=request.remote
                )

    return noted


def _guarded(context: WebContext, endpoint: Endpoint, roles: frozenset[Role]) -> Handler:
    """Let in only callers with one of these roles."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        caller = context.access.identify(request.method, request.headers, request.remote, session_of(request))
        if isinstance(caller, Refusal):
            if caller.is_guess and (wait_s := context.refusals.take(address_of(request))):
                raise too_many(wait_s, "too many requests with unknown tokens")
            if caller.status != 401:  # noqa: PLR2004
                raise RefusedError(caller.status, "forbidden", caller.reason)
            if wants_page(request):
                return to_log_in(context, request)
            ways = "Bearer" if "Sec-Fetch-Mode" in request.headers else "Bearer, Basic"  # a script's: ask no person
            headers = {"WWW-Authenticate": ", ".join(f'{way} realm="tandem"' for way in ways.split(", "))}
            raise RefusedError(401, "unauthorized", caller.reason, headers=headers)
        if wait_s := context.rates.take(caller.token or f"{caller.role}:{caller.name}"):
            raise too_many(wait_s, "too many requests with this token")
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


@dataclass(frozen=True, slots=True)
class Secured:
    """Where to listen by TLS, and with which certificate."""

    host: str
    port: int
    tls: ssl.SSLContext


async def serve(app: web.Application, host: str, port: int, secured: Secured | None = None) -> Runner:
    """Listen there, and on `secured` as well; port 0 = any free one. The caller ends it with `cleanup()`.

    Raises OSError if an address can't be had, ConfigurationError if one must not be listened on (see `check_listen`).
    """
    access = app[_CONTEXT].access
    await asyncio.to_thread(check_listen, host, access, encrypted=False)
    if secured is not None:
        await asyncio.to_thread(check_listen, secured.host, access, encrypted=True)
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
        if secured is not None:
            await web.TCPSite(runner, secured.host, secured.port, ssl_context=secured.tls).start()
    except BaseException:
        await runner.cleanup()
        raise
    shown, port, *_ = runner.addresses[0]
    runner.url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    return runner
