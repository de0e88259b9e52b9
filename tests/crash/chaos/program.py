"""A program that is started again whenever it ends, as launchd or systemd would, with its output in a bounded log.

Its output goes through a pipe: a limit on the size of its files (the full disk) must not hit its log.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[3]
COORDINATOR = (sys.executable, "-c", "from coordinator.cli import main; main()", "coordinator", "--json-log")
AGENT = (sys.executable, "-c", "from agent.cli import main; main()", "run", "--json-log")

LOG_MOST_BYTES = 16 * 1024 * 1024
"""A log of this size is put aside as `<name>.log.1`, and begun anew."""

LINE_MOST_BYTES = 4 * 1024 * 1024
AGAIN_S = 0.7
"""How long after its end a program is started again, unless somebody says otherwise."""


class Program:
    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path,
        heard: Callable[[str, bytes], None] | None = None,
    ) -> None:  # fmt: skip
        """`heard` gets the name and each line that it writes."""
        self.name = name
        self.lines = 0
        self.starts = 0
        self.ends: Counter[int] = Counter()
        self._command = command
        self._environment = environment
        self._log = folder / f"{name}.log"
        self._heard = heard
        self._process: asyncio.subprocess.Process | None = None
        self._again_s: list[float] = []
        self._held: asyncio.Event = asyncio.Event()
        self._held.set()
        self._keeper: asyncio.Task[None] | None = None
        self._ending = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Its pid, while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name=f"keeper:{self.name}")

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to it; False if it does not run."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._process.send_signal(number)
        return True

    def end(self, number: signal.Signals, *, again_s: float) -> bool:
        """End it, and start it again `again_s` after its end."""
        if sent := self.send(number):
            self._again_s = [again_s]
        return sent

    def hold(self) -> None:
        """Leave it ended from its next end on, until `release`."""
        self._held.clear()

    def release(self) -> None:
        self._held.set()

    def limit_files(self, size: int | None) -> bool:
        """Let no file of the running process grow beyond `size` bytes: a full disk, to it. None: no limit.

        False if it does not run, or this system (macOS) sets no other process's limits.
        """
        if (pid := self.pid) is None or not hasattr(psutil.Process, "rlimit"):
            return False
        most = psutil.RLIM_INFINITY if size is None else size
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (most, psutil.RLIM_INFINITY))
            return True
        return False

    async def stop(self, patience_s: float = 15.0) -> None:
        """End it in good order and for good."""
        self._ending = True
        self._held.set()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self._keeper is None:
            return
        done, _ = await asyncio.wait({self._keeper}, timeout=patience_s)
        if not done:
            self.send(signal.SIGKILL)
        await asyncio.wait({self._keeper}, timeout=10)
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)

    async def _keep(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
        while not self._ending:
            self.starts += 1
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=ROOT,
                env={**clean, **self._environment},
                start_new_session=True,
                limit=LINE_MOST_BYTES,
            )
            await self._drain(self._process)
            self.ends[await self._process.wait()] += 1
            if self._ending:
                return
            await asyncio.sleep(self._again_s.pop() if self._again_s else AGAIN_S)
            await self._held.wait()

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        """Write down what it says until it ends."""
        assert process.stdout is not None
        log = self._log.open("ab")
        try:
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    line = b"(a line beyond all measure)\n"
                if not line:
                    return
                self.lines += 1
                log.write(line)
                log.flush()
                if self._heard is not None:
                    self._heard(self.name, line)
                if log.tell() > LOG_MOST_BYTES:
                    log.close()
                    self._log.replace(self._log.with_suffix(".log.1"))
                    log = self._log.open("ab")
        finally:
            log.close()
