"""Publications over HTTP: how what a job made comes to its source's CMS, and what people do about it."""

from aiohttp import web

from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.context import WebContext, job_id_of, number_of, query_of, visible_job
from coordinator.web.errors import RefusedError, json_response

_PAGE, _MOST = 50, 500


async def of_job(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Tell how a job's results are published, and by which steps."""
    query_of(request, frozenset())
    await visible_job(context, request, caller)
    return json_response({"publications": await views.publications(context.pool, job_id_of(request))})


async def again(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Publish a job's last result again, whatever came of it before."""
    job_id = job_id_of(request)
    await visible_job(context, request, caller)
    if not await context.publish_again(job_id, caller.name):
        msg = f"job {job_id} has nothing that is published, or it is waiting for its next try"
        raise RefusedError(409, "does_not_apply", msg)
    return json_response({"publications": await views.publications(context.pool, job_id)})


async def undone(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List what is not published yet, or failed, newest first; and the sources whose site is paused, with why."""
    limit = number_of(query_of(request, frozenset({"limit"})), "limit", _PAGE, _MOST)
    return json_response(
        {
            "unpublished": await views.unpublished(context.pool, limit, caller.source),
            "paused": await views.paused_sites(context.pool, caller.source),
        }
    )


async def check(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """Look at a paused site now; it goes on by itself if it lets us in."""
    source = request.match_info["source"]
    if not await context.check_site(source):
        raise RefusedError(409, "does_not_apply", f"the site of {source[:100]!r} is not paused")
    return json_response({"source": source, "order": "check"})
