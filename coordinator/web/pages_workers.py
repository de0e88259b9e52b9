"""`/workers`: every Mac and every lane, and what a person can tell them; each order is asked once more before it goes.

What a Mac tells of itself is shown if it is told: `power`, `memory_free_bytes`, `memory_bytes`, `load`,
`disk_free_bytes` among its presence's facts.
"""

from typing import Any, Final, cast

from aiohttp import web
from markupsafe import Markup

from coordinator.ledger import views
from coordinator.web.access import Caller, Role
from coordinator.web.context import OperatorOrder, WebContext, lanes_of
from coordinator.web.errors import RefusedError
from coordinator.web.html import came_from, confirm, fragment, is_only_one, render, see_other
from coordinator.web.live_hub import Fragments
from coordinator.web.operations import workers_of
from coordinator.web.page import explained
from coordinator.web.sessions import form_of

_WORKER: Final = {
    "drain": ("Drain {}?", "It gives back what it holds and takes nothing new. Another Mac takes its jobs.", "Drain"),
    "pause": ("Pause {}?", "It finishes what it holds and takes nothing new.", "Pause"),
    "resume": ("Resume {}?", "It takes jobs again; what it failed in before counts no more.", "Resume"),
}
_LANE: Final = {
    "pause": ("Pause {}?", "What runs goes on; none of its jobs starts until it is resumed.", "Pause"),
    "resume": ("Resume {}?", "Its jobs are handed out again.", "Resume"),
}


async def page(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show the workers and the lanes."""
    shown = await fragments(context, "", caller.role is Role.ADMIN)
    return render(context, request, caller, "workers.html", part={name: Markup(html) for name, html in shown.items()})  # noqa: S704 - templates made them


async def fragments(context: WebContext, which: str, may_act: bool) -> Fragments:  # noqa: FBT001 - the shape of live.Draw
    """Return the parts of the page."""
    is_only_one(which, "page of workers")
    lanes = await lanes_of(context)
    workers = explained(context, await workers_of(context), lanes)
    with_reason: list[dict[str, Any]] = [{**lane, "why": context.why_lane(lane)} for lane in lanes]
    return {
        "workers": fragment("_workers.html", workers=workers, may_act=may_act, asks=_WORKER),
        "lanes": fragment("_lanes.html", lanes=with_reason, may_act=may_act, asks=_LANE),
    }


async def ask_worker(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Ask whether a worker shall be told that."""
    return _ask(context, request, caller, await _worker(context, request), _WORKER)


async def ask_lane(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Ask whether a lane shall be paused or resumed."""
    return _ask(context, request, caller, await _lane(context, request), _LANE)


async def order_worker(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Tell a worker to drain, pause or resume."""
    form = await form_of(request)
    worker, order = await _worker(context, request), request.match_info["order"]
    await context.order(worker, cast(OperatorOrder, order), caller.name)  # the route lets no other through
    context.live.touch()
    return see_other(request, came_from(form, "/workers"), f"{worker} is told to {order}.")


async def order_lane(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Pause or resume a lane."""
    form = await form_of(request)
    lane, order = await _lane(context, request), request.match_info["order"]
    await context.pause_lane(lane, order == "pause", caller.name)
    context.sparing.forget("lanes")
    context.live.touch()
    return see_other(request, came_from(form, "/workers"), f"{lane} is {order}d.")


def _ask(
    context: WebContext, request: web.Request, caller: Caller, name: str, asks: dict[str, tuple[str, str, str]]
) -> web.Response:
    title, text, yes = asks[request.match_info["order"]]
    return confirm(context, request, caller, (title.format(name), text, yes), "/workers")


async def _worker(context: WebContext, request: web.Request) -> str:
    worker = request.match_info["worker"]
    if all(row["name"] != worker for row in await workers_of(context)):
        raise RefusedError(404, "not_found", f"no worker {worker[:100]!r} was ever heard of")
    return worker


async def _lane(context: WebContext, request: web.Request) -> str:
    lane = request.match_info["lane"]
    if all(row["name"] != lane for row in await views.lanes(context.pool)):
        raise RefusedError(404, "not_found", f"no job was ever in a lane {lane[:100]!r}")
    return lane
