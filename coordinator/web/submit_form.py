"""`/submit`: a job by form. What is wrong is said beside each field, and nothing that was typed is lost."""

from typing import Any, Final
from uuid import uuid4

import orjson
from aiohttp import web

from coordinator.web.access import Caller
from coordinator.web.context import WebContext, lanes_of
from coordinator.web.html import render, see_other
from coordinator.web.sessions import form_of
from shared.states import Priority
from shared.wire import BadMessageError, Fault

_FIELDS: Final = ("kind", "model", "prompt", "options", "priority", "review", "labels", "key", "callback_url", "once")
_DEFAULTS: Final = {"kind": "article", "priority": str(Priority.NORMAL)}
_KINDS: Final = frozenset({"article", "image"})


async def show(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show the form, empty."""
    return await _form(context, request, caller, {**_DEFAULTS, "once": str(uuid4())}, {})


async def submit(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Admit what the form says, and go to its job; else show the form again with every fault (422)."""
    form = await form_of(request)
    values = {name: str(form.get(name, "")) for name in _FIELDS}
    try:
        outcome = await context.submit(caller.name, orjson.dumps(_submission(values)))
    except BadMessageError as error:
        return await _form(context, request, caller, values, _by_field(error.faults), 422)
    where = f"/jobs/{outcome.job_id}"
    match outcome.kind:
        case "created":
            return see_other(request, where, "Submitted.")
        case "same":
            return see_other(request, where, "This is the job that was submitted before.")
        case "queued":
            return see_other(request, "/jobs", f"Job {outcome.job_id} waits to be taken: the ledger is away.")
        case _:
            taken = f"names job {outcome.job_id}, which was submitted with other content"
            if not values["key"].strip():
                taken = f"was sent already, as job {outcome.job_id}; send it again to make another job"
            again = {**values, "once": str(uuid4())}
            return await _form(context, request, caller, again, {"key": taken}, 409)


async def _form(
    context: WebContext, request: web.Request, caller: Caller, values: dict[str, str], faults: dict[str, str],
    status: int = 200,
) -> web.Response:  # fmt: skip
    kinds = {lane["name"].partition(".")[0] for lane in await lanes_of(context)} | _KINDS
    return render(
        context,
        request,
        caller,
        "submit.html",
        status=status,
        values={name: values.get(name, "") for name in _FIELDS},
        faults=faults,
        kinds=sorted(kinds),
        priorities=[str(one) for one in Priority],
    )


def _submission(values: dict[str, str]) -> dict[str, Any]:
    """Return the submission that the fields say; BadMessageError with all that can't be read."""
    faults: list[Fault] = []
    kind = values["kind"].strip()
    spec: dict[str, Any] = {"prompt": _lines(values["prompt"])} if values["prompt"].strip() else {}
    options = _options(values["options"], faults)
    if kind == "article":
        spec |= {"options": options} if options else {}
    else:
        spec |= options
    body: dict[str, Any] = {
        "key": values["key"].strip() or f"form-{values['once']}",
        "kind": kind,
        "spec": spec,
        "priority": values["priority"] or str(Priority.NORMAL),
        "review": values["review"] == "yes",
        "labels": _labels(values["labels"], faults),
    }
    for name in ("model", "callback_url"):
        if values[name].strip():
            body[name] = values[name].strip()
    if faults:
        raise BadMessageError("invalid", faults)
    return body


def _options(text: str, faults: list[Fault]) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        options = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        faults.append(Fault(field="options", message=f"not JSON: {error}"))
        return {}
    if not isinstance(options, dict):
        faults.append(Fault(field="options", message='a JSON object is needed: {"seed": 42}'))
        return {}
    return options


def _labels(text: str, faults: list[Fault]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        if colon:
            labels[name] = value
        elif line.strip():
            faults.append(Fault(field="labels", message=f"{line.strip()[:100]!r} is not name: value"))
    return labels


def _lines(text: str) -> str:
    """Return a text as it was typed: forms send line ends as CR LF."""
    return text.replace("\r\n", "\n")


def _by_field(faults: list[Fault]) -> dict[str, str]:
    """Put each fault beside the field that it is about; "" = the form as a whole."""
    by_field: dict[str, str] = {}
    for fault in faults:
        name = fault.field.removeprefix("spec.")
        if name.startswith("prompt") or (fault.field == "spec" and "prompt" in fault.message):
            field = "prompt"
        elif fault.field.startswith("spec"):
            field = "options"
        else:
            field = fault.field.partition(".")[0]
        message = fault.message if field in (fault.field, "prompt") else f"{fault.field}: {fault.message}"
        field = field if field in _FIELDS else ""
        by_field[field] = f"{by_field[field]}; {message}" if field in by_field else message
    return by_field
