"""docs/faults.md, out of the results of `chaos` and `measure`: every number in it was measured, none is typed.

It fails when one of the kinds of fault that must hold has no test that says so (`@pytest.mark.fault(n)`).
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.crash.chaos.counts import spread
from tests.crash.chaos.faults import CATALOGUE, TTL_S
from tests.crash.chaos.load import SUBMIT_ONLY_S
from tests.crash.chaos.marks import failpoints, fault_tests
from tests.crash.chaos.program import ROOT

PAGE = ROOT / "docs" / "faults.md"

MUST_HOLD = {
    1: "5,000 leases expire at once, and new ones meanwhile",
    2: "a long healthy job keeps its epoch",
    3: "completion and expiry interleaved at every step",
    4: "the agent's event loop blocked for twice the ttl",
    5: "an agent restarted under the same worker id within its lease",
    6: "a job that kills its agent on each claim",
    7: "a laptop that vanishes five times in the middle of a job",
    8: "the connection cut after the result was committed, before the answer",
    9: "delayed heartbeats and reports after a takeover",
    10: "heartbeat answers slow or missing",
    11: "a coordinator away for ten minutes with 20 jobs running",
    12: "NATS restarted, with and without its store, under 50 agents",
    13: "Postgres away for 60 s; deadlocks",
    14: "clocks that are off, and clocks that are set back",
    15: "sleep and wake",
    16: "SIGTERM at 50 random moments of a job",
    17: "undecodable and oversized messages at the head of each stream",
    18: "an idle agent frozen with its pull open",
    19: "an operator's retry right after completion",
}

_HEAD = """\
# Faults: what was injected, and what came of it

Written by `make faults`; every number here is measured. `make chaos` runs two coordinators, four agents, NATS and
Postgres as processes, has jobs of mixed kinds, lengths and outcomes arrive all the time, and breaks things at random,
several at once, out of one seed. Then all heals, and a verdict holds ledger, streams, files, the journal of
acknowledged submissions and the lines that generators wrote against each other (`tests/crash/chaos/verdict.py`).

- *lost*: an acknowledged submission, or a result or file of it, is gone
- *doubled*: a second result, a second execution of one epoch, or an older result published
- *stuck*: not settled, though a free agent could have taken it

What only SUBMIT has acknowledged (over NATS, or HTTP's 202 while Postgres is away) lives on NATS's disk until the
ledger has it. When that disk is wiped, the publisher here sends again what it had published in the last {again:g} s.
"""

_MATRIX = """\
*Jobs*: how many were alive while a fault of the kind was on; lost, doubled and stuck are of these. *Takeover*: seconds
from the last sign of life of an attempt whose lease lapsed, and which fell silent under such a fault, to the next claim
of its job, under a lease of {ttl:g} s. Several faults overlap: one takeover may stand in several lines, and with both
coordinators, NATS or Postgres away at once nobody can take over.
"""


def main(files: Sequence[Path], *, write: bool) -> int:
    """Print the page, or write it; return the exit status."""
    results = [json.loads(path.read_text()) for path in files]
    tests = fault_tests(ROOT / "tests")
    missing = sorted(set(MUST_HOLD) - set(tests))
    if missing:
        sys.stderr.write(f"no test is marked fault({', '.join(str(number) for number in missing)})\n")
        return 1
    runs = [result for result in results if "kinds" in result]
    measured = [result for result in results if "measures" in result]
    parts = [_runs(runs), _matrix(runs), _measures(measured), _must_hold(tests), _failpoints(), _machines(results)]
    page = "\n".join([_HEAD.format(again=SUBMIT_ONLY_S), *(line for part in parts for line in part)])
    if write:
        PAGE.write_text(page)
    else:
        sys.stdout.write(page)
    return 0


def print_run(found: Mapping[str, Any]) -> None:
    """Say what came of one run."""
    out = sys.stdout.write
    out(f"seed {found['seed']}: {found['faults']} faults in {found['seconds']:.0f} s ({found['skipped']} skipped)\n")
    for name, kind in found["kinds"].items():
        out(f"  {name:24} {kind['injected']:5}   takeover {_spread(kind['takeovers'])}\n")
    out(f"jobs: {_counts(found['jobs'])}\n")
    out(f"submitted: {_counts(found['submitted'])}; duplicates collapsed {found['duplicates_collapsed']}\n")
    out(f"attempts: {_counts(found['attempts'])}; executions seen {found['executions']}\n")
    out(f"reports not accepted: {_counts(found['rejected'])}\n")
    out(f"takeover, seconds (n, min / median / max): {_spread(found['takeovers'])}\n")
    out(f"longest: {'; '.join(found['longest'])}\n")
    out(f"log lines: {_counts(found['log_lines'])}\n")
    out(f"errors logged: {_counts(found['errors'])}\n")
    out(f"lost {found['lost']}, doubled {found['doubled']}, stuck {found['stuck']}\n")
    for breach in found["breaches"]:
        out(f"BREACH {breach}\n")
    out(f"{len(found['breaches']) or 'no'} breaches; seed {found['seed']}\n")


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            *(run["seed"], run["faults"], round(run["seconds"] / 60, 1), _counts(run["jobs"])),
            *(run["duplicates_collapsed"], run["stale_rejected"], _spread(run["takeovers"])),
            *(run["lost"], run["doubled"], run["stuck"], len(run["breaches"])),
            sum(run["log_lines"].values()),
        )
        for run in runs
    ]
    columns = ("seed", "faults", "minutes", "jobs", "duplicates collapsed", "stale results rejected", "takeover, s")
    columns += ("lost", "doubled", "stuck", "breaches", "log lines")
    return ["## Runs\n", *_table(columns, rows), ""]


def _matrix(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    takeovers: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, found in run["kinds"].items():
            takeovers[name] += found["takeovers"]
            sums[name].update({word: found[word] for word in ("injected", "jobs", "lost", "doubled", "stuck")})
    rows = [
        (
            f"`{kind.name}`", kind.what, sums[kind.name]["injected"], sums[kind.name]["jobs"], sums[kind.name]["lost"],
            sums[kind.name]["doubled"], sums[kind.name]["stuck"], _spread(takeovers[kind.name]),
        )
        for kind in CATALOGUE
    ]  # fmt: skip
    injected = sum(run["faults"] for run in runs)
    wrong = [sum(run[word] for run in runs) for word in ("lost", "doubled", "stuck")]
    rows.append(("all", "", injected, "", *wrong, _spread([seconds for run in runs for seconds in run["takeovers"]])))
    columns = ("kind", "what", "injected", "jobs", "lost", "doubled", "stuck", "takeover: n, min / median / max, s")
    return ["## The matrix\n", _MATRIX.format(ttl=TTL_S), *_table(columns, rows), ""]


def _measures(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            one["what"],
            one["aim"],
            one.get("n", 0),
            one["missing"] or "",
            *(one.get(w, "") for w in ("min", "median", "max")),
        )
        for result in measured
        for one in result["measures"].values()
    ]
    columns = ("from, to", "aim", "rounds", "not within 100 s", "min, s", "median, s", "max, s")
    return ["## Until another takes over\n", *_table(columns, rows), ""]


def _must_hold(tests: Mapping[int, Sequence[str]]) -> list[str]:
    rows = [(number, what, "<br>".join(f"`{test}`" for test in tests[number])) for number, what in MUST_HOLD.items()]
    return ["## Kinds that must hold, each with its tests\n", *_table(("", "kind", "tests"), rows), ""]


def _failpoints() -> list[str]:
    rows = [(f"`{point.name}`", point.what, f"`{point.test}`") for point in failpoints(ROOT)]
    if not rows:
        return []
    text = "A process is killed between two durable steps: what is done already | what is not yet.\n"
    rows = [(name, what.replace("|", "\\|"), test) for name, what, test in rows]
    return ["## Failpoints\n", text, *_table(("failpoint", "where", "tested by"), rows), ""]


def _machines(results: Iterable[Mapping[str, Any]]) -> list[str]:
    told = dict.fromkeys(", ".join(f"{k} {v}" for k, v in result["machine"].items()) for result in results)
    return ["## On what it ran\n", *told, ""]


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]


def _spread(seconds: Iterable[float]) -> str:
    found = spread(seconds)
    if found is None:
        return ""
    return f"{found['n']:.0f}: {found['min']:.1f} / {found['median']:.1f} / {found['max']:.1f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
