"""Retention: what is older than its age is trimmed, in batches so small, and with such pauses, that no claim waits.

Each batch is one statement of some milliseconds that passes over rows which others hold, and after each this rests for
nine times as long as it took: trimming a million jobs costs Postgres a tenth of one core, for as long as it takes. A
round ends after ROUND_S and goes on at the next. One coordinator trims at a time; the others' statements do nothing.

Contents of files that are let go are removed by the sweeper. NATS trims RESULTS by itself (7 days): jobs are kept
longer than that, so that no message names one that is forgotten (`settings.py` sees to it).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

_log = structlog.get_logger()

BATCH: Final = 50
"""How much is trimmed in one statement: jobs take their attempts, heartbeats and files along."""

ROUND_S: Final = 300.0
"""After this the round ends, so that what comes after in it has its turn."""

_REST: Final = 9.0
_BIG: Final = 10  # rows of one table alone go by so many batches at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long what is kept, in seconds; 0 = for ever."""

    jobs_s: float
    artifacts_s: float
    heartbeats_s: float
    rejected_s: float
    callback_bodies_s: float


class Kept(Protocol):
    """What can be trimmed (`ledger/kept.py`): (older than seconds, at most so many) -> how many were trimmed."""

    async def jobs(self, older_than_s: float, most: int, /) -> int: ...  # noqa: D102
    async def artifacts(self, older_than_s: float, most: int, /) -> int: ...  # noqa: D102
    async def heartbeats(self, older_than_s: float, most: int, /) -> int: ...  # noqa: D102
    async def rejected_results(self, older_than_s: float, most: int, /) -> int: ...  # noqa: D102
    async def rejected_submissions(self, older_than_s: float, most: int, /) -> int: ...  # noqa: D102
    async def callback_bodies(self, older_than_s: float, most: int, /) -> int: ...  # noqa: D102


@dataclass(slots=True)
class Retention:
    """Each round: everything that is too old, for at most ROUND_S."""

    kept: Kept
    ages: Ages
    trimmed: dict[str, int] = field(default_factory=dict)  # by what it was
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def once(self) -> None:
        """Trim. What a round leaves a later one finds."""
        kept, ages = self.kept, self.ages
        before = dict(self.trimmed)
        until = time.monotonic() + ROUND_S
        for name, age_s, trim, most in (
            ("heartbeats", ages.heartbeats_s, kept.heartbeats, _BIG * BATCH),
            ("callback_bodies", ages.callback_bodies_s, kept.callback_bodies, BATCH),
            ("rejected_results", ages.rejected_s, kept.rejected_results, BATCH),
            ("rejected_submissions", ages.rejected_s, kept.rejected_submissions, BATCH),
            ("artifacts", ages.artifacts_s, kept.artifacts, BATCH),
            ("jobs", ages.jobs_s, kept.jobs, BATCH),
        ):
            if age_s:
                await self._trim(name, age_s, trim, most, until)
        found = {name: count - before.get(name, 0) for name, count in self.trimmed.items()}
        if any(found.values()):
            _log.info("trimmed", **{name: count for name, count in found.items() if count})

    async def _trim(
        self, name: str, age_s: float, trim: Callable[[float, int], Awaitable[int]], most: int, until: float
    ) -> None:
        while True:
            began_at = time.monotonic()
            count = await trim(age_s, most)
            self.trimmed[name] = self.trimmed.get(name, 0) + count
            if count < most or time.monotonic() > until:
                return
            await self.pause(_REST * (time.monotonic() - began_at))
