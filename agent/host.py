"""The machine: a clock that runs on while it sleeps, and noticing that it slept.

asyncio's timers and `time.monotonic` stand still while a Mac sleeps (facts/mac.md C.6), so leases and deadlines are
measured with `Clock.now`. `SleepWatch` sees a gap that its own timer can't explain: the machine slept, or the process
was stopped. Only the first brings the grace in which nothing is claimed.
"""

import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

WATCH_S = 5.0
GAP_S = 10.0
"""A round that came so much too late was no ordinary delay."""

_log = structlog.get_logger()


class Clock:
    """Seconds that never stand still or jump: `now` for every lease and deadline."""

    def __init__(self) -> None:
        """Choose the clock that this system keeps running in sleep."""
        name = "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
        self._id: int = getattr(time, name, time.CLOCK_MONOTONIC)

    def now(self) -> float:
        """Return the seconds since some fixed moment, sleep included."""
        return time.clock_gettime(self._id)

    def awake(self) -> float:
        """Return the same without the time asleep."""
        return time.monotonic()


@dataclass(slots=True)
class SleepWatch:
    """Looks every `WATCH_S` whether time has passed that nobody saw."""

    clock: Clock
    grace_s: float
    on_gap: list[Callable[[], None]] = field(default_factory=list)
    _seen: float = 0.0
    _seen_awake: float = 0.0
    _grace_until: float = 0.0

    def __post_init__(self) -> None:
        """Begin now."""
        self._seen, self._seen_awake = self.clock.now(), self.clock.awake()

    @property
    def in_grace(self) -> bool:
        """Whether the machine woke only just, and may be asleep again in seconds; seen without waiting for a round."""
        now, awake = self.clock.now(), self.clock.awake()
        unseen_s = (now - self._seen) - (awake - self._seen_awake)
        return now < self._grace_until or (unseen_s > GAP_S and self.grace_s > 0)

    async def once(self) -> None:
        """Compare the clocks; after a gap tell everybody who must not trust what they knew before it."""
        now, awake = self.clock.now(), self.clock.awake()
        passed_s, awake_s = now - self._seen, awake - self._seen_awake
        self._seen, self._seen_awake = now, awake
        if passed_s < WATCH_S + GAP_S:
            return
        asleep_s = passed_s - awake_s
        if asleep_s > GAP_S:
            self._grace_until = now + self.grace_s
        _log.info("time passed unseen", passed_s=round(passed_s, 1), asleep_s=round(max(asleep_s, 0), 1))
        for callback in self.on_gap:
            callback()


def facts(data: Path) -> dict[str, object]:
    """Return what presence tells of this machine; quick, no child processes."""
    found: dict[str, object] = {"python": platform.python_version(), "cpus": os.cpu_count() or 0}
    try:
        found["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        found["load"] = round(os.getloadavg()[0], 2)
        found["disk_free_bytes"] = shutil.disk_usage(data).free
    except (OSError, ValueError):
        pass  # a fact that this system does not tell
    return found


def name() -> str:
    """Return this machine's name, for people; identity is the worker's name."""
    return socket.gethostname()


def system() -> str:
    """Return the platform in one word: `darwin-arm64`."""
    return f"{sys.platform}-{platform.machine()}"
