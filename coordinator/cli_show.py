"""What the command line prints: tables for people on a terminal, JSON for programs. Only formats, never asks."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shared.client import (
    AttemptLine,
    CallbackLine,
    HeartbeatLine,
    JobLine,
    JobView,
    LaneLine,
    PredictedFinish,
    UndeliveredLine,
    WorkerLine,
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
    """Print a list of jobs."""
    made = table("ID", "KIND", "STATE", "WORKER", "EPOCH>", "STAGE", "TIME>", "LIKELY DONE", "KEY")
    for job in found:
        made.add_row(
            str(job.id),
            escape(job.kind if job.model is None else f"{job.kind} ({job.model})"),
            state(job.state),
            escape(job.worker or "-"),
            str(job.epoch),
            stage(job),
            seconds(job.duration_s),
            moment(job.predicted_finish.median) if job.predicted_finish else "-",
            escape(job.key or "-"),
        )
    console().print(made)


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
    if found.actions:
        done = table("AT", "WHO", "DID", title="\nwhat people did")
        for one in found.actions:
            done.add_row(moment(one.at), escape(one.actor), escape(one.action))
        out.print(done)
    if beats:
        out.print(_beats(beats))
    if found.artifacts:
        files = table("NAME", "TYPE", "SIZE>", "SHA-256", "URL", title="\nfiles")
        for file in found.artifacts:
            files.add_row(escape(file.name), file.media_type, size(file.size), file.sha256, file.url)
        out.print(files)
    text = (found.result or {}).get("text")
    if isinstance(text, str):
        out.print("\n[bold]text[/bold]")
        out.print(escape(text.rstrip()), soft_wrap=True)


def undelivered(found: Sequence[UndeliveredLine]) -> None:
    """Print callbacks that were given up."""
    made = table("GIVEN UP", "JOB", "SOURCE", "STATE", "TRIES>", "WHY", "URL")
    for one in found:
        what = (moment(one.given_up_at), str(one.job_id), escape(one.source), one.state, str(one.attempts))
        made.add_row(*what, escape(one.error or "-"), escape(one.url))
    console().print(made)


def workers(found: Sequence[WorkerLine]) -> None:
    """Print a list of workers."""
    made = table("WORKER", "STATE", "CAN DO", "HOLDS", "HEARD OF>", "LAST HOUR", "HOST")
    for worker in found:
        presence = worker.presence or {}
        told = presence.get("state", "-") if worker.present else "away"
        wanted = "" if worker.wanted in ("ready", told) else f" (told: {worker.wanted})"
        made.add_row(
            escape(worker.name),
            escape(f"{told}{wanted}{', set aside' if worker.aside else ''}"),
            escape(_abilities(presence)),
            escape(", ".join(f"{str(h['job_id'])[:13]}… epoch {h['epoch']}" for h in worker.holds) or "-"),
            "never" if worker.seen_age_s is None else f"{seconds(worker.seen_age_s)} ago",
            escape(", ".join(f"{n} {outcome}" for outcome, n in sorted(worker.last_hour.items())) or "-"),
            escape(str(presence.get("host") or "-")),
        )
    out = console()
    out.print(made)
    for worker in found:
        for one in worker.aside:
            out.print(escape(f"set aside: {worker.name} ({one.get('reason')})"), soft_wrap=True)


def _abilities(presence: dict[str, Any]) -> str:
    able = [capability(one) for one in presence.get("capabilities", [])]
    down = [f"{capability(one)}: backend down" for one in presence.get("down", [])]
    return ", ".join([*able, *down]) or "-"


def lanes(found: Sequence[LaneLine]) -> None:
    """Print a list of lanes."""
    made = table("LANE", "STATE", "WAITING>", "OFFERED>", "RUNNING>", "OLDEST WAITS>")
    for lane in found:
        running = [str(lane.waiting), str(lane.offered), str(lane.processing)]
        waits = seconds(lane.waits_s) if lane.waits_s and lane.waits_s > 0 else "-"
        made.add_row(escape(lane.name), "paused" if lane.paused else "open", *running, waits)
    console().print(made)


def capability(one: dict[str, Any]) -> str:
    """Say what a worker can do: `article (llama3.1:8b)`, or just `image` for any model."""
    models = [str(model) for model in one.get("models", []) if model != "*"]
    return f"{one.get('kind')} ({', '.join(models)})" if models else str(one.get("kind"))


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


def _beats(found: Sequence[HeartbeatLine]) -> Table:
    made = table("AT", "EPOCH>", "WORKER", "STAGE", "DONE>", "AFTER>", "DETAIL", title="\nlast heartbeats")
    for beat in found:
        done = "-" if beat.progress is None else f"{beat.progress:.0%}"
        who = (moment(beat.at), str(beat.epoch), escape(beat.worker), escape(beat.stage))
        made.add_row(*who, done, seconds(beat.elapsed_s), escape(beat.detail or ""))
    return made
