"""A run of chaos: load and faults side by side, then all heals, comes to rest, and is judged.

start → faults, one every `GAP_S` on average, overlapping → heal → rest (bounded) → verdict → numbers
"""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from shared.bus import BusError
from tests.crash.chaos.counts import Injected, summary
from tests.crash.chaos.evidence import gather
from tests.crash.chaos.faults import Drawn, draw, heal
from tests.crash.chaos.load import Load
from tests.crash.chaos.machine import machine
from tests.crash.chaos.rig import SOURCE, Rig, rig
from tests.crash.chaos.verdict import judge

GAP_S = (0.3, 1.2)
MOST_AT_ONCE = 12
REST_S = 90.0
READY_S = 90.0
WARM_S = 2.0
_TELL_S = 15.0
_ERROR_MOST = 6000

_UNREST = """
SELECT
    count(*) FILTER (WHERE state IN ('pending', 'processing')) AS alive,
    count(*) FILTER (WHERE unpublished) AS unpublished
FROM job
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    seed: int
    minutes: float
    faults: int | None = None  # end after so many
    jobs_per_s: float = 2.0
    keep: bool = False


class Ears:
    """Hears what the programs write: refusals for the verdict, and errors, which deserve a look."""

    def __init__(self) -> None:
        self.judged: list[dict[str, Any]] = []
        self.errors: Counter[str] = Counter()
        self.first_errors: dict[str, str] = {}

    def heard(self, name: str, line: bytes) -> None:
        with contextlib.suppress(orjson.JSONDecodeError):  # a line that a kill cut short
            if b'"report judged"' in line:
                entry = orjson.loads(line)
                if entry["verdict"] != "accepted":
                    self.judged.append(entry)
            elif b'"level":"error"' in line:
                self._error(name, orjson.loads(line)["event"], line)
            elif line.startswith(b"Traceback"):
                self._error(name, "traceback", line)

    def _error(self, name: str, event: str, line: bytes) -> None:
        key = f"{name}: {event}"
        self.errors[key] += 1
        self.first_errors.setdefault(key, line[:_ERROR_MOST].decode(errors="replace"))


class Faults:
    """Injects what the seed draws; several at once, never two on the same thing."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.injected: list[Injected] = []
        self.skipped = 0
        self._rig = rig
        self._chance = random.Random(f"{seed}:faults")
        self._touched: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, until: float, most: int | None, stop: asyncio.Event) -> None:
        """Inject until the loop's clock says `until`, or `most` have been injected; then wait until all is healed."""
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        while loop.time() < until and not stop.is_set() and (most is None or len(self.injected) < most):
            await asyncio.sleep(self._chance.uniform(*GAP_S))
            self._begin(draw(self._chance))
            if loop.time() > told_at + _TELL_S:
                told_at = loop.time()
                say(f"{len(self.injected)} faults")
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, drawn: Drawn) -> None:
        if drawn.touches & self._touched or len(self._tasks) >= MOST_AT_ONCE:
            self.skipped += 1
            return
        self._touched |= drawn.touches
        task = asyncio.create_task(self._strike(drawn), name=f"fault:{drawn.kind.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _strike(self, drawn: Drawn) -> None:
        at = time.time()
        try:
            if await drawn.kind.strike(self._rig, drawn):
                self.injected.append(Injected(drawn.kind.name, drawn.target, at, time.time()))
        except Exception as error:  # noqa: BLE001 - one that could not be injected does not end the run
            say(f"{drawn.kind.name} on {drawn.target} went wrong: {error!r}")
        finally:
            self._touched -= drawn.touches
            with (self._rig.folder / "faults.log").open("a") as log:
                log.write(f"{at:.3f} {time.time():.3f} {drawn.kind.name} {drawn.target} {drawn.hold_s:.2f}\n")


async def run(options: Options, stop: asyncio.Event) -> dict[str, Any]:
    """Run it; return its numbers. The folder stays when there is a breach."""
    began, ears = time.monotonic(), Ears()
    found: dict[str, Any] = {"breaches": ["the run did not come to its end"]}
    folder: Path | None = None
    say(f"seed {options.seed}")
    try:
        async with rig(heard=ears.heard, keep=lambda: options.keep or bool(found["breaches"])) as made:
            folder = made.folder
            say(f"ready in {folder}")
            async with _loaded(made, options) as load:
                faults = Faults(made, options.seed)
                await asyncio.sleep(WARM_S)
                await faults.run(asyncio.get_running_loop().time() + 60 * options.minutes, options.faults, stop)
                await heal(made)
                await made.until_ready(within_s=READY_S)
                load.finish()
            await _rest(made)
            evidence = await gather(made, ears.judged)
            ran = {
                "seed": options.seed,
                "machine": machine(),
                "seconds": round(time.monotonic() - began, 1),
                "skipped": faults.skipped,
                "submitted": dict(load.counts),
                "log_lines": {name: program.lines for name, program in made.programs.items()},
                "starts": {name: program.starts for name, program in made.programs.items()},
                "ends": {name: dict(program.ends) for name, program in made.programs.items()},
                "errors": dict(ears.errors),
                "first_errors": ears.first_errors,
            }
            found = summary(evidence, judge(evidence), faults.injected, ran)
    finally:
        if folder is not None and folder.exists():
            say(f"everything is kept in {folder}")
    return found


@asynccontextmanager
async def _loaded(made: Rig, options: Options) -> AsyncIterator[Load]:
    """Submit while the block runs, and then until all that was begun is answered."""
    async with made.servers.open(f"publisher:{SOURCE}") as bus:
        load = Load(made, bus, options.seed, per_s=options.jobs_per_s)
        made.wiped = load.republish
        task = asyncio.create_task(load.run(), name="load")
        try:
            yield load
            done, _ = await asyncio.wait({task}, timeout=READY_S)
            if done:
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _rest(made: Rig) -> None:
    """Wait until nothing is under way and nothing lies unread; what moves then yet is for the verdict to judge."""
    say("healed; waiting until nothing is under way")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REST_S), made.servers.open("coordinator") as bus:
            while not await _at_rest(made, bus):  # noqa: ASYNC110 - other processes' state
                await asyncio.sleep(0.5)


async def _at_rest(made: Rig, bus: Any) -> bool:
    try:
        (row,) = await made.sql(_UNREST, timeout_s=10.0)
        left = 0
        for stream in ("SUBMIT", "REPORTS", "WORK"):
            left += (await bus.api(f"STREAM.INFO.{stream}"))["state"]["messages"]
    except (OSError, asyncpg.PostgresError, BusError):
        return False
    return not (row["alive"] or row["unpublished"] or left)


def say(text: str) -> None:
    sys.stderr.write(f"chaos {time.strftime('%H:%M:%S')}  {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Any:
    """Let Ctrl-C end the faults early: what was begun is still judged."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
