"""`/review`: results that await a person's word, one after the other, the longest waiting first."""

from typing import Final
from uuid import UUID

from aiohttp import web

from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.context import WebContext
from coordinator.web.html import render
from coordinator.web.job_result import pretty, result_of
from shared.states import JobState

_MOST: Final = 50


async def page(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show the result that `?job=` names if it still waits, else the first; the others are links."""
    found = await views.waiting_for_review(context.pool, _MOST + 1, caller.source)
    ids = found[:_MOST]
    job = await _job(context, _asked(request), caller) or await _job(context, ids[0] if ids else None, caller)
    place = ids.index(job["id"]) if job and job["id"] in ids else None
    return render(
        context,
        request,
        caller,
        "review.html",
        job=job,
        result=await result_of(context, job) if job else None,
        spec=pretty(job["spec"]) if job else None,
        waiting=ids,
        place=place,
        more=len(found) > _MOST,
        following=_following(ids, place),
    )


async def _job(context: WebContext, job_id: UUID | None, caller: Caller) -> views.Row | None:
    """Return a job if it awaits review."""
    job = await views.job(context.pool, job_id, caller.source) if job_id else None
    return job if job and job["state"] == JobState.AWAITING_REVIEW else None


def _following(ids: list[UUID], place: int | None) -> UUID | None:
    """Return what is looked at next: after one that is not among the first, the first."""
    if place is None:
        return ids[0] if ids else None
    return ids[(place + 1) % len(ids)] if len(ids) > 1 else None


def _asked(request: web.Request) -> UUID | None:
    try:
        return UUID(request.query.get("job", ""))
    except ValueError:
        return None
