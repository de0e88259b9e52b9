"""The verdict: every promise that can be held against the evidence, one function each. Pure: values in, breaches out.

It runs when all has healed and the system had its time to come to rest. A rule yields the breaches that it finds, each
with job and epoch; `COUNTED` says which of them mean that something was lost, done twice, or stuck.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from tests.crash.chaos.evidence import Evidence, Published
from tests.crash.chaos.generator import PLAN, Plan, sha256_of, text_of
from tests.crash.chaos.rig import PLANNED

GRACE = timedelta(seconds=5)
"""A reaper's round, and the way from a commit to its message."""

_SETTLED = {"completed", "failed", "canceled", "awaiting_review"}
_WITH_RESULT = {"completed", "awaiting_review"}
_PRESENT_S = 10.0


class Breach(NamedTuple):
    """A promise that does not hold."""

    rule: str
    job_id: UUID | None
    epoch: int | None
    text: str


Found = Iterator[tuple[UUID | None, int | None, str]]


def judge(evidence: Evidence) -> list[Breach]:
    """Return every breach of every rule."""
    return [Breach(name, *found) for name, rule in RULES.items() for found in rule(evidence)]


def _lost(e: Evidence) -> Found:
    """Every acknowledged submission is a job."""
    for entry in e.journal:
        if entry["event"] == "acknowledged" and UUID(entry["job_id"]) not in e.jobs:
            yield UUID(entry["job_id"]), None, f"acknowledged ({entry['how']}), and the ledger does not know it"


def _unknown(e: Evidence) -> Found:
    """No job exists that nobody submitted."""
    tried = {UUID(entry["job_id"]) for entry in e.journal if entry["event"] == "tried"}
    for job_id in e.jobs.keys() - tried:
        yield job_id, None, "nobody submitted it"


def _door(e: Evidence) -> Found:
    """What is bad is refused and on record, what is good is answered, and what a person did is on record."""
    record = b"\n".join(e.refused)
    for entry in e.journal:
        job_id = UUID(entry["job_id"]) if "job_id" in entry else None
        match entry["event"]:
            case "accepted_bad" | "refused_good" as what:
                yield job_id, None, f"{what}: {entry}"
            case "bad" if f'"{entry["mark"]}"'.encode() not in record:
                yield None, None, f"a bad submission is not on record: {entry['mark']}"
            case "unanswered":
                yield None, None, f"{entry['count']} submissions and orders were never answered"
            case "action" if entry["status"] == 200 and job_id and not e.actions[job_id, entry["action"]]:
                yield job_id, None, f"{entry['action']} was answered 200 and is not on record"


def _unsettled(e: Evidence) -> Found:
    """Every job is settled, or waits; its time may not have come, or nobody free can take it."""
    for job_id, job in e.jobs.items():
        if job["state"] == "processing":
            yield job_id, job["epoch"], f"still processing on {job['worker']}"
        elif job["state"] == "pending" and job["run_after"] < e.now - GRACE and (free := _free_for(e, job)):
            offered = "offered" if job["offered_at"] else "not offered"
            yield job_id, job["epoch"], f"pending, due, {offered}, and {', '.join(free)} could take it"


def _overdue(e: Evidence) -> Found:
    """None is processing past its lease or its deadline."""
    for job_id, job in e.jobs.items():
        if job["state"] != "processing":
            continue
        attempt = e.attempts.get((job_id, job["epoch"]))
        if job["lease_expires_at"] < e.now - GRACE:
            yield job_id, job["epoch"], f"its lease ended at {job['lease_expires_at']}"
        if attempt is None or attempt["deadline_at"] < e.now - GRACE:
            yield job_id, job["epoch"], f"past its deadline, attempt {attempt}"


def _one_result(e: Evidence) -> Found:
    """A job with a result has exactly one accepted one, of its newest completed attempt (one more for each retry)."""
    completed: dict[UUID, list[int]] = defaultdict(list)
    for (job_id, epoch), attempt in sorted(e.attempts.items()):
        if attempt["outcome"] == "completed":
            completed[job_id].append(epoch)
    for job_id, job in e.jobs.items():
        epochs, asked = completed[job_id], e.actions[job_id, "retry"] + e.actions[job_id, "reject"]
        if len(epochs) > 1 + asked:
            yield job_id, job["epoch"], f"epochs {epochs} were all accepted, and a retry was asked {asked} times"
        if job["state"] in _WITH_RESULT and (not epochs or job["result_epoch"] != epochs[-1]):
            yield job_id, job["result_epoch"], f"{job['state']}, but the accepted epochs are {epochs}"


def _files(e: Evidence) -> Found:
    """The files of a result are of its epoch, are all there, and have the content that they had."""
    by_job: dict[UUID, dict[str, str]] = defaultdict(dict)
    for file in e.files:
        by_job[file.job_id][file.name] = file.sha256
        job = e.jobs.get(file.job_id)
        if job is None or job["result_epoch"] != file.epoch:
            yield file.job_id, file.epoch, f"{file.name} is linked, but the result is of {job and job['result_epoch']}"
        if file.found != (file.size, file.sha256):
            yield file.job_id, file.epoch, f"{file.name} should be {file.size} bytes of {file.sha256}: {file.found}"
    for job_id, job, plan in _planned(e):
        text = text_of(str(job_id), job["result_epoch"])
        expected = {f"image-{n}.bin": sha256_of(v) for n, v in enumerate(plan.files, 1)}
        expected["own.txt"] = sha256(text.encode()).hexdigest()
        if by_job[job_id] != expected:
            yield job_id, job["result_epoch"], f"its files are {by_job[job_id]}, made were {expected}"
        if job["result"] != {"text": text}:
            yield job_id, job["result_epoch"], f"its result is {job['result']}"


def _published(e: Evidence) -> Found:
    """What is settled is published; its last message is what the ledger says, and none of an older epoch follows."""
    messages: dict[UUID, list[Published]] = defaultdict(list)
    for message in e.results:
        before = messages[message.job_id]
        if before and before[-1].epoch > message.epoch:
            yield message.job_id, message.epoch, f"published after epoch {before[-1].epoch}"
        before.append(message)
        attempt = e.attempts.get((message.job_id, message.epoch))
        if message.state in _WITH_RESULT and (attempt is None or attempt["outcome"] != "completed"):
            yield message.job_id, message.epoch, f"published as {message.state}, but that attempt is {attempt}"
        if _foreign_text(message):
            yield message.job_id, message.epoch, f"published with the text of another epoch: {message.result}"
    files: dict[tuple[UUID, int], set[tuple[str, int, str]]] = defaultdict(set)
    for file in e.files:
        files[file.job_id, file.epoch].add((file.name, file.size, file.sha256))
    for job_id, job in e.jobs.items():
        if job["state"] not in _SETTLED:
            continue
        last = messages[job_id][-1] if messages[job_id] else None
        if last is None or (last.state, last.epoch) != (job["state"], job["epoch"]):
            yield job_id, job["epoch"], f"settled as {job['state']}; its last message is {last}"
        elif job["state"] in _WITH_RESULT and last.files != files[job_id, last.epoch]:
            yield job_id, last.epoch, f"published with other files than it has: {last.files}"


def _work(e: Evidence) -> Found:
    """WORK has no message for a settled job, and one at most for any."""
    times = Counter(UUID(subject.rpartition(".")[2]) for subject in e.work)
    for job_id, count in times.items():
        job = e.jobs.get(job_id)
        if job is None or count > 1:
            yield job_id, None, f"{count} messages in WORK, the ledger has {job and job['state']}"
        elif job["state"] in _SETTLED and job["finished_at"] < e.now - GRACE:
            yield job_id, job["epoch"], f"in WORK, and {job['state']} since {job['finished_at']}"


def _waiting(e: Evidence) -> Found:
    """Nothing lies unread."""
    for stream, count in e.waiting.items():
        if count:
            yield None, None, f"{count} messages are left in {stream}"


def _refusals(e: Evidence) -> Found:
    """Every report that was not accepted is on record (a repeat of an accepted one is no refusal)."""
    for entry in e.judged:
        verdict = entry["verdict"]
        if verdict == "accepted" or (verdict == "duplicate" and not entry.get("reason")):
            continue
        if not e.rejected[UUID(entry["job_id"]), entry["epoch"], entry["worker"], verdict]:
            yield UUID(entry["job_id"]), entry["epoch"], f"judged {verdict} for {entry['worker']}, and not on record"


def _executed(e: Evidence) -> Found:
    """Every execution had a grant of that epoch on that worker; no epoch was executed twice."""
    starts: Counter[tuple[UUID, int]] = Counter()
    for line in e.lines:
        attempt = e.attempts.get((line.job_id, line.epoch))
        if attempt is None or attempt["worker"] != line.worker:
            yield line.job_id, line.epoch, f"{line.word} on {line.worker}, pid {line.pid}; its attempt is {attempt}"
        if line.word == "start":
            starts[line.job_id, line.epoch] += 1
    for (job_id, epoch), count in starts.items():
        if count > 1:
            yield job_id, epoch, f"executed {count} times"


def _unexecuted(e: Evidence) -> Found:
    """What was accepted was really made: its epoch has a start and an end."""
    words: dict[tuple[UUID, int], set[str]] = defaultdict(set)
    for line in e.lines:
        words[line.job_id, line.epoch].add(line.word)
    for job_id, job, _ in _planned(e):
        if words[job_id, job["result_epoch"]] != {"start", "end"}:
            yield job_id, job["result_epoch"], f"accepted, but its lines are {words[job_id, job['result_epoch']]}"


def _audited(e: Evidence) -> Found:
    """`tandem audit` finds nothing either."""
    for text in e.audited:
        yield None, None, text


RULES: dict[str, Callable[[Evidence], Found]] = {
    "lost": _lost,
    "unknown": _unknown,
    "door": _door,
    "unsettled": _unsettled,
    "overdue": _overdue,
    "one_result": _one_result,
    "files": _files,
    "published": _published,
    "work": _work,
    "waiting": _waiting,
    "refusals": _refusals,
    "executed": _executed,
    "unexecuted": _unexecuted,
    "audit": _audited,
}

COUNTED = {
    "lost": ("lost", "files", "unexecuted"),
    "doubled": ("one_result", "executed", "published"),
    "stuck": ("unsettled", "overdue", "work", "waiting"),
}
"""Which rules count as what; the others are breaches all the same."""


def _planned(e: Evidence) -> Iterator[tuple[UUID, dict[str, Any], Plan]]:
    """Yield the jobs whose accepted result the tests' own generator made, with their plans."""
    for job_id, job in e.jobs.items():
        attempt = e.attempts.get((job_id, job["result_epoch"] or 0))
        if job["state"] in _WITH_RESULT and attempt is not None and attempt["worker"] in PLANNED:
            yield job_id, job, Plan.model_validate_json(job["labels"][PLAN])


def _foreign_text(message: Published) -> bool:
    text = str((message.result or {}).get("text", ""))
    return text.startswith("text of ") and text != text_of(str(message.job_id), message.epoch)


def _free_for(e: Evidence, job: dict[str, Any]) -> list[str]:
    """Return the workers that are there, ready, able, not excluded, and have a free slot."""
    busy = Counter(other["worker"] for other in e.jobs.values() if other["state"] == "processing")
    return [
        worker["name"]
        for worker in e.workers
        if worker["age_s"] < _PRESENT_S
        and worker["presence"]["state"] == worker["wanted"] == "ready"
        and worker["presence"]["slots"] > busy[worker["name"]]
        and worker["name"] not in job["excluded"]
        and any(able["kind"] == job["kind"] for able in worker["presence"]["capabilities"])
    ]
