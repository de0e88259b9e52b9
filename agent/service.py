"""The agent, put together: everything is made here, runs in one TaskGroup, and ends when `stop` is set.

Ending is a drain: no more pulls, running jobs may finish within `drain_limit_s`, the rest is released, and what is
still undelivered after that stays in the spool for the next process.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from agent.awake import Awake
from agent.claims import Claims
from agent.connection import open_bus, tls_context
from agent.control import Control
from agent.drain import Drain
from agent.executors.base import Executor
from agent.executors.memory import Gpu
from agent.executors.registry import Registry, load_executors
from agent.gate import Gate
from agent.heartbeat import Heartbeats
from agent.host import WATCH_S, Clock, SleepWatch
from agent.journal import Claimed, Journal
from agent.leases import Attempt, Leases, first_of
from agent.presence import PresenceRounds
from agent.puller import Lanes, Puller
from agent.reporter import Reporter
from agent.rule_watch import RuleWatch
from agent.runner import RunEnd, Runner
from agent.settings import AgentSettings
from agent.slots import Slot, Slots
from agent.spool import Entry, Spool
from agent.uploads import Uploads
from agent.watchdog import Watchdog
from agent.workspace import Workspaces, data_folder
from shared import subjects
from shared.bus import Bus
from shared.loops import Loop
from shared.rules import Rules
from shared.wire import PresenceReply

_PULLS_BACK_S = 1.0
"""How long pulls that are open at a stop may still bring something (it is released at once)."""

_EXIT_MARGIN_S = 15.0
"""How long a generator may take to become idle after it was stopped; then the process ends without it."""

_log = structlog.get_logger()


async def run_agent(
    settings: AgentSettings,
    *,
    stop: asyncio.Event,
    hurry: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
    executors: Sequence[Executor] | None = None,
    clock: Clock | None = None,
    on_end: Callable[[RunEnd], None] | None = None,
    reload_rules: Callable[[], Rules | None] = lambda: None,
) -> None:
    """Run one agent until `stop` is set and the drain is over; `hurry` ends the drain's patience.

    `ready` is set when the coordinator has answered for the first time. `executors` replaces those of the settings,
    `on_end` hears how each delivery ended, `reload_rules` returns rules that have changed in the settings since it was
    called last. ConfigurationError for what a person must mend.
    """
    instance, clock = str(uuid.uuid4()), clock or Clock()
    plugins = load_executors(settings.executors) if executors is None else executors
    seed, tls = settings.read_seed(), tls_context(settings)
    with data_folder(Path(settings.data), instance) as root:
        workspaces, spool, journal = Workspaces(root / "work"), Spool(root / "spool"), Journal(root / "journal")
        left = workspaces.clear()
        spooled, begun = spool.load(), journal.load()
        _log.info("agent starts", worker=settings.worker, instance=instance, spooled=len(spooled), removed=left)
        async with (
            Watchdog(settings.hang_s) as watchdog,
            Registry(plugins, clock.now, gpu=Gpu(plugins, jobs=settings.gpu_jobs)) as registry,
            Uploads(connect_s=settings.upload_connect_s, stall_s=settings.upload_stall_s, tls=tls) as uploads,
            contextlib.aclosing(spool),
            open_bus(settings, instance, seed, tls) as bus,
        ):
            parts = _Parts(
                settings=settings,
                instance=instance,
                clock=clock,
                bus=bus,
                registry=registry,
                workspaces=workspaces,
                spool=spool,
                journal=journal,
                uploads=uploads,
                watchdog=watchdog,
                on_end=on_end,
                reload_rules=reload_rules,
            )
            hurry, ready = hurry or asyncio.Event(), ready or asyncio.Event()
            await _Agent(parts).run(spooled, begun, stop=stop, hurry=hurry, ready=ready)
    _log.info("agent ends", worker=settings.worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is opened before the agent works, and closed after it."""

    settings: AgentSettings
    instance: str
    clock: Clock
    bus: Bus
    registry: Registry
    workspaces: Workspaces
    spool: Spool
    journal: Journal
    uploads: Uploads
    watchdog: Watchdog
    on_end: Callable[[RunEnd], None] | None
    reload_rules: Callable[[], Rules | None]


class _Agent:
    """The wiring; lives as long as the bus."""

    def __init__(self, parts: _Parts) -> None:
        """Make what works on the parts; nothing runs yet."""
        settings, bus, registry = parts.settings, parts.bus, parts.registry
        now = parts.clock.now
        self._parts, self._settings, self._bus = parts, settings, bus
        self._ready = asyncio.Event()
        self._chores: set[asyncio.Task[None]] = set()
        self._gate = Gate(now, registry.able)
        self._leases = Leases(bus, settings.worker, parts.instance, now, timeout_s=settings.lease_timeout_s)
        self._reporter = Reporter(bus, self._leases, parts.spool, parts.uploads, settings)
        claims = Claims(
            bus,
            self._leases,
            worker=settings.worker,
            instance=parts.instance,
            now=now,
            timeout_s=settings.claim_timeout_s,
        )
        self._runner = Runner(
            claims,
            self._leases,
            registry,
            parts.workspaces,
            parts.spool,
            self._reporter,
            self._gate,
            parts.journal,
        )
        self._awake = Awake(self._leases, self._gate, now, lambda: self._lanes.lease_ttl_s)
        self._leases.on_change = self._awake.look
        self._rules = RuleWatch(
            settings.rules, self._leases, now, on_change=self._rules_changed, reload=parts.reload_rules
        )
        self._rule_rounds = Loop("rules", self._rules.once, settings.rules_s)
        self._slots = Slots(settings.slots)
        self._lanes = Lanes(
            can_begin=lambda offer: self._rules.may_take(offer) and registry.can_begin(offer.kind, offer.slug),
            is_warm=lambda offer: registry.is_warm(offer.kind, offer.slug),
            now=now,
            warm_wait_s=settings.warm_wait_s,
        )
        self._puller = Puller(
            bus=bus,
            gate=self._gate,
            slots=self._slots,
            lanes=self._lanes,
            runner=self._runner,
            rank=lambda: self._rules.rank(settings.rank),
            linger_s=settings.linger_s,
            linger_many_s=settings.linger_many_s,
            now=now,
            just_woken=lambda: self._sleep.in_grace,
            on_end=self._ended,
        )
        self._rounds = PresenceRounds(
            bus,
            self._gate,
            self._leases,
            registry,
            self._lanes,
            self._rules,
            settings,
            parts.instance,
            on_answer=self._answered,
        )
        self._presence = Loop("presence", self._rounds.once, settings.presence_s)
        heartbeats = Heartbeats(bus.publish, self._leases, settings.worker, parts.instance, now)
        self._heartbeats = Loop("heartbeats", heartbeats.once, settings.heartbeat_tick_s)
        self._sleep = SleepWatch(parts.clock, settings.wake_grace_s, [self._time_passed])
        self._drain = Drain(self._gate, self._leases, settings.drain_limit_s)
        self._control = Control(self._leases, self._reporter, self._gate, parts.instance)
        self._gate.checks += [
            lambda: self._rounds.refused,
            lambda: "just_woken" if self._sleep.in_grace else None,
            self._rules.reason,
            lambda: "spool_full" if self._leases.delivering >= settings.most_spooled else None,
        ]
        registry.on_change.append(self._gate.changed)
        self._gate.on_change += [self._drain.gate_changed, self._announce_change]

    async def run(
        self,
        spooled: Sequence[Entry],
        begun: Sequence[Claimed],
        *,
        stop: asyncio.Event,
        hurry: asyncio.Event,
        ready: asyncio.Event,
    ) -> None:
        """Work until told to stop, then drain."""
        self._ready = ready
        self._bus.on_state(self._connection)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            loops = [
                tasks.create_task(self._rule_rounds.run(), name="rules"),
                tasks.create_task(self._awake.run(), name="awake"),
                tasks.create_task(self._beat(), name="heartbeats"),
                tasks.create_task(Loop("sleep watch", self._sleep.once, WATCH_S).run(), name="sleep watch"),
            ]
            for attempt, entry in [(self._leases.adopt(entry.parcel), entry) for entry in spooled]:
                loops.append(tasks.create_task(self._adopted(attempt, entry), name=f"adopted:{entry.parcel.name}"))
            loops += [
                tasks.create_task(self._taken_up(attempt, claimed, slot), name=f"resume:{claimed.name}")
                for attempt, claimed, slot in self._hold(begun)
            ]
            await self._bus.subscribe(subjects.control(self._settings.worker), self._control.take)
            self._connection(self._bus.connected)
            loops.append(tasks.create_task(self._presence.run(), name="presence"))
            puller = tasks.create_task(self._puller.run(), name="puller")
            try:
                await stop.wait()
                await self._wind_down(hurry)
            finally:
                self._drain.close()
                for task in (puller, *loops, *self._chores):
                    task.cancel()

    async def _wind_down(self, hurry: asyncio.Event) -> None:
        """Drain: generators first, then what they made."""
        _log.info("stopping", held=len(self._leases), taken=self._slots.taken)
        self._gate.stop()
        self._parts.watchdog.end_in(
            2 * (self._settings.drain_limit_s + self._settings.release_limit_s) + 2 * _EXIT_MARGIN_S
        )
        patience = asyncio.create_task(self._hurried(hurry), name="hurry")
        try:
            await _within(_PULLS_BACK_S, self._slots.wait_free(self._slots.total))
            self._puller.withdraw()
            await _within(self._settings.drain_limit_s + _EXIT_MARGIN_S, self._slots.wait_free(self._slots.total))
            reachable = self._gate.connected and self._gate.answered and not hurry.is_set()
            limit_s = self._settings.release_limit_s + (self._settings.drain_limit_s if reachable else 0)
            await _within(limit_s, self._delivered(hurry))
        finally:
            patience.cancel()
        _log.info("stopped", left_spooled=len(self._leases))

    async def _hurried(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        self._puller.withdraw()
        self._drain.release()

    async def _delivered(self, hurry: asyncio.Event) -> None:
        """Wait until nothing is held any more; a hurry leaves `release_limit_s` for it."""
        empty = asyncio.create_task(self._leases.wait_empty(), name="wait empty")
        rushed = asyncio.create_task(hurry.wait(), name="wait hurry")
        try:
            await asyncio.wait({empty, rushed}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({empty}, timeout=self._settings.release_limit_s)
        finally:
            empty.cancel()
            rushed.cancel()

    async def _beat(self) -> None:
        """Speak of leases once the coordinator knows this process: until then they are its predecessor's."""
        await self._ready.wait()
        await self._heartbeats.run()

    async def _adopted(self, attempt: Attempt, entry: Entry) -> None:
        """Deliver what an earlier process of this worker left."""
        try:
            await self._ready.wait()
            answer = await self._reporter.deliver(attempt, entry, adopted=True)
        finally:
            self._leases.close(attempt)
        _log.info("adopted result delivered", job=entry.parcel.name, verdict=answer.verdict, lost=answer.lost)

    def _hold(self, begun: Sequence[Claimed]) -> list[tuple[Attempt, Claimed, Slot]]:
        """Hold what an earlier process had begun, so that the first presence lists it."""
        held = []
        for claimed in self._parts.journal.dropped:
            self._chore(self._runner.drop(claimed))
        for claimed in begun:
            granted = claimed.granted
            if self._leases.find(granted.job.id, granted.epoch) is not None:  # its result is in the spool
                self._chore(self._parts.journal.forget(str(granted.job.id), granted.epoch))
                continue
            if not self._slots.free:
                self._chore(self._runner.drop(claimed))
                continue
            age_s = granted.deadline_s - self._parts.journal.left_s(claimed)
            attempt = self._leases.open(granted, claimed.delivery, self._parts.clock.now() - age_s)
            held.append((attempt, claimed, self._slots.take()))
        return held

    async def _taken_up(self, attempt: Attempt, claimed: Claimed, slot: Slot) -> None:
        """Go on with an attempt of an earlier process, whose backend goes on with it all the time."""
        async with self._parts.registry.going_on(claimed.executor, str(attempt.job_id), attempt.epoch):
            await self._take_up(attempt, claimed, slot)

    async def _take_up(self, attempt: Attempt, claimed: Claimed, slot: Slot) -> None:
        """Go on with it once the coordinator knows that it is this process's, or end it when somebody says so."""
        ready = asyncio.create_task(self._ready.wait(), name="wait ready")
        try:
            await first_of(ready, attempt.stopped)
        finally:
            ready.cancel()
        if self._gate.stopping and not self._ready.is_set():  # it stays for the next process
            self._leases.close(attempt)
            slot.release()
            return
        _log.info("taking up an attempt", job_id=str(attempt.job_id), epoch=attempt.epoch, tries=claimed.tries)
        self._ended(await self._runner.resume(attempt, claimed, slot))

    # ---- what happens outside

    def _connection(self, connected: bool) -> None:  # noqa: FBT001 - the shape of a state callback
        self._gate.connected = connected
        self._gate.changed()
        self._presence.wake()
        if connected:
            self._reporter.nudge()
            self._doubt()

    def _doubt(self) -> None:
        """Be sure of no lease any more, and ask."""
        self._leases.doubt()
        if self._ready.is_set():
            self._chore(self._leases.ask_doubtful())

    def _time_passed(self) -> None:
        self._doubt()
        self._chore(self._parts.uploads.forget_connections())
        self._rule_rounds.wake()
        self._presence.wake()

    def _answered(self, reply: PresenceReply) -> None:
        self._presence.every_s = reply.presence_s
        if self._rules.told(reply.rules):
            self._rules_changed()
            self._rule_rounds.wake()
        self._ready.set()
        if any(attempt.doubtful for attempt in self._leases):
            self._chore(self._leases.ask_doubtful())
        self._puller.wake()

    def _rules_changed(self) -> None:
        """Stop or begin taking work, and say so: pulls that are open would bring what may not begin."""
        if self._rules.reason() is not None:
            self._puller.withdraw()
        self._gate.changed()
        self._presence.wake()

    def _announce_change(self) -> None:
        said = self._rounds.announced
        if said is not None and said != (self._gate.state, len(self._parts.registry.capabilities())):
            self._presence.wake()

    def _ended(self, end: RunEnd) -> None:
        _log.info("run ended", **asdict(end) | {"job_id": str(end.job_id)})
        if self._parts.on_end is not None:
            self._parts.on_end(end)

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something short beside everything else."""
        task = self._tasks.create_task(work, name="chore")
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


async def _within(limit_s: float, work: Coroutine[Any, Any, None]) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        return False
    return True
