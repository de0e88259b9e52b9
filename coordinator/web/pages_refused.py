"""`/refused`: what was not taken, and what does not get out, each with the reason and what can be done about it.

Not taken: results and submissions. Not out: callbacks that were given up, results that are not published in their
CMS, and the sites that wait for a person. The overview says how much of the latter there is.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from markupsafe import Markup

from coordinator.ledger import views
from coordinator.web.access import Caller, Role
from coordinator.web.context import WebContext, job_id_of
from coordinator.web.html import came_from, confirm, fragment, is_only_one, render, see_other, short
from coordinator.web.live_hub import Fragments
from coordinator.web.sessions import form_of

_MOST: Final = 50
_MOST_COUNTED: Final = 100
_HELD_BACK: Final = "held back"

_HERE: Final = "/refused"

ASKS: Final = {
    "callback": ("Send the last callback of {} again?", "Its callback_url is told until it takes it.", "Send again"),
    "publication": (
        "Publish the result of {} again?",
        "From the first step on; an image that the site has already is found there.",
        "Publish again",
    ),
    "site": ("Check the site of {}?", "If it lets us in, what waits for it is published.", "Check site"),
}


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What does not get out; where there is `most` of something, there may be more."""

    callbacks: int  # given up
    failed: int  # publications, for good
    retried: int  # publications that failed and are tried again
    unpublished: int  # both, and what was not tried yet
    paused: list[views.Row]  # sources whose site is paused, each with its `reason`
    most: int = _MOST_COUNTED


async def held_back(context: WebContext) -> HeldBack | None:
    """Return what does not get out, for the overview; None while it is not known."""
    return await context.sparing.ask_soon(_HELD_BACK, lambda: _held_back(context))


async def _held_back(context: WebContext) -> HeldBack:
    callbacks, publications, paused = await asyncio.gather(
        views.undelivered(context.pool, _MOST_COUNTED),
        views.unpublished(context.pool, _MOST_COUNTED),
        views.paused_sites(context.pool),
    )
    failed = sum(one["failed_at"] is not None for one in publications)
    retried = sum(one["failed_at"] is None and one["error"] is not None for one in publications)
    return HeldBack(len(callbacks), failed, retried, len(publications), paused)


def changed(context: WebContext) -> None:
    """Have every page see at once what a person did about it."""
    context.sparing.forget(_HELD_BACK)
    context.live.touch()


async def page(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show the last of each."""
    shown = await fragments(context, "", caller.role is Role.ADMIN)
    return render(context, request, caller, "refused.html", part={name: Markup(html) for name, html in shown.items()})  # noqa: S704 - templates made them


async def fragments(context: WebContext, which: str, may_act: bool) -> Fragments:  # noqa: FBT001 - the shape of live.Draw
    """Return the parts of the page."""
    is_only_one(which, "page of refusals")
    undelivered, unpublished, paused, rejected, refused = await asyncio.gather(
        views.undelivered(context.pool, _MOST),
        views.unpublished(context.pool, _MOST),
        views.paused_sites(context.pool),
        views.rejected_results(context.pool, _MOST),
        views.rejected_submissions(context.pool, _MOST),
    )
    may: dict[str, Any] = {"may_act": may_act, "asks": ASKS, "here": _HERE}
    return {
        "sites": fragment("_sites.html", paused=paused, **may),
        "unpublished": fragment("_unpublished.html", unpublished=unpublished, **may),
        "undelivered": fragment("_undelivered.html", undelivered=undelivered, **may),
        "results": fragment("_refused_results.html", rejected=rejected),
        "submissions": fragment("_refused_submissions.html", refused=refused),
    }


async def ask_again(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Ask whether a callback shall be sent, or a result be published, again."""
    job_id = job_id_of(request)
    title, text, yes = ASKS[request.match_info["again"]]
    return confirm(context, request, caller, (title.format(f"job {short(job_id)}"), text, yes), f"/jobs/{job_id}")


async def ask_site(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Ask whether a paused site shall be looked at now."""
    title, text, yes = ASKS["site"]
    return confirm(context, request, caller, (title.format(request.match_info["source"]), text, yes), _HERE)


async def check_site(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """Look at a paused site now; it goes on by itself if it lets us in."""
    form = await form_of(request)
    source = request.match_info["source"]
    is_paused = await context.check_site(source)
    changed(context)
    said = f"The site of {source} is being checked." if is_paused else f"The site of {source[:100]} is not paused."
    return see_other(request, came_from(form, _HERE), said)
