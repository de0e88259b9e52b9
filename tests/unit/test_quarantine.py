"""How long a worker is set aside; what the ledger says of its streaks is in tests/ledger/test_streaks.py."""

from collections.abc import Sequence

from coordinator.ledger.queries import Streak, WorkerRow
from coordinator.quarantine import Rules, set_aside
from shared.states import WorkerState
from shared.wire import Presence

LANE = "image.any"
RULES = Rules(failures=3, pause_s=60.0, most_s=3600.0)


def row(name: str) -> WorkerRow:
    return WorkerRow(name, None, "one", frozenset(), None, None, Presence(instance="one"), WorkerState.READY, 0.0)


def streak(worker: str, failures: int, age_s: float) -> Streak:
    return Streak(worker, LANE, failures, "flat_image", None, age_s, empty=True, others=False)


def left_s(streaks: Sequence[Streak], *able: str) -> dict[str, float]:
    rows = {s.worker: row(s.worker) for s in streaks}
    found = set_aside(streaks, rows, RULES, executors=lambda *_: ("comfyui",), able=lambda _: frozenset(able))
    return {worker: one.back_in_s for (worker, _), one in found.items()}


def test_many_bad_jobs_in_a_row_do_not_close_a_lane_for_hours() -> None:
    """With nobody else there it may be the jobs; good ones wait behind them."""
    assert left_s([streak("mini", 10, 0.0)], "mini") == {"mini": 60.0}
    assert left_s([streak("mini", 10, 61.0)], "mini") == {}
    assert left_s([streak("mini", 10, 61.0), streak("book", 10, 61.0)], "mini", "book") == {}


def test_beside_a_good_one_the_pause_grows() -> None:
    assert left_s([streak("mini", 6, 0.0)], "mini", "book") == {"mini": 480.0}
