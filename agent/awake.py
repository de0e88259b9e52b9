"""Keeping the Mac awake while a lease is held, and not a moment longer: one `caffeinate -i -w <pid>` at a time.

`-w` ends it with this process, however that ends. A caffeinate that ends by itself is started again.
Nothing happens where there is none. Called by `service`.
"""

import asyncio
import contextlib
import os
from asyncio.subprocess import Process

import structlog

from agent import mac

_log = structlog.get_logger()


class Awake:
    """`held(n)` says how many leases there are; `run` keeps the child that fits."""

    def __init__(self, *, again_s: float = 5.0) -> None:
        """Hold nothing yet; a caffeinate that ended by itself is followed by another after `again_s`."""
        self._again_s = again_s
        self._held = 0
        self._changed = asyncio.Event()

    def held(self, leases: int) -> None:
        """Hear how many leases are held now."""
        self._held = leases
        self._changed.set()

    async def run(self) -> None:
        """Go on until cancelled; the Mac may sleep then."""
        while True:
            while not self._held:
                self._changed.clear()
                await self._changed.wait()
            child = await mac.caffeinate(os.getpid())
            if child is None:
                _log.warning("no caffeinate: this Mac may fall asleep under a job") if mac.here() else None
                await asyncio.Event().wait()
            else:
                await self._keep(child)

    async def _keep(self, child: Process) -> None:
        """Return when nothing is held any more, or a little after the child has ended by itself."""
        ended = asyncio.create_task(child.wait(), name="caffeinate")
        try:
            while self._held:
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait(), name="leases")
                try:
                    await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if ended.done():
                    _log.warning("caffeinate ended by itself", status=child.returncode)
                    await asyncio.sleep(self._again_s)
                    return
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
            await asyncio.shield(ended)
