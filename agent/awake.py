"""Keeping the Mac awake while a lease is held, and not a moment longer: one `caffeinate -i -w <pid>` at a time.

`-w` ends it with this process, however that ends. Nothing happens where there is none. Called by `service`.
"""

import asyncio
import contextlib
import os
from asyncio.subprocess import Process
from collections.abc import Callable

import structlog

from agent import mac
from agent.gate import Gate
from agent.leases import Leases
from agent.tools import find

_log = structlog.get_logger()

_END_S = 2.0


class Awake:
    """`run` keeps the child that fits; `look` when an attempt came or went."""

    def __init__(
        self, leases: Leases, gate: Gate, now: Callable[[], float], ttl_s: Callable[[], float], *, look_s: float = 5.0
    ) -> None:
        """`now` is the clock that runs on in sleep; a lease lasts `ttl_s`; `look_s` between two looks at most."""
        self._leases = leases
        self._gate = gate
        self._now = now
        self._ttl_s = ttl_s
        self._look_s = look_s
        self._changed = asyncio.Event()
        self._answered_at = float("-inf")
        self._beating_at = float("-inf")

    def look(self) -> None:
        """Look now whether a lease is held."""
        self._changed.set()

    async def run(self) -> None:
        """Go on until cancelled; the Mac may sleep then."""
        if find("caffeinate") is None:
            if mac.here():
                _log.warning("no caffeinate: this Mac may fall asleep under a job")
            return
        child: Process | None = None
        try:
            while True:
                self._changed.clear()
                child = await self._fitting(child)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_s):
                        await self._changed.wait()
        finally:
            if child is not None:
                await _end(child)

    async def _fitting(self, child: Process | None) -> Process | None:
        """Return the child if it is as it should be, else what takes its place."""
        if child is not None and child.returncode is not None:
            _log.warning("caffeinate ended by itself", status=child.returncode)
            child = None
        held = self._held()
        if child is not None and not held:
            await _end(child)
            return None
        if child is None and held:
            child = await mac.caffeinate(os.getpid())
            if child is None:
                _log.warning("caffeinate does not start", again_in_s=self._look_s)
        return child

    def _held(self) -> bool:
        """Say whether a lease can still be held, by this agent's own reckoning: the last word was less than a ttl ago.

        A generator's heartbeats extend its lease while there is a connection, whether or not the coordinator is there,
        and its deadline ends it. A finished result may wait for ever, so it counts only while the coordinator answers.
        """
        now = self._now()
        if self._gate.answered:
            self._answered_at = now
        if self._gate.connected and self._answered_at > float("-inf"):  # no heartbeat before that
            self._beating_at = now
        return any(
            now - (self._answered_at if attempt.delivering else self._beating_at) < self._ttl_s()
            for attempt in self._leases
            if not attempt.lost.done()
        )


async def _end(child: Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
    ended = asyncio.ensure_future(child.wait())
    await asyncio.wait({ended}, timeout=_END_S)  # asyncio.timeout() of Python 3.11.2 does nothing once cancelled
    if not ended.done():
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    await ended
