"""The numbers of a run: what was injected, what became of the jobs, and what lived through which kind of fault."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any
from uuid import UUID

from tests.crash.chaos.evidence import Evidence
from tests.crash.chaos.faults import CATALOGUE
from tests.crash.chaos.rig import AGENTS, QUICK_COORDINATOR
from tests.crash.chaos.verdict import COUNTED, Breach

HEARTBEAT_S = float(str(QUICK_COORDINATOR["heartbeat_s"]))
_LONGEST = 3


@dataclass(frozen=True)
class Injected:
    """A fault that was injected; seconds since 1970."""

    kind: str
    target: str
    at: float
    until: float

    def concerns(self, worker: str) -> bool:
        """Say whether it can have ended a lease of this worker: it hit that one, or no agent in particular."""
        hit = self.target.rpartition(":")[2]
        return hit not in AGENTS or hit == worker


@dataclass(frozen=True)
class Takeover:
    """A lease that lapsed, and the next claim of its job."""

    job_id: UUID
    epoch: int  # of the lease that lapsed
    worker: str
    silent_at: float
    claimed_at: float

    @property
    def seconds(self) -> float:
        return self.claimed_at - self.silent_at


def takeovers(evidence: Evidence) -> list[Takeover]:
    """Return each attempt whose lease lapsed and was followed by another: from its last sign of life to that claim."""
    found = []
    for (job_id, epoch), attempt in evidence.attempts.items():
        after = evidence.attempts.get((job_id, epoch + 1))
        if after is None or attempt["outcome"] != "lease_expired":
            continue
        silent_at = max(attempt["claimed_at"], attempt["heartbeat_at"] or attempt["claimed_at"])
        claimed_at = after["claimed_at"].timestamp()
        found.append(Takeover(job_id, epoch, attempt["worker"], silent_at.timestamp(), claimed_at))
    return found


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return how many there are, and the least, middle and most; None if there are none."""
    known = sorted(values)
    if not known:
        return None
    return {"n": len(known), "min": round(known[0], 3), "median": round(median(known), 3), "max": round(known[-1], 3)}


def summary(
    evidence: Evidence, breaches: Sequence[Breach], injected: Sequence[Injected], ran: dict[str, Any]
) -> dict[str, Any]:
    """Return everything that a run is told by, as JSON; `ran` is what the driver knows of itself."""
    taken = takeovers(evidence)
    verdicts = Counter(verdict for (_, _, _, verdict), n in evidence.rejected.items() for _ in range(n))
    acknowledged = [entry["job_id"] for entry in evidence.journal if entry["event"] == "acknowledged"]
    return {
        **ran,
        "faults": len(injected),
        "jobs": dict(Counter(job["state"] for job in evidence.jobs.values())),
        "acknowledged": len(acknowledged),
        "duplicates_collapsed": len(acknowledged) - len(set(acknowledged)),
        "attempts": dict(Counter(attempt["outcome"] or "open" for attempt in evidence.attempts.values())),
        "executions": sum(line.word == "start" for line in evidence.lines),
        "stale_rejected": verdicts["stale"],
        "rejected": dict(verdicts),
        "takeovers": _seconds(taken),
        "longest": [f"{t.job_id} epoch {t.epoch} of {t.worker}: {t.seconds:.1f} s" for t in _longest(taken)],
        **_counted(breaches),
        "breaches": [f"{b.rule}: job {b.job_id} epoch {b.epoch}: {b.text}" for b in breaches],
        "kinds": _by_kind(evidence, breaches, injected, taken),
    }


def _counted(breaches: Iterable[Breach]) -> dict[str, int]:
    """Return how many jobs were lost, doubled and stuck (a breach of no job counts as one)."""
    found: dict[str, set[object]] = defaultdict(set)
    for breach in breaches:
        for word, rules in COUNTED.items():
            if breach.rule in rules:
                found[word].add(breach.job_id or breach.text)
    return {word: len(found[word]) for word in COUNTED}


def _by_kind(
    evidence: Evidence, breaches: Sequence[Breach], injected: Sequence[Injected], taken: Sequence[Takeover]
) -> dict[str, dict[str, Any]]:
    """Return for each kind how often it came, how many jobs were alive meanwhile, and what went wrong with those."""
    lives = {
        job_id: (job["created_at"].timestamp(), (job["finished_at"] or datetime.now(UTC)).timestamp())
        for job_id, job in evidence.jobs.items()
    }
    found: dict[str, dict[str, Any]] = {}
    for kind in CATALOGUE:
        ours = [one for one in injected if one.kind == kind.name]
        alive = {job_id for job_id, (born, died) in lives.items() if any(o.at < died and o.until > born for o in ours)}
        mine = [t for t in taken if any(o.concerns(t.worker) and _meets(o, t) for o in ours)]
        touched = [breach for breach in breaches if ours and (breach.job_id is None or breach.job_id in alive)]
        found[kind.name] = {
            "injected": len(ours),
            "jobs": len(alive),
            **_counted(touched),
            "takeovers": _seconds(mine),
        }
    return found


def _longest(taken: Iterable[Takeover]) -> list[Takeover]:
    return sorted(taken, key=lambda one: -one.seconds)[:_LONGEST]


def _seconds(taken: Iterable[Takeover]) -> list[float]:
    return [round(one.seconds, 3) for one in taken]


def _meets(fault: Injected, takeover: Takeover) -> bool:
    """Say whether a fault was on when a lease fell silent: from the last sign of life to the next that was due."""
    return fault.at < takeover.silent_at + HEARTBEAT_S and fault.until > takeover.silent_at - 0.1
