"""`make chaos`: break a whole Tandem at random, and say what came of it. `make faults` writes docs/faults.md.

    python -m tests.crash chaos [--seed N] [--minutes M] [--faults N] [--results FILE] [--keep]
    python -m tests.crash measure [--rounds N] [--results FILE]
    python -m tests.crash report FILE... [--write]

Exit status of `chaos`: 1 on any breach; then all logs and data are kept, and it says where.
"""

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import uvloop

from shared import log
from tests.crash.chaos import driver, measure, report


def main() -> int:
    options = _options()
    if options.command == "report":
        return report.main(options.files, write=options.write)
    log.configure(json=True, level="error")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure.run(options.rounds) if options.command == "measure" else _chaos(options))
    if options.results is not None:
        options.results.write_text(json.dumps(found, indent=2, default=str))
    return 1 if found.get("breaches") else 0


async def _chaos(options: argparse.Namespace) -> dict[str, Any]:
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    stop = asyncio.Event()
    minutes = options.minutes or (3.0 if options.faults is None else 24 * 60.0)
    chosen = driver.Options(seed=seed, minutes=minutes, faults=options.faults, keep=options.keep)
    with driver.stopped_by_signals(stop):
        found = await driver.run(chosen, stop)
    report.print_run(found)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    chaos = commands.add_parser("chaos", help="faults at random, then the verdict")
    chaos.add_argument("--seed", type=int, help="default: another each time; it is printed")
    chaos.add_argument("--minutes", type=float, help="how long faults are injected (default 3)")
    chaos.add_argument("--faults", type=int, help="end after so many faults")
    chaos.add_argument("--keep", action="store_true", help="keep logs and data in any case")
    measuring = commands.add_parser("measure", help="seconds until another takes over")
    measuring.add_argument("--rounds", type=int, default=10)
    for parts in (chaos, measuring):
        parts.add_argument("--results", type=Path, help="write the numbers there as JSON")
    reporting = commands.add_parser("report", help="turn results into docs/faults.md")
    reporting.add_argument("files", type=Path, nargs="+")
    reporting.add_argument("--write", action="store_true", help="write docs/faults.md instead of printing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
