"""Which executor does a job: loads the configured plugins, and holds back one whose backend is down.

Called by presence (what can I run?) and the runner (who runs this?).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import entry_points
from typing import Any, Self

import structlog
from pydantic import ValidationError

from agent.executors.base import Executor
from shared import subjects
from shared.errors import ConfigurationError
from shared.wire import Capability, faults_of

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
            faults = "; ".join(f"{fault.field}: {fault.message}" for fault in faults_of(error, f"executors.{name}"))
            raise ConfigurationError(faults) from None
        except ImportError as error:
            msg = f"executor {name!r} can't be loaded: {error}; install tandem[agent]"
            raise ConfigurationError(msg) from error
    return found


class Registry:
    """The executors of this process. `async with` starts and ends them."""

    def __init__(self, executors: Sequence[Executor], now: Callable[[], float], *, retry_s: float = 10.0) -> None:
        """`now` is the clock; an executor whose backend was found down is left alone for `retry_s`."""
        self._executors = executors
        self._now = now
        self._retry_s = retry_s
        self._down_until: dict[str, float] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start every executor."""
        for executor in self._executors:
            await executor.start()
            self._stack.push_async_callback(executor.aclose)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every executor, the last one first."""
        await self._stack.aclose()

    def capabilities(self) -> list[Capability]:
        """Return what can be run right now."""
        return [capability for executor in self._up() for capability in executor.capabilities()]

    def able(self) -> bool:
        """Whether anything can be run right now."""
        return any(executor.capabilities() for executor in self._up())

    def find(self, kind: str, model: str | None) -> Executor | None:
        """Return who runs such a job: one that names the model before one that takes any; None if nobody does."""
        wanted = subjects.slug(model) if model else None
        fallback: Executor | None = None
        for executor in self._executors:
            for capability in executor.capabilities():
                if capability.kind != kind:
                    continue
                if wanted is not None and wanted in {subjects.slug(name) for name in capability.models}:
                    return executor
                if "*" in capability.models and fallback is None:
                    fallback = executor
        return fallback

    def serves(self, kind: str, slug: str) -> bool:
        """Whether a lane can be worked on right now."""
        for capability in self.capabilities():
            if capability.kind != kind:
                continue
            if "*" in capability.models or slug in {subjects.slug(name) for name in capability.models}:
                return True
        return False

    def hold_back(self, executor: Executor) -> None:
        """Leave an executor alone for a while: its backend did not answer."""
        _log.warning("backend down", executor=executor.name, retry_in_s=self._retry_s)
        self._down_until[executor.name] = self._now() + self._retry_s

    def is_up(self, executor: Executor) -> bool:
        """Whether it is not held back."""
        return self._down_until.get(executor.name, float("-inf")) <= self._now()

    def _up(self) -> list[Executor]:
        return [executor for executor in self._executors if self.is_up(executor)]
