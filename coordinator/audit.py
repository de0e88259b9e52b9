"""The audit: holds the ledger against itself, against WORK, and against the files. Changes nothing.

Each rule is a promise of DESIGN §7 that can be read off what is stored; `tandem audit` prints the breaches, and a
healthy system has none at any time. Rules about time give the loops that mend things a grace.
"""

from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.artifacts import ArtifactStore
from coordinator.ledger.database import sql
from coordinator.ledger.views import Pool, snapshot
from shared import subjects
from shared.bus import Bus
from shared.states import SETTLED
from shared.streams import work_subjects

GRACE_S: Final = 5.0
"""What a reaper's round and the way from a commit to its message may take."""

UNPUBLISHED_S: Final = 60.0
"""How long a settled job may wait in the outbox."""

_TIMEOUT_S: Final = 120.0  # a rule reads whole tables

_PLAIN_RULES: Final = ("one_result", "other_epoch", "open_attempt", "epochs", "counters", "rejected")
"""Rules that are one query each: its rows are the breaches."""


class Breach(NamedTuple):
    """A promise that does not hold; `job_id` None = of no one job."""

    rule: str
    job_id: UUID | None
    epoch: int | None
    text: str


async def audit(
    pool: Pool,
    bus: Bus | None,
    store: ArtifactStore,
    *,
    grace_s: float = GRACE_S,
    unpublished_s: float = UNPUBLISHED_S,
) -> list[Breach]:
    """Return every breach, in the order of the rules. Without a bus the rules about WORK are left out.

    Reads every linked file. Raises LedgerDownError or BusError: then nothing is known.
    """
    found: list[Breach] = []
    async with snapshot(pool) as ledger:
        for rule in _PLAIN_RULES:
            found += await _rule(ledger, rule)
        found += await _rule(ledger, "lease", grace_s)
        found += await _rule(ledger, "unpublished", unpublished_s)
    found += await _files(pool, store)
    if bus is not None:
        found += await _work(pool, bus, grace_s)
    return found


async def _rule(ledger: Any, rule: str, *arguments: object) -> list[Breach]:
    rows = await ledger.fetch(sql(f"view_audit_{rule}"), *arguments, timeout=_TIMEOUT_S)
    return [Breach(rule, row["job_id"], row["epoch"], row["text"]) for row in rows]


async def _files(pool: Pool, store: ArtifactStore) -> list[Breach]:
    """Read each file of a result: it is there, as long as it was and with the digest it had."""
    found: list[Breach] = []
    after = (UUID(int=0), 0, "")
    while True:
        async with snapshot(pool) as ledger:
            rows = await ledger.fetch(sql("view_audit_linked"), *after)
        if not rows:
            return found
        for row in rows:
            wrong = await _wrong_with(store, row["sha256"], row["size"])
            if wrong:
                found.append(Breach("files", row["job_id"], row["epoch"], f"{row['name']}: {wrong}"))
        after = (rows[-1]["job_id"], rows[-1]["epoch"], rows[-1]["name"])


async def _wrong_with(store: ArtifactStore, sha256: str, size: int) -> str | None:
    there = await store.size(sha256)
    if there is None:
        return "the file is not in the store"
    if there != size:
        return f"the file has {there} bytes, the ledger says {size}"
    digest = await store.digest(sha256)
    return None if digest == sha256 else f"the file's sha256 is {digest}, the ledger says {sha256}"


async def _work(pool: Pool, bus: Bus, grace_s: float) -> list[Breach]:
    """Hold offers against messages: what is offered has one, and what has one is live.

    Both sides move while they are read, so a breach is one only if a second reading of both says the same.
    """
    first = await _work_once(pool, bus, grace_s)
    return sorted(first & await _work_once(pool, bus, grace_s), key=str) if first else []


async def _work_once(pool: Pool, bus: Bus, grace_s: float) -> set[Breach]:
    there = await work_subjects(bus)
    found: set[Breach] = set()
    messages: dict[UUID, list[str]] = {}
    for subject in there:
        try:
            messages.setdefault(subjects.job_of_work(subject), []).append(subject)
        except ValueError:
            found.add(Breach("work", None, None, f"{subject} names no job"))
    async with snapshot(pool) as ledger:
        offered = await ledger.fetch(sql("view_audit_offered"), grace_s)
        named = await ledger.fetch(sql("view_audit_named"), list(messages), grace_s)
    for row in offered:
        if subjects.work(row["lane"], row["job_id"]) not in there:
            found.add(Breach("work", row["job_id"], row["epoch"], "offered, but WORK has no message for it"))
    for row in named:
        job_id, epoch = row["job_id"], row["epoch"]
        if row["state"] is None:
            found.add(Breach("work", job_id, None, "WORK has a message for a job that the ledger does not know"))
        elif row["state"] in SETTLED and row["long_settled"]:
            found.add(Breach("work", job_id, epoch, f"WORK has a message for it, but it is {row['state']}"))
        elif messages[job_id] != [subjects.work(row["lane"], job_id)]:
            found.add(
                Breach("work", job_id, epoch, f"WORK has messages in other lanes than its own: {messages[job_id]}")
            )
    return found
