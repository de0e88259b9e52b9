"""Jobs over HTTP: submit, search, show, and what people do to them."""

import asyncio
import base64
import binascii
from dataclasses import replace
from datetime import datetime
from typing import assert_never
from uuid import UUID

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.artifacts import artifact_url
from coordinator.ledger import views
from coordinator.ledger.model import Approve, Cancel, Done, Nothing, Reject, Retry
from coordinator.ledger.views import Cursor, JobFilter
from coordinator.web.access import Caller
from coordinator.web.context import WebContext, bad_query, job_id_of, no_such_job, number_of, query_of
from coordinator.web.errors import RefusedError, json_response
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.states import JobState
from shared.submission import MAX_SUBMISSION_BYTES
from shared.wire import BadMessageError, Fault, faults_of

_BODY_S = 30.0
"""How long a request's body may take to arrive."""

_MOST_ORDER_BYTES = 4096
_PAGE, _MOST = 50, 500
_BEATS, _MOST_BEATS = 200, 5000


class _RejectBody(BaseModel):
    """What `reject` takes: whether the job runs again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    again: bool = False


async def submit(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Admit a submission: 201 created, 200 the same again, 202 queued while the ledger is away, 409 conflict."""
    body = await _body(request, MAX_SUBMISSION_BYTES)
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
    """List jobs, newest first, a page at a time; `next` is the cursor of the next page, null on the last."""
    query = query_of(request, frozenset({"state", "kind", "worker", "label", "limit", "cursor"}))
    limit = number_of(query, "limit", _PAGE, _MOST)
    wanted = replace(_filter(query), source=caller.source)
    rows = await views.jobs(context.pool, wanted, limit + 1)
    await context.predict(rows[:limit])
    following = _cursor_text(rows[limit - 1]) if len(rows) > limit else None
    return json_response({"jobs": rows[:limit], "next": following})


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
    job_id = await _visible(context, request, caller)
    return json_response({"attempts": await views.attempts(context.pool, job_id)})


async def heartbeats(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """List the kept heartbeats of a job, newest first."""
    limit = number_of(query_of(request, frozenset({"limit"})), "limit", _BEATS, _MOST_BEATS)
    job_id = await _visible(context, request, caller)
    return json_response({"heartbeats": await views.heartbeats(context.pool, job_id, limit)})


async def act(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Cancel, retry, approve or reject; answers with the job as it is then, 409 when it does not apply."""
    command = _command(request.match_info["action"], job_id_of(request), caller.name, await _again(request))
    await _visible(context, request, caller)
    answer = await context.ledger.do(command)
    reach(Failpoint.ACTION_UNANSWERED)
    match answer:
        case Done():
            return json_response(await _view_or_id(context, request, command.job_id))
        case Nothing(reason):
            raise RefusedError(409, "does_not_apply", f"can't {request.match_info['action']}: {reason}")
        case other:
            msg = f"an operator's command was answered {other!r}"
            raise TypeError(msg)


def _command(action: str, job_id: UUID, actor: str, again: bool) -> Cancel | Retry | Approve | Reject:  # noqa: FBT001
    match action:
        case "cancel":
            return Cancel(job_id=job_id, actor=actor)
        case "retry":
            return Retry(job_id=job_id, actor=actor)
        case "approve":
            return Approve(job_id=job_id, actor=actor)
        case _:  # the route lets no other through
            return Reject(job_id=job_id, actor=actor, again=again)


async def callbacks(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Tell what a job's `callback_url` was told, and what it is still to be told."""
    query_of(request, frozenset())
    job_id = await _visible(context, request, caller)
    return json_response({"callbacks": await views.callbacks(context.pool, job_id)})


async def callback_again(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Send a job's last callback again."""
    job_id = await _visible(context, request, caller)
    if not await context.callback_again(job_id, caller.name):
        raise RefusedError(409, "no_callback", f"job {job_id} has told no callback_url anything yet")
    return json_response({"callbacks": await views.callbacks(context.pool, job_id)})


async def _again(request: web.Request) -> bool:
    """Read the body of a `reject`; the other actions have none."""
    body = await _body(request, _MOST_ORDER_BYTES)
    if request.match_info["action"] != "reject" or not body.strip():
        return False
    try:
        return _RejectBody.model_validate_json(body).again
    except ValidationError as error:
        raise BadMessageError("invalid", faults_of(error)) from None


async def _visible(context: WebContext, request: web.Request, caller: Caller) -> UUID:
    job_id = job_id_of(request)
    source = await views.source_of(context.pool, job_id)
    if source is None or caller.source not in (None, source):
        raise no_such_job(job_id)
    return job_id


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


async def _body(request: web.Request, most: int) -> bytes:
    """Read a body of at most `most` bytes, announced or chunked; 408 if it does not arrive in time."""
    if (request.content_length or 0) > most:
        raise BadMessageError("too_large", [Fault(field="", message=f"{request.content_length} bytes; at most {most}")])
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > most:
                    raise BadMessageError("too_large", [Fault(field="", message=f"at most {most} bytes")])
    except TimeoutError:
        raise RefusedError(408, "request_timeout", f"the body did not arrive within {_BODY_S:g} s") from None
    return bytes(body)


def _filter(query: dict[str, list[str]]) -> JobFilter:
    faults: list[Fault] = []
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
    kind, worker = query.get("kind", [None])[-1], query.get("worker", [None])[-1]
    return JobFilter(state=state, kind=kind, worker=worker, labels=labels, before=cursor)


def _cursor_text(row: views.Row) -> str:
    return base64.urlsafe_b64encode(f"{row['created_at'].isoformat()} {row['id']}".encode()).decode().rstrip("=")


def _cursor(text: str) -> Cursor | None:
    try:
        created_at, _, job_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().rpartition(" ")
        at = datetime.fromisoformat(created_at)
        return Cursor(at, UUID(job_id)) if at.tzinfo else None
    except (ValueError, binascii.Error):
        return None
