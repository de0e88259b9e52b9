"""The audit: holds the ledger against itself, the streams, the workers and the files. Changes nothing.

Each rule is a promise of DESIGN §7 that can be read off what is stored (`RULES`); `tandem audit` prints the breaches,
and a healthy system has none at any time, however busy: rules about time give the loops that mend things a grace, and
what moves while it is read is a breach only if a second look, a little later, finds the same (`audit_streams.py`,
`audit_workers.py`). `repair.py` mends what it finds.

Cost, for a million settled jobs: the rules about the ledger alone read `job`, `attempt` and `artifact` once each, in
one query a rule (seconds); those about what lives read by partial indexes; RESULTS costs a listing of its subjects and
about 100 bytes of memory a message, and the contents of its newest messages only; every file of a result is read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.artifacts import ArtifactStore
from coordinator.audit_rules import Breach, Limits, Suspects
from coordinator.audit_streams import StreamsLook
from coordinator.audit_workers import contradictions, stuck
from coordinator.ledger.database import sql
from coordinator.ledger.queries import Queries
from coordinator.ledger.views import Pool, snapshot
from shared.bus import Bus

__all__ = ["RULES", "Breach", "Found", "Limits", "audit", "look"]

RULES: Final[Mapping[str, tuple[int, str]]] = {
    "one_result": (1, "a job's result is of one completed attempt, the newest"),
    "epochs": (8, "the attempts of a job are its epochs 1 to n, each once"),
    "open_attempt": (6, "an attempt is open only while its job is processing its epoch"),
    "counters": (5, "what was charged to a job is on record, and no more"),
    "rejected": (8, "what was refused is not what was accepted, and was refused for a reason that was true"),
    "holder": (6, "a processing job has an open attempt of its holder, and no lease beyond its deadline"),
    "lease": (6, "a lease that is over is ended"),
    "other_epoch": (3, "no file is part of a result but those of the accepted epoch"),
    "bytes": (4, "a result has the files that its report said"),
    "files": (4, "each file of a result is in the store, whole"),
    "unpublished": (2, "what is settled goes out"),
    "offer": (6, "a job that is offered has its message in WORK"),
    "work": (6, "a message in WORK is of a job that is offered or held"),
    "lane": (6, "a message in WORK is in its job's own lane"),
    "results": (2, "a settled job that went out has its message in RESULTS, as long as RESULTS keeps it"),
    "last_word": (3, "the last message of a settled job says what the ledger says"),
    "untrue": (1, "no message of RESULTS says what the ledger never knew"),
    "superseded": (3, "no result of an older epoch came out after a newer one"),
    "reports": (2, "a report is taken off REPORTS soon, when a coordinator is there"),
    "submit": (2, "a submission is taken off SUBMIT soon, when a coordinator is there"),
    "stuck": (6, "no job waits unoffered while somebody who may take it is free"),
    "unclaimed": (6, "no offer lies while somebody who may take it is free"),
    "presence": (8, "what a worker says that it holds was granted to it"),
    "ghost": (6, "what a living worker holds by the ledger, it knows of"),
}
"""Each rule, the promise of DESIGN §7 that it holds the system to, and what it asks for."""

_TIMEOUT_S: Final = 120.0  # a rule reads whole tables

_PLAIN_RULES: Final = ("one_result", "epochs", "open_attempt", "counters", "rejected", "other_epoch", "bytes")
"""Rules that are one query each: its rows are the breaches."""


class Found(NamedTuple):
    """What an audit found, and what it looked at (for people)."""

    breaches: list[Breach]
    covered: list[str]


async def audit(
    pool: Pool, bus: Bus | None, store: ArtifactStore | None, limits: Limits | None = None, **changed: float
) -> list[Breach]:
    """Return every breach; see `look`. `changed` are single limits, by name."""
    return (await look(pool, bus, store, replace(limits or Limits(), **changed))).breaches  # type: ignore[arg-type]


async def look(
    pool: Pool,
    bus: Bus | None,
    store: ArtifactStore | None,
    limits: Limits | None = None,
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Found:
    """Return every breach, rule by rule. Without a bus the rules about streams are left out, without a store the files.

    Reads every linked file. `pause` waits between the two looks at what moves. Raises LedgerDownError or BusError: then
    nothing is known.
    """
    limits = limits or Limits()
    found: list[Breach] = []
    covered: list[str] = []
    async with snapshot(pool) as ledger:
        for rule in _PLAIN_RULES:
            found += await _rule(ledger, rule)
        found += await _rule(ledger, "holder")
        found += await _rule(ledger, "lease", limits.grace_s)
        found += await _rule(ledger, "unpublished", limits.unpublished_s)
    if store is not None:
        files, wrong = await _files(pool, store)
        found += wrong
        covered.append(f"{files} files read")
    streams = StreamsLook(pool, bus, limits) if bus is not None else None
    first = await _moving(pool, streams, limits)
    if first:  # what moves is a breach only if another look, a little later, finds the same
        await pause(limits.again_s)
        second = await _moving(pool, streams, limits)
        found += [breach for key, breach in second.items() if key in first]
    if streams is not None:
        covered += streams.covered
    return Found(found, covered)


async def _rule(ledger: Any, rule: str, *arguments: object) -> list[Breach]:
    rows = await ledger.fetch(sql(f"view_audit_{rule}"), *arguments, timeout=_TIMEOUT_S)
    return [Breach(rule, row["job_id"], row["epoch"], row["text"]) for row in rows]


async def _moving(pool: Pool, streams: StreamsLook | None, limits: Limits) -> Suspects:
    queries = Queries(pool)
    found = await streams.once() if streams is not None else {}
    return {**found, **await stuck(pool, queries, limits), **await contradictions(pool, limits)}


async def _files(pool: Pool, store: ArtifactStore) -> tuple[int, list[Breach]]:
    """Read each file of a result: it is there, as long as it was and with the digest it had."""
    found: list[Breach] = []
    files, after = 0, (UUID(int=0), 0, "")
    while True:
        async with snapshot(pool) as ledger:
            rows = await ledger.fetch(sql("view_audit_linked"), *after)
        if not rows:
            return files, found
        for row in rows:
            wrong = await _wrong_with(store, row["sha256"], row["size"])
            if wrong and await _is_linked(pool, row):  # a retry may have unlinked it meanwhile, and the sweeper come
                found.append(Breach("files", row["job_id"], row["epoch"], f"{row['name']}: {wrong}"))
        files += len(rows)
        after = (rows[-1]["job_id"], rows[-1]["epoch"], rows[-1]["name"])


async def _is_linked(pool: Pool, row: Any) -> bool:
    async with snapshot(pool) as ledger:
        linked: bool = await ledger.fetchval(sql("artifact_is_linked"), row["job_id"], row["epoch"], row["name"])
        return linked


async def _wrong_with(store: ArtifactStore, sha256: str, size: int) -> str | None:
    there = await store.size(sha256)
    if there is None:
        return "the file is not in the store"
    if there != size:
        return f"the file has {there} bytes, the ledger says {size}"
    digest = await store.digest(sha256)
    return None if digest == sha256 else f"the file's sha256 is {digest}, the ledger says {sha256}"
