"""Live pages and `GET /v1/events`: server-sent events, for as many who look as for one.

Each page that changes by itself is a set of fragments, pieces of HTML with an id. They are drawn once for all who see
the same, at most once a second and only after something happened (or some seconds went by, for what no event tells); a
stream sends what is newer than what it sent last. So nothing waits in a queue: who reads slowly misses what was in
between, and who does not read at all is dropped.

A page takes part by its name in FRAGMENTS and by `data-live="/live/<name>/<argument>"` on its body.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from uuid import UUID

from aiohttp import web

from coordinator.web import page, pages_job, pages_refused, pages_workers
from coordinator.web.access import Caller, Refusal, Role
from coordinator.web.context import WebContext, bad_query, query_of
from coordinator.web.errors import RefusedError
from coordinator.web.html import fragment
from coordinator.web.live_hub import Fragments, TooManyError
from coordinator.web.sessions import session_of
from shared.wire import Fault

Draw: TypeAlias = Callable[[WebContext, str, bool], Awaitable[Fragments]]
"""(context, argument of the page's address, whether for one who may act); RefusedError: there is no such page."""

FRAGMENTS: Final[dict[str, Draw]] = {
    "overview": page.fragments,
    "workers": pages_workers.fragments,
    "refused": pages_refused.fragments,
    "job": pages_job.fragments,
}

_WRITE_S: Final = 20.0
"""Who has not taken what was sent by then is dropped."""

_QUIET_S: Final = 15.0  # then a comment is sent, so that nobody between thinks it dead


async def stream(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Send a page's fragments as they change, until the reader leaves, the session or the coordinator ends."""
    name, which = request.match_info["page"], request.match_info.get("which", "")
    draw, may_act = FRAGMENTS.get(name), caller.role is Role.ADMIN
    if draw is None:
        raise RefusedError(404, "not_found", f"no live page {name[:100]!r}")

    async def everything() -> Fragments:
        ready = fragment("_ready.html", not_ready=context.ready())
        return {"ready": ready, **await draw(context, which, may_act)}

    if request.method == "HEAD":
        return web.Response(content_type="text/event-stream")
    try:
        async with context.live.looking((name, which, may_act), everything) as shown:
            seen, sent = await shown.after(0)  # before the answer begins: it may be a refusal
            response = await _begin(request)
            await _send(response, sent)
            while not (over := _over(context, request)):
                seen, sent = await shown.after(seen)
                await _send(response, sent or b": nothing new\n\n")
            return await _end(response, over)
    except TooManyError:
        raise _too_many() from None


async def events(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Send each change of a job as it happens; publishers hear of their own jobs, `job_id` narrows it to one."""
    job_id = _job_id(query_of(request, frozenset({"job_id"})))
    if request.method == "HEAD":
        return web.Response(content_type="text/event-stream")
    try:
        async with context.live.hearing(caller.source, job_id) as hearer:
            response = await _begin(request)
            await _send(response, b": listening\n\n")
            while not (over := "missed" if hearer.missed else _over(context, request)):
                await _send(response, await hearer.heard(_QUIET_S) or b": nothing new\n\n")
            return await _end(response, over)
    except TooManyError:
        raise _too_many() from None


async def _begin(request: web.Request) -> web.StreamResponse:
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def _send(response: web.StreamResponse, data: bytes) -> None:
    """Send; ConnectionError, which ends the stream, if the reader has left or does not read."""
    try:
        async with asyncio.timeout(_WRITE_S):
            await response.write(data)
    except TimeoutError:
        raise ConnectionResetError("the reader of a stream does not read") from None


async def _end(response: web.StreamResponse, over: str) -> web.StreamResponse:
    """Say why it ends: after `closing` and `missed` the reader comes again, after `session` it has to log in."""
    await _send(response, f"event: bye\ndata: {over}\n\n".encode())
    response.force_close()
    return response


def _over(context: WebContext, request: web.Request) -> str:
    """Return why a stream ends now; empty: it goes on."""
    if context.live.closed.is_set():
        return "closing"
    found = context.access.identify(request.method, request.headers, request.remote, session_of(request))
    return "session" if isinstance(found, Refusal) else ""


def _job_id(query: dict[str, list[str]]) -> str | None:
    if "job_id" not in query:
        return None
    try:
        return str(UUID(query["job_id"][-1]))
    except ValueError:
        raise bad_query([Fault(field="job_id", message="not the id of a job")]) from None


def _too_many() -> RefusedError:
    return RefusedError(503, "too_many_streams", "too many live pages are open", headers={"Retry-After": "10"})
