"""Which executor does a job: loads the configured plugins, holds back one whose backend is down, shares the GPU.

Called by presence (what can I run?), the puller (what could begin at once?) and the runner (who runs this?).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.metadata import entry_points
from typing import Any, Self

import structlog
from pydantic import ValidationError

from agent.executors.base import Backed, Executor, ExecutorError, Product, Progress, RunnableJob, Surroundings
from agent.executors.memory import Gpu
from agent.executors.verdicts import OUT_OF_MEMORY
from agent.words import settings_faults
from shared import subjects
from shared.errors import ConfigurationError
from shared.wire import Capability

GROUP = "tandem.executors"
_log = structlog.get_logger()


def load_executors(tables: Mapping[str, Mapping[str, Any]]) -> list[Executor]:
    """Return the executors that the settings name; ConfigurationError for an unknown one or a wrong table."""
    if not tables:
        msg = "no executor is configured: add a table [executors.<name>], or --executor sketch to try things out"
        raise ConfigurationError(msg)
    known = {point.name: point for point in entry_points(group=GROUP)}
    found: list[Executor] = []
    for name, table in tables.items():
        if name not in known:
            msg = f"unknown executor {name!r}; installed here: {', '.join(sorted(known)) or 'none'}"
            raise ConfigurationError(msg)
        try:
            found.append(known[name].load().from_settings(table))
        except ValidationError as error:
            raise ConfigurationError(settings_faults(error, f"executors.{name}")) from None
        except ImportError as error:
            msg = f"executor {name!r} can't be loaded: {error}; install tandem[agent]"
            raise ConfigurationError(msg) from error
    return found


class Registry:
    """The executors of this process. `async with` starts and ends them."""

    def __init__(
        self,
        executors: Sequence[Executor],
        now: Callable[[], float],
        *,
        retry_s: float = 10.0,
        gpu: Gpu | None = None,
    ) -> None:
        """`now` is the clock that runs on in sleep.

        An executor that has no probe is left alone for `retry_s` when its backend was found down.
        """
        self._executors = executors
        self._now = now
        self._retry_s = retry_s
        self._gpu = gpu or Gpu(executors)
        self._down_until: dict[str, float] = {}
        self._stack = AsyncExitStack()
        self.on_change: list[Callable[[], None]] = []
        """Who hears that another thing can be run now, or that a model was loaded."""

    async def __aenter__(self) -> Self:
        """Start every executor."""
        async with AsyncExitStack() as stack:
            for executor in self._executors:
                if isinstance(executor, Backed):
                    executor.attach(self._around(executor))
                stack.push_async_callback(executor.aclose)
                await executor.start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every executor, the last one first."""
        await self._stack.aclose()

    def capabilities(self) -> list[Capability]:
        """Return what can be run right now."""
        return [capability for executor in self._up() for capability in executor.capabilities()]

    def down(self) -> list[Capability]:
        """Return what can't be run now, but was the last time that its backend was seen."""
        up = self._up()
        return [found for executor in self._executors if executor not in up for found in _known(executor)]

    def able(self) -> bool:
        """Whether anything can be run right now."""
        return any(executor.capabilities() for executor in self._up())

    def find(self, kind: str, model: str | None) -> Executor | None:
        """Return who runs such a job: one that is up, and names the model before one that takes any; or None."""
        wanted = subjects.slug(model) if model else None
        up = self._up()
        return _find(up, kind, wanted) or _find([one for one in self._executors if one not in up], kind, wanted)

    def named(self, name: str) -> Executor | None:
        """Return the executor of that name, up or not."""
        return next((executor for executor in self._executors if executor.name == name), None)

    def serves(self, kind: str, slug: str) -> bool:
        """Whether a lane can be worked on right now."""
        return any(_fits(capability, kind, slug) for capability in self.capabilities())

    def can_begin(self, kind: str, slug: str) -> bool:
        """Whether a job of a lane would begin at once, and not wait for the GPU."""
        ready = (executor for executor in self._up() if self._gpu.free or not _uses_gpu(executor))
        return any(_fits(capability, kind, slug) for executor in ready for capability in executor.capabilities())

    def is_warm(self, kind: str, slug: str) -> bool:
        """Whether a job of a lane would find its model in memory; one that names no model finds any."""
        return any(
            _holds(executor, slug) and any(_fits(capability, kind, slug) for capability in executor.capabilities())
            for executor in self._up()
        )

    def warm(self) -> list[str]:
        """Return the models that are in memory."""
        return sorted({model for executor in self._up() if isinstance(executor, Backed) for model in executor.warm()})

    def probes(self) -> dict[str, float | None]:
        """Return how many seconds ago each executor that probes last proved that it generates; None = never."""
        backed = [executor for executor in self._executors if isinstance(executor, Backed)]
        found = {executor.name: executor.status() for executor in backed}
        return {name: status["proven_ago_s"] for name, status in found.items() if "proven_ago_s" in status}

    async def run(self, executor: Executor, job: RunnableJob, progress: Progress) -> Product:
        """Run a job, when the GPU is free if it needs that; what its executor raises is left to the caller."""
        async with self._gpu.turn(executor, job, progress):
            try:
                return await executor.run(job, progress)
            except ExecutorError as error:
                if error.code == OUT_OF_MEMORY:
                    await self._gpu.free_memory(f"{executor.name} ran out of memory", ended=executor)
                raise

    def going_on(self, name: str, job_id: str, epoch: int) -> AbstractAsyncContextManager[None]:
        """Return a block that keeps the GPU for what an executor's backend still does for an earlier process."""
        return self._gpu.going_on(self.named(name), job_id, epoch)

    def hold_back(self, executor: Executor, reason: str = "") -> None:
        """Leave an executor alone: its backend did not answer. One that probes comes back by itself."""
        if isinstance(executor, Backed):
            executor.hold_back(reason)
            return
        _log.warning("backend down", executor=executor.name, retry_in_s=self._retry_s)
        self._down_until[executor.name] = self._now() + self._retry_s

    def is_up(self, executor: Executor) -> bool:
        """Whether it is not held back."""
        if isinstance(executor, Backed):
            return executor.up
        return self._down_until.get(executor.name, float("-inf")) <= self._now()

    def _around(self, executor: Backed) -> Surroundings:
        return Surroundings(
            now=self._now,
            changed=self._changed,
            gpu_free=lambda: self._gpu.idle,
            gpu_turn=lambda: self._gpu.held(executor),
            free_memory=lambda why: self._gpu.free_memory(why, but=executor),
        )

    def _up(self) -> list[Executor]:
        return [executor for executor in self._executors if self.is_up(executor)]

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()


def _find(executors: Sequence[Executor], kind: str, wanted: str | None) -> Executor | None:
    """Return the first that names the model of that slug, else the first that takes any; no slug: any of the kind."""
    fallback: Executor | None = None
    for executor in executors:
        for capability in _known(executor):
            if capability.kind != kind:
                continue
            if wanted is not None and wanted in {subjects.slug(name) for name in capability.models}:
                return executor
            if (wanted is None or "*" in capability.models) and fallback is None:
                fallback = executor
    return fallback


def _known(executor: Executor) -> list[Capability]:
    return executor.known() if isinstance(executor, Backed) else executor.capabilities()


def _uses_gpu(executor: Executor) -> bool:
    return isinstance(executor, Backed) and executor.gpu


def _holds(executor: Executor, slug: str) -> bool:
    """Whether an executor has a model of this slug in memory; a job that names none finds any."""
    loaded = {subjects.slug(model) for model in executor.warm()} if isinstance(executor, Backed) else set()
    return bool(loaded) if slug == subjects.ANY else slug in loaded


def _fits(capability: Capability, kind: str, slug: str) -> bool:
    slugs = {subjects.ANY, *(subjects.slug(model) for model in capability.models)}
    return capability.kind == kind and ("*" in capability.models or slug in slugs)
