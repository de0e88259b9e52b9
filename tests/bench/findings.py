"""What was measured, as values, and how it is shown."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Finding:
    part: str
    what: str
    value: float
    unit: str
    aim: str = ""
    note: str = ""
    settled: int | None = None  # jobs in the ledger
    sync: str = ""  # JetStream's sync_interval

    def at(self, settled: int, sync: str) -> "Finding":
        return replace(self, settled=settled, sync=sync)


@dataclass(slots=True)
class Findings:
    machine: dict[str, str]
    quiet: bool = False
    found: list[Finding] = field(default_factory=list)

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress, for people

    def add(self, finding: Finding) -> None:
        self.found.append(finding)
        note = f"  ({finding.note})" if finding.note else ""
        self.say(f"  {finding.part}: {finding.what} {finding.value:,} {finding.unit}{note}")

    def value(self, part: str, what: str, *, full: bool) -> float | None:
        return next(
            (f.value for f in self.found if f.part == part and f.what == what and bool(f.settled) == full), None
        )

    def as_json(self) -> str:
        return json.dumps({"machine": self.machine, "findings": [asdict(f) for f in self.found]}, indent=1)

    def as_markdown(self) -> str:
        """Return the table as docs/benchmarks.md has it."""
        lines = [", ".join(f"{name} {value}" for name, value in self.machine.items()), ""]
        lines += ["| part | what | settled jobs | sync | measured | aim | note |", "|---|---|---:|---|---:|---|---|"]
        for f in sorted(self.found, key=lambda f: f.part):
            settled = "" if f.settled is None else f"{f.settled:,}"
            lines.append(f"| {f.part} | {f.what} | {settled} | {f.sync} | {f.value:,} {f.unit} | {f.aim} | {f.note} |")
        return "\n".join(lines)

    def print_table(self) -> None:
        console = Console(width=None if sys.stdout.isatty() else 150)
        table = Table(title=", ".join(f"{k} {v}" for k, v in self.machine.items()), title_justify="left")
        for name in ("part", "what", "settled jobs", "sync", "measured", "", "aim", "note"):
            table.add_column(name, justify="right" if name in ("settled jobs", "measured") else "left")
        last = ""
        for f in sorted(self.found, key=lambda f: f.part):
            if last and last != f.part:
                table.add_section()
            last = f.part
            settled = "" if f.settled is None else f"{f.settled:,}"
            table.add_row(f.part, f.what, settled, f.sync, f"{f.value:,}", f.unit, f.aim, f.note)
        console.print(table)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(round(share * (len(ordered) - 1)), len(ordered) - 1)]
