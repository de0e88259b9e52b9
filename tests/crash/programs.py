"""The programs of the crash tests: the real command lines of coordinator and agent, which may die at a failpoint.

    python -m tests.crash.programs coordinator|agent [--failpoint NAME [--skip N]]

Configured by environment, as users do. Nothing else can arm a failpoint (`shared/failpoints.py`).
"""

import argparse
import importlib
import sys

from shared.failpoints import Failpoint, arm

PROGRAMS = {
    "coordinator": ("coordinator.cli", ["tandem", "coordinator"]),
    "agent": ("agent.cli", ["tandem-agent", "run"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.crash.programs")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--failpoint", type=Failpoint, choices=list(Failpoint))
    parser.add_argument("--skip", type=int, default=0)
    asked = parser.parse_args()
    if asked.failpoint is not None:
        arm(asked.failpoint, skip=asked.skip)
    module, sys.argv = PROGRAMS[asked.program]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
