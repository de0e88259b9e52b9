"""A program on a terminal of its own (a pty): what it shows, picture by picture, and how it leaves it."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.support.processes import TANDEM, clean_environment
from tests.support.servers import eventually

_HOME = "\x1b[H"
_ORDERS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
OTHER_PAGE, FIRST_PAGE, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Terminal:
    """`raw` is everything that came so far."""

    def __init__(self, arguments: Sequence[str], *, columns: int, lines: int, **environment: str) -> None:
        self._fd, theirs = pty.openpty()
        self.resize(columns, lines)
        self._raw = bytearray()
        try:
            self.process = subprocess.Popen(
                [*TANDEM, *arguments],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=clean_environment() | {"TERM": "xterm-256color", **environment},
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    @property
    def raw(self) -> str:
        return self._raw.decode("utf-8", "replace")

    @property
    def pictures(self) -> list[str]:
        """Return what stood on the screen, without colours; but for the last, which may be only half drawn."""
        return [_ORDERS.sub("", one).replace("\r", "") for one in self.raw.split(_HOME)[1:-1]]

    async def shows(self, *words: str, after: int = 0) -> str:
        """Return the first picture from number `after` on that has all the words."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [one for one in self.pictures[after:] if all(word in one for word in words)]
            return bool(found) or self.process.poll() is not None

        await eventually(look)
        assert found, self.raw[-3000:]
        return found[0]

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    async def ended(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal; return the exit status once all that it wrote has come."""
        self.process.send_signal(number)
        await eventually(lambda: self.process.poll() is not None)
        self._read()
        return self.process.returncode

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self._fd)

    def _read(self) -> None:
        os.set_blocking(self._fd, False)
        try:
            while got := os.read(self._fd, 65536):
                self._raw += got
        except BlockingIOError:
            return
        except OSError:  # its last reader has gone
            asyncio.get_running_loop().remove_reader(self._fd)


@asynccontextmanager
async def terminal(*arguments: str, columns: int = 80, lines: int = 40, **environment: str) -> AsyncIterator[Terminal]:
    """Run `tandem` with these arguments on a terminal; nothing is left of it afterwards."""
    made = Terminal(arguments, columns=columns, lines=lines, **environment)
    try:
        yield made
    finally:
        made.close()
