"""The machine's GPU and memory, which its generators share: who may generate now, and what must be unloaded for it.

On a Mac text and image models live in the same memory: two jobs at once slow each other down or end in out of memory.
So only `gpu_jobs` of them run at once, and before one begins, the idle backends' models are unloaded if memory is
short. Called by the registry, around each job.
"""

import asyncio
import contextlib
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent import mac
from agent.executors.base import Backed, Executor, Progress, RunnableJob

WAITING = "waiting_for_gpu"
"""The stage of a job that waits for its turn."""
KEPT_FREE = 0.10
"""Share of all memory that must stay free beside a job's model."""
UNKNOWN_NEED = 0.25
"""Share of all memory that must be free for a model of unknown size."""
_UNLOAD_S = 30.0
_MEMINFO = Path("/proc/meminfo")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reading:
    """How much memory there is, and how much of it a new model could take."""

    total_bytes: int
    available_bytes: int


async def read_memory() -> Reading | None:
    """Return this machine's memory; None if it can't be read."""
    try:
        if sys.platform == "darwin":
            return vm_stat(await mac.vm_stat(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return meminfo(await asyncio.to_thread(_MEMINFO.read_text, encoding="ascii"))
    except (OSError, ValueError):
        return None


def vm_stat(said: str, total_bytes: int) -> Reading | None:
    """Read macOS's vm_stat: free, speculative, inactive and purgeable pages can be taken without swapping."""
    page = re.search(r"page size of (\d+) bytes", said)
    pages = {name: int(count) for name, count in re.findall(r"^Pages ([a-z ]+):\s+(\d+)\.$", said, re.MULTILINE)}
    if page is None or "free" not in pages:
        return None
    takeable = sum(pages.get(name, 0) for name in ("free", "speculative", "inactive", "purgeable"))
    return Reading(total_bytes, min(total_bytes, takeable * int(page[1])))


def meminfo(said: str) -> Reading | None:
    """Read Linux's /proc/meminfo."""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", said, re.MULTILINE)}
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    return Reading(found["MemTotal"], found["MemAvailable"])


class Gpu:
    """Gives turns on the GPU, in the order in which they are asked for."""

    def __init__(
        self,
        executors: Sequence[Executor],
        *,
        jobs: int = 1,
        read: Callable[[], Awaitable[Reading | None]] = read_memory,
    ) -> None:
        """`jobs` is how many may run at once; `read` tells how much memory there is."""
        self._backed = [executor for executor in executors if isinstance(executor, Backed)]
        self._read = read
        self._turns = asyncio.Semaphore(jobs)
        self._running: Counter[int] = Counter()
        self._left: set[tuple[str, int]] = set()  # attempts of an earlier process that still use the GPU
        self._none_left = asyncio.Event()
        self._none_left.set()

    @property
    def idle(self) -> bool:
        """Whether no job uses the GPU."""
        return not self._running.total() and not self._left

    @property
    def free(self) -> bool:
        """Whether another job could begin at once."""
        return not self._turns.locked() and not self._left

    @contextlib.asynccontextmanager
    async def turn(self, executor: Executor, job: RunnableJob, progress: Progress) -> AsyncIterator[None]:
        """Wait for a turn, make room, and keep the turn for the block. An executor that uses no GPU just goes on."""
        if not isinstance(executor, Backed) or not executor.gpu:
            yield
            return
        own = (job.id, job.epoch)
        if self._turns.locked() or (self._left and own not in self._left):
            progress.stage(WAITING)
        async with self.held(executor, own):
            await self._make_room(executor, job)
            yield

    @contextlib.asynccontextmanager
    async def held(self, executor: Backed, own: tuple[str, int] | None = None) -> AsyncIterator[None]:
        """Wait for a turn and keep it for the block: for a job, or for a probe that no job may cut off.

        What is left of an earlier process comes first; `own`, if it is of that, takes its turn here.
        """
        if own not in self._left:
            await self._none_left.wait()
        async with self._turns:
            self._gone(own)
            probing = self._idle()
            self._running[id(executor)] += 1
            try:
                for other in probing:
                    await other.stand_aside()
                yield
            finally:
                self._running[id(executor)] -= 1

    @contextlib.asynccontextmanager
    async def going_on(self, executor: object, job_id: str, epoch: int) -> AsyncIterator[None]:
        """Let nothing else begin while a backend goes on with an attempt that an earlier process of this agent began.

        That is until the block ends, or until the attempt, taken up, has its turn.
        """
        if not isinstance(executor, Backed) or not executor.gpu:
            yield
            return
        left = (job_id, epoch)
        self._left.add(left)
        self._none_left.clear()
        try:
            for other in self._idle():
                await other.stand_aside()
            yield
        finally:
            self._gone(left)

    def _gone(self, left: tuple[str, int] | None) -> None:
        self._left -= {left}
        if not self._left:
            self._none_left.set()

    def _idle(self) -> list[Backed]:
        """Return the backends that use the GPU for no job; each may be probing."""
        return [other for other in self._backed if other.gpu and not self._running[id(other)]]

    async def free_memory(self, why: str, *, but: object = None, ended: object = None) -> None:
        """Unload the models of every backend that runs no job, `but` one; the one job of `ended` is over."""
        for other in self._backed:
            busy = self._running[id(other)] > (1 if other is ended else 0)
            if other is but or busy or not other.gpu or not other.up:
                continue
            _log.info("unloading models", executor=_name(other), why=why)
            try:
                async with asyncio.timeout(_UNLOAD_S):
                    await other.unload()
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                _log.warning(
                    "models stay loaded", executor=_name(other), error=f"{type(error).__name__}: {error}"[:200]
                )

    async def _make_room(self, executor: Backed, job: RunnableJob) -> None:
        others = [other for other in self._backed if other is not executor and other.up and other.gpu]
        if not others or (reading := await self._read()) is None:
            return
        need_bytes = await executor.need_bytes(job)
        if need_bytes == 0:
            return
        share = UNKNOWN_NEED if need_bytes is None else KEPT_FREE
        if reading.available_bytes < (need_bytes or 0) + share * reading.total_bytes:
            await self.free_memory(f"{_name(executor)} needs memory", but=executor)


def _name(executor: object) -> str:
    return str(getattr(executor, "name", executor))
