"""How long to wait before trying again: pure functions, randomness is passed in."""

from collections.abc import Sequence

RECONNECT_S: Sequence[float] = (1, 2, 5, 10, 30, 60)
"""Seconds between attempts to reach a server again; the last one repeats (PROTOCOL, Defaults)."""

JITTER = 0.2
"""Every wait is spread by ±20 %, so that fifty agents don't come back in the same second."""


def reconnect_delay_s(failures: int, jitter: float, schedule: Sequence[float] = RECONNECT_S) -> float:
    """Return the seconds to wait after `failures` (0 = first) failed attempts; `jitter` in [-1, 1]."""
    return schedule[min(max(failures, 0), len(schedule) - 1)] * (1 + JITTER * jitter)


def retry_delay_s(
    failures: int, jitter: float, *, base_s: float = 10.0, most_s: float = 600.0, factor: int = 2
) -> float:
    """Return base x factor^(failures-1), at most `most_s`, spread by `jitter` in [-1, 1]; `failures` starts at 1."""
    steps = min(max(failures - 1, 0), 32)
    return min(base_s * float(factor**steps), most_s) * (1 + JITTER * jitter)
