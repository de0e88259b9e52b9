"""A child process with its whole group: started without a shell, fed, read line by line, and ended for certain.

Called by `command`. Output is bounded: a line that is too long, and everything that is not of the protocol, goes to a
short tail.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import structlog

LINE_MOST_BYTES = 1024 * 1024
TAIL_BYTES = 8 * 1024
_READ_BYTES = 64 * 1024
_POLL_S = 0.05
_DYING_S = 5.0
"""After KILL: what is left then is a zombie that its new parent does not collect, or hangs in the kernel."""

_IS_THERE = 0  # the signal that only asks
_LAST_OUTPUT_S = 2.0


_log = structlog.get_logger()


class Child:
    """One process that leads a group of its own."""

    def __init__(self, process: Process, grace_s: float) -> None:
        """Made by `start`."""
        self._process = process
        self._grace_s = grace_s
        self._tail = bytearray()

    @classmethod
    async def start(cls, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], grace_s: float) -> Self:
        """Start it; OSError when that is impossible."""
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=cwd, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        return cls(process, grace_s)

    async def run(self, stdin: bytes, on_line: Callable[[bytes], bool]) -> int:
        """Feed it, hand each line of stdout to `on_line` (False: keep it in the tail), return its exit status.

        A negative status is a signal. When the process has ended its group is ended too, so that no grandchild holds
        the pipes open.
        """
        feeding = asyncio.create_task(self._feed(stdin), name="child stdin")
        reading = asyncio.gather(self._read(self._process.stdout, on_line), self._read(self._process.stderr, None))
        try:
            status = await self._exited()
            await self.end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_OUTPUT_S):
                    await asyncio.shield(reading)
        finally:
            feeding.cancel()
            reading.cancel()
            await asyncio.gather(feeding, reading, return_exceptions=True)
        return status

    async def end(self) -> None:
        """End the group: TERM, then KILL after the grace; return when nobody of it is left."""
        loop = asyncio.get_running_loop()
        if not self._signal(signal.SIGTERM):
            return
        kill_at = loop.time() + self._grace_s
        while self._signal(signal.SIGKILL if loop.time() >= kill_at else _IS_THERE):
            if loop.time() >= kill_at + _DYING_S:
                _log.warning("processes of a group do not go", group=self._process.pid)
                return
            await asyncio.sleep(_POLL_S)

    async def _exited(self) -> int:
        """Return its exit status. `Process.wait` alone waits for the pipes too, which a grandchild may hold open.

        (CPython before 3.13, gh-119710; `returncode` is right in all.)
        """
        waiting = asyncio.create_task(self._process.wait(), name="child exit")
        try:
            while self._process.returncode is None:
                await asyncio.wait({waiting}, timeout=_POLL_S)
            return self._process.returncode
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    def tail(self) -> str:
        """Return the last of what it wrote that was not of the protocol."""
        return self._tail.decode("utf-8", "replace").replace("\x00", "")

    def _signal(self, number: int) -> bool:
        """Signal the group; False: nobody is left."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS, while only a zombie is left
            return self._process.returncode is None
        return True

    async def _feed(self, stdin: bytes) -> None:
        pipe = self._process.stdin
        if pipe is None:
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read
            pipe.write(stdin)
            await pipe.drain()
        pipe.close()

    async def _read(self, pipe: asyncio.StreamReader | None, on_line: Callable[[bytes], bool] | None) -> None:
        if pipe is None:
            return
        kept = bytearray()
        skipping = False
        while chunk := await pipe.read(_READ_BYTES):
            kept += chunk
            *lines, rest = kept.split(b"\n")
            for line in lines:
                if skipping or on_line is None or not on_line(bytes(line)):
                    self._remember(line + b"\n")
                skipping = False
            kept = rest
            if len(kept) > LINE_MOST_BYTES:
                self._remember(kept)
                kept, skipping = bytearray(), True
        if kept and (skipping or on_line is None or not on_line(bytes(kept))):
            self._remember(kept)

    def _remember(self, text: bytes | bytearray) -> None:
        self._tail += text[-TAIL_BYTES:]
        del self._tail[:-TAIL_BYTES]
