"""What Prometheus is told (`GET /metrics`): transitions are counted once committed, the rest is read at a scrape.

Counters and histograms are this coordinator's own: sum them over the coordinators. Gauges of jobs, lanes and workers
are the ledger's: every coordinator says the same, so take one of them (`max`). Labels are words of the protocol, kinds,
lanes (the fullest MOST_LANES, the rest as `other`), configured sources, routes and loops: nobody outside makes new ones
at will.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from coordinator.ledger.model import Job
from shared.states import AttemptOutcome, JobState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

MOST_LANES: Final = 200
MOST_KINDS: Final = 50

_SECONDS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
_COMMIT_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_BATCH: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_ANSWER_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read for a scrape: the machinery's status, and, unless the ledger is away, what the ledger says."""

    status: Mapping[str, Any]  # as `Coordinator.status` returns it
    ready: bool
    counts: Mapping[str, int] | None = None  # jobs by state
    lanes: Sequence[Mapping[str, Any]] = ()
    workers: Sequence[Mapping[str, Any]] = ()
    publications: Sequence[Mapping[str, Any]] = ()  # what is not published, by source


class Metrics:
    """One registry for one coordinator; nothing is global."""

    def __init__(self) -> None:
        """Make every metric."""
        to = self.registry = CollectorRegistry()
        self._admitted = Counter("tandem_jobs_admitted", "Jobs admitted.", ["kind"], registry=to)
        self._settled = Counter("tandem_jobs_settled", "Jobs that settled.", ["kind", "state"], registry=to)
        self._ended = Counter("tandem_attempts_ended", "Attempts that ended.", ["kind", "outcome"], registry=to)
        self._errors = Counter("tandem_attempt_errors", "Reported errors.", ["kind", "error_class"], registry=to)
        self._lapses = Counter("tandem_lease_losses", "Leases that ran out, by what is known.", ["code"], registry=to)
        self._resumed = Counter("tandem_leases_resumed", "Lapsed attempts that were heard of again.", registry=to)
        self._took = Histogram("tandem_attempt_seconds", "Claim to result.", ["kind"], buckets=_SECONDS, registry=to)
        self._waited = Histogram("tandem_wait_seconds", "Due to first claim.", ["kind"], buckets=_SECONDS, registry=to)
        self._commit = Histogram("tandem_commit_seconds", "One group commit.", buckets=_COMMIT_S, registry=to)
        self._batch = Histogram("tandem_commit_commands", "Commands in one.", buckets=_BATCH, registry=to)
        self._answered = Histogram(
            "tandem_http_seconds", "HTTP answers.", ["method", "route", "status"], buckets=_ANSWER_S, registry=to
        )

    # ---- as it happens

    def changed(self, before: Job | None, after: Job) -> None:
        """Count one committed change of a job."""
        kind = after.kind
        if before is None:
            self._admitted.labels(kind).inc()
        if after.finished_at is not None and (before is None or before.state is not after.state):
            self._settled.labels(kind, str(after.state)).inc()
        last, was = after.last, before.last if before else None
        if last is None:
            return
        if after.state is JobState.PROCESSING and was is None:
            self._waited.labels(kind).observe(max(0.0, (last.claimed_at - after.run_after).total_seconds()))
        ended_before = was.outcome if was is not None and was.epoch == last.epoch else None
        if last.outcome is None:
            if ended_before is not None:
                self._resumed.inc()
        elif last.outcome is not ended_before:
            self._end(after)

    def _end(self, job: Job) -> None:
        last = job.last
        assert last is not None
        assert last.outcome is not None
        self._ended.labels(job.kind, str(last.outcome)).inc()
        code, error_class = ((last.error or {}).get(name) for name in ("code", "class"))
        if last.outcome is AttemptOutcome.FAILED:
            self._errors.labels(job.kind, str(error_class)).inc()
        elif last.outcome is AttemptOutcome.LEASE_EXPIRED:
            self._lapses.labels(str(code)).inc()
        elif last.outcome is AttemptOutcome.COMPLETED and last.ended_at is not None:
            self._took.labels(job.kind).observe((last.ended_at - last.claimed_at).total_seconds())

    def committed(self, commands: int, took_s: float) -> None:
        """Note one group commit."""
        self._commit.observe(took_s)
        self._batch.observe(commands)

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        """Note one HTTP answer; `route` is the route's pattern, not the path."""
        self._answered.labels(method, route, str(status)).observe(took_s)

    # ---- at a scrape

    def exposition(self, reading: Reading) -> bytes:
        """Return everything in Prometheus's text form."""
        read = CollectorRegistry()
        read.register(_Read(reading))
        return generate_latest(self.registry) + generate_latest(read)


@dataclass(frozen=True, slots=True, eq=False)  # the registry keeps it by its identity
class _Read:
    """The metrics that are read."""

    reading: Reading

    def collect(self) -> Iterator[Metric]:
        """Yield them; called by the registry."""
        yield _gauge("tandem_ready", "1 = this coordinator can do its work.", [((), float(self.reading.ready))])
        yield from self._machinery()
        yield from self._ledger()

    def _machinery(self) -> Iterator[Metric]:
        status = self.reading.status
        counts = status["counts"]
        bus, ledger, loops = status["bus"], status["ledger"], status["loops"]
        yield _gauge("tandem_bus_connected", "1 = connected to NATS.", [((), float(bus["connected"]))])
        yield _counter("tandem_bus_connections", "Connections to NATS so far.", [((), bus["connections"])])
        yield _gauge("tandem_ledger_connected", "1 = the writer is connected.", [((), float(ledger["connected"]))])
        yield _gauge("tandem_ledger_waiting", "Commands that wait for the writer.", [((), ledger["waiting"])])
        yield _counter("tandem_ledger_outages", "Batches that found Postgres away.", [((), ledger["outages"])])
        rows = [((name,), one["failures"]) for name, one in loops.items()]
        yield _gauge("tandem_loop_failures", "Failed rounds in a row.", rows, ["loop"])
        rows = [((name,), one["rounds"]) for name, one in loops.items()]
        yield _counter("tandem_loop_rounds", "Rounds that succeeded.", rows, ["loop"])
        denied = [((reason,), count) for reason, count in counts["denied"].items()]
        yield _counter("tandem_claims_granted", "Claims that were granted.", [((), counts["granted"])])
        yield _counter("tandem_claims_denied", "Claims that were denied.", denied, ["reason"])
        verdicts = [((verdict,), count) for verdict, count in counts["verdicts"].items()]
        yield _counter("tandem_reports", "Reports by the ledger's verdict.", verdicts, ["verdict"])
        tries = [((why,), count) for why, count in counts["callbacks_failed"].items()]
        yield _counter("tandem_callbacks_failed", "Tries of callbacks that failed.", tries, ["why"])
        events = [((source, end), count) for source, ends in status["hooks"].items() for end, count in ends.items()]
        yield _counter("tandem_hook_events", "Events of a CMS, by what they came to.", events, ["source", "end"])
        for name, (key, text) in _PUBLISHING.items():
            ends = [((source,), one[key]) for source, one in status["publishing"].items()]
            yield _counter(name, text, ends, ["source"])
        for name, (key, text) in _COUNTED.items():
            yield _counter(name, text, [((), counts[key])])
        yield _gauge("tandem_set_aside", "Workers set aside, by lane.", [((), counts["set_aside"])])

    def _ledger(self) -> Iterator[Metric]:
        counts = self.reading.counts
        yield _gauge("tandem_ledger_up", "1 = the ledger answers.", [((), float(counts is not None))])
        if counts is None:
            return
        yield _gauge("tandem_jobs", "Jobs by state.", [((state,), jobs) for state, jobs in counts.items()], ["state"])
        lanes = _bounded(self.reading.lanes)
        rows: list[_Row]
        rows = [((n, what), lane[what]) for n, lane in lanes.items() for what in _LIVE]
        yield _gauge("tandem_lane_jobs", "Jobs that are not settled, by lane.", rows, ["lane", "state"])
        kinds = _by_kind(self.reading.lanes)
        rows = [((kind, what), jobs[what]) for kind, jobs in kinds.items() for what in _LIVE]
        yield _gauge("tandem_kind_jobs", "Jobs that are not settled, by kind.", rows, ["kind", "state"])
        rows = [((name,), lane["waits_s"]) for name, lane in lanes.items()]
        yield _gauge("tandem_lane_waits_seconds", "How long the oldest due job waits.", rows, ["lane"])
        rows = [((name,), lane["paused"]) for name, lane in lanes.items()]
        yield _gauge("tandem_lane_paused", "1 = paused by a person.", rows, ["lane"])
        yield _gauge("tandem_workers", "Workers by state.", list(_workers(self.reading.workers)), ["state"])
        undone = self.reading.publications
        rows = [((row["source"], what), row[what]) for row in undone for what in ("waiting", "failed")]
        yield _gauge("tandem_publications_undone", "Results that are not published.", rows, ["source", "state"])
        rows = [((row["source"],), row["paused"]) for row in undone]
        yield _gauge("tandem_site_paused", "1 = nothing is published there: it refuses us.", rows, ["source"])


_COUNTED: Final = {
    "tandem_submissions_refused": ("refused", "Submissions that were refused."),
    "tandem_offers": ("offered", "Offers made."),
    "tandem_offers_unclaimed": ("unclaimed", "Offers made anew since nobody claimed them."),
    "tandem_heartbeats": ("heartbeats", "Heartbeats taken."),
    "tandem_heartbeats_lost": ("heartbeats_lost", "Heartbeats of a lease that was lost."),
    "tandem_heartbeats_bad": ("heartbeats_bad", "Heartbeats that could not be read."),
    "tandem_foreign_senders": ("foreign_senders", "Messages of another sender than they say."),
    "tandem_reports_unreadable": ("reports_unreadable", "Reports that could not be read."),
    "tandem_ghost_leases": ("ghost_leases", "Leases ended since their worker did not list them."),
    "tandem_departed": ("departed", "Leases ended since their process was gone."),
    "tandem_results_published": ("published", "Results that RESULTS has acknowledged."),
    "tandem_callbacks_delivered": ("callbacks_delivered", "Callbacks that were taken."),
    "tandem_callbacks_given_up": ("callbacks_given_up", "Callbacks given up."),
    "tandem_effects_lost": ("effects_lost", "Effects that were left to the reconciler."),
    "tandem_mended_missing": ("mended_missing", "Offers whose message was missing."),
    "tandem_mended_orphaned": ("mended_orphaned", "Messages of jobs that were not offered."),
    "tandem_jobs_moved": ("moved", "Waiting jobs moved to another of their models."),
}

_PUBLISHING: Final = {
    "tandem_publications_done": ("published", "Results that are published."),
    "tandem_publications_failed": ("failed", "Tries to publish that failed."),
    "tandem_publications_given_up": ("given_up", "Results that are not tried to publish any more."),
}

_LIVE: Final = ("waiting", "offered", "processing")

_Row = tuple[tuple[str, ...], float]
_Rows = Sequence[_Row]


def _gauge(name: str, text: str, rows: _Rows, labels: Sequence[str] = ()) -> Metric:
    made = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        made.add_metric(values, number)
    return made


def _counter(name: str, text: str, rows: _Rows, labels: Sequence[str] = ()) -> Metric:
    made = CounterMetricFamily(name, text, labels=labels)
    for values, number in rows:
        made.add_metric(values, number)
    return made


def _bounded(lanes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the lanes with most to do, and all others as one."""
    ordered = sorted(lanes, key=lambda lane: -(lane["waiting"] + lane["offered"] + lane["processing"]))
    found: dict[str, dict[str, float]] = {}
    for number, lane in enumerate(ordered):
        into = found.setdefault(
            lane["name"] if number < MOST_LANES else "other",
            {**dict.fromkeys(_LIVE, 0), "waits_s": 0, "paused": 0},
        )
        for what in _LIVE:
            into[what] += lane[what]
        into["waits_s"] = max(into["waits_s"], lane["waits_s"] or 0.0)
        into["paused"] = max(into["paused"], float(lane["paused"]))
    return found


def _by_kind(lanes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return what is in the lanes of each kind, of the MOST_KINDS with most to do; all others as one."""
    found: dict[str, dict[str, float]] = {}
    for lane in lanes:
        into = found.setdefault(lane["name"].partition(".")[0], dict.fromkeys(_LIVE, 0))
        for what in _LIVE:
            into[what] += lane[what]
    ordered = sorted(found, key=lambda kind: -sum(found[kind].values()))
    if rest := [found.pop(kind) for kind in ordered[MOST_KINDS:]]:
        found["other"] = {what: sum(jobs[what] for jobs in rest) for what in _LIVE}
    return found


def _workers(workers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, ...], float]]:
    states: dict[str, int] = {"ready": 0, "draining": 0, "paused": 0, "unhealthy": 0, "away": 0}
    for worker in workers:
        said = (worker["presence"] or {}).get("state") if worker["present"] else "away"
        if said in states:
            states[said] += 1
    yield from (((state,), float(count)) for state, count in states.items())
