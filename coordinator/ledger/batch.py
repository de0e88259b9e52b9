"""One group commit: lock the rows, decide each command in turn, write what changed, commit.

Called by `ledger.py` with a connection of its own. Decisions come from `transitions.py` alone; nothing here judges.
Commands for one job see each other's effects, in their order; the writes are set-based and only for what changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

import asyncpg

from coordinator.ledger import rows
from coordinator.ledger.database import is_away, sql
from coordinator.ledger.model import (
    Answer,
    Attempt,
    Charge,
    Command,
    Decided,
    Decision,
    Effect,
    FileReport,
    Grant,
    Job,
    Payload,
)
from coordinator.ledger.transitions import decide
from coordinator.ledger.writes import Tracked, write
from shared.failpoints import Failpoint, reach
from shared.lease import Policy

_MAX_EPOCH = 2**31 - 1


@dataclass(slots=True)
class Committed:
    """What a commit brought, one entry per command."""

    answers: list[Answer | None]  # None: decide again; another coordinator admitted that job meanwhile
    effects: list[Effect] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)


async def carry_out(
    connection: asyncpg.Connection, commands: Sequence[Command], policy: Policy, lanes: set[str]
) -> Committed:
    """Decide the commands in one transaction; when this returns, it is committed.

    `lanes` are those that the lane table is known to have; new ones are added to both. Whatever is raised, the
    transaction is undone, except that after an error for which `is_away` holds its outcome is unknown.
    """
    await connection.execute("BEGIN")
    try:
        committed, new_lanes = await _in_transaction(connection, commands, policy, lanes)
        reach(Failpoint.COMMIT_UNSENT)
        ended = await connection.execute("COMMIT")
    except Exception as error:
        if not is_away(error) and not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    if ended != "COMMIT":
        raise asyncpg.InternalClientError("the server rolled back instead of committing")
    lanes |= new_lanes
    return committed


async def _in_transaction(
    connection: asyncpg.Connection, commands: Sequence[Command], policy: Policy, lanes: set[str]
) -> tuple[Committed, set[str]]:
    now, tracked = await _locked(connection, commands)
    commands = await _with_uploads(connection, commands)
    decisions = []
    befores: list[Job | None] = []
    for command in commands:
        job = tracked[command.job_id]
        before = job.job
        decision = decide(before, command, now, policy)
        job.take(command, decision)
        decisions.append(decision)
        befores.append(before)
    new_lanes = {t.job.lane for t in tracked.values() if t.job is not None and t.placed} - lanes
    missed = await write(connection, tracked.values(), new_lanes, now)
    payloads = await _payloads(connection, commands, decisions)
    committed = Committed([])
    for command, decision, before in zip(commands, decisions, befores, strict=True):
        if command.job_id in missed:
            committed.answers.append(None)
            continue
        answer = decision.answer
        if isinstance(answer, Grant):
            answer = replace(answer, payload=payloads[command.job_id])
        committed.answers.append(answer)
        committed.effects += decision.effects
        committed.decided.append(Decided(command, before, decision.job, answer))
    return committed, new_lanes


async def _locked(connection: asyncpg.Connection, commands: Sequence[Command]) -> tuple[datetime, dict[UUID, Tracked]]:
    ids = list({command.job_id: None for command in commands})
    found = await connection.fetch(sql("job_lock"), ids)
    now: datetime = found[0]["now"]
    claimed = [row for row in found if row["epoch"]]
    attempts: dict[UUID, Attempt] = {}
    if claimed:
        args = [row["id"] for row in claimed], [row["epoch"] for row in claimed]
        attempts = {r["job_id"]: rows.attempt_of(r) for r in await connection.fetch(sql("attempt_of"), *args)}
    tracked = {job_id: Tracked(None) for job_id in ids}
    for row in found:
        if row["id"] is not None:
            job = rows.job_of(row, attempts.get(row["id"]))
            tracked[row["id"]] = Tracked(job)
    return now, tracked


async def _with_uploads(connection: asyncpg.Connection, commands: Sequence[Command]) -> Sequence[Command]:
    """Put what is stored for each reported epoch into the reports that name files."""
    wanted = sorted(
        {
            (c.job_id, c.report.epoch)
            for c in commands
            if isinstance(c, FileReport) and c.report.artifacts and 0 < c.report.epoch <= _MAX_EPOCH
        }
    )
    if not wanted:
        return commands
    found = await connection.fetch(sql("artifact_lock"), [w[0] for w in wanted], [w[1] for w in wanted])
    stored: dict[tuple[UUID, int], set[tuple[str, int, str]]] = {}
    for row in found:
        stored.setdefault((row["job_id"], row["epoch"]), set()).add((row["name"], row["size"], row["sha256"]))
    return [
        replace(c, uploaded=frozenset(stored.get((c.job_id, c.report.epoch), ())))
        if isinstance(c, FileReport) and c.report.artifacts
        else c
        for c in commands
    ]


async def _payloads(
    connection: asyncpg.Connection, commands: Sequence[Command], decisions: Sequence[Decision]
) -> dict[UUID, Payload]:
    granted = [c.job_id for c, d in zip(commands, decisions, strict=True) if isinstance(d.answer, Grant)]
    if not granted:
        return {}
    rows = await connection.fetch(sql("job_payload"), granted)
    return {row["id"]: _payload(row) for row in rows}


def _payload(row: asyncpg.Record) -> Payload:
    fields = {name: row[name] for name in Payload.__dataclass_fields__}
    return Payload(**fields | {"charges": tuple(Charge(**charge) for charge in row["charges"])})
