"""The picture of `tandem watch`: what it says, and that it fits, whatever it is given."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from coordinator.cli_watch_picture import Picture, Seen
from shared.client import JobLine, LaneLine, PredictedFinish, RejectedResult, RunningLine, WorkerLine

NOW = datetime.now(UTC)
JOB_ID = UUID("01970000-0000-7000-8000-000000000001")


def drawn(seen: Seen | None, *, width: int = 80, height: int | None = None, now: float = 0.0, **more: Any) -> str:
    """Return the picture as a terminal of this size would show it."""
    out = Console(width=width, color_system=None, force_terminal=True, highlight=False, legacy_windows=False)
    options = out.options.update(width=width, height=height)
    lines = out.render_lines(Picture(seen, url="http://here", now=now, **more), options, pad=False)
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


def seen(**more: Any) -> Seen:
    return Seen(**{"url": "http://here", "read_at": 0.0, "now": NOW, "jobs": {"pending": 0}, **more})


def running(**more: Any) -> RunningLine:
    told = {
        "id": JOB_ID,
        "key": "post-812",
        "source": "blog",
        "kind": "article",
        "worker": "mini",
        "lane": "article.any",
        "epoch": 1,
        "claimed_at": NOW,
        "stage": "generating_text",
        "progress": 0.45,
        "since_s": 42.0,
        "heartbeat_age_s": 3.0,
        "lease_left_s": 87.0,
        "predicted_finish": PredictedFinish(median=NOW, p90=NOW + timedelta(seconds=9), basis="mini, 41 jobs"),
    }
    return RunningLine.model_validate({**told, **more})


def worker(name: str = "mini", **more: Any) -> WorkerLine:
    facts = {"power": "mains", "memory_bytes": 32 * 2**30, "memory_free_bytes": 12 * 2**30}
    presence = {
        "state": "ready",
        "warm": ["llama3.1:8b"],
        "capabilities": [
            {"kind": "article", "models": ["gemma3:4b", "llama3.1:8b"]},
            {"kind": "image", "models": ["*"]},
        ],
        "facts": facts,
    }
    told = {"name": name, "present": True, "wanted": "ready", "seen_age_s": 2.0, "presence": presence}
    return WorkerLine.model_validate({**told, **more})


def failed(**more: Any) -> JobLine:
    told = {
        "id": JOB_ID,
        "key": "post-7",
        "source": "blog",
        "kind": "image",
        "lane": "image.any",
        "state": "failed",
        "created_at": NOW - timedelta(hours=1),
        "finished_at": NOW - timedelta(seconds=90),
        "worker": "macbook",
        "error": {"code": "no_disk", "message": "the disk is full"},
    }
    return JobLine.model_validate({**told, **more})


def late(**more: Any) -> RejectedResult:
    told = {"job_id": JOB_ID, "epoch": 3, "worker": "macbook", "verdict": "stale", "reason": "an older epoch"}
    return RejectedResult.model_validate({**told, "current_epoch": 4, "at": NOW, "late_s": 41.0, **more})


FULL = seen(
    jobs={"processing": 1, "pending": 12, "failed": 1},
    running=[running()],
    lanes=[LaneLine(name="image.any", paused=False, waiting=12, offered=0, processing=0, waits_s=700.0, why="no Mac")],
    workers=[worker(last_hour={"completed": 3, "failed": 1}), worker("macbook", present=False, seen_age_s=300.0)],
    failed=[failed()],
    late=[late()],
)


@pytest.mark.parametrize("width", [80, 160])
def test_it_says_what_the_overview_says(width: int) -> None:
    shown = drawn(FULL, width=width)

    for words in (
        *("1 running", "12 waiting", "1 failed", "3 completed, 1 failed", "workers here: 1 of 2"),
        *("post-812", "mini", "45% generating text", "42.0s", "3.0s", "1m 27s"),
        *("image.any", "11m 40s", "no Mac"),
        *("● llama3.1:8b", "gemma3:4b", "any image", "mains", "12.0 GiB of 32.0 GiB free"),
        *("macbook", "away", "heard of 5m 00s ago"),
        *("1m 30s ago", "post-7 image", "no_disk the disk is"),
        *("stale: epoch 3, current 4", "41.0s late"),
    ):
        assert words in shown, words
    assert all(len(line) <= width for line in shown.splitlines())


@pytest.mark.parametrize("width", [40, 80, 160])
def test_it_fits_whatever_others_named_theirs(width: int) -> None:
    long = "wort" * 40
    shown = drawn(
        seen(
            trouble=[long],
            running=[running(key=long, worker=long, stage=long, attempt=2, max_attempts=5)],
            lanes=[LaneLine(name=long, paused=True, waiting=10**9, offered=0, processing=0, waits_s=9e6, why=long)],
            workers=[worker(long, why_idle=[long, long])],
            failed=[failed(key=long, error={"code": long, "message": long})],
            late=[late(worker=long, epoch=None, reason=long)],
        ),
        width=width,
    )
    assert all(len(line) <= width for line in shown.splitlines())


@pytest.mark.parametrize("height", [24, 60])
def test_a_low_terminal_shows_the_beginning_of_each_part_and_counts_the_rest(height: int) -> None:
    many = seen(running=[running(key=f"post-{n}") for n in range(40)], workers=[worker(f"mac-{n}") for n in range(9)])
    shown = drawn(many, height=height).splitlines()
    assert len(shown) <= height
    assert any("more lines" in line for line in shown)
    assert any("mac-0" in line for line in shown)
    assert any("post-0" in line for line in shown)


def test_what_jobs_bring_gives_the_terminal_no_orders() -> None:
    order = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
    shown = drawn(
        seen(
            trouble=[order],
            running=[running(key=order, worker=order, stage=order)],
            lanes=[LaneLine(name="a.b", paused=False, waiting=1, offered=0, processing=0, why=order)],
            workers=[worker(order, why_idle=[order])],
            failed=[failed(error={"code": order, "message": "[red]plain[/red]"})],
            late=[late(worker=order, verdict=order)],
        ),
        away=(NOW, order),
        width=160,
    )
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "[red]plain[/red]" in shown


def test_times_run_on_until_the_coordinator_is_away() -> None:
    assert "52.0s" in drawn(FULL, now=10.0)
    assert "1m 17s" in drawn(FULL, now=10.0)
    assert "0.0s" in drawn(FULL, now=500.0)  # a lease that is over is not less than over
    shown = drawn(FULL.still(["the ledger is away"]), now=10.0, away=(NOW, "can't reach it"))
    assert "42.0s" in shown
    assert "coordinator away since" in shown
    assert "can't reach it" in shown
    assert "what is shown is from before" in shown


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({}, "ready"),
        ({"holds": [{"job_id": "x"}]}, "busy"),
        ({"wanted": "paused", "holds": [{"job_id": "x"}]}, "paused"),
        ({"presence": {"state": "unhealthy"}}, "unhealthy"),
        ({"presence": {"state": "ready", "facts": {"not_pulling": "on_battery"}}}, "blocked"),
        ({"aside": [{"lane": "article.any"}]}, "blocked"),
        ({"present": False, "holds": [{"job_id": "x"}]}, "away"),
        ({"presence": None, "present": False, "seen_age_s": None}, "never heard of"),
    ],
)
def test_a_workers_state_is_the_gravest_word(told: dict[str, Any], state: str) -> None:
    assert state in drawn(seen(workers=[worker("mac", **told)]))


def test_with_nothing_there_it_says_so() -> None:
    shown = drawn(seen())
    for words in ("nothing runs", "nothing waits", "no worker was ever heard of", "nothing failed", "no result"):
        assert words in shown
    assert drawn(None).startswith("Tandem http://here")
