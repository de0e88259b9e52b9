"""`/workers/{worker}/rules`: when a Mac shall work, by form. What is wrong is said beside each field; then it asks once
more, with the rules in words.
"""

from typing import Any, Final

from aiohttp import web
from multidict import MultiDictProxy
from pydantic import ValidationError

from coordinator.web.access import Caller
from coordinator.web.context import WebContext
from coordinator.web.html import confirm, render, see_other
from coordinator.web.sessions import form_of
from coordinator.web.worker_rules import tell_rules, worker_row
from coordinator.worker_rules import in_force
from shared.rules import Rule, Rules, Thermal
from shared.wire import faults_of

_TEXTS: Final = ("hours", "time_zone", "battery_above", "idle_s", "thermal", "overflow_after_s")
_CHECKS: Final = ("on_mains", "no_low_power", "overflow")
_FIELDS: Final = (*_TEXTS, *_CHECKS, "stops")
_CLEAR: Final = (
    "Its own rules for {}?",
    "What you told it counts no more; the rules in its settings do.",
    "Its own rules",
)
_STOPS: Final = {
    Rule.HOURS: "its hours are over",
    Rule.ON_MAINS: "it runs on battery",
    Rule.BATTERY_ABOVE: "the battery is low",
    Rule.IDLE_S: "somebody uses it",
    Rule.NO_LOW_POWER: "Low Power Mode is switched on",
    Rule.THERMAL: "it is too hot",
}
Values = dict[str, Any]
"""Of each field as the form has it: text, "yes" of a checked one, a list of `stops`."""


async def show(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show the form with the rules that the worker was told, or else those that it follows."""
    row = await worker_row(context, request)
    said = in_force(row["presence"]).rules if row["rules"] is None else row["rules"]
    try:
        rules = Rules.model_validate(said)
    except ValidationError:  # of another version
        rules = Rules()
    return _form(context, request, caller, row, _filled(rules), {})


async def tell(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Ask whether these rules shall count; with the yes to that, tell the worker."""
    form = await form_of(request)
    row = await worker_row(context, request)
    values = _typed(form)
    try:
        rules = Rules.model_validate(_meant(values))
    except ValidationError as error:
        return _form(context, request, caller, row, values, _by_field(error), 422)
    if form.get("sure") != "yes":
        words = rules.words() or ["whenever it runs"]
        return render(context, request, caller, "rules_sure.html", worker=row["name"], words=words, values=values)
    await tell_rules(context, row["name"], rules, caller)
    within = f"{context.policy.presence_s:g} s"
    return see_other(request, "/workers", f"{row['name']} is told its rules; it follows them within {within}.")


async def ask_clear(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Ask whether the worker's own rules shall count again."""
    worker = (await worker_row(context, request))["name"]
    title, text, yes = _CLEAR
    return confirm(context, request, caller, (title.format(worker), text, yes), f"/workers/{worker}/rules")


async def clear(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Have the worker's own rules count again."""
    await form_of(request)
    worker = request.match_info["worker"]
    await tell_rules(context, worker, None, caller)
    return see_other(request, "/workers", f"{worker} works by its own rules again.")


def _form(
    context: WebContext,
    request: web.Request,
    caller: Caller,
    row: dict[str, Any],
    values: Values,
    faults: dict[str, str],
    status: int = 200,
) -> web.Response:
    return render(
        context,
        request,
        caller,
        "rules.html",
        status=status,
        worker=row["name"],
        told=row["rules"] is not None,
        follows=in_force(row["presence"]),
        values=values,
        faults=faults,
        thermals=[str(one) for one in (Thermal.NOMINAL, Thermal.MODERATE, Thermal.HEAVY)],
        stops={str(rule): words for rule, words in _STOPS.items()},
        clear=_CLEAR,
    )


def _filled(rules: Rules) -> Values:
    def text(value: float | str | None) -> str:
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    values: Values = {name: text(getattr(rules, name)) for name in _TEXTS if name != "hours"}
    values |= {name: "yes" if getattr(rules, name) else "" for name in _CHECKS}
    return values | {"hours": "\n".join(rules.hours), "stops": sorted(rules.stops)}


def _typed(form: MultiDictProxy[Any]) -> Values:
    typed: Values = {name: str(form.get(name, "")).strip() for name in (*_TEXTS, *_CHECKS)}
    typed["hours"] = typed["hours"].replace("\r\n", "\n")
    return typed | {"stops": [str(one) for one in form.getall("stops", [])]}


def _meant(values: Values) -> dict[str, Any]:
    """Return the rules that the fields say; an empty field says nothing."""
    meant: dict[str, Any] = {name: values[name] for name in _TEXTS if values[name]}
    meant |= {name: values[name] == "yes" for name in _CHECKS}
    hours = [line.strip() for line in values["hours"].split("\n") if line.strip()]
    return meant | {"hours": hours, "stops": values["stops"]}


def _by_field(error: ValidationError) -> dict[str, str]:
    by_field: dict[str, str] = {}
    for fault in faults_of(error):
        name = fault.field.partition(".")[0]
        field = name if name in _FIELDS else ""
        by_field[field] = f"{by_field[field]}; {fault.message}" if field in by_field else fault.message
    return by_field
