"""What every executor is held to: the scenarios, what a row of an executor's table says, and the bench that plays it.

An executor's table has a row for each scenario: a `Case`, or a `NotHere` that says why there is none. A case arranges
the double (`arrange`), lets the job begin, lets something happen to it (`act`), and names how it must end.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from agent.executors.base import (
    BackendDown,
    Elsewhere,
    Executor,
    ExecutorError,
    Permanent,
    RunnableJob,
    Surroundings,
    Transient,
)
from agent.executors.http import HttpExecutor
from tests.support.servers import eventually
from tests.support.text_rig import CountingClock, Told

FIRST_S, IDLE_S = 300, 100
"""The clocks of each bench; a test moves them."""
SOON_S = 20.0


class Scenario(StrEnum):
    """What may happen to a job at its backend."""

    SUCCESS = "success"
    BACKEND_DOWN = "backend down"  # nobody listens
    REFUSED = "refused"  # the backend says that the job is wrong
    HUNG_UP = "hung up"  # it takes the request and closes the connection without a word
    SLOW_FIRST_BYTE = "slow first byte"  # the first output comes late, but in time
    HANG_AFTER_ACCEPT = "hang after accept"
    HANG_IN_THE_MIDDLE = "hang in the middle"
    MUTE_SOCKET = "mute websocket while history fills"
    MALFORMED = "malformed answer"
    ERROR_IN_200 = "error inside a 200"
    CUT_OFF = "socket closed mid-stream"
    OOM_CUDA = "out of memory, as CUDA says it"
    OOM_MPS = "out of memory, as MPS says it"
    MODEL_MISSING = "model missing"
    EMPTY = "empty answer"
    WRONG_MODEL = "wrong model"
    FLAT_IMAGE = "flat black image"
    HUGE = "huge output"
    RESTART = "restart of the backend during the job"
    CANCEL_WAITING = "cancel while it waits"  # accepted, and nothing has come of it
    CANCEL_LOADING = "cancel while the model is loaded"
    CANCEL_GENERATING = "cancel while it generates"
    CANCEL_FINISHING = "cancel while the product is fetched"


class Cancelled(ExecutorError):  # noqa: N818 - named as those of the executors
    """How a case ends whose job is cancelled."""


@dataclass(frozen=True, slots=True)
class NotHere:
    """A scenario that an executor can't meet."""

    why: str


Act = Callable[[Any], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row. `end` is None for a job that succeeds; `second` is how the second attempt at it ends."""

    end: type[ExecutorError] | None = None
    code: str = ""
    second: type[ExecutorError] | None = None
    arrange: Act | None = None
    act: Act | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    model: str | None = ""  # empty: the bench's
    whole: bool = False  # the stages are all of the bench's, in its order

    def how(self, attempt: int) -> type[ExecutorError] | None:
        """Return how an attempt ends."""
        return self.second if attempt > 1 and self.second is not None else self.end


Table = dict[Scenario, Case | NotHere]

CLASS_OF = {Transient: "transient", Elsewhere: "elsewhere", Permanent: "permanent"}
"""The class in a report; BackendDown is a release."""


class Bench(ABC):
    """An executor, its double, and a job. `async with` starts and ends the double; `started` the executor."""

    name: ClassVar[str]
    kind: ClassVar[str] = "article"
    model: ClassVar[str | None] = None
    stages: ClassVar[tuple[str, ...]]  # of a job that goes well
    table: ClassVar[Table]
    idle_at_once = True  # when `run` has ended; else soon after
    executor: Executor

    def __init__(self, folder: Path) -> None:
        self.double_folder = folder / "double"
        self.workspace = folder / "work"
        self.clock = CountingClock()
        self.told = Told()
        self.task: asyncio.Task[Any] | None = None

    @abstractmethod
    async def open(self, settings: dict[str, Any]) -> None:
        """Start the double and make the executor."""

    @abstractmethod
    async def close(self) -> None:
        """End the double."""

    @abstractmethod
    def idle(self) -> bool:
        """Whether the double has nothing of a job in hand, by its own view."""

    async def heal(self) -> None:  # noqa: B027 - some can't be ill
        """Let the double be well again."""

    def spec(self) -> dict[str, Any]:
        return {"prompt": "A harbour at dawn"}

    def job(self, case: Case, *, epoch: int = 1, attempt: int = 1) -> RunnableJob:
        def open_workspace() -> Path:
            made = self.workspace / str(epoch)
            made.mkdir(parents=True, exist_ok=True)
            return made

        return RunnableJob(
            id="018f3f5e-7d1a-7cc0-a3c2-0123456789ab",
            epoch=epoch,
            attempt=attempt,
            kind=self.kind,
            model=self.model if case.model == "" else case.model,
            spec=case.spec or self.spec(),
            labels={},
            open_workspace=open_workspace,
        )

    async def start_executor(self) -> None:
        if isinstance(self.executor, HttpExecutor):
            self.executor.attach(Surroundings(now=self.clock.now))
        await self.executor.start()
        await self.up()

    async def up(self) -> None:
        if isinstance(self.executor, HttpExecutor):
            await eventually(lambda: self.executor.up)

    async def play(self, case: Case, *, epoch: int = 1, attempt: int = 1) -> Any:
        """Run a job through a case; return its product or raise what it ended with (Cancelled for a cancellation)."""
        self.told = Told()
        await called(case.arrange, self)
        work = self.executor.run(self.job(case, epoch=epoch, attempt=attempt), self.told)
        self.task = asyncio.create_task(work, name="contract job")
        try:
            await called(case.act, self)
            async with asyncio.timeout(SOON_S):
                await asyncio.wait({self.task})
        finally:
            self.task.cancel()
            await asyncio.wait({self.task})
        if self.task.cancelled():
            raise Cancelled("canceled", "by the test")
        return self.task.result()

    def cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()

    async def passes(self, seconds: float) -> None:
        """Move the clock, and wait until somebody has judged by it."""
        self.clock.moved_s += seconds
        await self.clock.looked_at()


async def called(step: Act | None, bench: Bench) -> None:
    if step is not None and (waiting := step(bench)) is not None:
        await waiting


def in_order(told: list[str], stages: tuple[str, ...]) -> bool:
    """Whether stages came in their order; a job that is tried once more here begins again."""
    places = [stages.index(stage) for stage in told]
    return all(after >= before or after == 0 for before, after in itertools.pairwise(places))


__all__ = ["BackendDown", "Bench", "Cancelled", "Case", "Elsewhere", "NotHere", "Permanent", "Scenario", "Transient"]
