"""What the command line prints: tables for people on a terminal, JSON for programs. Only formats, never asks."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from shared.client import (
    AttemptLine,
    CallbackLine,
    HeartbeatLine,
    JobLine,
    JobView,
    PredictedFinish,
    PublicationLine,
)

STATE_STYLE = {
    "pending": "yellow",
    "processing": "cyan",
    "completed": "green",
    "failed": "red",
    "canceled": "dim",
    "awaiting_review": "magenta",
}
_KIB = 1024
_WIDE = 120
_MORE = ("EPOCH>", "STAGE", "LIKELY DONE", "KEY")  # of a job, where there are so many columns
_ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of writing."""

_PIPE_WIDTH = 200
"""Columns where there is no terminal to ask: nothing is cut for grep."""


def plain(value: Any) -> Any:
    """Return models as JSON would carry them."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [plain(one) for one in value] if isinstance(value, list) else value


def as_json(value: Any) -> str:
    """Return indented JSON of a model, a list of models, or plain values."""
    return orjson.dumps(plain(value), option=orjson.OPT_INDENT_2, default=str).decode()


def printable(text: str) -> str:
    """Return text of others without what a terminal would take for an order; lines and tabs stay."""
    return _ORDERS.sub("\N{REPLACEMENT CHARACTER}", text)


def escape(text: str) -> str:
    """Return text of others as it stands in rich's markup."""
    return escape_markup(printable(text))


def console() -> Console:
    """Return stdout as tables are printed on it."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table in the one style that all have; columns that end in `>` stand right."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column.removesuffix(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return made


def jobs(found: Sequence[JobLine]) -> None:
    """Print a list of jobs; on a narrow terminal with less about each, so that ids stand whole."""
    out = console()
    is_wide = out.width >= _WIDE
    made = table("ID", "KIND", "STATE", "WORKER", "TIME>", *(_MORE if is_wide else ()))
    made.columns[0].no_wrap = True
    for job in found:
        model = f" ({job.model})" if job.model is not None and is_wide else ""
        less = [str(job.id), escape(job.kind + model), state(job.state), escape(job.worker or "-")]
        more = [
            str(job.epoch),
            stage(job),
            moment(job.predicted_finish.median) if job.predicted_finish else "-",
            escape(job.key or "-"),
        ]
        made.add_row(*less, seconds(job.duration_s), *(more if is_wide else ()))
    out.print(made)


def job(found: JobView, beats: Sequence[HeartbeatLine] = ()) -> None:
    """Print everything about one job."""
    out = console()
    facts = table("", "")
    facts.show_header = False
    for name, value in (
        ("job", str(found.id)),
        ("state", state(found.state)),
        ("kind", escape(found.kind)),
        ("model", escape(found.used_model or found.model or "any")),
        ("source", escape(found.source + (f", key {found.key}" if found.key else ""))),
        ("labels", escape(", ".join(f"{k}={v}" for k, v in found.labels.items()))),
        ("created", moment(found.created_at)),
        ("finished", moment(found.finished_at) if found.finished_at else ""),
        ("likely done", escape(prediction(found.predicted_finish))),
        ("worker", escape(f"{found.worker}, epoch {found.epoch}" if found.worker else "")),
        ("failures", f"{found.attempt} of {found.max_attempts}"),
        (
            "lapses",
            f"{found.lease_losses} lost, {found.silences} silent" if found.lease_losses + found.silences else "",
        ),
        ("error", escape(error(found.error))),
    ):
        if value:
            facts.add_row(f"[dim]{name}[/dim]", value)
    out.print(facts)
    if found.attempts:
        out.print(_attempts(found.attempts))
    if found.why:
        out.print("\n[bold]why[/bold]")
        out.print(escape("\n".join(found.why)), soft_wrap=True)
    if found.callbacks:
        out.print(_callbacks(found.callbacks))
    if found.publications:
        out.print(_publications(found.publications))
    if found.actions:
        done = table("AT", "WHO", "DID", "NOTE", title="\nwhat people did")
        for one in found.actions:
            done.add_row(moment(one.at), escape(one.actor), escape(one.action), escape(one.note or ""))
        out.print(done)
    if beats:
        out.print(_beats(beats))
    if found.artifacts:
        files = table("NAME", "TYPE", "SIZE>", "SHA-256", "URL", title="\nfiles")
        for file in found.artifacts:
            where = f"kept until {file.trimmed_at:%Y-%m-%d}" if file.trimmed_at else file.url
            files.add_row(escape(file.name), file.media_type, size(file.size), file.sha256, where)
        out.print(files)
    text = (found.result or {}).get("text")
    if isinstance(text, str):
        out.print("\n[bold]text[/bold]")
        out.print(escape(text.rstrip()), soft_wrap=True)


def state(word: str) -> str:
    """Return a state in its colour."""
    style = STATE_STYLE.get(word, "")
    return f"[{style}]{word}[/{style}]" if style else escape(word)


def stage(job: JobLine) -> str:
    """Say what is being done, and how far it is; nothing for a job that nobody works on."""
    if job.state != "processing" or not job.stage:
        return "-"
    return escape(job.stage if job.progress is None else f"{job.stage} {job.progress:.0%}")


def seconds(value: float | None) -> str:
    """Return a duration as people say it."""
    if value is None:
        return "-"
    minutes, rest = divmod(value, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest:02.0f}s" if minutes else f"{rest:.1f}s"


def size(count: int) -> str:
    """Return a number of bytes as people say it."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _KIB or unit == "GiB":
            break
        value /= _KIB
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def moment(at: datetime) -> str:
    """Return an instant in this machine's time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def prediction(found: PredictedFinish | None) -> str:
    """Say when a job will be done, and by what that is known; nothing if it isn't."""
    return f"{moment(found.median)}, 9 of 10 by {moment(found.p90)} ({found.basis})" if found else ""


def error(what: dict[str, Any] | None) -> str:
    """Return an error in one line."""
    if not what:
        return ""
    message = str(what.get("message") or "")
    return f"{what.get('code')}: {message}" if message else str(what.get("code"))


def _attempts(found: Sequence[AttemptLine]) -> Table:
    made = table("EPOCH>", "WORKER", "CLAIMED", "TIME>", "OUTCOME", "LAST STAGE", "BEATS>", "ERROR", title="\nattempts")
    for one in found:
        made.add_row(
            str(one.epoch),
            escape(one.worker),
            moment(one.claimed_at),
            seconds(one.duration_s),
            one.outcome or "running",
            escape(one.stage or "-"),
            str(one.heartbeats),
            escape(error(one.error)),
        )
    return made


def _callbacks(found: Sequence[CallbackLine]) -> Table:
    made = table("STATE", "CALLBACK", "TRIES>", "LAST ANSWER", "URL", title="\ncallbacks")
    for one in found:
        if one.delivered_at:
            how = f"delivered {moment(one.delivered_at)}"
        elif one.given_up_at:
            how = f"given up {moment(one.given_up_at)}"
        else:
            how = f"next try {moment(one.next_at)}" if one.next_at else "-"
        said = one.error or (str(one.status) if one.status else "-")
        made.add_row(one.state, how, str(one.attempts), escape(said), escape(one.url))
    return made


def _publications(found: Sequence[PublicationLine]) -> Table:
    made = table("EPOCH>", "POST", "PUBLISHED", "TRIES>", "WHY NOT", title="\npublications")
    for one in found:
        if one.published_at:
            how = moment(one.published_at)
        elif one.failed_at:
            how = f"failed {moment(one.failed_at)}"
        else:
            how = f"next try {moment(one.next_at)}" if one.next_at else "its site is paused"
        made.add_row(str(one.epoch), escape(one.post or "-"), how, str(one.attempts), escape(one.error or "-"))
    return made


def _beats(found: Sequence[HeartbeatLine]) -> Table:
    made = table("AT", "EPOCH>", "WORKER", "STAGE", "DONE>", "AFTER>", "DETAIL", title="\nlast heartbeats")
    for beat in found:
        done = "-" if beat.progress is None else f"{beat.progress:.0%}"
        who = (moment(beat.at), str(beat.epoch), escape(beat.worker), escape(beat.stage))
        made.add_row(*who, done, seconds(beat.elapsed_s), escape(beat.detail or ""))
    return made
