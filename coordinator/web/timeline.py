"""Where a job's time went: its attempts as bars on their workers' rows, for the job's page to draw. Pure.

Places are in percent of the drawing's width, so that it fits any screen. A pause in which nobody held the job is cut
short where it is long, and says how long it was: else a night's wait would leave nothing to see of a minute's work.
Instants may be in any order (clocks are set back): everything is drawn somewhere, every attempt wide enough to see.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from shared.states import AttemptOutcome

LEAST_WIDTH: Final = 0.8
"""Of a bar."""

_LONG: Final = 0.25  # a pause longer than this share of all the work is cut short,
_CUT: Final = 0.1  # to this share
_MOST_TICKS: Final = 500

STAGES: Final = ("claimed", "loading_model", "generating_text", "generating_image", "upscaling", "uploading",
                 "finalizing")  # fmt: skip
"""Stages with a colour of their own; all others share one."""

_ENDS: Final[dict[str, str]] = {
    AttemptOutcome.COMPLETED: "completed",
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.RELEASED: "given back without fault",
    AttemptOutcome.LEASE_EXPIRED: "lease lapsed",
    AttemptOutcome.CANCELED: "canceled under it",
    AttemptOutcome.CLOSED: "lapsed, then closed by a retry",
}


class Segment(NamedTuple):
    """A stage of an attempt."""

    x: float
    width: float
    stage: str
    colour: str  # one of STAGES, or "other"
    seconds: float


class Mark(NamedTuple):
    """A moment: how an attempt ended, or a late report that was not accepted."""

    x: float
    kind: str  # an AttemptOutcome, "open" or "rejected"
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One attempt."""

    epoch: int
    x: float
    width: float
    text: str  # the whole of it in words
    segments: list[Segment]
    ticks: list[float]  # heartbeats
    end: Mark


@dataclass(slots=True)
class Lane:
    """A worker's row."""

    worker: str
    bars: list[Bar] = field(default_factory=list)
    rejections: list[Mark] = field(default_factory=list)


class Pause(NamedTuple):
    """A time in which nobody held the job, drawn shorter than it was."""

    x: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """All of it; `legend` has the colours and kinds of marks that occur, each with its words."""

    start: datetime
    end: datetime
    rows: list[Lane]
    pauses: list[Pause]
    stages: list[tuple[str, str]]  # (colour, words)
    marks: list[tuple[str, str]]  # (kind, words)


def timeline(
    attempts: Sequence[Mapping[str, Any]],
    heartbeats: Sequence[Mapping[str, Any]],
    rejections: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Timeline | None:
    """Draw attempts and rejections as `views` returns them, heartbeats in any order; None before the first attempt."""
    if not attempts:
        return None
    spans = [_span(one, now) for one in attempts]
    scale = _Scale([*spans, *((r["at"], r["at"]) for r in rejections)])
    beats: dict[int, list[Mapping[str, Any]]] = {}
    for beat in sorted(heartbeats, key=lambda b: b["at"])[-_MOST_TICKS:]:
        beats.setdefault(beat["epoch"], []).append(beat)
    rows: dict[str, Lane] = {}
    for one, span in zip(attempts, spans, strict=True):
        bar = _bar(one, span, beats.get(one["epoch"], []), scale)
        rows.setdefault(one["worker"], Lane(one["worker"])).bars.append(bar)
    for late in rejections:
        text = f"epoch {late['epoch']} came late and was not taken: {late['verdict']}, {late['reason']}"
        mark = Mark(scale.x(late["at"]), "rejected", text)
        rows.setdefault(late["worker"], Lane(late["worker"])).rejections.append(mark)
    stages = {s.colour: "other stages" if s.colour == "other" else words(s.colour)
              for row in rows.values() for bar in row.bars for s in bar.segments}  # fmt: skip
    marks = {bar.end.kind: _ENDS.get(bar.end.kind, "at it now") for row in rows.values() for bar in row.bars}
    if rejections:
        marks["rejected"] = "report not taken"
    return Timeline(
        start=scale.start,
        end=scale.end,
        rows=list(rows.values()),
        pauses=scale.pauses,
        stages=list(stages.items()),
        marks=list(marks.items()),
    )


def words(stage: str) -> str:
    """Return a stage as people say it."""
    return stage.replace("_", " ")


class _Scale:
    """From instants to percent."""

    def __init__(self, spans: Sequence[tuple[datetime, datetime]]) -> None:
        held = _merged(spans)
        self.start, self.end = held[0][0], held[-1][1]
        worked = sum((b - a).total_seconds() for a, b in held) or 1.0
        self._knots: list[tuple[datetime, float]] = []  # instant -> length so far
        long: list[tuple[float, float, float]] = []
        length, before = 0.0, held[0][0]
        for begin, end in held:
            pause = (begin - before).total_seconds()
            drawn = pause if pause <= _LONG * worked else _CUT * worked
            if drawn < pause:
                long.append((length, drawn, pause))
            self._knots.append((begin, length + drawn))
            length += drawn + (end - begin).total_seconds()
            self._knots.append((end, length))
            before = end
        self._length = length or 1.0
        self.pauses = [Pause(self._percent(at), self._percent(drawn), pause) for at, drawn, pause in long]

    def _percent(self, length: float) -> float:
        return round(100 * length / self._length, 3)

    def x(self, at: datetime) -> float:
        """Return where an instant lies, one outside at the nearer end."""
        (before, length), *rest = self._knots
        if at <= before:
            return self._percent(length)
        for knot, there in rest:
            if at <= knot:
                share = (at - before).total_seconds() / ((knot - before).total_seconds() or 1.0)
                return self._percent(length + share * (there - length))
            before, length = knot, there
        return self._percent(length)


def _merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Join what overlaps, in order of time."""
    merged: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _span(attempt: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    begin: datetime = attempt["claimed_at"]
    return begin, max(begin, attempt["ended_at"] or now)


def _bar(
    attempt: Mapping[str, Any], span: tuple[datetime, datetime], beats: Sequence[Mapping[str, Any]], scale: _Scale
) -> Bar:
    begin, end = span
    left, right = scale.x(begin), scale.x(end)
    if right - left < LEAST_WIDTH:
        left = min(left, 100 - LEAST_WIDTH)
        right = left + LEAST_WIDTH
    stages = _stages(attempt, span, beats)
    segments = [
        Segment(
            max(scale.x(a), left), scale.x(b) - scale.x(a), s, s if s in STAGES else "other", (b - a).total_seconds()
        )
        for s, a, b in stages
    ]
    if not any(s.width > 0 for s in segments):  # too short to tell stages apart
        stage = stages[-1][0]
        segments = [Segment(left, right - left, stage, stage if stage in STAGES else "other", 0.0)]
    outcome, error = attempt["outcome"], attempt["error"] or {}
    kind = str(outcome or "open")
    ended = _ENDS.get(kind, "at it now")
    why = f" ({error.get('code')}: {error.get('message')})" if error else ""
    spent = ", ".join(f"{words(s)} {seconds(b - a)}" for s, a, b in stages if b > a)
    text = (
        f"epoch {attempt['epoch']} on {attempt['worker']}, {seconds(end - begin)}: {spent or 'no stage'}; {ended}{why}"
    )
    ticks = sorted({round(scale.x(min(max(b["at"], begin), end)), 1) for b in beats})
    return Bar(attempt["epoch"], left, right - left, text, segments, ticks, Mark(right, kind, f"{ended}{why}"))


def _stages(
    attempt: Mapping[str, Any], span: tuple[datetime, datetime], beats: Sequence[Mapping[str, Any]]
) -> list[tuple[str, datetime, datetime]]:
    """Return the stages one after another, as the report has them, else as heartbeats told of them; never empty."""
    begin, end = span
    whole_s = (end - begin).total_seconds()
    starts: list[tuple[str, datetime]] = [("claimed", begin)]
    if attempt["stages"]:
        for one in attempt["stages"]:
            at_s = float(one["at_s"])
            at_s = min(max(at_s, 0.0), whole_s) if math.isfinite(at_s) else 0.0
            starts.append((one["stage"], begin + timedelta(seconds=at_s)))
    else:
        starts += [(b["stage"], min(max(b["at"], begin), end)) for b in beats]
    starts.sort(key=lambda s: s[1])
    found: list[tuple[str, datetime, datetime]] = []
    for (stage, at), (_, until) in zip(starts, [*starts[1:], ("", end)], strict=True):
        if found and found[-1][0] == stage:
            found[-1] = (stage, found[-1][1], until)
        else:
            found.append((stage, at, until))
    return [one for one in found if one[2] > one[1]] or found[-1:]


def seconds(span: timedelta) -> str:
    """Return a duration for people, to the second below two minutes: `41 s`, `3 min`, `2 h`."""
    whole = span.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= 2 * size:
            return f"{whole / size:.0f} {unit}"
    return f"{whole:.0f} s"
