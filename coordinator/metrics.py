"""What is counted as it happens: from the ledger's committed decisions, and from the HTTP side.

`Metrics.decided` is one of the ledger's `on_decided`, so a count stands for something committed, by this coordinator
(sum over several). What is read when somebody asks is in `metrics_state.py`; docs/monitoring.md says what each means.

Labels are bounded: words of ours, routes, and kinds, of which the first KINDS_MOST are told apart. No worker, job,
model or publisher is a label here.
"""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from coordinator.decision_log import ran_s, waited_s
from coordinator.ledger.model import (
    Admit,
    Admitted,
    Attempt,
    Claim,
    Command,
    Conflict,
    Decided,
    Denial,
    FileReport,
    Heartbeat,
    Held,
    Job,
    Judged,
    Lost,
    SameJob,
)
from shared.states import SETTLED, AttemptOutcome, DenyReason, JobState, Lapse, LostReason, Verdict

KINDS_MOST: Final = 50
OTHER: Final = "other"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT"})

_WAITS_S: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
_RUNS_S: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_COMMITS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_BATCHES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_ANSWERS_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """The counters and histograms of one coordinator, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._kinds: set[str] = set()
        self._submissions = self._counter("submissions", "Submissions decided.", "kind", "outcome")
        self._granted = self._counter("claims_granted", "Leases granted.", "kind")
        self._denied = self._counter("claims_denied", "Claims that were denied.", "reason")
        self._heartbeats = self._counter("heartbeats", "Heartbeats that extended a lease.")
        self._heartbeats_lost = self._counter("heartbeats_lost", "Heartbeats whose lease was gone.", "reason")
        self._resumed = self._counter("leases_resumed", "Lapsed leases that were heard of in time.")
        self._lapses = self._counter("lease_losses", "Leases that ended under their holder.", "kind", "how")
        self._reports = self._counter("reports", "Reports judged.", "verdict")
        self._attempts = self._counter("attempts", "Attempts that ended.", "kind", "outcome")
        self._retries = self._counter("retries", "Jobs that wait again after an end.", "class")
        self._settled = self._counter("jobs_settled", "Jobs that came to an end.", "kind", "state")
        self._waited = self._histogram("job_wait_seconds", "From due to claimed.", _WAITS_S, "kind")
        self._ran = self._histogram("attempt_seconds", "From claimed to an accepted result.", _RUNS_S, "kind")
        self._took = self._histogram("job_seconds", "From admitted to completed.", _WAITS_S, "kind")
        self._commits = self._histogram("ledger_commit_seconds", "A group commit, with its decisions.", _COMMITS_S)
        self._batches = self._histogram("ledger_commit_commands", "Commands in a group commit.", _BATCHES)
        self._requests = self._counter("http_requests", "Requests answered.", "method", "route", "status")
        self._answers = self._histogram("http_request_seconds", "From request to answer.", _ANSWERS_S, "route")
        by_word = (self._denied, DenyReason), (self._heartbeats_lost, LostReason), (self._reports, Verdict)
        for counter, words in by_word:
            for word in words:
                counter.labels(word.value)  # zero is told too: the first one must show as an increase

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tandem_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"tandem_{name}", text, labels, buckets=buckets, registry=self.registry)

    def served(self, method: str, route: str, status: int, took_s: float | None) -> None:
        """Count an HTTP answer; `took_s` None: it stayed open because it is a stream."""
        self._requests.labels(method if method in _METHODS else OTHER, route, str(status)).inc()
        if took_s is not None:
            self._answers.labels(route).observe(took_s)

    def decided(self, decided: Sequence[Decided], took_s: float) -> None:
        """Count what a commit decided and changed."""
        self._commits.observe(took_s)
        self._batches.observe(len(decided))
        for one in decided:
            self._count_answer(one)
            if one.after is not None and one.after is not one.before and one.before is not None:
                self._count_change(one.command, one.before, one.after)

    def _count_answer(self, one: Decided) -> None:
        match one.command, one.answer:
            case Heartbeat(), Held(resumed=resumed):
                self._heartbeats.inc()
                if resumed:
                    self._resumed.inc()
            case Heartbeat(), Lost(reason):
                self._heartbeats_lost.labels(str(reason)).inc()
            case Claim(), Denial(reason):
                self._denied.labels(str(reason)).inc()
            case FileReport(), Judged(verdict):
                self._reports.labels(str(verdict)).inc()
            case Admit(kind=kind), Admitted():
                self._submissions.labels(self._kind(kind), "admitted").inc()
            case Admit(kind=kind), SameJob():
                self._submissions.labels(self._kind(kind), "same").inc()
            case Admit(kind=kind), Conflict():
                self._submissions.labels(self._kind(kind), "conflict").inc()

    def _count_change(self, command: Command, before: Job, after: Job) -> None:
        kind, was, last = self._kind(after.kind), before.last, after.last
        if last is not None and after.epoch != before.epoch:
            self._granted.labels(kind).inc()
            self._waited.labels(kind).observe(waited_s(before, last))
            if was is not None and was.outcome is None:  # its lease was over, and the reaper had not come yet
                self._count_lapse(kind, Lapse.SILENT if was.heartbeats else Lapse.LOST)
        elif last is not None and was is not None and last.outcome is not was.outcome:
            self._count_end(command, kind, last, again=after.state is JobState.PENDING)
        if before.state in SETTLED and after.state is JobState.PENDING:
            self._retries.labels("operator").inc()
        elif after.state in SETTLED and before.state is not after.state:
            self._count_settled(kind, after)

    def _count_end(self, command: Command, kind: str, last: Attempt, *, again: bool) -> None:
        """Count how an attempt ended, unless it was resumed, or an operator shut the door behind a lapsed one."""
        if last.outcome is None or last.outcome is AttemptOutcome.CLOSED:
            return
        error = last.error or {}
        if last.outcome is AttemptOutcome.LEASE_EXPIRED:
            self._count_lapse(kind, error.get("code", Lapse.LOST), again=again)
            return
        self._attempts.labels(kind, str(last.outcome)).inc()
        if last.outcome is AttemptOutcome.COMPLETED:
            self._ran.labels(kind).observe(ran_s(last))
        released = last.outcome is AttemptOutcome.RELEASED
        if released and not isinstance(command, FileReport):  # presence no longer lists it
            self._lapses.labels(kind, "ghost_lease").inc()
        if again:
            self._retries.labels("released" if released else error.get("class", OTHER)).inc()

    def _count_lapse(self, kind: str, how: str, *, again: bool = True) -> None:
        self._lapses.labels(kind, str(how)).inc()
        self._attempts.labels(kind, str(AttemptOutcome.LEASE_EXPIRED)).inc()
        if again:
            self._retries.labels("lapsed").inc()

    def _count_settled(self, kind: str, after: Job) -> None:
        self._settled.labels(kind, str(after.state)).inc()
        if after.state is JobState.COMPLETED and after.finished_at is not None:
            self._took.labels(kind).observe(max((after.finished_at - after.created_at).total_seconds(), 0.0))

    def _kind(self, kind: str) -> str:
        if kind not in self._kinds:
            if len(self._kinds) >= KINDS_MOST:
                return OTHER
            self._kinds.add(kind)
        return kind
