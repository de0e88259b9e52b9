"""What the durations on record say of jobs that run and wait: tables, and rules that hold for any record."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.executors.clocks import Limits
from agent.executors.comfyui_settings import ComfyUISettings
from coordinator.forecast import (
    ENOUGH,
    ENOUGH_FOR_PATIENCE,
    MOST,
    PATIENCE,
    Record,
    Records,
    Sample,
    Slot,
    Stage,
    left_of,
    running,
    sample_of,
    slots_of,
    spread_of,
    taken,
    waiting,
)
from coordinator.ledger.queries import DurationRow, HeldRow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LANE = "image.sdxl"


def sample(took_s, worker="mini", lane=LANE, stages=None):
    return Sample(lane, worker, took_s, stages or (Stage("generating_image", 0.0, took_s),))


def samples(*took, **more):
    return [sample(took_s, **more) for took_s in took]


def held(elapsed_s=0.0, stage=None, progress=None, heard_s=0.0, worker="mini", lane=LANE):
    heartbeat_at = NOW - timedelta(seconds=heard_s)
    return HeldRow(lane, worker, NOW - timedelta(seconds=elapsed_s), stage, progress, heartbeat_at)


def seconds(prediction):
    """A prediction as (median, p90) from now, and its basis."""
    if prediction is None:
        return None
    return (prediction.median - NOW).total_seconds(), (prediction.p90 - NOW).total_seconds(), prediction.basis


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([], None),
        ([7], (7, 7)),
        ([2, 1], (1, 2)),
        ([3, 1, 2], (2, 3)),
        (range(1, 11), (5, 9)),
        (range(100, 0, -1), (50, 90)),
    ],
)
def test_the_spread_is_of_values_that_were_seen(values, spread):
    assert spread_of(values) == spread


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_half_are_over_by_the_median_and_nine_of_ten_by_the_other(values):
    median, p90 = spread_of(values)
    assert median <= p90
    assert 2 * sum(value <= median for value in values) >= len(values)
    assert 10 * sum(value <= p90 for value in values) >= 9 * len(values)
    assert 2 * sum(value < median for value in values) < len(values)
    assert 10 * sum(value < p90 for value in values) < 9 * len(values)


# --------------------------------------------------------------------------------------------------- which record


@pytest.mark.parametrize(
    ("lane", "worker", "basis"),
    [
        (LANE, "mini", "mini, 6 jobs"),
        (LANE, "book", "image.sdxl, 8 jobs"),  # two of its own are too few
        (LANE, "new", "image.sdxl, 8 jobs"),
        ("image.flux", "mini", "image, 9 jobs"),
        ("image.other", "mini", "image.other, 1 job"),  # rather one of the lane than nine of the kind
        ("article.any", "mini", None),
    ],
)
def test_the_narrowest_record_that_says_enough(lane, worker, basis):
    others = [*samples(9, 9, worker="book"), sample(5, lane="image.other")]
    found = Records.of([*samples(1, 2, 3, 4, 5, 6), *others]).find(lane, worker)
    assert (found.basis if found else None) == basis


def test_enough_is_enough():
    records = Records.of([*samples(*[1] * ENOUGH), *samples(*[2] * (ENOUGH - 1), worker="book")])
    assert records.find(LANE, "mini").who == "mini"
    assert records.find(LANE, "book").who == LANE


def test_an_empty_record_knows_nothing():
    assert Records().find(LANE, "mini") is None
    assert Records().patience_s(LANE, "mini") is None
    assert running(Records(), held(), NOW) is None
    assert waiting(Records(), LANE, Slot(0, 0, "mini"), NOW, NOW) is None


def test_a_kind_with_many_results_is_judged_by_some_of_them():
    many = [sample(number % 10, lane=f"image.m{number % 7}") for number in range(4 * MOST)]
    record = Records.of(many).find("image.other", "mini")
    assert record.basis == f"image, {MOST} jobs"
    assert {one.lane for one in record.samples} == {f"image.m{number}" for number in range(7)}


# ------------------------------------------------------------------------------------------------------- running


@pytest.mark.parametrize(
    ("elapsed_s", "left"),
    [
        (0, (50, 90)),
        (49, (26, 46)),  # of 50 … 100 half are over by 75, nine of ten by 95
        (98.5, (0.5, 1.5)),
        (99.5, (0.5, 0.5)),
        (100, None),  # none took longer: nothing is known
        (1e9, None),
    ],
)
def test_what_is_left_is_judged_by_those_that_took_longer(elapsed_s, left):
    assert Record("mini", samples(*range(1, 101))).left(elapsed_s) == left


@given(st.lists(st.floats(0, 1e4), min_size=1), st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_job_is_never_done_earlier_for_having_run_longer(took, one, other):
    record = Record("mini", samples(*took))
    early, late = sorted((one, other))
    if (after := record.left(late)) is not None:
        before = record.left(early)
        assert late + after.median_s >= early + before.median_s - 1e-6
        assert late + after.p90_s >= early + before.p90_s - 1e-6
        assert 0 < after.median_s <= after.p90_s
    else:
        assert late >= max(took)


PAINTED = (Stage("loading_model", 0, 10), Stage("generating_image", 10, 50), Stage("uploading", 50, 55))


@pytest.mark.parametrize(
    ("stage", "progress", "heard_s", "elapsed_s", "left_s"),
    [
        ("generating_image", 0.5, 0, 20, 30),  # 20 of the stage, 10 behind it; its age says 40
        ("generating_image", 0.5, 6, 20, 24),  # heard some time ago
        ("generating_image", 1.0, 30, 50, 0),
        ("generating_image", 0.5, 0, 500, 30),  # outlasts the record, but tells how far it is
        ("generating_image", 0.0, 0, 40, 20),  # its age ends it sooner: 60 - 40
        ("generating_image", None, 0, 500, None),
        ("upscaling", 0.5, 0, 20, 40),  # a stage that none had
        ("upscaling", 0.5, 0, 500, None),
    ],
)
def test_progress_ends_a_job_sooner(stage, progress, heard_s, elapsed_s, left_s):
    record = Record("mini", [sample(60, stages=PAINTED)] * ENOUGH)
    left = left_of(record, held(elapsed_s, stage, progress, heard_s), NOW)
    assert left == (None if left_s is None else (left_s, left_s))


def test_a_stage_that_came_twice_says_nothing_of_its_progress():
    twice = (Stage("generating_image", 0, 20), Stage("upscaling", 20, 30), Stage("generating_image", 30, 50))
    record = Record("mini", [sample(60, stages=twice)])
    assert record.left_in("generating_image", 0.5) is None
    assert record.left_in("upscaling", 0.5) == (35, 35)


def test_a_running_job_is_done_after_what_is_left():
    records = Records.of(samples(10, 20, 30, 40, 50))
    assert seconds(running(records, held(25), NOW)) == (15, 25, "mini, 5 jobs")
    assert seconds(running(records, held(60), NOW)) is None


def test_an_instant_past_the_calendar_is_not_known():
    assert running(Records.of(samples(1e300)), held(), NOW) is None


# ------------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize(
    ("slots", "begin"),
    [
        ([], []),
        ([Slot(0, 0, "mini")], [(0, "mini"), (10, "mini"), (20, "mini"), (30, "mini")]),
        ([Slot(4, 0, "mini")], [(4, "mini"), (14, "mini"), (24, "mini"), (34, "mini")]),
        (
            [Slot(0, 0, "mini", 2)],
            [(0, "mini"), (20, "mini"), (40, "mini"), (60, "mini")],
        ),  # two lanes take turns
        (
            [Slot(0, 1, "book"), Slot(0, 0, "mini")],  # the better rank first, then whoever is free
            [(0, "mini"), (0, "book"), (10, "mini"), (20, "mini")],
        ),
        ([Slot(0, 0, "mini"), Slot(3, 0, "mini")], [(0, "mini"), (3, "mini"), (10, "mini"), (13, "mini")]),
    ],
)
def test_the_jobs_of_a_lane_are_taken_one_after_another(slots, begin):
    turns = taken(slots, {"mini": 10, "book": 25}, 4)
    assert [(slot.free_s, slot.worker) for slot in turns] == begin


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3), st.sampled_from(["mini", "book"]), st.integers(1, 3))),
    st.floats(0.1, 50),
    st.integers(0, 40),
)
def test_no_job_begins_before_one_that_stands_before_it(slots, typical_s, count):
    typical = {"mini": typical_s, "book": 2 * typical_s}
    turns = taken([Slot(*slot) for slot in slots], typical, count)
    assert len(turns) == (count if slots else 0)
    begins = [slot.free_s for slot in turns]
    assert begins == sorted(begins)
    more = taken([Slot(*slot) for slot in [*slots, (0.0, 0, "mini", 1)]], typical, count)
    assert all(a.free_s <= b + 1e-6 for a, b in zip(more, begins, strict=False))  # one slot more delays nobody


def test_each_job_before_it_makes_its_end_less_sure():
    turns = taken([Slot(4, 0, "mini", 1, 1.0), Slot(0, 1, "book", 2)], {"mini": 10, "book": 10}, 6)
    assert [(slot.worker, slot.free_s, slot.before) for slot in turns] == [
        ("book", 0, 0),
        ("mini", 4, 1),
        ("mini", 14, 2),
        ("book", 20, 2),  # one of this lane, and one of the other
        ("mini", 24, 3),
        ("mini", 34, 4),
    ]


def test_a_waiting_job_takes_as_long_as_any_after_those_before_it():
    records = Records.of(samples(*range(10, 110, 10)))  # median 50, nine of ten 90
    assert seconds(waiting(records, LANE, Slot(0, 0, "mini"), NOW, NOW)) == (50, 90, "mini, 10 jobs")
    assert seconds(waiting(records, LANE, Slot(200, 0, "mini", 1, 3.0), NOW, NOW)) == (250, 330, "mini, 10 jobs")


@pytest.mark.parametrize(("due_s", "free_s", "done_s"), [(-30, 0, 50), (600, 0, 650), (600, 1000, 1050)])
def test_a_job_that_is_not_due_begins_no_sooner(due_s, free_s, done_s):
    records = Records.of(samples(*range(10, 110, 10)))
    found = waiting(records, LANE, Slot(free_s, 0, "mini"), NOW + timedelta(seconds=due_s), NOW)
    assert seconds(found)[0] == done_s


def test_a_slot_is_free_when_its_job_is_done():
    records = Records.of([*samples(*[60] * ENOUGH), *samples(*[20] * ENOUGH, lane="article.any")])
    own = Slot(0.0, 0, "mini", 2)
    article = held(5, lane="article.any")

    def free(*jobs, slots):
        return [(slot.free_s, slot.before) for slot in slots_of(records, LANE, own, slots, jobs, NOW)]

    assert free(slots=2) == [(0, 0), (0, 0)]
    assert free(held(40), slots=2) == [(20, 1), (0, 0)]
    assert free(article, slots=1) == [(15, 1)]
    assert free(held(40), article, held(10), slots=2) == [(50, 1), (20, 1)]  # the third is being delivered
    assert free(held(500), slots=1) == [(30, 1)]  # it outlasts the record
    assert free(held(5, lane="video.any"), slots=1) == [(55, 1)]  # nothing like it is on record


def test_what_is_typical_is_not_moved_by_one_that_took_days():
    assert Record("mini", samples(*[10] * 19, 1e6)).typical_s == 10
    assert Record("mini", samples(10, 20)).typical_s == 15


# --------------------------------------------------------------------------------------------- how it is read, silence


@pytest.mark.parametrize(
    ("elapsed_s", "marks", "stages"),
    [
        (None, None, [("", 0, 60)]),
        (50, None, [("", 0, 50)]),
        (50, [], [("", 0, 50)]),
        (50, [("a", 0), ("b", 10)], [("a", 0, 10), ("b", 10, 50)]),
        (None, [("a", 0), ("b", 10)], [("a", 0, 10), ("b", 10, 60)]),
        (-5, [("a", -3), ("b", 10), ("c", 4)], [("a", 0, 10), ("b", 10, 10), ("c", 4, 4)]),  # an agent's nonsense
    ],
)
def test_a_result_is_read_by_its_stages(elapsed_s, marks, stages):
    told = None if marks is None else [{"stage": name, "at_s": at_s} for name, at_s in marks]
    assert sample_of(DurationRow(LANE, "mini", 60, elapsed_s, told)).stages == tuple(Stage(*stage) for stage in stages)


def test_patience_is_a_multiple_of_the_longest_stage():
    usual = [sample(60, stages=PAINTED)] * (ENOUGH_FOR_PATIENCE - 1)
    assert Records.of(usual).patience_s(LANE, "mini") is None
    records = Records.of(
        [*usual, sample(90, stages=(Stage("loading_model", 0, 70), Stage("generating_image", 70, 88)))]
    )
    assert records.patience_s(LANE, "mini") == 70 * PATIENCE
    assert records.patience_s(LANE, "book") is None  # another worker's record says nothing of this one
    assert records.patience_s("image.other", "mini") is None


@given(st.lists(st.lists(st.floats(0, 1000), min_size=1, max_size=5), min_size=ENOUGH_FOR_PATIENCE, max_size=40))
def test_no_job_on_record_would_have_been_stopped(attempts):
    rows = []
    for lengths in attempts:
        at_s = [sum(lengths[:number]) for number in range(len(lengths))]
        marks = [{"stage": f"s{number}", "at_s": began} for number, began in enumerate(at_s)]
        rows.append(DurationRow(LANE, "mini", sum(lengths) + 1, sum(lengths), marks))
    patience_s = Records.of(map(sample_of, rows)).patience_s(LANE, "mini")
    assert all(length <= patience_s + 1e-6 for lengths in attempts for length in lengths)


@pytest.mark.parametrize(
    ("learned_s", "idle_s"),
    [(None, 120), (90, 90), (300, 120), (5, 60), (0, 60), (-1, 60)],
)
def test_what_is_learned_shortens_the_idle_clock_down_to_its_floor(learned_s, idle_s):
    limits = Limits(idle_s=120, least_idle_s=60)
    assert limits.learned(learned_s) == limits.model_copy(update={"idle_s": idle_s})


def test_a_setting_below_the_floor_stays():
    assert Limits(idle_s=20, least_idle_s=60).learned(5).idle_s == 20


def test_other_settings_are_left_alone():
    settings = ComfyUISettings(workflows=True, first_s=77)
    learned = settings.learned(200)
    assert (learned.idle_s, learned.first_s, learned.total_s) == (200, 77, settings.total_s)
    assert settings.learned(1).idle_s == settings.least_idle_s > Limits().least_idle_s
