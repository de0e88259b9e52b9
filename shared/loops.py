"""A loop: calls one round again and again, counts failures, and ends the program when they don't stop.

Every periodic duty (reaper, dispatcher, presence ...) is an object with `async once()`; this is what drives it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from shared.errors import TandemError

_log = structlog.get_logger()


def worth_a_line(failures: int) -> bool:
    """Say whether the so-many-th failure in a row is logged: the 1st, 16th, 256th ...

    So a process with half a dozen loops, each of which fails and recovers, says fewer than 20 lines about a minute's
    outage.
    """
    return failures & (failures - 1) == 0 and failures.bit_length() % 4 == 1


@dataclass(slots=True)
class Loop:
    """One duty, driven every `every_s` seconds or as soon as `wake()` is called.

    `once` failing is logged as `worth_a_line` says; after `max_failures` in a row the exception leaves `run()` and so
    ends the program's TaskGroup. A server that is away (any TandemError) is waited for, for ever: ending would only
    make a crash loop of an outage.
    """

    name: str
    once: Callable[[], Awaitable[object]]
    every_s: float
    max_failures: int | None = None
    failures: int = 0
    rounds: int = 0
    failed: int = 0  # rounds, in all; `failures` are those in a row
    last_error: str | None = None
    quiet_about: type[Exception] | None = None  # an outage that another loop speaks of; counted here as any other
    _told: bool = False
    _wakened: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Make the next round start now; callable from any callback on the loop's thread."""
        self._wakened.set()

    async def run(self) -> None:
        """Run rounds until cancelled, also if that comes out of a round as another error, as it may of asyncpg."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            self._wakened.clear()
            await asyncio.sleep(0)  # a round that awaits nothing and wakes itself must not starve the rest
            try:
                await self.once()
            except Exception as error:
                self._failed(error)
                given_up = self.max_failures is not None and self.failures >= self.max_failures
                if given_up and not isinstance(error, TandemError):
                    raise
                pause_s = min(max(self.every_s, 0.2) * self.failures, 5.0)
            else:
                if self._told:
                    _log.info("loop recovered", loop=self.name, failures=self.failures)
                self.failures, self.last_error, pause_s = 0, None, self.every_s
                self._told = False
                self.rounds += 1
            if task.cancelling():
                raise asyncio.CancelledError
            if self.failures:
                await asyncio.sleep(min(pause_s, 1.0))  # a wake must not turn an outage into a busy loop
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wakened.wait()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.failed += 1
        self.last_error = f"{type(error).__name__}: {error}"
        is_told = self.quiet_about is not None and isinstance(error, self.quiet_about)
        if worth_a_line(self.failures) and not is_told:
            self._told = True
            _log.warning("loop failed", loop=self.name, failures=self.failures, error=self.last_error)

    def status(self) -> dict[str, object]:
        """Return what /status shows of this loop."""
        return {"rounds": self.rounds, "failed": self.failed, "failures": self.failures, "last_error": self.last_error}
