"""A log file of JSON lines, for its owner alone (0600), begun anew when it is full: `path`, then `path.1`, `path.2` ...

Lines are handed over by a queue, and a thread writes them: a slow disk holds up nobody. More lines than WAITING_MOST
behind the disk are dropped, and the next line that gets through says how many. A disk that refuses is said on stderr.
"""

import contextlib
import logging
import os
import queue
import stat
import sys
import threading
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

import orjson

from shared.errors import ConfigurationError

WAITING_MOST: Final = 20_000
_CLOSE_S: Final = 5.0
_MODE: Final = 0o600


class LogFile:
    """One program's log file; open from `__init__` to `close`."""

    def __init__(self, path: Path, *, most_bytes: int, files: int) -> None:
        """`files`: how many there are at most, the newest included. ConfigurationError if it can't be written."""
        path = path.expanduser()
        try:
            _make_folder(path.parent)
            if path.exists() and not path.is_file():
                most_bytes = 0  # a pipe is never full; Python 3.13.0 would ask for its position, and lose the line
            self._handler = _PrivateFile(path, maxBytes=most_bytes, backupCount=files - 1, encoding="utf-8")
        except OSError as error:
            msg = f"log_file {path}: {error.strerror or error}"
            raise ConfigurationError(msg) from None
        self._dropped = 0  # lines, since the last one that got through
        self._queue: queue.Queue[str | None] = queue.Queue(WAITING_MOST)
        self._thread = threading.Thread(target=self._write_all, name="log file", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Hand a line over; never waits."""
        try:
            if self._dropped:
                self._queue.put_nowait(_dropped(self._dropped))
                self._dropped = 0
            self._queue.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, for a few seconds at most, and end."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)

    def _write_all(self) -> None:
        while (line := self._queue.get()) is not None:
            self._handler.emit(logging.LogRecord("", logging.INFO, "", 0, line, None, None))
        with contextlib.suppress(OSError):  # said already
            self._handler.close()


def _dropped(lines: int) -> str:
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return orjson.dumps({"event": "log lines dropped", "lines": lines, "level": "warning", "timestamp": at}).decode()


class _PrivateFile(RotatingFileHandler):
    """The standard library's, with a file that only its owner can read, and a short word where the disk refuses."""

    _failures = 0

    def _open(self) -> Any:
        is_cut = _is_cut_short(Path(self.baseFilename))
        stream = open(self.baseFilename, self.mode, encoding=self.encoding, opener=_private)  # noqa: SIM115 - closed there
        if is_cut:
            stream.write("\n")  # what a killed program wrote of its last line spoils no other
        return stream

    def doRollover(self) -> None:  # noqa: N802 - its name there
        """Move each file on by one, up to the first number that is free: a kill may have come in between."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        path = Path(self.baseFilename)
        files = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, self.backupCount + 1))]
        last = next((number for number, file in enumerate(files) if number and not file.exists()), self.backupCount)
        for number in range(last, 0, -1):
            files[number - 1].replace(files[number])
        self.stream = self._open()

    def handleError(self, _record: logging.LogRecord) -> None:  # noqa: N802 - its name there
        """Say it the 1st, 2nd, 4th, 8th time."""
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            error = sys.exc_info()[1]
            sys.stderr.write(f"log file {self.baseFilename}: {error} ({self._failures} lines lost)\n")


def _make_folder(folder: Path) -> None:
    """Make a folder and those that it lies in, for the owner alone; those that exist stay as they are."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _is_cut_short(path: Path) -> bool:
    """Say whether a file's last line has no end."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _private(name: str, flags: int) -> int:
    descriptor = os.open(name, flags | os.O_CLOEXEC, _MODE)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # /dev/null stays as it is
        os.fchmod(descriptor, _MODE)  # it may have been there, open to others
    return descriptor
