"""Why a job is where it is: a few lines for people, from what is on record and how things stand now.

What is not on record is not guessed: which workers were there at an earlier attempt, nobody wrote down. The web side
asks for the job that it shows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from coordinator.ledger.queries import WorkerRow
from coordinator.workers import Directory, serves
from shared import subjects
from shared.states import AttemptOutcome, ErrorClass, JobState, WorkerState

_MOST_ATTEMPTS = 10


class Wait(NamedTuple):
    """Why the jobs of a lane wait."""

    kind: Literal["paused", "not_due", "starts", "busy", "nobody"]
    text: str


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

    def of_lane(self, lane: Mapping[str, Any]) -> Wait | None:
        """Return why the jobs of a lane wait, as `views.lanes` returns it; None if none does."""
        if not lane["waiting"] and not lane["offered"]:
            return None
        if lane["paused"]:
            return Wait("paused", "the lane is paused")
        if not lane["due"] and not lane["offered"]:
            return Wait("not_due", f"none is due for {ago(lane['due_in_s'])}")
        stand = self._standing(lane["name"])
        if free := [name for name, how in stand.items() if how == "free"]:
            return Wait("starts", f"about to start; free: {', '.join(free)}")
        if busy := [name for name, how in stand.items() if how == "busy"]:
            return Wait("busy", f"all busy: {', '.join(busy)}")
        return Wait("nobody", f"no capable worker is there; known: {_known(stand)}")

    def of_worker(self, name: str, with_work: frozenset[str]) -> list[str]:
        """Return why a worker gets nothing, while there is work in these lanes; empty: nothing stands in the way."""
        row = self.directory.rows.get(name)
        if row is None or row.presence is None:
            return ["never announced itself"]
        how = self._stand(row, "")
        if how not in ("free", "busy"):
            return [how]
        aside = self.directory.aside_of(name)
        lines = [f"backend down: {', '.join((one.kind, *one.models))}" for one in row.presence.down]
        lines += [f"set aside in {one['lane']}: {one['reason']}; back in {ago(one['back_in_s'])}" for one in aside]
        if how == "busy" or any(serves(row.presence, lane) for lane in with_work - {one["lane"] for one in aside}):
            return lines
        return [*lines, "no lane that it serves has work"]

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
        stand = self._standing(lane, excluded)
        if free := [name for name, how in stand.items() if how == "free"]:
            return f"{'offered' if job['offered_at'] else 'about to be offered'}; free for it: {', '.join(free)}"
        if busy := [name for name, how in stand.items() if how == "busy"]:
            return f"waits: who may take it is busy: {', '.join(busy)}"
        besides = " but those excluded" if excluded else ""
        return f"waits: no present worker{besides} serves {lane}; known: {_known(stand)}"

    def _standing(self, lane: str, excluded: frozenset[str] = frozenset()) -> dict[str, str]:
        names = sorted(self.directory.capable(lane) - excluded)
        return {name: self._stand(self.directory.rows[name], lane) for name in names}

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
        if lane and not serves(presence, lane):
            return "backend down"
        if self.directory.is_aside(row.name, lane):
            return "set aside"
        return "free" if presence.slots > len(presence.busy) else "busy"


def _known(stand: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({how})" for name, how in stand.items()) or "none"


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
