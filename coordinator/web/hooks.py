"""`POST /hooks/{source}`: an event of a CMS, which brings its own proof instead of a token.

The answer comes within `Hooks.answer_s` of the event's last byte. An event that takes longer is answered 503, and taken
all the same if it can be: its key collapses a repeat. A sender that closes the connection once its event is sent loses
nothing either (the server cancels no handler).
"""

import asyncio
import time
from typing import Final

from aiohttp import web

from coordinator.hooks.checks import Received
from coordinator.hooks.hooks import BusyError
from coordinator.hooks.mapper import MapperDownError
from coordinator.web.body import read_body
from coordinator.web.context import WebContext
from coordinator.web.errors import RefusedError, json_response

MOST_BYTES: Final = 1024 * 1024

_BUSY: Final = {"Retry-After": "10"}
_KNOWN: Final = ("same", "conflict")


async def hook(context: WebContext, request: web.Request) -> web.Response:
    """Take an event: 202 with its jobs, 200 if all of them were there already or it is ignored; never 410."""
    name, hooks = request.match_info["source"], context.hooks
    if hooks is None or name not in hooks.sources:
        raise RefusedError(404, "not_found", f"no source {name!r} is configured")
    body = await read_body(request, MOST_BYTES)
    headers: dict[str, str] = {}
    for header, value in request.headers.items():
        headers.setdefault(header.lower(), value)
    received = Received(request.raw_path, headers, body)
    why = hooks.refusal(name, received, time.time())
    if why is not None:
        raise RefusedError(401, "unauthorized", why)
    try:
        task = hooks.begin(name, received)
        done, _ = await asyncio.wait({task}, timeout=hooks.answer_s)
        if not done:
            raise RefusedError(503, "busy", f"not taken within {hooks.answer_s:g} s; send it again", headers=_BUSY)
        taken = task.result()
    except (BusyError, MapperDownError) as error:
        raise RefusedError(503, "busy", str(error), headers=_BUSY) from None
    if taken.ignored is not None:
        return json_response({"ignored": taken.ignored})
    jobs = [{"name": job, "id": job_id, "result": result} for job, (job_id, result) in taken.jobs.items()]
    return json_response({"jobs": jobs}, 200 if all(job["result"] in _KNOWN for job in jobs) else 202)
