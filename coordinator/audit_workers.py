"""The audit's rules about workers: jobs that wait though somebody is free, and what workers say that they hold.

Who is free is asked of the dispatcher's own `Directory`; each job is found by the backlog's index, and of a lane's
backlog only the first hundred are looked at. Called by `audit.py`, twice before it counts.
"""

from typing import Any, Final
from uuid import UUID

from coordinator.audit_rules import Breach, Limits, Suspects
from coordinator.ledger.database import sql
from coordinator.ledger.queries import Queries
from coordinator.ledger.views import Pool, snapshot
from coordinator.workers import Directory

_BACKLOG: Final = 100
"""How many jobs at the head of a lane's backlog are looked at."""

_ROLL_CALL_S: Final = 2.0
"""What it takes at most from a presence in the ledger to the leases being held against it."""


async def stuck(pool: Pool, queries: Queries, limits: Limits) -> Suspects:
    """Find jobs that have been due for `stuck_s`, in a lane that is not paused, though a worker who may take them is
    free: the offer lies, or nothing is offered there that this worker may take.
    """
    directory = Directory(queries, limits.presence_s, limits.quarantine)
    await directory.once()
    paused = await queries.paused_lanes()
    found: Suspects = {}
    for offer in await queries.offers(limits.stuck_s):
        if offer.lane not in paused and directory.free_slots(offer.lane, offer.excluded):
            text = f"offered in {offer.lane}, where a worker is free, and not claimed since {offer.offered_at}"
            found["unclaimed", offer.job_id, offer.offered_at] = Breach("unclaimed", offer.job_id, None, text)
    for lane in await queries.lanes_with_work():
        free = free_workers(directory, lane.lane)
        if not free or not lane.waiting or lane.lane in paused:
            continue
        async with snapshot(pool) as ledger:
            rows = await ledger.fetch(sql("view_audit_passed_over"), lane.lane, limits.stuck_s, free, _BACKLOG)
        for row in rows:
            text = f"due in {lane.lane}, where {row['worker']} is free, and nothing is offered there that it may take"
            found["stuck", row["job_id"], row["epoch"]] = Breach("stuck", row["job_id"], row["epoch"], text)
    return found


def free_workers(directory: Directory, lane: str) -> list[str]:
    """Return who is present, ready, and has a slot free for this lane."""
    everybody = frozenset(directory.rows)
    return [worker for worker in directory.rows if directory.free_slots(lane, everybody - {worker})]


async def contradictions(pool: Pool, limits: Limits) -> Suspects:
    """Find what workers say of themselves that the ledger contradicts."""
    found: Suspects = {}
    for row in await _presence(pool, limits):
        rule = "presence" if row["instance"] is None else "ghost"
        key = rule, row["worker"], row["job_id"], row["epoch"]
        found[key] = Breach(rule, row["job_id"], row["epoch"], row["text"])
    return found


async def ghost_leases(pool: Pool, limits: Limits) -> list[tuple[UUID, str, str]]:
    """Return the leases that their living holders don't list: (job, worker, instance)."""
    rows = await _presence(pool, limits)
    return [(row["job_id"], row["worker"], row["instance"]) for row in rows if row["instance"] is not None]


async def _presence(pool: Pool, limits: Limits) -> list[Any]:
    async with snapshot(pool) as ledger:
        rows: list[Any] = await ledger.fetch(sql("view_audit_presence"), limits.presence_s, _ROLL_CALL_S)
        return rows
