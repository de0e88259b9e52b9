"""The page at `/`: what runs where, what waits and why, what failed, which Macs are there. Reads only."""

import asyncio
from typing import Any, Final

from aiohttp import web
from markupsafe import Markup

from coordinator.ledger import views
from coordinator.web import charts
from coordinator.web.access import Caller, Role
from coordinator.web.context import WebContext, lanes_of
from coordinator.web.html import fragment, is_only_one, render
from coordinator.web.live_hub import Fragments
from coordinator.web.operations import with_work, workers_of
from coordinator.web.pages_refused import held_back
from coordinator.worker_rules import in_force

_RUNNING: Final = 100
_FAILED: Final = 8
_LATE: Final = 8
_CHARTS_S: Final = 20.0  # a chart of a day is good for so long


async def overview(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Show how things stand."""
    shown = await fragments(context, "", caller.role is Role.ADMIN)
    return render(context, request, caller, "overview.html", part={name: Markup(html) for name, html in shown.items()})  # noqa: S704 - templates made them


async def fragments(context: WebContext, which: str, may_act: bool) -> Fragments:  # noqa: FBT001 - the shape of live.Draw
    """Return the parts of the page."""
    is_only_one(which, "overview")
    sparing, pool = context.sparing, context.pool
    counts, ended, workers, running, rejected, failed = await asyncio.gather(
        sparing.ask_soon("counts", lambda: views.counts(pool)),
        sparing.ask_soon(
            "throughput", lambda: context.ended.throughput(pool, charts.WITHIN_S, charts.BUCKET_S), good_s=_CHARTS_S
        ),
        workers_of(context),
        views.running(pool, _RUNNING),
        views.rejected_results(pool, _LATE),
        views.failed(pool, _FAILED),
    )
    lanes, kept = await asyncio.gather(lanes_of(context), held_back(context))
    await context.predict(running)
    all_running = counts["processing"] if counts else len(running)
    return {
        "summary": fragment("_summary.html", counts=counts, workers=workers),
        "held-back": fragment("_held_back.html", kept=kept),
        "running": fragment(
            "_running.html", running=running, lease_ttl_s=context.policy.lease_ttl_s, all_running=all_running
        ),
        "waiting": fragment("_waiting.html", waiting=waiting_of(context, lanes)),
        "failed": fragment("_failed.html", failed=failed),
        "macs": fragment("_macs.html", workers=explained(context, workers, lanes), may_act=may_act),
        "late": fragment("_late.html", rejected=rejected),
        "charts": fragment(
            "_charts.html",
            throughput=charts.throughput(ended or []),
            durations=charts.durations(ended or []),
            ended=ended,
        ),
    }


def waiting_of(context: WebContext, lanes: list[views.Row]) -> list[dict[str, Any]]:
    """Return the lanes in which jobs wait, each with the reason as `why`; those that need a person first."""
    urgency = {"nobody": 0, "paused": 1, "busy": 2, "starts": 3, "not_due": 4}
    found = [{**lane, "why": why} for lane in lanes if (why := context.why_lane(lane)) is not None]
    return sorted(found, key=lambda lane: (urgency[lane["why"].kind], lane["name"]))


def explained(context: WebContext, workers: list[views.Row], lanes: list[views.Row]) -> list[dict[str, Any]]:
    """Return the workers: `state` in a word, what each `told`, `idle` (why it gets nothing), its rules as `follows`."""
    lanes_with_work = with_work(lanes)
    shown = []
    for row in workers:
        told = row["presence"] or {}
        state = _state(row, told)
        is_said = state in ("away", "busy") or row["wanted"] != "ready"  # by the state alone
        why = [] if is_said else context.why_idle(row["name"], lanes_with_work)
        shown.append(
            {**row, "told": told, "state": state, "idle": why, "models": _models(told), "follows": in_force(told)}
        )
    return sorted(shown, key=lambda row: (not row["present"], row["name"]))


def _state(row: views.Row, told: dict[str, Any]) -> str:
    """Return how a worker is, the gravest first."""
    if not row["present"]:
        return "away"
    if row["wanted"] != "ready":
        return str(row["wanted"])
    if told.get("state", "ready") != "ready":
        return str(told["state"])
    if row["holds"]:
        return "busy"
    return "blocked" if told.get("facts", {}).get("not_pulling") or row["aside"] else "ready"


def _models(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the models that a worker offers, the warm ones first and marked."""
    warm = set(told.get("warm") or ())
    offered = {(one["kind"], name) for one in told.get("capabilities") or () for name in one.get("models") or ()}
    found = [{"name": name, "kind": kind, "warm": name in warm} for kind, name in offered]
    return sorted(found, key=lambda one: (not one["warm"], one["kind"], one["name"]))
