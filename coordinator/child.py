"""A server that runs as our child: started in its own session, known by pid and birth, stopped by pid only.

Its own session keeps a Ctrl-C in the terminal from reaching it: only our process gets that, and stops its children in
order. If our process is SIGKILLed the child lives on; the next start on the same folder recognises it by what
was recorded (pid and time of birth, both must match) and stops it first. A lock on the folder, which the kernel drops
with our process, keeps two of us from doing that to each other.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import structlog

from shared.errors import ConfigurationError, UnreachableError
from shared.folder_lock import FolderTakenError, lock

_log = structlog.get_logger()

LOG_MOST_BYTES = 16 * 1024 * 1024
"""A log that has grown beyond this begins anew at the next start."""

_TAIL_BYTES = 2000
_POLL_S = 0.01
_BIRTH_TOLERANCE_S = 1.0


class Child:
    """At most one running process of one kind in one folder, with its log, pid record and lock."""

    def __init__(self, folder: Path, name: str) -> None:
        """Keep `<name>.log`, `<name>.pid` and `<name>.lock` in `folder`."""
        self.name = name
        self._folder = folder
        self._record = folder / f"{name}.pid"
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        if self._process is None:
            msg = f"{self.name} is not running"
            raise RuntimeError(msg)
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def lock(self) -> None:
        """Claim the folder; ConfigurationError when a living process has it."""
        if self._lock is not None:
            return
        try:
            self._lock = lock(self._folder / f"{self.name}.lock", f"pid {os.getpid()}")
        except FolderTakenError:
            msg = f"{self._folder} is in use: another process runs {self.name} there"
            raise ConfigurationError(msg) from None

    def unlock(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def spawn(self, command: Sequence[str], **options: Any) -> None:
        """Start it, and record which process it is; `options` as `subprocess.Popen` takes them."""
        fresh = self._log.exists() and self._log.stat().st_size > LOG_MOST_BYTES
        with self._log.open("wb" if fresh else "ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options
            )
        birth = psutil.Process(self._process.pid).create_time()
        part = self._record.with_suffix(".part")
        part.write_text(json.dumps({"pid": self._process.pid, "birth": birth}))
        part.replace(self._record)

    async def stop(self, signals: Sequence[tuple[signal.Signals, float]]) -> None:
        """Send each signal and wait its seconds for the end, then kill. Nothing if it is not running."""
        process = self._process
        if process is None:
            return
        for number, patience_s in signals:
            if process.poll() is None:
                process.send_signal(number)
                await _ended(process, patience_s)
        if process.poll() is None:
            _log.warning("child killed", child=self.name, pid=process.pid)
            process.kill()
            await _ended(process, 10.0)
        self._process = None
        self._record.unlink(missing_ok=True)

    async def died(self) -> int:
        """Return the exit code once the process has ended by itself."""
        process = self._process
        if process is None:
            msg = f"{self.name} is not running"
            raise RuntimeError(msg)
        while process.poll() is None:  # noqa: ASYNC110 - a child watcher would bind us to one event loop
            await asyncio.sleep(0.2)
        return process.returncode

    async def stop_orphan(self, number: signal.Signals, patience_s: float) -> None:
        """Stop what a SIGKILLed predecessor left running here; only the very process that it recorded."""
        orphan = self._recorded()
        if orphan is not None:
            _log.warning("orphan stopped", child=self.name, pid=orphan.pid)
            for step, wait_s in ((number, patience_s), (signal.SIGKILL, 10.0)):
                try:
                    orphan.send_signal(step)
                    await asyncio.to_thread(orphan.wait, wait_s)
                    break
                except psutil.NoSuchProcess:
                    break
                except psutil.TimeoutExpired:
                    continue
        self._record.unlink(missing_ok=True)

    def _recorded(self) -> psutil.Process | None:
        try:
            known = json.loads(self._record.read_text())
            process = psutil.Process(int(known["pid"]))
            same = abs(process.create_time() - float(known["birth"])) < _BIRTH_TOLERANCE_S
        except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
            return None
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None

    def failed(self, what: str) -> UnreachableError:
        """Return the error for a start that went wrong, with the end of the log in it."""
        return UnreachableError(f"{self.name} {what}; the end of {self._log}:\n{self.tail()}")

    def log_size(self) -> int:
        """Return how much it has said, in bytes; a position for `said_since`."""
        return self._log.stat().st_size if self._log.exists() else 0

    def said_since(self, position: int, text: str) -> bool:
        """Say whether its log has this text beyond a position."""
        with self._log.open("rb") as file:
            file.seek(position)
            return text.encode() in file.read()

    def tail(self) -> str:
        """Return the end of its log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""


async def _ended(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait until the process has ended, or patience has."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while process.poll() is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
