"""The small charts of the last day: whatever ended, all of it is in them and inside them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coordinator.web import charts

COUNT = st.integers(0, 10**6)
SECONDS = st.floats(0, 1e6)


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """As view_throughput.sql has them; the ledger's clock may have been set, so buckets may lie outside."""
    found = []
    for bucket, kind in sorted(draw(st.sets(st.tuples(st.integers(-1, charts.BUCKETS), st.sampled_from("ab"))))):
        completed = draw(COUNT)
        took = sorted((draw(SECONDS), draw(SECONDS))) if completed else (None, None)
        counts = {"completed": completed, "failed": draw(COUNT), "lapsed": draw(COUNT)}
        found.append({"bucket": bucket, "kind": kind, **counts, "median_s": took[0], "p90_s": took[1]})
    return found


@given(rows())
def test_bars_hold_all_that_ended_and_stay_inside(ended: list[dict[str, Any]]) -> None:
    drawn = charts.throughput(ended)
    for way in ("completed", "failed", "lapsed"):
        assert drawn.totals[way] == sum(row[way] for row in ended)
    for bar in drawn.bars:
        assert 0 <= bar.x < charts.BUCKETS * charts.STEP
        assert all(0 <= piece.y <= charts.HEIGHT and piece.height > 0 for piece in bar.pieces)
    assert bool(drawn.bars) == any(drawn.totals.values())


@given(rows())
def test_lines_are_there_for_each_kind_that_completed_something(ended: list[dict[str, Any]]) -> None:
    drawn = charts.durations(ended)
    assert [one.kind for one in drawn] == sorted({row["kind"] for row in ended if row["completed"]})
    for one in drawn:
        points = [point.split(",") for line in (*one.median, *one.p90) for point in line.split(" ")]
        assert all(0 <= float(x) <= charts.BUCKETS * charts.STEP for x, _ in points)
        assert all(0 <= float(y) <= charts.HEIGHT for _, y in points)


def test_a_gap_is_no_line() -> None:
    row = {"kind": "a", "completed": 1, "failed": 0, "lapsed": 0, "median_s": 1.0, "p90_s": 2.0}
    [drawn] = charts.durations([{**row, "bucket": bucket} for bucket in (3, 4, 9)])
    assert [line.count(",") for line in drawn.median] == [4, 3]
