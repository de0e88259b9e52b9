"""What /metrics says beside the counts of `metrics.py`: how things are at the moment somebody asks.

Pure: numbers in, metric families out. Those of the ledger (jobs, the age of the queue) are the same from each
coordinator: take their maximum over several. Those of /status (loops, bus, callbacks ...) are this coordinator's own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.metrics import OTHER
from coordinator.workers import Directory
from shared.states import WorkerState

LANES_MOST: Final = 200
"""So many lanes are told apart, those with work first; publishers may name any model, and so make lanes."""

AWAY: Final = "away"
ASIDE: Final = "set_aside"
_WORKERS: Final = (*WorkerState, AWAY, ASIDE)

_COUNTS: Final = {
    "refused": ("submissions_refused", "Submissions that could not be understood."),
    "offered": ("offers", "Jobs put into WORK."),
    "unclaimed": ("offers_unclaimed", "Offers taken back because nobody claimed them."),
    "moved": ("jobs_moved", "Jobs moved to another of their models."),
    "heartbeats_bad": ("heartbeats_bad", "Heartbeats that were unreadable, or not of the worker they named."),
    "foreign_senders": ("foreign_senders", "Messages whose sender was not the worker named in them."),
    "reports_unreadable": ("reports_unreadable", "Reports that could not be read."),
    "clock_set_back": ("clock_set_back", "Times that the ledger's clock was found set back."),
    "departed": ("departed_leases", "Leases ended because the holder's process was gone."),
    "published": ("results_published", "Results put into RESULTS."),
    "effects_lost": ("effects_lost", "Messages that could not be sent; the reconciler makes up for them."),
}
_LEDGER: Final = {
    "commands": ("ledger_commands", "Commands carried out."),
    "conflicts": ("ledger_conflicts", "Group commits tried again after a deadlock."),
    "bad_commands": ("ledger_bad_commands", "Commands that could not be stored."),
    "outages": ("ledger_outages", "Group commits that found Postgres away."),
    "callback_failures": ("ledger_unheard", "Commits whose effects were not handed on."),
}
_MENDED: Final = ("missing", "unrecorded", "orphaned", "streams")


def worker_states(directory: Directory) -> dict[str, int]:
    """Return how many workers are in each state; set aside are those that get nothing from some lane for now."""
    found = Counter(dict.fromkeys(map(str, _WORKERS), 0))
    for row in directory.rows.values():
        said = row.presence
        if said is None or not directory.is_present(row):
            found[AWAY] += 1
        elif row.wanted is not WorkerState.READY and said.state is WorkerState.READY:
            found[str(row.wanted)] += 1  # it will learn of it with its next presence
        else:
            found[str(said.state)] += 1
    found[ASIDE] = len({worker for worker, _ in directory.aside})
    return dict(found)


def of_ledger(rows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Tell the jobs of `views.metrics_jobs`, those with work first; lanes beyond LANES_MOST are one."""
    jobs: Counter[tuple[str, str]] = Counter()
    ages: dict[str, float] = {}
    paused = {row["lane"] for row in rows if row["paused"]}
    known = frozenset(list(dict.fromkeys(row["lane"] for row in rows))[:LANES_MOST])
    for row in rows:
        lane = row["lane"] if row["lane"] in known else OTHER
        jobs[row["state"], lane] += row["jobs"]
        if row["age_s"] is not None and row["lane"] not in paused:
            ages[lane] = max(ages.get(lane, 0.0), row["age_s"])
    by_lane = GaugeMetricFamily("tandem_jobs", "Jobs.", labels=("state", "kind", "lane"))
    for (state, lane), count in jobs.items():
        by_lane.add_metric((state, _kind_of(lane), lane), count)
    age = GaugeMetricFamily(
        "tandem_queue_age_seconds",
        "How long the oldest due job of a lane that is not paused waits.",
        labels=("kind", "lane"),
    )
    for lane, seconds in ages.items():
        age.add_metric((_kind_of(lane), lane), seconds)
    yield by_lane
    yield age
    yield GaugeMetricFamily("tandem_lanes_paused", "Lanes that are paused.", value=len(paused))


def of_coordinator(health: Mapping[str, Any], *, ready: bool, ledger_up: bool) -> Iterator[Metric]:
    """Tell what /status shows of this coordinator."""
    counts, ledger, bus = health.get("counts", {}), health.get("ledger", {}), health.get("bus", {})
    yield GaugeMetricFamily("tandem_ready", "Whether this coordinator can do its work.", value=ready)
    yield GaugeMetricFamily("tandem_ledger_up", "Whether Postgres answered just now.", value=ledger_up)
    yield GaugeMetricFamily("tandem_bus_connected", "Whether NATS is connected.", value=bus.get("connected", 0))
    yield CounterMetricFamily("tandem_bus_connections", "Connections made to NATS.", value=bus.get("connections", 0))
    yield GaugeMetricFamily(
        "tandem_ledger_waiting_commands", "Commands that wait for a commit.", value=ledger.get("waiting", 0)
    )
    for table, values in ((_COUNTS, counts), (_LEDGER, ledger)):
        for key, (name, text) in table.items():
            yield CounterMetricFamily(f"tandem_{name}", text, value=values.get(key, 0))
    mended = {what: counts.get(f"mended_{what}", 0) for what in _MENDED}
    yield _labelled("mended", "What the reconciler found amiss.", "what", mended)
    yield from _outgoing(counts)
    yield from _loops(health.get("loops", {}))


def of_workers(states: Mapping[str, int]) -> Iterator[Metric]:
    """Tell how many workers are in each state."""
    yield _labelled("workers", "Workers by state.", "state", states, of=GaugeMetricFamily)


def of_hooks(counts: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    """Tell how events of the configured sources ended."""
    events = CounterMetricFamily("tandem_hook_events", "Events posted to /hooks.", labels=("source", "outcome"))
    for labels, count in sorted(counts.items()):
        events.add_metric(labels, count)
    yield events


def _outgoing(counts: Mapping[str, Any]) -> Iterator[Metric]:
    for name, done in (("callback", "callbacks_delivered"), ("publication", "publications_done")):
        ends = {"done": counts.get(done, 0), "given_up": counts.get(f"{name}s_given_up", 0)}
        yield _labelled(f"{name}s", f"{name.capitalize()}s that came to an end.", "outcome", ends)
    failed = counts.get("callbacks_failed", {})
    yield _labelled("callback_failures", "Tries to call back that failed.", "why", failed)
    failed = counts.get("publications_failed", {})
    yield _labelled("publication_failures", "Tries to publish that failed.", "source", failed)


def _loops(loops: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    rounds, failed, in_a_row = (
        {name: loop[key] for name, loop in loops.items()} for key in ("rounds", "failed", "failures")
    )
    yield _labelled("loop_rounds", "Rounds of each loop that went well.", "loop", rounds)
    yield _labelled("loop_failures", "Rounds of each loop that failed.", "loop", failed)
    text = "Rounds in a row that failed, up to now."
    yield _labelled("loop_failing_rounds", text, "loop", in_a_row, of=GaugeMetricFamily)


def _labelled(
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
    *,
    of: type[CounterMetricFamily] | type[GaugeMetricFamily] = CounterMetricFamily,
) -> Metric:
    family = of(f"tandem_{name}", text, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def _kind_of(lane: str) -> str:
    return lane.partition(".")[0]


class Families:
    """Families in the form that the encoder takes."""

    def __init__(self, *parts: Iterable[Metric]) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """Yield each."""
        for part in self._parts:
            yield from part
