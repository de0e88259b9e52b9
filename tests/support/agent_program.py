"""An agent as a program of the tests: real in all but its generator, whose every start it writes down.

    python -m tests.support.agent_program JOURNAL      settings from TANDEM_AGENT_*

It does jobs of kind `trial`; `spec.do` says what becomes of it, see `Trial`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from agent.executors.base import Product, ProductFile, Progress, RunnableJob
from agent.service import run_agent
from agent.settings import load_settings
from shared import log
from shared.wire import Capability

KIND = "trial"
_LOOK_S = 0.01


class Trial:
    """Implements the agent's Executor. The journal has a line `job epoch pid` for each start, before anything else."""

    name: ClassVar[str] = KIND

    def __init__(self, journal: Path, models: tuple[str, ...] = ("*",)) -> None:
        self.journal = journal
        self.models = models

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        return cls(**table)

    def capabilities(self) -> list[Capability]:
        return [Capability(kind=KIND, models=list(self.models), executor=self.name)]

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        """Do what the spec says: `finish` at once, with `file`: with one; `wait` for the file `until` to appear.

        `block`: the same as `wait`, by work that leaves the event loop no turn; `die`: take the whole process along,
        when `until` is there if it is given.
        """
        with self.journal.open("a") as journal:
            journal.write(f"{job.id} {job.epoch} {os.getpid()}\n")
        progress.stage("generating_text")
        do, until = job.spec["do"], job.spec.get("until", "")
        while do == "block" and not _is_there(until):
            pass
        while (do == "wait" or (do == "die" and until)) and not _is_there(until):  # noqa: ASYNC110 - another process
            await asyncio.sleep(_LOOK_S)
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        files = [_file(job.workspace / "a.txt")] if job.spec.get("file") else []
        return Product(result={"text": f"by {os.getpid()}"}, files=files)


def _is_there(path: str) -> bool:
    return Path(path).exists()


def _file(path: Path) -> ProductFile:
    path.write_text("words")
    return ProductFile(path=path, media_type="text/plain")


async def _main(journal: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_agent(load_settings(), stop=stop, executors=[Trial(journal)])


if __name__ == "__main__":
    log.configure(json=True, level="info")
    asyncio.run(_main(Path(sys.argv[1])))
