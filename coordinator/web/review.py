"""`/review`: results that await a person's word, one after the other, the longest waiting first."""

from typing import Final
from uuid import UUID

from aiohttp import web

from coordinator.ledger import views
from coordinator.ledger.views import JobFilter
from coordinator.web.access import Caller
from coordinator.web.context import WebContext
from coordinator.web.html import render
from coordinator.web.job_result import pretty, result_of
from shared.states import JobState

_MOST: Final = 50


async def page(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show the result that `?job=` names if it still waits, else the first; the others are links."""
    wanted = JobFilter(state=JobState.AWAITING_REVIEW, source=caller.source)
    found = await views.job_page(context.pool, wanted, _MOST)
    waiting = found.rows[::-1]
    ids = [row["id"] for row in waiting]
    place = ids.index(asked) if (asked := _asked(request)) in ids else 0
    job = await views.job(context.pool, ids[place], caller.source) if ids else None
    return render(
        context,
        request,
        caller,
        "review.html",
        job=job,
        result=await result_of(context, job) if job else None,
        spec=pretty(job["spec"]) if job else None,
        waiting=waiting,
        place=place,
        more=found.next is not None,
        following=ids[(place + 1) % len(ids)] if len(ids) > 1 else None,
    )


def _asked(request: web.Request) -> UUID | None:
    try:
        return UUID(request.query.get("job", ""))
    except ValueError:
        return None
