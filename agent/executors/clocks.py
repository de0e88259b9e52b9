"""The three clocks of a generation: until its first output, between two outputs, and over all.

They run on while the machine sleeps (asyncio's timers don't, facts/mac.md C.6): the block is watched every `TICK_S` and
judged by `now`. A generator that slept with the machine gets `wake_s` to give a sign of life before it is judged.

    clocks = Clocks(limits, now)
    async with clocks.running():        # raises OutOfTime
        async for chunk in stream:
            clocks.output()
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

TICK_S = 0.1
GAP_S = 10.0
"""A tick that came so much too late: the machine slept, or the process was stopped."""

Seconds = Annotated[float, Field(gt=0)]


class Limit(StrEnum):
    """Which clock ran out."""

    FIRST = "first"
    IDLE = "idle"
    TOTAL = "total"


class Limits(BaseModel):
    """How long a generation may take, in seconds; a part of each HTTP executor's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_s: Seconds = 600
    """Until the first output; loading the model and reading the prompt lie before it."""
    idle_s: Seconds = 120
    """Between two outputs: the clock that catches a hang."""
    least_idle_s: Seconds = 60
    """What the coordinator has learned of that clock may make it shorter, but not shorter than this."""
    total_s: Seconds = 3600
    """From the request to the end."""
    wake_s: Annotated[float, Field(ge=0)] = 60
    """After the machine slept a generator has so long to give a sign of life."""

    def learned(self, no_progress_s: float | None) -> Self:
        """Return them with the idle clock as short as a grant's `no_progress_s` makes it; it never gets longer."""
        if no_progress_s is None:
            return self
        return self.model_copy(update={"idle_s": min(self.idle_s, max(no_progress_s, self.least_idle_s))})


class OutOfTime(Exception):  # noqa: N818 - it is the clock that ran out
    """A clock ran out; the generation was stopped and must be cancelled at its backend too."""

    def __init__(self, limit: Limit, limit_s: float) -> None:
        """`limit_s` is the setting."""
        super().__init__(f"{limit} clock: over {limit_s:g} s")
        self.limit = limit
        self.limit_s = limit_s


class Clocks:
    """The clocks of one generation. `output` and `wait_again` may be called at any time, by any task."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        """Start them."""
        self._limits, self._now = limits, now
        self._began_at = self._seen_at = self._looked_at = now()
        self._judged_from = self._began_at
        self.first_at: float | None = None
        """When the first output came, by `now`."""
        self._over: OutOfTime | None = None

    @property
    def elapsed_s(self) -> float:
        """How long it has been going on."""
        return self._now() - self._began_at

    @property
    def first_s(self) -> float | None:
        """How long the first output took; None: there was none yet."""
        return None if self.first_at is None else self.first_at - self._began_at

    def output(self) -> None:
        """Note a sign of life: the idle clock starts again, the first-output clock has done its duty."""
        self._seen_at = self._now()
        if self.first_at is None:
            self.first_at = self._seen_at

    def wait_again(self) -> None:
        """Start the first-output clock again: it is known that the backend has not come to this request yet."""
        if self.first_at is None:
            self._seen_at = self._now()

    def overdue(self) -> OutOfTime | None:
        """Return which clock has run out now, if any."""
        now = self._now()
        if now - self._looked_at > GAP_S:
            self._judged_from = now + self._limits.wake_s
        self._looked_at = now
        if now - self._began_at >= self._limits.total_s:
            return OutOfTime(Limit.TOTAL, self._limits.total_s)
        limit, limit_s = (
            (Limit.FIRST, self._limits.first_s) if self.first_at is None else (Limit.IDLE, self._limits.idle_s)
        )
        late = now - self._seen_at >= limit_s and now >= self._judged_from
        return OutOfTime(limit, limit_s) if late else None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stop the block when a clock runs out; OutOfTime says which."""
        try:
            async with asyncio.timeout(None) as block:
                watching = asyncio.create_task(self._watch(block), name="clocks")
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if self._over is None:
                raise
            raise self._over from None

    async def _watch(self, block: asyncio.Timeout) -> None:
        while (over := self.overdue()) is None:  # noqa: ASYNC110 - it is a clock: nothing announces it
            await asyncio.sleep(TICK_S)
        self._over = over
        block.reschedule(asyncio.get_running_loop().time())
