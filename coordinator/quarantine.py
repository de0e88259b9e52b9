"""Quarantine: which workers are set aside in a lane, so that one broken Mac does not eat its queue (DESIGN §2).

A worker is set aside in a lane when its last attempts there all failed in a way that may be the machine's, though other
workers succeeded there, or though what it delivered had no content. It comes back after a pause that doubles with each
further failure, and a good probe since the last one; a machine without probes, or the only one that can, after the
pause alone: a job must not wait for ever. One success, or an operator's `resume`, ends it.

Nothing of this is kept: it follows from the attempts on record (streaks.sql) and the presences, so that every
coordinator, also one just started, says the same. `Directory.once` asks; claims, presence and dispatcher obey.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.ledger.queries import Streak, WorkerRow

EMPTY_CODES = ("empty", "flat_image")
"""Errors that say that an answer came, without content: no comparison with other workers is needed."""

PROBES = "probes"
"""The fact in a presence that holds, by executor, the seconds since it last proved that it generates; null = never."""

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a worker is set aside, and for how long. Durations in seconds."""

    failures: int = 3  # in a row
    pause_s: float = 60.0  # after the first of them; doubles with each further failure
    most_s: float = 3600.0
    recently_s: float = 3600.0  # so long before a failure another worker's success still counts
    within_s: float = 86400.0  # older attempts are forgotten
    attempts: int = 300  # of each worker that are looked at


@dataclass(frozen=True, slots=True)
class SetAside:
    """A worker that gets nothing from a lane for now, and why."""

    worker: str
    lane: str
    failures: int
    code: str | None
    since_s: float  # since its last failure
    back_in_s: float  # left of the pause; 0: it waits for a good probe
    reason: str  # for people

    def shown(self) -> dict[str, Any]:
        """Return it as the API shows it with its worker."""
        return {
            "lane": self.lane,
            "failures": self.failures,
            "code": self.code,
            "since_s": round(self.since_s, 1),
            "back_in_s": round(self.back_in_s, 1),
            "reason": self.reason,
        }


def set_aside(
    streaks: Sequence[Streak],
    rows: Mapping[str, WorkerRow],
    rules: Rules,
    *,
    executors: Callable[[WorkerRow, str], Iterable[str]],
    able: Callable[[str], frozenset[str]],
) -> dict[tuple[str, str], SetAside]:
    """Return who is set aside, by worker and lane.

    `executors`: which of a worker's executors serve a lane; `able`: who is present, ready and serves it.
    """
    doubtful = [s for s in streaks if s.worker in rows and (s.empty or s.others)]
    suspects = {lane: {s.worker for s in doubtful if s.lane == lane} for lane in {s.lane for s in doubtful}}
    found = {}
    for streak in doubtful:
        alone = not able(streak.lane) - suspects[streak.lane]  # a bad run of jobs must not close the lane for hours
        pause = rules.pause_s if alone else pause_s(streak.failures, rules)
        back_in_s = max(pause - streak.age_s, 0.0)
        if not back_in_s:
            row = rows[streak.worker]
            if alone or is_proven(row, executors(row, streak.lane), streak.age_s):
                continue
        found[streak.worker, streak.lane] = SetAside(
            streak.worker,
            streak.lane,
            streak.failures,
            streak.code,
            streak.age_s,
            back_in_s,
            _reason(streak, back_in_s),
        )
    return found


def pause_s(failures: int, rules: Rules) -> float:
    """Return how long a worker with so many failures in a row is set aside at least."""
    doublings = min(max(failures - rules.failures, 0), _MOST_DOUBLINGS)
    return min(rules.pause_s * 2.0**doublings, rules.most_s)


def is_proven(row: WorkerRow, executors: Iterable[str], failed_s: float) -> bool:
    """Say whether one of these executors generated well since a failure `failed_s` ago, or has no probe to say so."""
    probes = (row.presence.facts if row.presence else {}).get(PROBES)
    if not isinstance(probes, dict):
        return True
    for executor in executors:
        if executor not in probes:
            return True
        good_s = probes[executor]
        if isinstance(good_s, int | float) and row.age_s + good_s < failed_s:
            return True
    return False


def _reason(streak: Streak, back_in_s: float) -> str:
    why = "answers without content" if streak.empty else "while others succeeded"
    last = f"{streak.code}: {streak.message}" if streak.message else str(streak.code)
    back = f"back in {back_in_s:.0f} s at the earliest" if back_in_s else "waits for a good probe"
    return f"{streak.failures} failures in a row in {streak.lane}, {why}; last {last}; {back}"
