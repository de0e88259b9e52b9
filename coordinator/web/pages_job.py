"""`/jobs/{id}`: everything about a job, on one page; what changes while it runs is a fragment of its own."""

from typing import Any, Final
from uuid import UUID

from aiohttp import web

from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.context import WebContext, job_id_of, no_such_job
from coordinator.web.errors import RefusedError
from coordinator.web.html import fragment, render
from coordinator.web.job_result import pretty, result_of
from coordinator.web.live_hub import Fragments
from coordinator.web.pages_refused import ASKS
from coordinator.web.timeline import timeline
from shared.states import JobState, Priority

_BEATS: Final = 500
_REJECTED: Final = 20
_LINES: Final = 200
_LINES_S: Final = 10.0
"""Lines are looked for anew after this long: the page is drawn more often, and the search reads many files."""

_LIVE: Final = (JobState.PENDING, JobState.PROCESSING)
_ENDED: Final = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)

ACTIONS: Final[dict[str, tuple[JobState, ...]]] = {
    "approve": (JobState.AWAITING_REVIEW,),
    "reject": (JobState.AWAITING_REVIEW,),
    "retry": (*_ENDED, JobState.AWAITING_REVIEW),
    "cancel": (*_LIVE, JobState.AWAITING_REVIEW),
    "priority": _LIVE,
}
"""In which states of a job each makes sense; the ledger has the last word."""


async def page(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show one job."""
    shown = await everything(context, job_id_of(request), caller.source)
    return render(context, request, caller, "job.html", **shown)


async def fragments(context: WebContext, which: str, may_act: bool) -> Fragments:  # noqa: FBT001 - the shape of live.Draw
    """Return the parts of the page that change by themselves."""
    try:
        job_id = UUID(which)
    except ValueError:
        raise RefusedError(404, "not_found", f"no job {which[:100]!r}") from None
    shown = await everything(context, job_id)
    parts = ("state", "attempts", "output", "log", "outward", "people")
    return {f"job-{part}": fragment(f"_job_{part}.html", may_act=may_act, **shown) for part in parts}


async def everything(context: WebContext, job_id: UUID, source: str | None = None) -> dict[str, Any]:
    """Return what the page and its fragment show; RefusedError (404) if `source` has no such job."""
    job = await views.job(context.pool, job_id, source)
    if job is None:
        raise no_such_job(job_id)
    await context.predict([job])
    beats = await views.heartbeats(context.pool, job_id, _BEATS)
    rejected = await views.rejected_of(context.pool, job_id, _REJECTED)
    return {
        "job": job,
        "why": context.why(job),
        "timeline": timeline(job["attempts"], beats, rejected, await context.queries.now()),
        "rejected": rejected,
        "result": await result_of(context, job),
        "pretty": pretty,
        "spec": pretty(job["spec"]),
        "settings": pretty(job["settings"]) if job["settings"] else None,
        "lines": await _lines(context, job),
        "lease_ttl_s": context.policy.lease_ttl_s,
        "asks": ASKS,
        "actions": ACTIONS,
        "priorities": [str(one) for one in Priority if one != job["priority"]],
    }


async def _lines(context: WebContext, job: views.Row) -> list[dict[str, Any]]:
    """Return the newest log lines about a job, for all who look at it."""
    return await context.sparing_logs.ask(
        f"{job['id']} {_LINES}",
        lambda: context.log_lines(job["id"], _LINES, job["created_at"]),
        good_s=_LINES_S,
    )
