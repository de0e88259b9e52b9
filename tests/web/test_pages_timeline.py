"""The drawing of a job's attempts: whatever is on record, it is drawn, and every attempt can be seen."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coordinator.web.timeline import LEAST_WIDTH, Timeline, timeline

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def attempt(epoch: int, begin: float, end: float | None, worker: str = "mini", **more: Any) -> dict[str, Any]:
    ended = None if end is None else at(end)
    outcome = None if end is None else "completed"
    known = {"claimed_at": at(begin), "ended_at": ended, "outcome": outcome, "error": None, "stages": None}
    return {"epoch": epoch, "worker": worker, **known, **more}


def beat(epoch: int, second: float, stage: str = "generating_text") -> dict[str, Any]:
    return {"epoch": epoch, "at": at(second), "stage": stage}


def draw(*attempts: dict[str, Any], beats: Any = (), rejections: Any = ()) -> Timeline:
    drawn = timeline(attempts, beats, rejections, NOW)
    assert drawn is not None
    return drawn


def test_before_the_first_attempt_there_is_nothing_to_draw() -> None:
    assert timeline([], [], [], NOW) is None


def test_an_attempt_shows_the_stages_of_its_report() -> None:
    stages = [{"stage": "loading_model", "at_s": 0.0}, {"stage": "generating_text", "at_s": 25.0}]
    drawn = draw(attempt(1, -100, 0, stages=stages))
    (row,) = drawn.rows
    (bar,) = row.bars
    assert (row.worker, bar.x, bar.width) == ("mini", 0, 100)
    assert [(s.stage, s.x, s.width) for s in bar.segments] == [("loading_model", 0, 25), ("generating_text", 25, 75)]
    assert bar.text == "epoch 1 on mini, 100 s: loading model 25 s, generating text 75 s; completed"
    assert drawn.stages == [("loading_model", "loading model"), ("generating_text", "generating text")]


def test_while_it_runs_heartbeats_tell_the_stages() -> None:
    beats = [beat(1, -20), beat(1, -60, "loading_model"), beat(1, -40, "warming_up")]
    (bar,) = draw(attempt(1, -80, None), beats=beats).rows[0].bars
    assert [(s.stage, s.colour, s.x) for s in bar.segments] == [
        ("claimed", "claimed", 0),
        ("loading_model", "loading_model", 25),
        ("warming_up", "other", 50),
        ("generating_text", "generating_text", 75),
    ]
    assert bar.ticks == [25, 50, 75]
    assert bar.end.kind == "open"


def test_a_long_pause_is_cut_short_and_says_how_long_it_was() -> None:
    drawn = draw(attempt(1, -86_500, -86_450), attempt(2, -50, 0, "book"))
    (pause,) = drawn.pauses
    assert pause.seconds == 86_400
    assert (pause.x, pause.width) == (45.455, 9.091)
    assert [row.worker for row in drawn.rows] == ["mini", "book"]
    assert drawn.rows[1].bars[0].x == 54.545


def test_an_end_says_why_and_a_late_report_is_on_its_workers_row() -> None:
    error = {"code": "worker_silent", "message": "mini fell silent"}
    late = {"epoch": 1, "worker": "mini", "verdict": "stale", "reason": "epoch 1, current 2", "at": at(-10)}
    lapsed = attempt(1, -100, -50, outcome="lease_expired", error=error)
    drawn = draw(lapsed, attempt(2, -40, None, "book"), rejections=[late])
    assert drawn.rows[0].bars[0].end.text == "lease lapsed (worker_silent: mini fell silent)"
    assert drawn.rows[0].rejections[0].text == "epoch 1 came late and was not taken: stale, epoch 1, current 2"
    assert ("rejected", "report not taken") in drawn.marks


instants = st.datetimes(datetime(1999, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
names = st.text(max_size=20)
attempts = st.lists(
    st.fixed_dictionaries(
        {
            "epoch": st.integers(1, 2**31),
            "worker": st.sampled_from(("mini", "book")) | names,
            "claimed_at": instants | st.sampled_from((NOW, at(1), at(1.0001))),
            "ended_at": st.none() | instants | st.just(NOW),
            "outcome": st.none() | st.sampled_from(("completed", "failed", "lease_expired", "released", "closed")),
            "error": st.none() | st.dictionaries(st.sampled_from(("code", "message")), names),
            "stages": st.none()
            | st.lists(st.fixed_dictionaries({"stage": names, "at_s": st.floats() | st.integers(-9, 10**300)})),
        }
    ),
    min_size=1,
    max_size=6,
)
heartbeats = st.lists(st.fixed_dictionaries({"epoch": st.integers(1, 3), "at": instants, "stage": names}))
rejections = st.lists(
    st.fixed_dictionaries({"epoch": st.none() | st.integers(), "worker": names, "verdict": names, "reason": names,
                           "at": instants}), max_size=3)  # fmt: skip


@given(attempts, heartbeats, rejections)
def test_every_attempt_can_be_seen_whatever_is_on_record(tried: Any, beats: Any, late: Any) -> None:
    drawn = timeline(tried, beats, late, NOW)
    assert drawn is not None
    bars = [bar for row in drawn.rows for bar in row.bars]
    assert sorted(bar.epoch for bar in bars) == sorted(one["epoch"] for one in tried)
    assert sum(len(row.rejections) for row in drawn.rows) == len(late)
    for bar in bars:
        assert bar.width >= LEAST_WIDTH - 0.01
        assert -0.01 <= bar.x <= bar.x + bar.width <= 100.01
        assert sum(s.width for s in bar.segments) > 0
        assert all(bar.x - 0.01 <= s.x and s.x + s.width <= bar.x + bar.width + 0.01 for s in bar.segments)
        assert all(0 <= x <= 100 for x in [*bar.ticks, bar.end.x])
