"""A generator on strings: each job that an agent runs waits until the test says what comes of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from agent.executors.base import Product, Progress, RunnableJob
from shared.wire import Capability


@dataclass(eq=False)
class Generation:
    """One running job; `finish`, `fail`, or let it be cancelled."""

    job: RunnableJob
    progress: Progress
    outcome: asyncio.Future[Product]
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    may_stop: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, text: str = "words", **more: Any) -> None:
        self.outcome.set_result(Product(result={"text": text}, **more))

    def fail(self, error: Exception) -> None:
        self.outcome.set_exception(error)


class StringExecutor:
    """Implements the agent's Executor. `running` hands out generations in the order in which they start."""

    name: ClassVar[str] = "strings"

    def __init__(self, kinds: tuple[str, ...] = ("article",), *, stubborn: bool = False) -> None:
        self.kinds = kinds
        self.stubborn = stubborn  # a cancelled generation goes on until `may_stop`
        self.running: asyncio.Queue[Generation] = asyncio.Queue()
        self.started = 0

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        return cls(**table)

    def capabilities(self) -> list[Capability]:
        return [Capability(kind=kind, models=["*"], executor=self.name) for kind in self.kinds]

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        generation = Generation(job, progress, asyncio.get_running_loop().create_future())
        self.started += 1
        progress.stage("generating_text")
        self.running.put_nowait(generation)
        try:
            return await generation.outcome
        except asyncio.CancelledError:
            generation.cancelled.set()
            if self.stubborn:
                await generation.may_stop.wait()
            raise

    async def next(self) -> Generation:
        async with asyncio.timeout(10):
            return await self.running.get()
