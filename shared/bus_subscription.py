"""A subscription of the bus: runs its handler on each message, and never lets the handler hurt the connection."""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import structlog

from shared.bus_types import Message

_log = structlog.get_logger()

Handler = Callable[[Message], Awaitable[None] | None]
"""Takes one message; a plain function runs inside the read loop, a coroutine function as a task."""

WAITING_MOST = 65_536
"""More messages than this behind busy handlers, and the oldest is dropped: core messages are at most once anyway."""


class _Bus(Protocol):
    def closed(self, subscription: "Subscription") -> None: ...


class Subscription:
    """Interest in one subject until `close`; made by `Bus.subscribe` only."""

    def __init__(self, bus: _Bus, subject: str, handler: Handler, concurrency: int) -> None:
        """Remember the handler; at most `concurrency` tasks of it run at once."""
        self.subject = subject
        self.sid = 0
        self.dropped = 0
        self._bus = bus
        self._handler = handler
        self._concurrency = concurrency
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[Message] = deque()
        self.take: Callable[[Message], None] = (
            self._take_later if inspect.iscoroutinefunction(handler) else cast("Callable[[Message], None]", handler)
        )

    async def close(self) -> None:
        """Stop hearing; handlers that run are cancelled, and gone when this returns."""
        self._bus.closed(self)
        self._waiting.clear()
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take_later(self, message: Message) -> None:
        if len(self._tasks) < self._concurrency:
            task = asyncio.create_task(self._run(message), name=f"handle:{self.subject}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if len(self._waiting) >= WAITING_MOST:
            self._waiting.popleft()
            self.dropped += 1
            if self.dropped == 1 or self.dropped % 1000 == 0:
                _log.warning("handler too slow", subject=self.subject, dropped=self.dropped)
        self._waiting.append(message)

    async def _run(self, message: Message) -> None:
        """Handle this message, then those that wait, one task for all of them."""
        while True:
            try:
                await self._handler(message)  # type: ignore[misc] # a coroutine function, as __init__ saw
            except Exception:  # noqa: BLE001 - logged; one message's fault must not stop the others
                _log.exception("handler failed", subject=message.subject)
            if not self._waiting:
                return
            message = self._waiting.popleft()
