"""Small charts of the last 24 hours, as coordinates for the templates: pure, each with its numbers in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

BUCKETS: Final = 48
WITHIN_S: Final = 86400.0
BUCKET_S: Final = WITHIN_S / BUCKETS

HEIGHT: Final = 100.0
STEP: Final = 10.0  # from one bucket to the next
_LEAST: Final = 1.5  # how high the smallest count stands
_WAYS: Final = ("completed", "failed", "lapsed")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar."""

    way: str  # completed, failed, lapsed
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """What ended in one bucket."""

    x: float
    pieces: tuple[Piece, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Throughput:
    """How many attempts ended, and how."""

    bars: tuple[Bar, ...]
    most: int  # in one bucket
    totals: Mapping[str, int]  # by way


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the completed attempts of one kind took."""

    kind: str
    median: tuple[str, ...]  # points of lines, one for each stretch without a gap
    p90: tuple[str, ...]
    most_s: float
    completed: int
    last_median_s: float
    last_p90_s: float


Row = Mapping[str, Any]


def throughput(rows: Sequence[Row]) -> Throughput:
    """Return the bars, oldest first; a bucket in which nothing ended has none."""
    counts = [dict.fromkeys(_WAYS, 0) for _ in range(BUCKETS)]
    for row in rows:
        for way in _WAYS:
            counts[_bucket(row)][way] += row[way]
    most = max(sum(one.values()) for one in counts)
    bars = tuple(_bar(n, one, most) for n, one in enumerate(counts) if any(one.values()))
    return Throughput(bars, most, {way: sum(one[way] for one in counts) for way in _WAYS})


def durations(rows: Sequence[Row]) -> list[Durations]:
    """Return the lines of each kind of which something was completed, by name."""
    return [_lines(kind, [row for row in rows if row["kind"] == kind and row["completed"]]) for kind in _kinds(rows)]


def _kinds(rows: Iterable[Row]) -> list[str]:
    return sorted({row["kind"] for row in rows if row["completed"]})


def _bucket(row: Row) -> int:
    return min(max(int(row["bucket"]), 0), BUCKETS - 1)


def _bar(number: int, counts: Mapping[str, int], most: int) -> Bar:
    pieces, y = [], HEIGHT
    for way in _WAYS:
        if counts[way]:
            height = max(counts[way] / most * HEIGHT, _LEAST)
            y = max(y - height, 0.0)
            pieces.append(Piece(way, round(y, 2), round(height, 2)))
    hours = (BUCKETS - number) * BUCKET_S / 3600
    said = ", ".join(f"{counts[way]} {way}" for way in _WAYS if counts[way])
    return Bar(number * STEP, tuple(pieces), f"{hours:.1f} h ago: {said}")


def _lines(kind: str, rows: Sequence[Row]) -> Durations:
    most_s = max(0.001, *(row["p90_s"] for row in rows))
    last = rows[-1]
    return Durations(
        kind=kind,
        median=_stretches([(_bucket(row), row["median_s"] / most_s) for row in rows]),
        p90=_stretches([(_bucket(row), row["p90_s"] / most_s) for row in rows]),
        most_s=most_s,
        completed=sum(row["completed"] for row in rows),
        last_median_s=last["median_s"],
        last_p90_s=last["p90_s"],
    )


def _stretches(points: Sequence[tuple[int, float]]) -> tuple[str, ...]:
    """Return lines through the points; a bucket that stands alone is a dash as wide as itself."""
    stretches: list[list[tuple[float, float]]] = []
    before = None
    for bucket, share in points:
        y = HEIGHT - share * (HEIGHT - 4) - 2
        if before is None or bucket != before + 1:
            stretches.append([(bucket * STEP, y)])
        stretches[-1].append((bucket * STEP + STEP / 2, y))
        before = bucket
    for one in stretches:
        one.append((one[-1][0] + STEP / 2, one[-1][1]))
    return tuple(" ".join(f"{x:g},{y:.1f}" for x, y in one) for one in stretches)
