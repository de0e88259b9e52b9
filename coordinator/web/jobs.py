"""Jobs over HTTP: submit, search, show, and what people do to them."""

import base64
import binascii
from dataclasses import replace
from datetime import datetime
from typing import assert_never
from uuid import UUID

from aiohttp import web
from pydantic import ValidationError

from coordinator.artifacts import artifact_url
from coordinator.ledger import views
from coordinator.ledger.views import Cursor, JobFilter
from coordinator.web.access import Caller
from coordinator.web.body import read_body
from coordinator.web.context import WebContext, bad_query, job_id_of, no_such_job, number_of, query_of, visible_job
from coordinator.web.errors import RefusedError, json_response
from coordinator.web.job_actions import BODIES, ActionBody, action_words, carry_out, command_of
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.states import JobState
from shared.submission import MAX_SUBMISSION_BYTES
from shared.wire import BadMessageError, Fault, faults_of

_MOST_ORDER_BYTES = 64 * 1024  # a note of emoji, escaped, is 24,000 bytes
_PAGE, _MOST = 50, 500
_BEATS, _MOST_BEATS = 200, 5000

FILTERS = frozenset({"state", "kind", "model", "worker", "label", "text"})
"""What a query may narrow the list of jobs by."""


async def submit(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Admit a submission: 201 created, 200 the same again, 202 queued while the ledger is away, 409 conflict."""
    body = await read_body(request, MAX_SUBMISSION_BYTES)
    outcome = await context.submit(caller.name, body)
    reach(Failpoint.SUBMISSION_UNANSWERED)
    location = {"Location": f"/v1/jobs/{outcome.job_id}"}
    match outcome.kind:
        case "created" | "same":
            job = await _view_or_id(context, request, outcome.job_id)
            return json_response(job, 201 if outcome.kind == "created" else 200, location)
        case "queued":
            return json_response({"id": outcome.job_id, "state": "queued"}, 202, location)
        case "conflict":
            fault = Fault(field="key", message=f"names job {outcome.job_id}, which was submitted with other content")
            raise RefusedError(409, "conflict", f"key: {fault.message}", [fault], location)
        case _:
            assert_never(outcome.kind)


async def search(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List jobs, newest first, a page at a time; `next` is the cursor of the next page, null on the last.

    A page may be shorter than asked for, and even empty, though there is a next: see `coordinator.ledger.job_list`.
    """
    query = query_of(request, FILTERS | {"limit", "cursor"})
    limit = number_of(query, "limit", _PAGE, _MOST)
    wanted = replace(filter_of(query), source=caller.source)
    page = await views.job_page(context.pool, wanted, limit)
    await context.predict(page.rows)
    return json_response({"jobs": page.rows, "next": cursor_text(page.next)})


async def show(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show one job with its attempts and files."""
    job_id = job_id_of(request)
    job = await _view(context, request, job_id, caller.source)
    if job is None:
        raise no_such_job(job_id)
    await context.predict([job])
    return json_response(job)


async def attempts(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List every attempt of a job, oldest first."""
    job_id = await visible_job(context, request, caller)
    return json_response({"attempts": await views.attempts(context.pool, job_id)})


async def heartbeats(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List the kept heartbeats of a job, newest first."""
    limit = number_of(query_of(request, frozenset({"limit"})), "limit", _BEATS, _MOST_BEATS)
    job_id = await visible_job(context, request, caller)
    return json_response({"heartbeats": await views.heartbeats(context.pool, job_id, limit)})


async def act(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Cancel, retry, approve, reject or prioritize; answers with the job as it then is, 409 when it does not apply."""
    action, job_id = request.match_info["action"], job_id_of(request)
    command = command_of(action, job_id, caller.name, await _order(request, action))
    await visible_job(context, request, caller)
    (refused,) = await carry_out(context, [command])
    if refused is not None:
        raise RefusedError(409, "does_not_apply", f"can't {action_words(action)}: {refused}")
    return json_response(await _view_or_id(context, request, job_id))


async def callbacks(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Tell what a job's `callback_url` was told, and what it is still to be told."""
    query_of(request, frozenset())
    job_id = await visible_job(context, request, caller)
    return json_response({"callbacks": await views.callbacks(context.pool, job_id)})


async def callback_again(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Send a job's last callback again."""
    job_id = await visible_job(context, request, caller)
    if not await context.callback_again(job_id, caller.name):
        raise RefusedError(409, "no_callback", f"job {job_id} has told no callback_url anything yet")
    return json_response({"callbacks": await views.callbacks(context.pool, job_id)})


async def _order(request: web.Request, action: str) -> ActionBody:
    """Read the body of an action; none is one that says nothing."""
    body = await read_body(request, _MOST_ORDER_BYTES)
    try:
        return BODIES.get(action, ActionBody).model_validate_json(body or b"{}")
    except ValidationError as error:
        raise BadMessageError("invalid", faults_of(error)) from None


async def _view(context: WebContext, request: web.Request, job_id: UUID, source: str | None) -> views.Row | None:
    job = await views.job(context.pool, job_id, source)
    if job is not None:
        base_url = context.base_url or str(request.url.origin())
        for artifact in job["artifacts"]:
            artifact["url"] = artifact_url(base_url, job_id, artifact["name"])
        job["why"] = context.why(job)
        job["predicted_finish"] = None  # reckoned only for those who ask: a burst of submissions must not pay for it
    return job


async def _view_or_id(context: WebContext, request: web.Request, job_id: UUID) -> views.Row:
    """Show a job whose change is committed already: a ledger that goes away now makes the answer short, not wrong."""
    try:
        return await _view(context, request, job_id, None) or {"id": job_id}
    except LedgerDownError:
        return {"id": job_id}


def filter_of(query: dict[str, list[str]]) -> JobFilter:
    """Return the filter that a query names; RefusedError (400) with every fault."""
    faults = [
        Fault(field=name, message="text must not contain NUL")
        for name, values in query.items()
        if any("\x00" in value for value in values)
    ]
    state = query.get("state", [None])[-1]
    if state is not None and state not in frozenset(JobState):
        faults.append(Fault(field="state", message=f"one of {', '.join(JobState)}"))
    labels: dict[str, str] = {}
    for label in query.get("label", []):
        name, colon, value = label.partition(":")
        if not colon:
            faults.append(Fault(field="label", message=f"{label[:100]!r} is not name:value"))
        labels[name] = value
    cursor = None
    if "cursor" in query:
        cursor = _cursor(query["cursor"][-1])
        if cursor is None:
            faults.append(Fault(field="cursor", message="not a cursor of this list"))
    if faults:
        raise bad_query(faults)
    kind, model, worker, text = (query.get(name, [None])[-1] for name in ("kind", "model", "worker", "text"))
    return JobFilter(
        state=state, kind=kind, model=model, worker=worker, text=text or None, labels=labels, before=cursor
    )


def cursor_text(cursor: Cursor | None) -> str | None:
    """Return a cursor as it stands in an address."""
    if cursor is None:
        return None
    plain = f"{cursor.created_at.isoformat()} {cursor.job_id}"
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def _cursor(text: str) -> Cursor | None:
    try:
        created_at, _, job_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().rpartition(" ")
        at = datetime.fromisoformat(created_at)
        return Cursor(at, UUID(job_id)) if at.tzinfo else None
    except (ValueError, binascii.Error):
        return None
