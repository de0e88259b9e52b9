"""`/v1/workers/{worker}/rules`: when a worker shall work, by an operator's word instead of its settings."""

from typing import Any, Final

from aiohttp import web

from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.body import parsed, read_body
from coordinator.web.context import WebContext, query_of
from coordinator.web.errors import RefusedError, json_response
from coordinator.web.operations import workers_of
from coordinator.worker_rules import in_force
from shared.rules import Rules

_MOST_BYTES: Final = 64 * 1024


async def show(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """Tell which rules a worker was told, and which it follows."""
    query_of(request, frozenset())
    return await _answer(context, request)


async def tell(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Have a worker work by these rules instead of its own, from its next announcement on."""
    rules = parsed(Rules, await read_body(request, _MOST_BYTES), strict=True)
    await tell_rules(context, request.match_info["worker"], rules, caller)
    return await _answer(context, request)


async def clear(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Have a worker work by its own rules again."""
    await tell_rules(context, request.match_info["worker"], None, caller)
    return await _answer(context, request)


async def tell_rules(context: WebContext, worker: str, rules: Rules | None, caller: Caller) -> None:
    """Keep what a worker is told; RefusedError (404) if it was never heard of."""
    if not await context.queries.set_rules(worker, rules, actor=caller.name):
        raise _unknown(worker)
    context.live.touch()


async def worker_row(context: WebContext, request: web.Request) -> views.Row:
    """Return the worker that the path names; RefusedError (404) if it was never heard of."""
    worker = request.match_info["worker"]
    for row in await workers_of(context):
        if row["name"] == worker:
            return row
    raise _unknown(worker)


async def _answer(context: WebContext, request: web.Request) -> web.Response:
    row = await worker_row(context, request)
    follows = in_force(row["presence"])
    told: dict[str, Any] = {
        "worker": row["name"],
        "rules": row["rules"],
        "in_force": follows.rules,
        "by": follows.by,
        "fault": follows.fault,
        "forbidden": follows.forbidden,
    }
    return json_response(told)


def _unknown(worker: str) -> RefusedError:
    return RefusedError(404, "not_found", f"no worker {worker[:100]!r} was ever heard of")
