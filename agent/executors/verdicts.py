"""What a backend's error means for the job: a table in data (verdicts.toml), and what happens to the unknown.

The texts change between versions of the backends, so they are matched by what has stayed the same in them, the first
row that fits counts. A text that no row knows is tried once more, on another worker, and then fails the job: never an
endless circle. For the known, "once more" counts what the job met here: what another worker charged it for is no sign
of the same fault.
Executors call `Judge.error` for what went wrong, and `Judge.refusal` before they begin.
"""

import re
import tomllib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from agent.executors.base import BackendDown, Elsewhere, ExecutorError, Permanent, RunnableJob, Transient

UNKNOWN = "unknown_error"
"""The code of an error that no row knows."""
OUT_OF_MEMORY = "out_of_memory"
"""The code that makes the agent free memory before anything else is tried (memory.py)."""
MOST_TEXT = 1024
_MOST_JOBS = 1000


class Verdict(StrEnum):
    """What to do about an error."""

    RETRY = "retry"  # it may work next time, charged
    ROUTE = "route"  # not on this machine
    FAIL = "fail"  # the job itself is wrong
    RETRY_THEN_ROUTE = "retry_then_route"  # once more, then not on this machine
    RETRY_THEN_FAIL = "retry_then_fail"  # once more, then it is the job's fault
    DOWN = "down"  # the backend is not there: given back uncharged, no work for it until a probe succeeds
    BUSY = "busy"  # the backend takes no more work now: the same
    CHECK = "check"  # it may have been done: the executor looks before it calls this a failure (then a retry)
    UNKNOWN = "unknown"  # once more, on another worker (`Judge.refusal` keeps it from this one), then the job's fault


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

    seen: set[str] = field(default_factory=set)
    charged: set[str] = field(default_factory=set)  # the codes of its errors
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
        """Return why the job must not be tried here again: it met an unknown error here before.

        An attempt that was charged comes again only if a person has told the job to begin anew: all is forgotten then.
        """
        past = self._past.get(job.id)
        if past is not None and job.attempt <= past.attempt:
            del self._past[job.id]
            return None
        if past is None or UNKNOWN not in past.charged:
            return None
        return Elsewhere(UNKNOWN, f"{self._backend} here answered this job with an error that is not known")

    def met_before(self, job: RunnableJob, code: str) -> bool:
        """Note that a job met something here; say whether it had met it here before."""
        seen = self._past_of(job).seen
        before = code in seen
        seen.add(code)
        return before

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
        past = self._past_of(job)
        first = finding.code not in past.charged if finding.verdict is not Verdict.UNKNOWN else not job.unexplained
        error = _error_for(finding.verdict, first=first)
        if error in {Transient, Permanent}:
            past.charged.add(UNKNOWN if finding.verdict is Verdict.UNKNOWN else finding.code)
            past.attempt = job.attempt
        return error(finding.code, said or finding.code, detail)

    def _past_of(self, job: RunnableJob) -> _Past:
        past = self._past.setdefault(job.id, _Past())
        self._past.move_to_end(job.id)
        while len(self._past) > _MOST_JOBS:
            self._past.popitem(last=False)
        return past


def _error_for(verdict: Verdict, *, first: bool) -> type[ExecutorError]:
    match verdict:
        case Verdict.RETRY | Verdict.CHECK:
            return Transient
        case Verdict.ROUTE:
            return Elsewhere
        case Verdict.FAIL:
            return Permanent
        case Verdict.RETRY_THEN_ROUTE:
            return Transient if first else Elsewhere
        case Verdict.RETRY_THEN_FAIL | Verdict.UNKNOWN:
            return Transient if first else Permanent
        case Verdict.DOWN | Verdict.BUSY:
            return BackendDown
