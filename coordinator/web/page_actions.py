"""What people do from the pages: forms that come with a token of the session, answered by the page they came from."""

from collections import Counter
from typing import Any, Final
from uuid import UUID

from aiohttp import web
from multidict import MultiDictProxy
from pydantic import ValidationError

from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.context import WebContext, job_id_of, no_such_job
from coordinator.web.errors import RefusedError
from coordinator.web.html import came_from, see_other
from coordinator.web.job_actions import BODIES, MAX_EPOCH, ActionBody, action_words, carry_out, command_of
from coordinator.web.pages_jobs import PAGE
from coordinator.web.pages_refused import changed
from coordinator.web.sessions import form_of
from shared.wire import BadMessageError, faults_of

_DONE: Final = {
    "cancel": "Canceled",
    "retry": "Started anew",
    "approve": "Approved",
    "reject": "Rejected",
    "priority": "Priority changed",
}

_DIGITS: Final = len(str(MAX_EPOCH))


async def act(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Do one thing to one job."""
    form = await form_of(request)
    job_id, action = job_id_of(request), request.match_info["action"]
    if await views.source_of(context.pool, job_id) is None:
        raise no_such_job(job_id)
    (refused,) = await carry_out(context, [command_of(action, job_id, caller.name, _body(action, form))])
    said = f"{_DONE[action]}." if refused is None else f"Can't {action_words(action)}: {refused}."
    return see_other(request, came_from(form, f"/jobs/{job_id}"), said)


async def act_on_selection(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Cancel or retry the chosen jobs; each on its own, so that one that does not apply stops no other."""
    form = await form_of(request)
    where, action = came_from(form, "/jobs"), str(form.get("action", ""))
    chosen = _ids(form)
    if action not in ("cancel", "retry"):
        raise RefusedError(400, "invalid", "action: cancel or retry")
    if not chosen:
        return see_other(request, where, "No job was chosen.")
    body = _body(action, form)
    said = await carry_out(context, [command_of(action, job_id, caller.name, body) for job_id in chosen])
    refused = Counter(reason for reason in said if reason is not None)
    parts = [f"{_DONE[action]}: {_jobs(len(said) - refused.total())}."]
    parts += [f"{_jobs(count)} not: {reason}." for reason, count in refused.most_common(5)]
    return see_other(request, where, " ".join(parts))


async def callback_again(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Send a job's last callback again."""
    form = await form_of(request)
    job_id = job_id_of(request)
    sent = await context.callback_again(job_id, caller.name)
    changed(context)
    said = "The callback is sent again." if sent else "This job has told no callback_url anything yet."
    return see_other(request, came_from(form, f"/jobs/{job_id}"), said)


async def publish_again(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Publish a job's last result again."""
    form = await form_of(request)
    job_id = job_id_of(request)
    taken = await context.publish_again(job_id, caller.name)
    changed(context)
    said = "It is published again." if taken else "Nothing of this job is published, or it waits for its next try."
    return see_other(request, came_from(form, f"/jobs/{job_id}"), said)


def _body(action: str, form: MultiDictProxy[Any]) -> ActionBody:
    given: dict[str, Any] = {"note": str(form.get("note", "")).strip()}
    if action in ("approve", "reject") and (epoch := str(form.get("epoch", ""))):
        given["epoch"] = int(epoch) if epoch.isdecimal() and len(epoch) <= _DIGITS else epoch
    if action == "reject":
        given["again"] = form.get("again") == "yes"
    if action == "priority":
        given["priority"] = str(form.get("priority", ""))
    try:
        return BODIES.get(action, ActionBody).model_validate(given)
    except ValidationError as error:
        raise BadMessageError("invalid", faults_of(error)) from None


def _ids(form: MultiDictProxy[Any]) -> list[UUID]:
    try:
        chosen = list(dict.fromkeys(UUID(str(text)) for text in form.getall("job", [])))
    except ValueError:
        raise RefusedError(400, "invalid", "job: not the id of a job") from None
    if len(chosen) > PAGE:
        raise RefusedError(400, "invalid", f"job: at most {PAGE} at once")
    return chosen


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
