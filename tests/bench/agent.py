"""An agent as `tandem-agent run` makes it, but with the bench's own executor, which knows when its generator ran.

    python -m tests.bench.agent SECONDS BYTES     settings by environment

A job takes SECONDS, returns a file of BYTES (0 = none), and tells in its result when it began and ended, by the wall
clock (which this machine's other processes share).
"""

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import uvloop

from agent.executors.base import Product, ProductFile, Progress, RunnableJob
from agent.service import run_agent
from agent.settings import load_settings
from shared import log
from shared.wire import Capability


class StampExecutor:
    name: ClassVar[str] = "stamp"

    def __init__(self, seconds: float, size_bytes: int) -> None:
        self._seconds = seconds
        self._block = bytes(size_bytes)

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        return cls(**table)

    def capabilities(self) -> list[Capability]:
        return [Capability(kind="noop", models=["*"], executor=self.name)]

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def run(self, job: RunnableJob, progress: Progress) -> Product:  # noqa: ARG002 - it has nothing to tell
        began = time.time()
        files = []
        if self._block:
            path = job.workspace / "image.bin"
            path.write_bytes(self._block)
            files = [ProductFile(path, "application/octet-stream")]
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return Product(result={"began": began, "ended": time.time()}, files=files)


def main() -> None:
    seconds, size_bytes = float(sys.argv[1]), int(sys.argv[2])
    settings = load_settings()
    log.configure(json=True, level=settings.log_level)

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await run_agent(settings, stop=stop, executors=[StampExecutor(seconds, size_bytes)])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
