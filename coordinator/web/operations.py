"""What operators see and do beside jobs: workers, lanes, refusals, and how the coordinator is."""

import contextlib
import platform
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any, cast

from aiohttp import web

from coordinator.ledger import views
from coordinator.metrics import CONTENT_TYPE, Reading
from coordinator.web.access import Caller
from coordinator.web.context import OperatorOrder, WebContext, counts_of, lanes_of, number_of, query_of
from coordinator.web.errors import RefusedError, json_response
from coordinator.workers import MISSED_ROUNDS
from shared.errors import LedgerDownError

_PAGE, _MOST = 50, 500
_RUNNING = 200
PROTOCOL = 1


async def workers(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """List every worker that was ever heard of, with what it holds."""
    query_of(request, frozenset())
    return json_response({"workers": await _workers_with_reasons(context)})


async def order(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Drain, pause or resume a worker."""
    worker = request.match_info["worker"]
    wanted = cast(OperatorOrder, request.match_info["order"])  # the route lets no other through
    if all(row["name"] != worker for row in await workers_of(context)):
        raise RefusedError(404, "not_found", f"no worker {worker[:100]!r} was ever heard of")
    await context.order(worker, wanted, caller.name)
    return json_response({"worker": worker, "order": wanted})


async def lanes(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """List every lane with what is in it."""
    query_of(request, frozenset())
    return json_response({"lanes": await _lanes_with_reasons(context)})


async def pause_lane(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Pause or resume a lane."""
    lane, paused = request.match_info["lane"], request.match_info["order"] == "pause"
    if all(row["name"] != lane for row in await views.lanes(context.pool)):
        raise RefusedError(404, "not_found", f"no job was ever in a lane {lane[:100]!r}")
    await context.pause_lane(lane, paused, caller.name)
    return json_response({"lane": lane, "paused": paused})


async def rejected(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List the last reports and submissions that were refused, each with the reason."""
    limit = number_of(query_of(request, frozenset({"limit"})), "limit", _PAGE, _MOST)
    return json_response(
        {
            "results": await views.rejected_results(context.pool, limit, caller.source),
            "submissions": await views.rejected_submissions(context.pool, limit, caller.source),
        }
    )


async def undelivered(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List the callbacks that were given up, newest first."""
    limit = number_of(query_of(request, frozenset({"limit"})), "limit", _PAGE, _MOST)
    return json_response({"undelivered": await views.undelivered(context.pool, limit, caller.source)})


async def status(context: WebContext, _: web.Request, __: Caller) -> web.Response:
    """Tell how everything is; answers, with less, while the ledger is away."""
    body: dict[str, Any] = {
        "ready": not context.ready(),
        "not_ready_because": context.ready(),
        "health": context.health(),
        "versions": own_versions(),
    }
    try:
        ledger = await views.versions(context.pool)
        body["ledger"] = {"up": True, "now": ledger["now"]}
        body["versions"] = {**own_versions(), "postgres": ledger["postgres"], "schema": ledger["schema"]}
        body["jobs"] = await counts_of(context)
        body["lanes"] = await _lanes_with_reasons(context)
        body["workers"] = await _workers_with_reasons(context)
        running = await views.running(context.pool, _RUNNING)
        await context.predict(running)
        body["running"] = running
    except LedgerDownError as error:
        body["ledger"] = {"up": False, "error": str(error)}
    return json_response(body)


async def metrics(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """Tell Prometheus how everything is; less while the ledger is away."""
    query_of(request, frozenset())
    reading = Reading(status=context.health(), ready=not context.ready())
    with contextlib.suppress(LedgerDownError):
        reading = replace(
            reading,
            counts=await counts_of(context),
            lanes=await lanes_of(context),
            workers=await context.sparing.ask("workers", lambda: workers_of(context)),
            publications=await context.sparing.ask("publications", lambda: views.metrics_publications(context.pool)),
        )
    body = context.metrics.exposition(reading)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def healthz(_: web.Request) -> web.Response:
    """Say that the process lives and its event loop turns."""
    return json_response({"alive": True})


async def readyz(context: WebContext, _: web.Request) -> web.Response:
    """Say whether work can be taken and given; 503 with the reasons if not."""
    reasons = context.ready()
    return json_response({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


async def workers_of(context: WebContext) -> list[views.Row]:
    """Return every worker, `present` by the policy's presence round."""
    rows = await views.workers(context.pool, MISSED_ROUNDS * context.policy.presence_s)
    return [{**row, "aside": context.aside(row["name"])} for row in rows]


def with_work(lanes: list[views.Row]) -> frozenset[str]:
    """Return the names of the lanes that have work to hand out now."""
    return frozenset(lane["name"] for lane in lanes if not lane["paused"] and lane["due"] + lane["offered"])


async def _lanes_with_reasons(context: WebContext) -> list[views.Row]:
    """Return every lane, with why its jobs wait."""
    lanes = await lanes_of(context)
    waits = [context.why_lane(lane) for lane in lanes]
    return [{**lane, "why": wait and wait.text} for lane, wait in zip(lanes, waits, strict=True)]


async def _workers_with_reasons(context: WebContext) -> list[views.Row]:
    """Return every worker, with why it gets nothing while there is work."""
    lanes = with_work(await lanes_of(context))
    rows = await workers_of(context)
    return [{**row, "why_idle": [] if row["holds"] else context.why_idle(row["name"], lanes)} for row in rows]


@cache
def own_versions() -> dict[str, Any]:
    """Return what this process is made of."""
    return {
        "tandem": version("tandem"),
        "protocol": PROTOCOL,
        "python": platform.python_version(),
        "aiohttp": version("aiohttp"),
    }
