"""What the tests of the text executors share: a job, who hears of it, a started executor, a clock to move."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.executors.base import Product, RunnableJob, Surroundings
from agent.executors.http import HttpExecutor
from tests.support.agent_world import ManualClock
from tests.support.servers import eventually

QUICK: dict[str, Any] = {"retry_s": 0.05, "look_s": 0.05, "connect_s": 2, "answer_s": 5, "wake_s": 0}


class Told:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.fractions: list[float] = []
        self.details: list[str] = []

    def stage(self, name: str) -> None:
        self.stages.append(name)

    def progress(self, fraction: float) -> None:
        self.fractions.append(fraction)

    def detail(self, text: str) -> None:
        self.details.append(text)


class CountingClock(ManualClock):
    """Counts how often it is looked at: so a test knows that somebody has judged by it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def now(self) -> float:
        self.looks += 1
        return super().now()

    async def looked_at(self, times: int = 3) -> None:
        """Return when it has been looked at some more."""
        goal = self.looks + times
        await eventually(lambda: self.looks >= goal)


class Rig:
    """A started executor, its clock, and what it told the agent."""

    def __init__(self, executor: HttpExecutor, folder: Path) -> None:
        self.executor = executor
        self.clock = CountingClock()
        self.gpu_free = True
        self.changes = 0
        self.told = Told()
        self._folder = folder

    def _changed(self) -> None:
        self.changes += 1

    def attach(self) -> None:
        around = Surroundings(now=self.clock.now, changed=self._changed, gpu_free=lambda: self.gpu_free)
        self.executor.attach(around)

    def job(self, model: str | None = None, *, attempt: int = 1, name: str = "j", kind: str = "article", **spec: Any):
        return RunnableJob(
            id=name,
            epoch=1,
            attempt=attempt,
            kind=kind,
            model=model,
            spec=spec if "messages" in spec else {"prompt": "Write.", **spec},
            labels={},
            open_workspace=lambda: self._folder,
        )

    async def run(self, model: str | None = None, **more: Any) -> Product:
        async with asyncio.timeout(30):
            return await self.executor.run(self.job(model, **more), self.told)

    def begin(self, model: str | None = None, **more: Any) -> "asyncio.Task[Product]":
        return asyncio.create_task(self.executor.run(self.job(model, **more), self.told))

    async def up(self) -> None:
        await eventually(lambda: self.executor.up)

    async def down(self) -> None:
        await eventually(lambda: not self.executor.up)


@asynccontextmanager
async def started(executor: HttpExecutor, folder: Path, *, wait_up: bool = True) -> AsyncIterator[Rig]:
    """Start an executor as the registry does, and end it."""
    rig = Rig(executor, folder)
    rig.attach()
    await executor.start()
    try:
        if wait_up:
            await rig.up()
        yield rig
    finally:
        await executor.aclose()
