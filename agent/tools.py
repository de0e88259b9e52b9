"""Running a program of the system and taking its answer. Called by `mac` and `systemd_user`."""

import asyncio
import contextlib
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

TOOL_S: Final = 5.0
"""How long a tool may take; each answers in milliseconds unless the system is in trouble."""
_SYSTEM_PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin"
MISSING: Final = 127
HUNG: Final = 124


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool answered."""

    status: int
    out: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked."""
        return self.status == 0


def find(tool: str) -> str | None:
    """Return where a tool is: on PATH, or where the system keeps its own; launchd's PATH has not all of these."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")


async def call(tool: str, *args: str, within_s: float = TOOL_S) -> Said:
    """Run a tool to its end; one that is not there is MISSING, one that hangs is ended and HUNG."""
    path = find(tool)
    if path is None:
        return Said(MISSING, error=f"{tool} is not installed")
    try:
        child = await asyncio.create_subprocess_exec(
            path, *args, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    except OSError as error:
        return Said(MISSING, error=f"{tool}: {error.strerror}")
    try:
        async with asyncio.timeout(within_s):
            out, error_out = await child.communicate()
    except TimeoutError:
        return Said(HUNG, error=f"{tool} did not answer within {within_s:g} s")
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # with what it started, which may hold the pipes
            await child.wait()
    return Said(child.returncode or 0, out.decode("utf-8", "replace"), error_out.decode("utf-8", "replace").strip())


async def until(condition: Callable[[], Awaitable[bool]], *, within_s: float, look_s: float) -> bool:
    """Look every `look_s` whether it holds, for things that nothing announces; False: not within `within_s`."""
    try:
        async with asyncio.timeout(within_s):
            while not await condition():  # noqa: ASYNC110 - another process brings it about
                await asyncio.sleep(look_s)
    except TimeoutError:
        return False
    return True
