"""Why a job is where it is: a few lines for people, from what is on record and how things stand now.

What is not on record is not guessed: which workers were there at an earlier attempt, nobody wrote down. The web side
asks for the job that it shows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.ledger.queries import WorkerRow
from coordinator.workers import Directory, serves
from shared import subjects
from shared.states import AttemptOutcome, ErrorClass, JobState, WorkerState

_MOST_ATTEMPTS = 10
_THEN: dict[str, str] = {ErrorClass.ELSEWHERE: "it can't", ErrorClass.PERMANENT: "the job's own fault"}
_OFFERS = ("nobody offers it", "who offers it is away or not ready", "offered by one who is ready")


@dataclass(frozen=True, slots=True)
class Reasons:
    """Explains jobs."""

    directory: Directory
    is_paused: Callable[[str], bool]

    def of(self, job: Mapping[str, Any]) -> list[str]:
        """Return the lines for a job as `views.job` returns it."""
        lines = [*self._model(job), *(_attempt(one) for one in job["attempts"][-_MOST_ATTEMPTS:])]
        lines += [f"excluded: {worker} ({_refusal(job, worker)})" for worker in job["excluded"]]
        if job["state"] != JobState.PENDING:
            return lines
        aside = [one for (_, lane), one in self.directory.aside.items() if lane == job["lane"]]
        lines += [f"set aside: {one.worker} ({one.reason})" for one in aside]
        return [*lines, self._waits(job)]

    def _model(self, job: Mapping[str, Any]) -> list[str]:
        models = job["models"] or ()
        standing = self.directory.standing
        if len(models) < 2:  # noqa: PLR2004
            return []
        each = [f"{model} ({_OFFERS[standing(subjects.lane_of(job['kind'], model))]})" for model in models]
        return [f"model: {job['model']}; by preference, as things stand: {', '.join(each)}"]

    def _waits(self, job: Mapping[str, Any]) -> str:
        lane, excluded = job["lane"], frozenset(job["excluded"])
        due_in_s = (job["run_after"] - job["created_at"]).total_seconds() - job["age_s"]  # by the ledger's clock
        if due_in_s > 0:
            return f"waits: due in {ago(due_in_s)}"
        if self.is_paused(lane):
            return f"waits: {lane} is paused"
        rows = [self.directory.rows[name] for name in sorted(self.directory.capable(lane) - excluded)]
        stand = {row.name: self._stand(row, lane) for row in rows}
        if free := [name for name, how in stand.items() if how == "free"]:
            return f"{'offered' if job['offered_at'] else 'about to be offered'}; free for it: {', '.join(free)}"
        if busy := [name for name, how in stand.items() if how == "busy"]:
            return f"waits: who may take it is busy: {', '.join(busy)}"
        known = ", ".join(f"{name} ({how})" for name, how in stand.items())
        besides = " but those excluded" if excluded else ""
        return f"waits: no present worker{besides} serves {lane}; known: {known or 'none'}"

    def _stand(self, row: WorkerRow, lane: str) -> str:
        presence = row.presence
        assert presence is not None  # it is capable of something
        if not self.directory.is_present(row):
            return f"away {ago(row.age_s)}"
        if row.wanted is not WorkerState.READY:
            return f"told to be {row.wanted}"
        if presence.state is not WorkerState.READY:
            return str(presence.state)
        if why := presence.facts.get("not_pulling"):
            return str(why)
        if not serves(presence, lane):
            return "backend down"
        if self.directory.is_aside(row.name, lane):
            return "set aside"
        return "free" if presence.slots > len(presence.busy) else "busy"


def _attempt(attempt: Mapping[str, Any]) -> str:
    error, model = attempt["error"] or {}, attempt["model"]
    who = f"epoch {attempt['epoch']}: {attempt['worker']}{f' with {model}' if model else ''}"
    match attempt["outcome"]:
        case None:
            return f"{who}, at it now"
        case AttemptOutcome.FAILED:
            return f"{who}, failed ({error.get('code')}; {_THEN.get(error.get('class', ''), 'may work next time')})"
        case outcome:
            return f"{who}, {outcome}" + (f" ({error.get('code')})" if error else "")


def _refusal(job: Mapping[str, Any], worker: str) -> str:
    said = [a["error"] for a in job["attempts"] if a["worker"] == worker and a["error"]]
    codes = [error.get("code") for error in said if error.get("class") == ErrorClass.ELSEWHERE]
    return str(codes[-1]) if codes else "elsewhere"


def ago(seconds: float) -> str:
    """Return a duration for people: `7 s`, `3 min`, `2 h`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
