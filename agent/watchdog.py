"""A thread that ends the process when its event loop stands still; launchd, or systemd, brings it back.

A process that was stopped as a whole (SIGSTOP, a debugger, a sleeping Mac) is no hung loop: the thread notices that
its own sleep took too long, and then gives the loop its full time again.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

EXIT_HUNG = 70
_TICKS_PER_LIMIT = 8
_MOST_TICK_S = 5.0


def _end(reason: str) -> None:
    """Leave at once: a hung loop runs no cleanup. Locks and sockets go with the process."""
    sys.stderr.write(f'{{"event": "watchdog ends the process", "level": "error", "reason": "{reason}"}}\n')
    sys.stderr.flush()
    os._exit(EXIT_HUNG)


class Watchdog:
    """`async with` it inside the loop that it watches; `limit_s` 0 switches it off."""

    def __init__(self, limit_s: float, *, end: Callable[[str], None] = _end) -> None:
        """`end` is called in the watchdog's thread, once."""
        self._limit_s = limit_s
        self._tick_s = min(limit_s / _TICKS_PER_LIMIT, _MOST_TICK_S)
        self._end = end
        self._seen = 0.0
        self._end_at = float("inf")
        self._done = threading.Event()
        self._ticker: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        """Start watching."""
        if self._limit_s > 0:
            self._seen = time.monotonic()
            self._ticker = asyncio.create_task(self._tick(), name="watchdog")
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._done.set()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._thread is not None:
            self._thread.join()

    def end_in(self, seconds: float) -> None:
        """End the process if it is still there after so long: something does not let go."""
        self._end_at = time.monotonic() + seconds

    async def _tick(self) -> None:
        while True:
            self._seen = time.monotonic()
            await asyncio.sleep(self._tick_s)

    def _watch(self) -> None:
        asked = time.monotonic()
        while not self._done.wait(self._tick_s):
            now = time.monotonic()
            if now - asked > 2 * self._tick_s + 1:  # this thread stood still as well
                self._seen = now
            asked = now
            if now - self._seen > self._limit_s:
                self._end(f"the event loop has not run for {now - self._seen:.0f} s")
                return
            if now > self._end_at:
                self._end("the process was to have ended by now")
                return
