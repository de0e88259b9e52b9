"""The coordinator, composed: which parts there are, who knows whom, in which order they start. Nothing else composes.

intake, claims, heartbeats, reports, presence ──commands──► ledger ──effects──► bus
dispatcher, reaper, results, reconciler, sweeper, workers: loops over what the ledger says
web: HTTP on the same ledger
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import structlog
from pydantic import SecretStr

from coordinator.artifact_health import WatchedStore
from coordinator.artifact_stores import store_of
from coordinator.callback_secrets import CallbackSecrets
from coordinator.callbacks import Callbacks
from coordinator.claims import Claims
from coordinator.decision_log import log_decided
from coordinator.departures import ROUND_S as DEPARTURES_S
from coordinator.departures import Departures
from coordinator.dispatcher import Dispatcher
from coordinator.doors import Doors
from coordinator.effects import Effects
from coordinator.enrolment import Enrolment
from coordinator.feed import Feed
from coordinator.heartbeats import Heartbeats
from coordinator.hooks.config import Source, load_if
from coordinator.hooks.hooks import LEDGER_S, Hooks, sites_of
from coordinator.intake import Intake
from coordinator.lanes import LaneConsumers
from coordinator.ledger.access_tokens import AccessTokens
from coordinator.ledger.database import lent_pool
from coordinator.ledger.invitations import Invitations
from coordinator.ledger.kept import KeptRows
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.migrate import migrate
from coordinator.ledger.model import Decided, Job
from coordinator.ledger.publications import Publications
from coordinator.ledger.queries import Queries
from coordinator.log_lines import LogLines
from coordinator.metrics import Metrics
from coordinator.nats_users import NatsUsers, OwnServer
from coordinator.outlook import Outlook
from coordinator.placement import Placement
from coordinator.presence import PresenceDesk
from coordinator.publishing.publisher import Publisher
from coordinator.reaper import Reaper
from coordinator.reasons import Reasons
from coordinator.reconciler import Reconciler
from coordinator.reports import Reports
from coordinator.results import Results
from coordinator.retention import Retention
from coordinator.settings import CoordinatorSettings, address_of
from coordinator.sweeper import Sweeper
from coordinator.tokens import Tokens
from coordinator.upload_tokens import UploadTokens
from coordinator.web.access import Access, AccessToken, Role, check_listen
from coordinator.web.app import Runner, Secured, WebContext, make_app, serve
from coordinator.web.live_hub import Live
from coordinator.web.rates import Rates
from coordinator.web.sessions import session_key
from coordinator.workers import Directory
from shared import log, subjects
from shared.bus import Bus
from shared.errors import ConfigurationError, LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.loops import Loop
from shared.states import WorkerState
from shared.streams import RESULTS_KEPT_S, ensure_intake_consumers, ensure_streams, is_missing

_log = structlog.get_logger()

MAX_FAILURES = 400
"""Rounds in a row that a loop may fail before the program ends; with pauses of up to 5 s about half an hour."""


STOP_S = 5.0
"""How long the effects of the last commits may take at a stop; the reconciler makes up for what is lost."""


@dataclass(slots=True)
class Coordinator:
    """A coordinator: its parts, and the loops and listeners that drive them."""

    settings: CoordinatorSettings
    bus: Bus
    ledger: Ledger
    queries: Queries
    directory: Directory
    dispatcher: Dispatcher
    effects: Effects
    feed: Feed
    reaper: Reaper
    reconciler: Reconciler
    results: Results
    intake: Intake
    hooks: Hooks
    reports: Reports
    claims: Claims
    heartbeats: Heartbeats
    presence: PresenceDesk
    departures: Departures | None
    store: WatchedStore
    sweeper: Sweeper
    outlook: Outlook
    placement: Placement
    callbacks: Callbacks
    publisher: Publisher
    loops: list[Loop]
    doors: Doors
    trimmed: dict[str, int] = field(default_factory=dict)  # by what was trimmed for its age
    url: str = ""  # of the HTTP side, once it listens

    def status(self) -> dict[str, Any]:
        """Return what /status shows of the machinery."""
        return {
            "bus": {"connected": self.bus.connected, "connections": self.bus.connections},
            "ledger": self.ledger.status(),
            "store": self.store.status(),
            "loops": {loop.name: loop.status() for loop in self.loops},
            "hooks": self.hooks.status(),
            "publishing": self.publisher.status(),
            "counts": {
                "admitted": self.intake.admitted,
                "refused": self.intake.refused,
                "offered": self.dispatcher.offered,
                "unclaimed": self.dispatcher.unclaimed,
                "granted": self.claims.granted,
                "denied": dict(self.claims.denied),
                "set_aside": len(self.directory.aside),
                "moved": self.placement.moved,
                "heartbeats": self.heartbeats.taken,
                "heartbeats_lost": self.heartbeats.lost,
                "heartbeats_bad": self.heartbeats.bad,
                "foreign_senders": self.directory.foreign,
                "reports": self.reports.judged,
                "verdicts": dict(self.reports.verdicts),
                "reports_unreadable": self.reports.unreadable,
                "expired": self.reaper.expired,
                "clock_set_back": self.reaper.set_back,
                "ghost_leases": self.presence.ghosts,
                "departed": self.departures.ended if self.departures else 0,
                "published": self.results.published,
                "callbacks_delivered": self.callbacks.delivered,
                "callbacks_failed": dict(self.callbacks.failed),
                "callbacks_given_up": self.callbacks.given_up,
                "publications_done": self.publisher.published.total(),
                "publications_failed": dict(self.publisher.failed),
                "publications_given_up": self.publisher.given_up.total(),
                "effects_lost": self.effects.lost,
                "mended_missing": self.reconciler.mended.missing,
                "mended_unrecorded": self.reconciler.mended.unrecorded,
                "mended_orphaned": self.reconciler.mended.orphaned,
                "streams_made": self.reconciler.mended.streams,
                "swept_files": self.sweeper.files,
                "swept_contents": self.sweeper.contents,
                "swept_unfinished": self.sweeper.unfinished,
                "trimmed": dict(self.trimmed),
            },
        }

    def unready(self) -> list[str]:
        """Return why this coordinator can't do its work now; empty = ready."""
        reasons = [] if self.bus.connected else ["not connected to NATS"]
        if not self.doors.are_open or self.reconciler.seen != self.bus.connections or not self.reaper.graced:
            reasons.append("not everything looked at since NATS is connected")
        reasons += [f"{loop.name}: {loop.last_error}" for loop in self.loops if loop.failures and loop.max_failures]
        return reasons


@asynccontextmanager
async def running(settings: CoordinatorSettings, users: NatsUsers | None = None) -> AsyncIterator[Coordinator]:
    """Run a coordinator until the block is left; yields once it serves. Brings the database up to date first.

    `users`: who may connect to NATS, if it is not as the settings say.
    Raises ConfigurationError for settings that can't work, UnreachableError when Postgres can't be reached at start.
    """
    access, users = _access(settings), users or _users(settings)
    sources = load_if(settings.sources_file)
    settings = settings.model_copy(update={"wordpress": sites_of(sources, settings.wordpress)})
    host, port = address_of(settings.http)
    secured = _secured(settings)
    dsn = settings.postgres.get_secret_value()
    await _check_listen(host, secured, access, dsn)
    await migrate(dsn)
    tokens = UploadTokens.load_or_create(settings.secrets / "upload-token.key")
    async with (
        contextlib.AsyncExitStack() as stack,
        lent_pool(dsn, min_size=0) as pool,
        _bus(settings, "coordinator", settings.nats_seed) as bus,
        asyncio.TaskGroup() as tasks,
    ):
        stack.enter_context(log.kept(settings.log_file, most_bytes=settings.log_file_bytes, files=settings.log_files))
        store = WatchedStore(store_of(settings))
        stack.callback(store.close)
        await store.prepare()
        effects, feed = Effects(bus, LaneConsumers(bus, settings.lease_ttl_s), tasks), Feed(bus)
        metrics = Metrics()

        def changed(before: Job | None, after: Job) -> None:
            feed.changed(before, after)
            metrics.changed(before, after)

        def decided(all_of_it: Sequence[Decided], took_s: float) -> None:
            log_decided(all_of_it, took_s)
            metrics.committed(len(all_of_it), took_s)

        writer = Ledger(pool, settings.policy(), on_effects=effects.take, on_changes=changed, on_decided=decided)
        async with writer as ledger:
            seed = settings.nats_watcher_seed
            watcher = await stack.enter_async_context(_bus(settings, "watcher", seed)) if seed else None
            publications = Publications(pool)
            coordinator = _compose(
                settings,
                bus,
                watcher,
                ledger,
                Queries(pool),
                effects,
                feed,
                tokens,
                store=store,
                publications=publications,
                sources=sources,
                users=users,
            )
            hooks = await stack.enter_async_context(coordinator.hooks)
            retention = Retention(KeptRows(pool), settings.ages())
            coordinator.loops.append(Loop("retention", retention.once, every_s=settings.retention_s))
            coordinator.trimmed = retention.trimmed
            access_tokens = Tokens(AccessTokens(pool), access)
            coordinator.loops.append(Loop("tokens", access_tokens.once, every_s=2.0, quiet_about=LedgerDownError))
            enrolment = Enrolment(
                users,
                Invitations(pool),
                ledger,
                coordinator.queries,
                coordinator.directory,
                url=lambda: coordinator.settings.public_url or coordinator.url,
                nats=settings.nats_public_url or settings.nats,
                ca=settings.nats_ca,
                make_ready=coordinator.results.ensure,
            )
            reasons = Reasons(coordinator.directory, coordinator.dispatcher.is_paused)
            context = WebContext(
                ledger=ledger,
                pool=pool,
                queries=coordinator.queries,
                policy=settings.policy(),
                store=store,
                tokens=tokens,
                access=access,
                submit=coordinator.intake.submit,
                hooks=hooks,
                enrolment=enrolment,
                access_tokens=access_tokens,
                rates=Rates(settings.rate_per_s, settings.rate_burst),
                order=_orders(coordinator),
                pause_lane=_lane_pauses(coordinator),
                health=coordinator.status,
                ready=coordinator.unready,
                predict=coordinator.outlook.tell,
                why=reasons.of,
                why_lane=reasons.of_lane,
                why_idle=reasons.of_worker,
                live=Live(lambda heard: bus.subscribe(subjects.EVENTS, heard)),
                aside=coordinator.directory.aside_of,
                metrics=metrics,
                callback_again=coordinator.callbacks.again,
                publish_again=coordinator.publisher.again,
                check_site=coordinator.publisher.check_now,
                base_url=settings.public_url,
                max_artifact_bytes=settings.max_artifact_bytes,
                log_lines=LogLines(settings.log_file, settings.log_agents).of,
            )
            await access_tokens.once()
            await coordinator.directory.once()  # custom kinds are known before the first submission
            runner = await serve(make_app(context), host, port, secured)
            started: list[asyncio.Task[None]] = []
            try:
                await _start(coordinator, runner, tasks, started)
                yield coordinator
            finally:
                await runner.cleanup()
                await hooks.close()
                await _stop(coordinator, started)


def _compose(
    settings: CoordinatorSettings,
    bus: Bus,
    watcher: Bus | None,
    ledger: Ledger,
    queries: Queries,
    effects: Effects,
    feed: Feed,
    tokens: UploadTokens,
    *,
    store: WatchedStore,
    publications: Publications,
    sources: Mapping[str, Source],
    users: NatsUsers | None,
) -> Coordinator:
    policy, lanes = settings.policy(), effects.lanes
    directory = Directory(
        queries,
        policy.presence_s,
        settings.quarantine(),
        hearing=lambda: bus.connections if bus.connected else 0,
    )
    dispatcher = Dispatcher(
        ledger, queries, directory, lambda: bus.connected, settings.window_min, settings.unclaimed_s
    )
    outlook = Outlook(queries, directory, dispatcher)
    results = Results(bus, queries, "", frozenset(settings.wordpress))
    reaper = Reaper(bus, ledger, queries)
    sweeper = Sweeper(queries, store, settings.artifacts_grace_s)
    placement = Placement(ledger, queries, directory.standing, dispatcher.known)
    secrets = CallbackSecrets.load_or_create(settings.secrets / "callback.key", settings.callback_secrets)
    callbacks = Callbacks(queries, secrets.of, settings.callback_allow)
    publisher = Publisher(publications, store, settings.wordpress)
    intake = Intake(bus, ledger, queries, directory, dispatcher, settings)
    hooks = Hooks(sources, partial(intake.submit, patience_s=LEDGER_S), queries.record_rejected_submission)
    departures = None
    if watcher is not None:
        departures = Departures(
            watcher,
            ledger,
            queries,
            directory,
            lambda: bus.connected and reaper.graced,
            settings.disconnect_grace_s,
        )

    async def provision() -> list[str]:
        results.forget()
        made = await _provision(settings, bus, queries)
        reach(Failpoint.INTAKE_MADE)
        for source in _sources(settings).union(users.publishers() if users else ()):
            await results.ensure(source)
        by_name["results"].wake()
        return made

    reconciler = Reconciler(bus, ledger, queries, lanes, provision)
    loops = [
        Loop("workers", directory.once, every_s=2.0, max_failures=MAX_FAILURES),
        Loop("reconciler", reconciler.once, every_s=settings.reconcile_s, max_failures=MAX_FAILURES),
        Loop("reaper", reaper.once, every_s=settings.reaper_s, max_failures=MAX_FAILURES),
        Loop("dispatcher", dispatcher.once, every_s=1.0, max_failures=MAX_FAILURES),
        Loop("placement", placement.once, every_s=1.0),
        Loop("results", results.once, every_s=5.0, max_failures=MAX_FAILURES),
        Loop("callbacks", callbacks.once, every_s=5.0),
        Loop("publisher", publisher.once, every_s=5.0),
        Loop("sweeper", sweeper.once, every_s=settings.sweep_s),  # nobody waits for it: no reason to end or be unready
        Loop("outlook", outlook.once, every_s=settings.forecast_s, max_failures=MAX_FAILURES),
    ]
    if departures is not None:
        loops.append(Loop("departures", departures.once, every_s=DEPARTURES_S, max_failures=MAX_FAILURES))
    claims = Claims(
        bus, ledger, directory, dispatcher, tokens, policy, lambda: reaper.graced, outlook.no_progress_s, ""
    )
    heartbeats = Heartbeats(bus, ledger, directory)
    presence = PresenceDesk(bus, ledger, queries, directory, dispatcher, lanes, policy)
    doors = Doors((heartbeats.subscribe, claims.subscribe, presence.subscribe), lambda: reaper.reaches_ledger)
    loops.append(Loop("doors", doors.once, every_s=0.5, max_failures=MAX_FAILURES))
    for loop in loops:
        if loop.name != "reaper":  # that one says that the ledger is away; a dozen would be a page of it
            loop.quiet_about = LedgerDownError
    by_name = {loop.name: loop for loop in loops}
    dispatcher.on_wake(by_name["dispatcher"].wake)
    callbacks.wake, publisher.wake = by_name["callbacks"].wake, by_name["publisher"].wake
    results.on_marked = _all_of(callbacks.wake, publisher.wake)
    effects.connect(ledger, dispatcher=dispatcher, results=by_name["results"], reconciler=by_name["reconciler"])
    return Coordinator(
        settings=settings,
        bus=bus,
        ledger=ledger,
        queries=queries,
        directory=directory,
        dispatcher=dispatcher,
        effects=effects,
        feed=feed,
        reaper=reaper,
        reconciler=reconciler,
        results=results,
        intake=intake,
        hooks=hooks,
        reports=Reports(bus, ledger, queries, directory),
        claims=claims,
        heartbeats=heartbeats,
        presence=presence,
        departures=departures,
        store=store,
        sweeper=sweeper,
        outlook=outlook,
        placement=placement,
        callbacks=callbacks,
        publisher=publisher,
        loops=loops,
        doors=doors,
    )


async def _start(
    coordinator: Coordinator, runner: Runner, tasks: asyncio.TaskGroup, started: list[asyncio.Task[None]]
) -> None:
    """Start everything. Claims are answered once leases had their grace (`Reaper.graced`)."""
    coordinator.url = runner.url
    base_url = coordinator.settings.public_url or runner.url
    coordinator.claims.upload_url = coordinator.results.base_url = base_url
    coordinator.bus.on_state(_on_bus_state(coordinator))
    await coordinator.doors.open()
    if coordinator.departures is not None:
        await coordinator.departures.subscribe()
    started += [tasks.create_task(loop.run(), name=loop.name) for loop in coordinator.loops]
    for name, run in (
        ("effects", coordinator.effects.run),
        ("feed", coordinator.feed.run),
        ("intake", coordinator.intake.run),
        ("reports", coordinator.reports.run),
        ("heartbeats", coordinator.heartbeats.run),
    ):
        started.append(tasks.create_task(run(), name=name))
    _log.info("coordinator serves", http=runner.url)


async def _stop(coordinator: Coordinator, started: list[asyncio.Task[None]]) -> None:
    """Take no more, let what was committed have its effects, and end."""
    effects = [task for task in started if task.get_name() == "effects"]
    others = [task for task in started if task not in effects]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await coordinator.callbacks.close()
    await coordinator.publisher.close()
    await coordinator.doors.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await coordinator.effects.wait_idle()
    for task in effects:
        task.cancel()
    await asyncio.gather(*effects, return_exceptions=True)


def _on_bus_state(coordinator: Coordinator) -> Callable[[bool], None]:
    """After NATS was away: grace for the leases, then streams, offers and results are looked at, in no order."""

    def changed(connected: bool) -> None:  # noqa: FBT001 - the shape of the callback
        _log.info("bus connected" if connected else "bus lost")
        if connected:
            for loop in coordinator.loops:
                loop.wake()

    return changed


async def _provision(settings: CoordinatorSettings, bus: Bus, queries: Queries) -> list[str]:
    """Make streams and shared consumers what they must be, as the provisioning user, who is connected only for this."""
    now = await queries.now()
    known_seq = await queries.highest_seq()
    first_seq = max(known_seq + 1, int(now.timestamp() * 1_000_000))
    if await is_missing(bus, "RESULTS"):  # noted before it is made: a crash in between only says so twice
        _log.info("results go out again", jobs=await queries.republish(RESULTS_KEPT_S))
        reach(Failpoint.LOSS_NOTED)
    seed = settings.nats_provisioner_seed
    if seed is None:
        made = await ensure_streams(bus, first_seq=first_seq, known_seq=known_seq, replicas=settings.replicas)
    else:
        async with _bus(settings, "provisioner", seed) as provisioner:
            await provisioner.wait_connected(10.0)
            made = await ensure_streams(
                provisioner, first_seq=first_seq, known_seq=known_seq, replicas=settings.replicas
            )
    reach(Failpoint.STREAMS_MADE)
    await ensure_intake_consumers(bus)
    if made:
        _log.info("streams made", streams=made, first_seq=first_seq)
    return made


def _bus(settings: CoordinatorSettings, role: str, seed: SecretStr | None) -> Bus:
    tls = ssl.create_default_context(cafile=str(settings.nats_ca)) if settings.nats_ca else None
    return Bus(
        settings.nats,
        name=f"tandem-{role}",
        seed=seed.get_secret_value() if seed else None,
        inbox_prefix=f"_INBOX.{role}",
        tls=tls,
    )


def _secured(settings: CoordinatorSettings) -> Secured | None:
    """Return where to listen by TLS; ConfigurationError for a certificate that can't be used."""
    if settings.https is None or settings.https_cert is None or settings.https_key is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(settings.https_cert, settings.https_key)
    except (OSError, ssl.SSLError) as error:
        msg = f"https_cert {settings.https_cert}, https_key: {error}"
        raise ConfigurationError(msg) from None
    return Secured(*address_of(settings.https), tls)


def _access(settings: CoordinatorSettings) -> Access:
    tokens = [AccessToken(n.partition(":")[2], Role(n.partition(":")[0]), t) for n, t in settings.tokens.items()]
    return Access(tokens, session_key(settings.secrets / "session.key"))


def _users(settings: CoordinatorSettings) -> NatsUsers | None:
    if settings.nats_identities is None:
        return None
    tls = ssl.create_default_context(cafile=str(settings.nats_ca)) if settings.nats_ca else None
    return OwnServer(settings.nats_identities, settings.nats_reload, settings.nats, tls)


async def _check_listen(host: str, secured: Secured | None, access: Access, dsn: str) -> None:
    """Refuse (ConfigurationError) what `check_listen` does; a token in the ledger is one, too."""
    check_listen(host, access, encrypted=False)
    if secured is None:
        return
    try:
        check_listen(secured.host, access, encrypted=True)
    except ConfigurationError:
        await migrate(dsn)
        async with lent_pool(dsn, min_size=0, max_size=1) as pool:
            await Tokens(AccessTokens(pool), access).once()
        check_listen(secured.host, access, encrypted=True)


def _sources(settings: CoordinatorSettings) -> frozenset[str]:
    return settings.sources | {name.partition(":")[2] for name in settings.tokens if name.startswith("publisher:")}


def _orders(coordinator: Coordinator) -> Callable[[str, str, str], Awaitable[None]]:
    wanted = {"drain": WorkerState.DRAINING, "pause": WorkerState.PAUSED, "resume": WorkerState.READY}

    async def order(worker: str, what: str, actor: str) -> None:
        """Keep what the operator wants, and tell the agent; one that is away learns of it by its next presence."""
        await coordinator.queries.set_wanted(worker, wanted[what], actor=actor)
        reach(Failpoint.ORDER_UNTOLD)
        await coordinator.directory.once()
        if coordinator.bus.connected:
            await coordinator.bus.publish(subjects.control(worker), orjson.dumps({"type": what}))

    return order


def _all_of(*calls: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        for one in calls:
            one()

    return call


def _lane_pauses(coordinator: Coordinator) -> Callable[[str, bool, str], Awaitable[None]]:
    async def pause(lane: str, paused: bool, actor: str) -> None:  # noqa: FBT001 - the shape the web side calls
        await coordinator.queries.set_lane_paused(lane, paused=paused, actor=actor)
        coordinator.dispatcher.wake()

    return pause
