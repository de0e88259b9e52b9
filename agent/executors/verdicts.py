"""What a backend's error means for the job: a table in data (verdicts.toml), and what happens to the unknown.

The texts change between versions of the backends, so they are matched by what has stayed the same in them, the first
row that fits counts. A text that no row knows is tried once more, on another worker, and then fails the job: never an
endless circle. "Once more" counts what the grant says that the job is charged for (`failures`): what is the job's own
fault wherever it was met, what is a machine's where it was met here.
Executors call `Judge.error` for what went wrong, and `Judge.refusal` before they begin.
"""

import re
import tomllib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from agent.executors.base import BackendDown, Elsewhere, ExecutorError, Permanent, RunnableJob, Transient
from shared.wire import Failure

UNKNOWN = "unknown_error"
"""The code of an error that no row knows."""
OUT_OF_MEMORY = "out_of_memory"
"""The code that makes the agent free memory before anything else is tried (memory.py)."""
MOST_TEXT = 1024
MOST_RELEASES = 10
"""How often a job is given back here for one thing that is no fault of its own, before that is charged all the same."""
_MOST_JOBS = 1000


class Verdict(StrEnum):
    """What to do about an error."""

    RETRY = "retry"  # it may work next time, charged
    ROUTE = "route"  # not on this machine
    FAIL = "fail"  # the job itself is wrong
    RETRY_THEN_ROUTE = "retry_then_route"  # the machine's fault: once more, then not on this one
    RETRY_THEN_FAIL = "retry_then_fail"  # the job's fault: once more, on whichever machine, then it has failed
    EITHER = "either"  # once more; not on a machine that met it twice, and the job's fault if two did
    DOWN = "down"  # the backend is not there: given back uncharged, no work for it until a probe succeeds
    BUSY = "busy"  # the backend takes no more work now: the same
    CHECK = "check"  # it may have been done: the executor looks before it calls this a failure (then a retry)
    UNKNOWN = "unknown"  # once more, on another worker (`refused_here` keeps it from this one), then the job's fault


class Row(BaseModel):
    """One row of the table: it fits if everything that it names fits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = ""  # a regular expression, found anywhere, case ignored
    status: list[int] = []  # HTTP; empty: any, and none
    server: str = ""  # which of the servers that the backend's protocol is spoken by; empty: any
    verdict: Verdict
    code: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What the table says."""

    verdict: Verdict
    code: str


@dataclass(slots=True)
class _Past:
    """What a job met here."""

    seen: Counter[str] = field(default_factory=Counter)
    charged: list[Failure] = field(default_factory=list)
    attempt: int = 0  # the last one that ended here, charged


@cache
def _table() -> Mapping[str, list[Row]]:
    raw = tomllib.loads(files("agent.executors").joinpath("verdicts.toml").read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, list[Row]]).validate_python(raw)


def look_up(backend: str, text: str, *, status: int | None = None, server: str = "") -> Finding:
    """Return what the table says of an error of `backend`: the rows of `any` first, then its own."""
    for row in (*_table()["any"], *_table().get(backend, ())):
        fits = (not row.status or status in row.status) and row.server in {"", server}
        if fits and re.search(row.text, text, re.IGNORECASE):
            return Finding(row.verdict, row.code)
    return Finding(Verdict.UNKNOWN, UNKNOWN)


def clean(text: str) -> str:
    """Return text that may be kept with the attempt: printable, at most 1 KB."""
    printable = "".join(char if char.isprintable() else " " for char in text[: 4 * MOST_TEXT])
    return " ".join(printable.split())[:MOST_TEXT]


class Judge:
    """Makes a job's error of a backend's; one for each executor, since it remembers what a job met here."""

    def __init__(self, backend: str) -> None:
        """`backend` is the table's name."""
        self._backend = backend
        self._past: OrderedDict[str, _Past] = OrderedDict()

    def refusal(self, job: RunnableJob) -> ExecutorError | None:
        """Return why the job must not be tried here again.

        An attempt that was charged comes again only if a person has told the job to begin anew: all is forgotten then.
        """
        past = self._past.get(job.id)
        if past is not None and job.attempt <= past.attempt:
            del self._past[job.id]
        return refused_here(self._charged(job))

    def met_before(self, job: RunnableJob, code: str, *, times: int = 1) -> bool:
        """Note that a job met something here; say whether it had met it here so many times before."""
        seen = self._past_of(job).seen
        seen[code] += 1
        return seen[code] > times

    def error(
        self, job: RunnableJob, text: str, *, status: int | None = None, server: str = "", version: str = ""
    ) -> ExecutorError:
        """Return what to raise for an answer of the backend; `text` is its words, never the prompt."""
        finding = look_up(self._backend, text, status=status, server=server)
        return self.verdict(job, finding, text, status=status, server=server, version=version)

    def verdict(self, job: RunnableJob, finding: Finding, text: str, **facts: Any) -> ExecutorError:
        """Return what to raise for something that the executor itself found."""
        said = clean(text)
        kept = {name: value for name, value in facts.items() if value not in (None, "")}
        detail = {"executor": self._backend, "verdict": finding.verdict.value, "text": said, **kept}
        error = _error_for(finding, self._charged(job))
        if error is BackendDown and self.met_before(job, f"{finding.code}, released", times=MOST_RELEASES):
            error = Transient
        if error in {Transient, Permanent}:
            past = self._past_of(job)
            past.charged.append(Failure(code=finding.code, verdict=finding.verdict, here=True))
            past.attempt = job.attempt
        return error(finding.code, said or finding.code, detail)

    def _charged(self, job: RunnableJob) -> Sequence[Failure]:
        """Return what is charged to a job, as far as its grant or this process knows."""
        if job.failures is not None:
            return job.failures
        past = self._past.get(job.id)
        return past.charged if past is not None else ()

    def _past_of(self, job: RunnableJob) -> _Past:
        past = self._past.setdefault(job.id, _Past())
        self._past.move_to_end(job.id)
        while len(self._past) > _MOST_JOBS:
            self._past.popitem(last=False)
        return past


def refused_here(failures: Sequence[Failure]) -> ExecutorError | None:
    """Return why a job must not be tried here again: it met something here of which nobody knows whose fault it is."""
    met = next((one for one in failures if one.here and one.verdict == Verdict.UNKNOWN), None)
    if met is None:
        return None
    detail = {"verdict": Verdict.UNKNOWN.value}  # with `elsewhere`: nothing was tried (streaks.sql)
    return Elsewhere(met.code, f"it met {met.code} here before: another worker must try it", detail)


def unknown_before(failures: Sequence[Failure]) -> bool:
    """Say whether a job met before, anywhere, what nobody knows."""
    return any(one.verdict == Verdict.UNKNOWN for one in failures)


def _error_for(finding: Finding, failures: Sequence[Failure]) -> type[ExecutorError]:
    same = [one for one in failures if one.code == finding.code]
    here = any(one.here for one in same)
    match finding.verdict:
        case Verdict.RETRY | Verdict.CHECK:
            return Transient
        case Verdict.ROUTE:
            return Elsewhere
        case Verdict.FAIL:
            return Permanent
        case Verdict.RETRY_THEN_ROUTE:
            return Elsewhere if here else Transient
        case Verdict.RETRY_THEN_FAIL:
            return Permanent if same else Transient
        case Verdict.EITHER:
            if any(not one.here for one in same):
                return Permanent
            return Elsewhere if here else Transient
        case Verdict.UNKNOWN:
            return Permanent if unknown_before(failures) else Transient
        case Verdict.DOWN | Verdict.BUSY:
            return BackendDown
