"""May this agent take work now, and if not, why: the one place that knows.

The puller asks before each pull, the runner before it starts a generator, presence tells the answer to everybody.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from shared.states import WorkerState


@dataclass(slots=True)
class Gate:
    """Collects the reasons. Callers must call `changed()` after setting a field directly; the methods do it."""

    now: Callable[[], float]
    able: Callable[[], bool]  # can some executor do something
    connected: bool = False
    stopping: bool = False  # this process was told to end
    ordered: WorkerState = WorkerState.READY  # by control; kept for the process's life
    wanted: WorkerState = WorkerState.READY  # by the last presence answer
    answered: bool = False  # the coordinator answers presence
    checks: list[Callable[[], str | None]] = field(default_factory=list)  # reasons that come and go by themselves
    on_change: list[Callable[[], None]] = field(default_factory=list)
    _held_until: float = 0.0
    _held_reason: str = ""
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> WorkerState:
        """What presence says."""
        match self.told():
            case "drain":
                return WorkerState.DRAINING
            case "paused":
                return WorkerState.PAUSED
            case None:
                return WorkerState.READY if self.able() else WorkerState.UNHEALTHY

    def told(self) -> Literal["drain", "paused"] | None:
        """Return why a job that has come all the same must go back: somebody said so; None if nobody did."""
        orders = (self.ordered, self.wanted)
        if self.stopping or WorkerState.DRAINING in orders:
            return "drain"
        return "paused" if WorkerState.PAUSED in orders else None

    def why_not(self, *, once_answered: bool = False) -> str | None:
        """Return why no work may be taken now, in one word; None: take it.

        `once_answered`: as it will be when the coordinator has answered, which is what it wants to hear.
        """
        if not self.connected:
            return "not_connected"
        if (told := self.told()) is not None:
            return told
        if not self.answered and not once_answered:
            return "no_coordinator"
        if not self.able():
            return "backend_down"
        if self.now() < self._held_until:
            return self._held_reason
        return next((reason for check in self.checks if (reason := check()) is not None), None)

    def hold(self, reason: str, seconds: float) -> None:
        """Take nothing for a while."""
        self._held_reason, self._held_until = reason, self.now() + seconds
        self.changed()

    def order(self, state: WorkerState) -> None:
        """Do what an operator said by control; READY takes back pause and drain."""
        self.ordered = state
        if state is WorkerState.READY:
            self.wanted = state  # until presence says otherwise
        self.changed()

    def stop(self) -> None:
        """Take nothing any more."""
        self.stopping = True
        self.changed()

    def changed(self) -> None:
        """Wake who waits for the gate, and tell who watches it."""
        if self.why_not() is None:
            self._open.set()
        else:
            self._open.clear()
        for callback in self.on_change:
            callback()

    async def wait_open(self, look_again_s: float) -> None:
        """Return when work may be taken; reasons that end by themselves are looked at every `look_again_s`."""
        while self.why_not() is not None:
            self._open.clear()
            try:
                async with asyncio.timeout(look_again_s):
                    await self._open.wait()
            except TimeoutError:
                continue
