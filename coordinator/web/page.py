"""The page at `/`: what runs where, right now, as plain HTML that reloads itself. Reads only; needs no script."""

import base64
import hashlib
from collections.abc import Iterable
from datetime import datetime
from html import escape
from typing import Any, Final

from aiohttp import web

from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.context import WebContext, counts_of, lanes_of
from coordinator.web.operations import own_versions, workers_of
from shared.errors import LedgerDownError

_RELOAD_S: Final = 5
_RUNNING, _JOBS, _REJECTED = 100, 20, 10
_DONE: Final = ("likely done", "9 of 10 done by", "judged by")

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c2127 }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem }
table { border-collapse: collapse; width: 100% } caption { text-align: left; color: #5a6572 }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #dde2e8; vertical-align: top }
th { font-weight: 600; color: #5a6572 } td.n { font-variant-numeric: tabular-nums }
.bad { color: #a31515; font-weight: 600 } footer { margin-top: 2rem; color: #5a6572 }
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_CSP: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def overview(context: WebContext, _: web.Request, __: Caller) -> web.Response:
    """Show how things stand; while the ledger is away, say so."""
    reasons = [f'<p class="bad">Not ready: {escape(reason)}</p>' for reason in context.ready()]
    try:
        parts = await _parts(context)
        status = 200
    except LedgerDownError as error:
        parts, status = [f'<p class="bad">The ledger does not answer: {escape(str(error))}</p>'], 503
    body = "\n".join([*reasons, *parts])
    html = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="{_RELOAD_S}"><title>Tandem</title><style>{_STYLE}</style></head>
<body><h1>Tandem</h1>
{body}
<footer>tandem {escape(own_versions()["tandem"])}, reloads every {_RELOAD_S} s; all numbers are the ledger's.
<a href="/status">/status</a> · <a href="/v1/jobs">/v1/jobs</a> · <a href="/v1/rejected">/v1/rejected</a></footer>
</body></html>
"""
    return web.Response(text=html, status=status, content_type="text/html", headers={"Content-Security-Policy": _CSP})


async def _parts(context: WebContext) -> list[str]:
    counts = await counts_of(context)
    running = await views.running(context.pool, _RUNNING)
    recent = await views.jobs(context.pool, views.JobFilter(), _JOBS)
    await context.predict(running)
    await context.predict(recent)
    return [
        _table("Jobs by state", counts, [counts.values()]),
        _table(
            "What runs where",
            ("job", "kind", "model", "worker", "stage", "since", "last heartbeat", "lease left", *_DONE),
            (_running(row) for row in running),
            "Nothing runs." if not running else "",
        ),
        _table(
            "Workers",
            ("worker", "state", "last heard of", "holds", "ended in the last hour", "set aside"),
            (_worker(row) for row in await workers_of(context)),
        ),
        _table(
            "Lanes",
            ("lane", "paused", "waiting", "offered", "processing", "waits since"),
            (
                (
                    r["name"],
                    "paused" if r["paused"] else "",
                    r["waiting"],
                    r["offered"],
                    r["processing"],
                    _s(r["waits_s"]),
                )
                for r in await lanes_of(context)
            ),
        ),
        _table(
            "Last jobs",
            ("job", "kind", "source", "state", "worker", "attempts failed", "leases lost", *_DONE, "error"),
            (_job(row) for row in recent),
        ),
        _table(
            "Callbacks given up",
            ("at", "job", "source", "url", "tries", "why"),
            (
                (r["given_up_at"], _Job(r["job_id"]), r["source"], r["url"], r["attempts"], r["error"])
                for r in await views.undelivered(context.pool, _REJECTED)
            ),
        ),
        _table(
            "Last refused results",
            ("at", "job", "epoch", "current", "worker", "verdict", "reason"),
            (
                (r["at"], _Job(r["job_id"]), r["epoch"], r["current_epoch"], r["worker"], r["verdict"], r["reason"])
                for r in await views.rejected_results(context.pool, _REJECTED)
            ),
        ),
        _table(
            "Last refused submissions",
            ("at", "source", "code", "reason"),
            (
                (r["at"], r["source"], r["code"], r["reason"][:500])
                for r in await views.rejected_submissions(context.pool, _REJECTED)
            ),
        ),
    ]


class _Job(str):
    """A job's id, shown as a link."""

    __slots__ = ()


def _running(row: views.Row) -> tuple[Any, ...]:
    stage = row["stage"] or "claimed"
    if row["progress"] is not None:
        stage = f"{stage} {row['progress']:.0%}"
    model, beat, left = row["model"] or "any", _s(row["heartbeat_age_s"]), _s(row["lease_left_s"])
    facts = (_Job(row["id"]), row["kind"], model, row["worker"], stage, _s(row["since_s"]), beat, left)
    return *facts, *_done(row)


def _worker(row: views.Row) -> tuple[Any, ...]:
    said = (row["presence"] or {}).get("state", "never announced")
    state = said if row["present"] else "away"
    if row["wanted"] != "ready":
        state = f"{state}, told to be {row['wanted']}"
    ended = ", ".join(f"{outcome} {count}" for outcome, count in sorted(row["last_hour"].items()))
    aside = "; ".join(one["reason"] for one in row["aside"])
    return row["name"], state, _s(row["seen_age_s"]), len(row["holds"]), ended, aside


def _job(row: views.Row) -> tuple[Any, ...]:
    error = (row["error"] or {}).get("message", "")
    failed = f"{row['attempt']} of {row['max_attempts']}"
    return (
        *(_Job(row["id"]), row["kind"], row["source"], row["state"], row["worker"] or ""),
        *(failed, row["lease_losses"], *_done(row), str(error)[:300]),
    )


def _done(row: views.Row) -> tuple[Any, ...]:
    found = row["predicted_finish"]
    return ("", "", "") if found is None else (found["median"], found["p90"], found["basis"])


def _table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[Any]], note: str = "") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>\n" for row in rows)
    noted = f"<caption>{escape(note)}</caption>" if note else ""
    return f"<h2>{escape(caption)}</h2><table>{noted}<thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, _Job):
        return f'<td><a href="/v1/jobs/{escape(value)}">{escape(value)}</a></td>'
    if isinstance(value, datetime):
        return f'<td class="n">{value:%Y-%m-%d %H:%M:%S}</td>'
    return f"<td>{escape(str(value))}</td>"


def _s(seconds: float | None) -> str:
    """Return a duration for people: `7 s`, `3 min`, `2 h`."""
    if seconds is None:
        return "never"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
