"""What the demo shows while it runs: a live table on a terminal, plain lines elsewhere. Knows nothing of the story."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.cli_show import state as state_in_colour
from coordinator.cli_show import table
from shared.client import JobLine

_LINES = 12
_BAR_WIDTH = 16
_STYLES = {"bad": "bold red", "good": "green", "news": "cyan", "quiet": "dim"}


@dataclass(slots=True)
class Screen:
    """Jobs in the order of their submission, and what happened, newest last."""

    console: Console
    live: bool
    began_at: float = field(default_factory=time.monotonic)
    _jobs: list[JobLine] = field(default_factory=list)
    _said: deque[Text] = field(default_factory=lambda: deque(maxlen=_LINES))
    _known: dict[str, tuple[str, str | None, int]] = field(default_factory=dict)
    _live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it while in the block; the last picture stays."""
        if not self.live:
            yield
            return
        with Live(self._picture(), console=self.console, refresh_per_second=8) as live:
            self._live = live
            try:
                yield
            finally:
                self._update()
                self._live = None

    def say(self, text: str, tone: str = "quiet") -> None:
        """Tell one thing that happened."""
        line = Text.assemble((f"{time.monotonic() - self.began_at:5.1f} s  ", "dim"), (text, _STYLES[tone]))
        if self.live:
            self._said.append(line)
            self._update()
        else:
            self.console.print(line, soft_wrap=True)

    def show(self, jobs: Sequence[JobLine]) -> None:
        """Show how the jobs stand now."""
        self._jobs = list(jobs)
        if self.live:
            self._update()
            return
        for job in jobs:
            now = (str(job.state), job.worker, job.epoch)
            if self._known.get(str(job.id)) != now:
                self._known[str(job.id)] = now
                held = f" on {job.worker}, epoch {job.epoch}" if job.worker and job.state != "pending" else ""
                self.say(f"  {job.key}: {job.state}{held}")

    def _update(self) -> None:
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self) -> Group:
        made = table("POST", "KIND", "STATE", "WORKER", "EPOCH>", "STAGE", "")
        for job in self._jobs:
            running = job.state == "processing"
            made.add_row(
                escape(job.key or "-"),
                job.kind,
                state_in_colour(job.state),
                escape(job.worker or "-") if job.state != "pending" else "-",
                str(job.epoch or "-"),
                escape(job.stage or "starting") if running else "",
                _bar(job),
            )
        return Group(made, Text(), *self._said)


def _bar(job: JobLine) -> ProgressBar | str:
    """Return how far it is; a lease that is running out while nobody beats shows as it is."""
    if job.state == "completed":
        return ProgressBar(total=1, completed=1, width=_BAR_WIDTH)
    return ProgressBar(total=1, completed=job.progress or 0, width=_BAR_WIDTH) if job.state == "processing" else ""


def summary(rows: Sequence[tuple[str, str]]) -> Table:
    """Return the table of what came out: what was promised, and what is on record."""
    made = table("WHAT", "ON RECORD")
    for what, record in rows:
        made.add_row(what, escape(record))
    return made
