"""`/refused`: what was not taken, each with the reason: results, submissions, and callbacks that were given up."""

from typing import Final

from aiohttp import web
from markupsafe import Markup

from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.context import WebContext
from coordinator.web.errors import RefusedError
from coordinator.web.html import fragment, render
from coordinator.web.live_hub import Fragments

_MOST: Final = 50


async def page(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show the last refusals."""
    shown = await fragments(context, "", may_act=False)
    return render(context, request, caller, "refused.html", part={name: Markup(html) for name, html in shown.items()})  # noqa: S704 - templates made them


async def fragments(context: WebContext, which: str, may_act: bool) -> Fragments:  # noqa: ARG001, FBT001 - the shape of live.Draw
    """Return the parts of the page."""
    if which:
        raise RefusedError(404, "not_found", "there is one page of refusals")
    return {
        "results": fragment("_refused_results.html", rejected=await views.rejected_results(context.pool, _MOST)),
        "submissions": fragment(
            "_refused_submissions.html", refused=await views.rejected_submissions(context.pool, _MOST)
        ),
        "undelivered": fragment("_undelivered.html", undelivered=await views.undelivered(context.pool, _MOST)),
    }
