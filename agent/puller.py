"""Taking work: as few pulls as needed while idle, as many as there are free slots while there is much to do.

A turn takes a slot, pulls, and if a job came, runs it. Lanes are tried in order of preference, without waiting; then
one pull lingers, on another lane each time. Lanes whose model is loaded go first, for loading another takes longer
than many a job; but a lane that was not asked for `warm_wait_s` goes before them. Among equals the lane that gave work
last comes first, and after `FAIR_RUN` jobs in a row the next one. Never a pull while the gate is closed or no slot is
free; never any ack: a delivery that is not granted is forgotten.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from agent.gate import Gate
from agent.runner import RunEnd, Runner
from agent.slots import Slot, Slots
from shared.bus import Bus, BusError, Message
from shared.failpoints import Failpoint, reach
from shared.streams import GROUP
from shared.wire import LaneOffer, Offer

STREAM = "WORK"
FAIR_RUN = 8
_LOOK_AGAIN_S = 1.0
_IDLE_PULLS = 4
_SOON_S = 0.05
_REFUSED_PAUSE_S = 0.5
_log = structlog.get_logger()


@dataclass(slots=True)
class Lanes:
    """What the coordinator lets this agent pull from, and how long a delivery is its own."""

    offers: Sequence[LaneOffer] = ()
    can_begin: Callable[[LaneOffer], bool] = lambda _: True  # at once, and not when the GPU is free again
    is_warm: Callable[[LaneOffer], bool] = lambda _: False  # its model is in memory
    now: Callable[[], float] = lambda: 0.0
    warm_wait_s: float = 0.0
    lease_ttl_s: float = 90.0
    preferred: str = ""
    run: int = 0
    turn: int = 0
    _asked_at: dict[str, float] = field(default_factory=dict)

    def ordered(self) -> list[str]:
        """Return the consumers whose jobs could begin: those that waited too long, the warm ones, the others."""
        now = self.now()
        self._asked_at = {offer.consumer: self._asked_at.get(offer.consumer, now) for offer in self.offers}
        ready = [offer for offer in self.offers if self.can_begin(offer)]
        warm = {offer.consumer for offer in ready if self.is_warm(offer)}
        if self.run < FAIR_RUN:
            warm.add(self.preferred)  # its model was just used, whatever was last heard of the backend

        def place(consumer: str) -> tuple[int, float]:
            asked_at = self._asked_at[consumer]
            if now - asked_at >= self.warm_wait_s > 0:
                return (0, asked_at)
            return (1 if consumer in warm else 2, 0.0)

        return sorted(self._rotated([offer.consumer for offer in ready]), key=place)

    def asked(self, consumer: str) -> None:
        """Note that a lane was asked: if work waits in it, it is had now."""
        self._asked_at[consumer] = self.now()

    def _rotated(self, names: list[str]) -> list[str]:
        """Return the lanes from the preferred one on, or from the one after it."""
        if self.preferred not in names:
            return names
        start = names.index(self.preferred) + (1 if self.run >= FAIR_RUN else 0)
        return names[start:] + names[:start]

    def gave(self, consumer: str) -> None:
        """Remember who gave work last."""
        self.run = self.run + 1 if consumer == self.preferred and self.run < FAIR_RUN else 1
        self.preferred = consumer

    def next_linger(self) -> str | None:
        """Return the consumer to wait on, another each time."""
        names = [offer.consumer for offer in self.offers if self.can_begin(offer)]
        if not names:
            return None
        self.turn += 1
        return names[self.turn % len(names)]


@dataclass(slots=True)
class Puller:
    """Starts turns; `run` ends only by cancellation, and then waits for nothing."""

    bus: Bus
    gate: Gate
    slots: Slots
    lanes: Lanes
    runner: Runner
    rank: Callable[[], int]
    linger_s: float
    linger_many_s: float
    now: Callable[[], float]
    just_woken: Callable[[], bool]
    on_end: Callable[[RunEnd], None]
    _wanted: int = 1
    _pulls: set[asyncio.Task[None]] = field(default_factory=set)
    _again: asyncio.Event = field(default_factory=asyncio.Event)
    _swept_at: float = float("-inf")

    async def run(self) -> None:
        """Keep as many turns going as make sense."""
        async with asyncio.TaskGroup() as turns:
            while True:
                await self.gate.wait_open(_LOOK_AGAIN_S)
                await self.slots.wait_free()
                if self.gate.why_not() is not None:
                    continue
                if not self.lanes.offers or len(self._pulls) >= max(self._wanted, self._least()):
                    await self._wait_again()
                    continue
                task = turns.create_task(self._turn(self.slots.take()), name="turn")
                self._pulls.add(task)

    def withdraw(self) -> None:
        """End every pull that waits; what is already claimed goes on."""
        for task in list(self._pulls):
            task.cancel()

    def wake(self) -> None:
        """Look again: lanes changed."""
        self._again.set()

    async def _turn(self, slot: Slot) -> None:
        task = asyncio.current_task()
        try:
            message, consumer = await self._pull()
        except asyncio.CancelledError:
            slot.release()
            raise
        finally:
            if task is not None:
                self._pulls.discard(task)
            self._again.set()
        if message is None:
            self._wanted = max(1, self._wanted // 2)
            slot.release()
            return
        if self.just_woken():  # the machine slept beside the open pull, and may be asleep again in seconds
            _log.info("offer left to others after a sleep", subject=message.subject)
            slot.release()
            return
        self._wanted = min(self._wanted * 2, self.slots.total)
        self.lanes.gave(consumer)
        give_up_at = self.now() + self.lanes.lease_ttl_s
        try:
            offer = Offer.model_validate_json(message.data)
        except ValidationError as error:
            _log.warning("offer can't be read", subject=message.subject, error=str(error)[:200])
            slot.release()
            return
        reach(Failpoint.PULLED)
        self.on_end(await self.runner.run(offer.job_id, message.reply, give_up_at=give_up_at, slot=slot))

    async def _pull(self) -> tuple[Message | None, str]:
        """Return a message and the consumer that gave it, or None after one lingering pull."""
        began_at = self.now()
        order = self.lanes.ordered()
        if len(order) > 1:
            if began_at - self._swept_at < self.linger_many_s and self._wanted == 1:
                order = []
            self._swept_at = began_at
            for consumer in order:
                if (message := await self._ask(consumer, 0.0)) is not None:
                    self._swept_at = float("-inf")
                    return message, consumer
        waiting_on = self.lanes.next_linger()
        if waiting_on is not None:
            wait_s = self.linger_many_s if len(self.lanes.offers) > 1 else self.linger_s
            if (message := await self._ask(waiting_on, wait_s)) is not None:
                self._swept_at = float("-inf")
                return message, waiting_on
        if self.now() - began_at < _SOON_S:  # refused, not waited: no busy loop against a server that says no
            await asyncio.sleep(_REFUSED_PAUSE_S)
        return None, ""

    async def _ask(self, consumer: str, wait_s: float) -> Message | None:
        if self.gate.why_not() is not None:
            return None
        self.lanes.asked(consumer)
        try:
            return await self.bus.pull_one(
                STREAM, consumer, expires_s=wait_s, no_wait=wait_s == 0, group=GROUP, priority=self.rank()
            )
        except BusError as error:
            _log.info("pull refused", consumer=consumer, error=f"{type(error).__name__}: {error}"[:200])
            return None

    def _least(self) -> int:
        """How many pulls wait while nothing comes: one for each lane, but only a few."""
        return max(1, min(len(self.lanes.offers), _IDLE_PULLS))

    async def _wait_again(self) -> None:
        self._again.clear()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._again.wait()
        except TimeoutError:
            pass
