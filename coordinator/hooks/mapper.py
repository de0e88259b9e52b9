"""Has the events of one source mapped by a process of its own (`mapper_child.py`), which bounds what that may cost.

One source's endless template ends its own process, and holds up no other source. Called by `hooks.py`, and by the
command line to try an event.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import orjson
import structlog

from coordinator.hooks.mapper_child import CPU_S
from coordinator.hooks.mapping import Mapped
from shared.errors import TandemError

_log = structlog.get_logger()

EXCHANGE_S: Final = 10.0
"""A process that has not answered for so long is ended: it was stopped, or the machine stands still."""

_STOP_S: Final = 5.0


class MapperDownError(TandemError):
    """The event could not be mapped now, through no fault of its own; it can be sent again."""


class Mapper:
    """Maps one event at a time. `async with` starts the process, and ends it."""

    def __init__(self, name: str, rules: Mapping[str, Any]) -> None:
        """`rules` as `config.Source.rules` returns them."""
        self._name = name
        self._start = orjson.dumps({"name": name, "rules": rules})
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Start the process; MapperDownError if the machine has no room for it."""
        self._process = await self._started()
        return self

    async def warm(self) -> None:
        """Return once the process is at work, so that the first event does not wait for its start."""
        with contextlib.suppress(MapperDownError):  # it may still be, when the event comes
            await self.map({}, b"null")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        if self._process is not None:
            await _end(self._process)
            self._process = None

    async def map(self, headers: Mapping[str, str], body: bytes) -> Mapped:
        """Return what an event becomes; MapperDownError if that can't be told now."""
        async with self._turn:
            for _ in range(2):  # a process that was ended from outside says nothing about the event
                process = self._process = self._process or await self._started()
                try:
                    async with asyncio.timeout(EXCHANGE_S):
                        return await _exchange(process, orjson.dumps(dict(headers)), body)
                except (asyncio.IncompleteReadError, ConnectionError):
                    status = await process.wait()
                except BaseException as error:
                    await self._replace()
                    if isinstance(error, TimeoutError):
                        msg = f"the rules of {self._name} were not applied within {EXCHANGE_S:g} s"
                        raise MapperDownError(msg) from None
                    raise
                _log.warning("mapper ended", source=self._name, status=status)
                await self._replace()
                if status == -signal.SIGPROF:
                    return Mapped(faults=[("", f"the rules take more than {CPU_S:g} s of computing time")])
        msg = f"the process that applies the rules of {self._name} ends by itself (status {status})"
        raise MapperDownError(msg)

    async def _replace(self) -> None:
        """End the process, and start the next one ahead of the next event."""
        if self._process is not None:
            process, self._process = self._process, None
            await _end(process)
            with contextlib.suppress(MapperDownError):  # the next event tries again
                self._process = await self._started()

    async def _started(self) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "coordinator.hooks.mapper_child",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")},
                start_new_session=True,  # a Ctrl-C in the terminal is for the coordinator alone
            )
        except OSError as error:
            msg = f"the process that applies the rules of {self._name} can't be started: {error}"
            raise MapperDownError(msg) from error
        assert process.stdin is not None
        process.stdin.write(_frame(self._start, b""))
        return process


async def _exchange(process: asyncio.subprocess.Process, head: bytes, body: bytes) -> Mapped:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(_frame(head, body))
    await process.stdin.drain()
    size = int((await process.stdout.readuntil(b"\n")).split()[0])
    said = orjson.loads(await process.stdout.readexactly(size))
    return Mapped(said["submissions"], said["ignored"], [(where, what) for where, what in said["faults"]])


def _frame(head: bytes, body: bytes) -> bytes:
    return b"%d %d\n" % (len(head), len(body)) + head + body


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process; it keeps nothing."""
    if process.returncode is None:
        process.kill()
    assert process.stdin is not None
    process.stdin.close()
    async with asyncio.timeout(_STOP_S):
        await process.wait()
