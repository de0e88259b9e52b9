"""What `tandem watch` shows: a picture of one moment, for 80 columns and for wide ones. Only draws, never asks.

Ages run on between two readings, and stand still while the coordinator, or its ledger, is away.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from coordinator.cli_show import STATE_STYLE, printable, seconds, size
from coordinator.cli_show_operations import state_of
from shared.client import JobLine, LaneLine, RejectedResult, RunningLine, WorkerLine
from shared.states import JobState

_WIDE: Final = 120
_FEWEST_LINES: Final = 5  # of a part, however low the terminal: space, title, head, a line, and how many more
_BAR: Final = 4
_LOW_S: Final = 15.0
_STATES: Final = (
    (JobState.PROCESSING, "running"),
    (JobState.PENDING, "waiting"),
    (JobState.AWAITING_REVIEW, "to review"),
    (JobState.COMPLETED, "completed"),
    (JobState.FAILED, "failed"),
    (JobState.CANCELED, "canceled"),
)
_WORKER_STYLE: Final = {"ready": "green", "busy": "cyan", "away": "dim"}  # all others need a look


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was read at one moment."""

    url: str
    read_at: float  # time.monotonic()
    now: datetime  # by the ledger's clock
    trouble: Sequence[str] = ()  # why the coordinator is not ready
    jobs: Mapping[str, int] = field(default_factory=dict)  # by state
    running: Sequence[RunningLine] = ()
    lanes: Sequence[LaneLine] = ()
    workers: Sequence[WorkerLine] = ()
    failed: Sequence[JobLine] = ()
    late: Sequence[RejectedResult] = ()
    as_read: Mapping[str, Any] = field(default_factory=dict)  # for programs
    is_old: bool = False  # and stands still

    def still(self, trouble: Sequence[str]) -> "Seen":
        """Return the same, as something of the past."""
        return replace(self, trouble=trouble, is_old=True)


@dataclass(frozen=True, slots=True)
class Picture:
    """Drawn as wide as it is asked for, and no higher: what does not fit is counted."""

    seen: Seen | None
    url: str
    now: float  # time.monotonic()
    away: tuple[datetime, str] | None = None  # since when the coordinator is, and how that shows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        width, height = options.max_width, options.height
        free = options.reset_height()
        parts = [console.render_lines(part, free, pad=False) for part in self._parts(width)]
        most = max(map(len, parts)) if height is None else _most_lines([len(part) for part in parts], height)
        for lines in parts:
            over = len(lines) - most
            for line in lines[: most - 1] if over > 0 else lines:
                yield from line
                yield Segment.line()
            if over > 0:
                yield Text(f"… {over + 1} more lines", style="dim")

    def _parts(self, width: int) -> Iterator[RenderableType]:
        yield self._head()
        if self.seen is None:
            return
        is_wide, seen = width >= _WIDE, self.seen
        passed_s = 0.0 if seen.is_old else max(self.now - seen.read_at, 0.0)
        at = seen.now + timedelta(seconds=passed_s)
        yield _part("running", "nothing runs", _running(seen.running, passed_s, is_wide=is_wide))
        waiting = [lane for lane in seen.lanes if lane.waiting + lane.offered]
        yield _part("waiting", "nothing waits", _waiting(waiting))
        yield _part("workers", "no worker was ever heard of", _workers(seen.workers, passed_s, is_wide=is_wide))
        yield _part("failed last", "nothing failed", _failed(seen.failed, at))
        yield _part("results not taken", "no result was refused", _late(seen.late, at))

    def _head(self) -> RenderableType:
        lines = [Text.assemble(("Tandem ", "bold"), printable(self.url), (f"  {_local(datetime.now(UTC))}", "dim"))]
        if self.away is not None:
            since, why = self.away
            lines.append(Text(f"coordinator away since {_local(since)}: {printable(why)}", style="bold red"))
        if self.seen is not None:
            lines += [Text(f"not ready: {printable(one)}", style="red") for one in self.seen.trouble]
            if self.away is not None or self.seen.is_old:
                lines.append(Text("what is shown is from before", style="yellow"))
            lines += [_counts(self.seen), _last_hour(self.seen)]
        return Text("\n").join(lines)


def _most_lines(sizes: Sequence[int], height: int) -> int:
    """Return how many lines each part may have, so that all fit; the longest give way first."""
    most = max(sizes)
    while most > _FEWEST_LINES and sum(min(one, most) for one in sizes) > height:
        most -= 1
    return most


def _part(title: str, nothing: str, table: Table) -> RenderableType:
    if not table.row_count:
        return Text.assemble("\n", (title, "bold"), f"  {nothing}")
    table.title = f"\n{title}"
    return table


def _counts(seen: Seen) -> Text:
    found = [(seen.jobs.get(state, 0), name, STATE_STYLE[state]) for state, name in _STATES]
    return Text("  ").join(Text(f"{count} {name}", style=style if count else "dim") for count, name, style in found)


def _last_hour(seen: Seen) -> Text:
    """Say what came of the attempts that were begun within the last hour, and who is there."""
    outcomes: dict[str, int] = {}
    for worker in seen.workers:
        for outcome, count in worker.last_hour.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    done = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(outcomes.items()))
    here = sum(worker.present for worker in seen.workers)
    return Text(f"last hour: {done or 'nothing ended'}; workers here: {here} of {len(seen.workers)}")


def _running(found: Sequence[RunningLine], passed_s: float, *, is_wide: bool) -> Table:
    fixed = [_fixed("SINCE", 6), _fixed("BEAT", 6), _fixed("LEASE LEFT", 11), _fixed("DONE AT", 8)]
    shares = [_share("JOB", 4), _share("WORKER", 3), _share("STAGE", 6)]
    made = _table(*shares, *fixed, *([_fixed("9 OF 10 BY", 10)] if is_wide else []))
    for one in found:
        done = one.predicted_finish
        far = "" if one.progress is None else f"{one.progress:.0%} "
        again = f" ({one.attempt} of {one.max_attempts} failed)" if one.attempt else ""
        cells: list[RenderableType] = [
            _text(_job(one) + again),
            _text(one.worker),
            _text(far + (one.stage or "claimed").replace("_", " "), "cyan"),
            seconds(one.since_s + passed_s),
            "none yet" if one.heartbeat_age_s is None else seconds(one.heartbeat_age_s + passed_s),
            _lease(one, passed_s),
            _local(done.median) if done else "unknown",
            *([_local(done.p90) if done else ""] if is_wide else []),
        ]
        made.add_row(*cells)
    return made


def _job(one: RunningLine | JobLine) -> str:
    """Return what a job is known by, the more telling half first: a narrow column has no room for both."""
    return f"{one.key or str(one.id)[:13]} {one.kind}"


def _lease(one: RunningLine, passed_s: float) -> Table:
    """Return the lease as a bar that shrinks, with the seconds that are left."""
    left_s = max(one.lease_left_s - passed_s, 0.0)
    whole_s = max(one.lease_left_s + (one.since_s if one.heartbeat_age_s is None else one.heartbeat_age_s), 1.0)
    style = "red" if left_s < min(_LOW_S, whole_s / 3) else "green"
    bar = ProgressBar(total=whole_s, completed=left_s, width=_BAR, complete_style=style, finished_style=style)
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_row(bar, Text(seconds(left_s), style=style))
    return made


def _waiting(found: Sequence[LaneLine]) -> Table:
    made = _table(_share("LANE", 2), _fixed("JOBS", 7), _fixed("LONGEST", 8), _share("WHY", 4))
    for lane in sorted(found, key=lambda lane: (-(lane.waits_s or 0.0), lane.name)):
        waits = "-" if lane.waits_s is None else seconds(max(lane.waits_s, 0.0))
        why = _text(lane.why or "-", "yellow", cut=False)
        made.add_row(_text(lane.name), str(lane.waiting + lane.offered), waits, why)
    return made


def _workers(found: Sequence[WorkerLine], passed_s: float, *, is_wide: bool) -> Table:
    about = [_share("MODELS (● loaded), POWER, MEMORY, WHY NOTHING", 5)]
    if is_wide:
        about = [_fixed("POWER", 10), _fixed("MEMORY", 26), _share("MODELS (● loaded)", 4), _share("WHY NOTHING", 4)]
    made = _table(_share("WORKER", 2), _fixed("STATE", 10), *about)
    for one in sorted(found, key=lambda worker: (not worker.present, worker.name)):
        presence = one.presence or {}
        facts = presence.get("facts") or {}
        power, memory, models = _text(str(facts.get("power") or "")), Text(_memory(facts)), _models(presence)
        why = _text("; ".join(_why(one, passed_s)), "yellow", cut=False)
        if is_wide:
            made.add_row(_text(one.name), _state(one), power, memory, models, why)
        else:
            rest = Text(", ").join(filter(None, (power, memory)))
            made.add_row(_text(one.name), _state(one), Text("\n").join(filter(None, (models, rest, why))))
    return made


def _state(worker: WorkerLine) -> Text:
    word = state_of(worker)
    return _text(word, _WORKER_STYLE.get(word, "yellow"))


def _why(worker: WorkerLine, passed_s: float) -> list[str]:
    if worker.present:
        return worker.why_idle
    return ["never heard of" if worker.seen_age_s is None else f"heard of {seconds(worker.seen_age_s + passed_s)} ago"]


def _models(presence: Mapping[str, Any]) -> Text:
    """Return the models that a worker offers, those that are loaded first and marked."""
    warm = set(presence.get("warm") or ())
    names = {
        f"any {one.get('kind')}" if model == "*" else str(model)
        for one in presence.get("capabilities") or ()
        for model in one.get("models") or ()
    }
    names |= warm
    shown = sorted(names, key=lambda name: (name not in warm, name))
    return Text(", ").join(_text(f"● {name}", "green") if name in warm else _text(name) for name in shown)


def _memory(facts: Mapping[str, Any]) -> str:
    free, whole = facts.get("memory_free_bytes"), facts.get("memory_bytes")
    if isinstance(free, int):
        return f"{size(free)} of {size(whole)} free" if isinstance(whole, int) else f"{size(free)} free"
    return f"{size(whole)} in all" if isinstance(whole, int) else ""


def _failed(found: Sequence[JobLine], at: datetime) -> Table:
    made = _ended()
    for one in found:
        error = one.error or {}
        why = f"{error.get('code', 'no reason on record')} {error.get('message') or ''}".strip()
        who = (_text(_job(one)), _text(one.worker or "-"))
        made.add_row(_before(one.finished_at or one.created_at, at), *who, _text(why, "red"))
    return made


def _late(found: Sequence[RejectedResult], at: datetime) -> Table:
    made = _ended()
    for one in found:
        late = f", {seconds(one.late_s)} late" if one.late_s is not None and one.late_s >= 1 else ""
        epochs = f"epoch {one.epoch}, current {one.current_epoch}{late}" if one.epoch is not None else one.reason
        who = (_text("-" if one.job_id is None else str(one.job_id)[:13]), _text(one.worker))
        made.add_row(_before(one.at, at), *who, _text(f"{one.verdict}: {epochs}", "yellow"))
    return made


def _ended() -> Table:
    return _table(_fixed("WHEN", 11), _share("JOB", 2), _share("WORKER", 1), _share("WHY", 4))


def _table(*columns: Column) -> Table:
    """Return an empty table as wide as the terminal."""
    style = {"header_style": "dim", "title_justify": "left", "title_style": "bold"}
    return Table(*columns, box=None, padding=(0, 1, 0, 0), expand=True, **style)  # type: ignore[arg-type]


def _share(name: str, ratio: int) -> Column:
    """Return a column that takes its share of what the others leave."""
    return Column(name, ratio=ratio, overflow="fold")


def _fixed(name: str, width: int) -> Column:
    return Column(name, width=width, no_wrap=True)


def _text(text: str, style: str = "", *, cut: bool = True) -> Text:
    """Return text of others, in one line that is cut where it does not fit, or folded."""
    return Text(printable(text), style=style, no_wrap=cut, overflow="ellipsis" if cut else "fold")


def _before(then: datetime, at: datetime) -> str:
    return f"{seconds(max((at - then).total_seconds(), 0.0))} ago"


def _local(at: datetime) -> str:
    """Return an instant in this machine's time zone: the time of today, or a date."""
    here = at.astimezone()
    return here.strftime("%H:%M:%S" if abs(at - datetime.now(UTC)) < timedelta(hours=20) else "%d %b")
