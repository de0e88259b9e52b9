"""What the logs say about a job: `GET /v1/jobs/{id}/logs`, newest last."""

from typing import Any

from aiohttp import web

from coordinator.web.access import Caller
from coordinator.web.context import WebContext, number_of, query_of, visible_job
from coordinator.web.errors import json_response

_LINES, _MOST = 200, 2000


async def of_job(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List the log lines about a job, up to `limit`; a publisher sees only the coordinator's, of its own jobs."""
    limit = number_of(query_of(request, frozenset({"limit"})), "limit", _LINES, _MOST)
    job_id = await visible_job(context, request, caller)
    lines = await context.log_lines(job_id, limit)
    if caller.source is not None:
        lines = [_for_publisher(line) for line in lines if _is_for(line, caller.source)]
    return json_response({"lines": lines})


def _is_for(line: dict[str, Any], source: str) -> bool:
    """Say whether a line is no agent's, and no other source's (the id of a job is no secret)."""
    return line.get("program") == "coordinator" and line.get("source", source) == source


def _for_publisher(line: dict[str, Any]) -> dict[str, Any]:
    """Leave out where in our code something went wrong."""
    return {name: value for name, value in line.items() if name not in ("exception", "stack")}
