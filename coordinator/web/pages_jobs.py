"""`/jobs`: the list of jobs with its filters, a page at a time, and what can be done to those that are chosen."""

from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from coordinator.ledger import views
from coordinator.ledger.views import JobFilter, JobPage
from coordinator.web.access import Caller
from coordinator.web.context import WebContext, lanes_of
from coordinator.web.errors import RefusedError
from coordinator.web.html import render
from coordinator.web.jobs import FILTERS, cursor_text, filter_of
from shared.states import JobState

PAGE: Final = 50

FIELDS: Final = ("state", "kind", "model", "worker", "label", "text")
"""The filters, in the order of the form."""


async def page(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show a page of the list; a filter that means nothing is named beside the form, over an empty list."""
    query = {name: [v for v in request.query.getall(name, []) if v] for name in sorted(FILTERS | {"cursor"})}
    query = {name: values for name, values in query.items() if values}
    faults: dict[str, str] = {}
    found = JobPage([], None)
    try:
        wanted = filter_of(query)
    except RefusedError as error:
        wanted, faults = JobFilter(), {fault.field: fault.message for fault in error.faults}
    else:
        found = await views.job_page(context.pool, replace(wanted, source=caller.source), PAGE)
        await context.predict(found.rows)
    lanes = await lanes_of(context)
    return render(
        context,
        request,
        caller,
        "jobs.html",
        status=400 if faults else 200,
        jobs=found.rows,
        asked={name: "" if name not in query else query[name][-1] for name in FIELDS},
        faults=faults,
        filtered=bool(query.keys() - {"cursor"}),
        first_page="cursor" not in query,
        newest=_address(query, None),
        older=_address(query, cursor_text(found.next)) if found.next else None,
        searched_to=found.next.created_at if found.next and len(found.rows) < PAGE else None,
        states=list(JobState),
        kinds=sorted({lane["name"].partition(".")[0] for lane in lanes}),
        here=request.path_qs,
    )


def _address(query: dict[str, list[str]], cursor: str | None) -> str:
    """Return the address of this list from another place on."""
    pairs: list[tuple[str, Any]] = [(name, v) for name in FIELDS for v in query.get(name, [])]
    if cursor is not None:
        pairs.append(("cursor", cursor))
    return f"/jobs?{urlencode(pairs)}" if pairs else "/jobs"
