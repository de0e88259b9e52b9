"""Fault 3: a job completes in the moment in which its lease expires, while others claim it and its beats arrive.

Two or more writers on one database; the first is held at each of its steps (waiting for the row, before each write,
before its commit) until the others stand behind it. What comes out is what some order of whole commands gives: the job
is completed by its epoch, or goes on with the next; never both, never neither.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import pytest

from coordinator.ledger.model import (
    Answer,
    Command,
    Denial,
    Dispatch,
    Done,
    Expire,
    FileReport,
    Grant,
    Held,
    Judged,
    Lost,
    Nothing,
    Offered,
)
from shared.states import Verdict
from tests.support.ledger import Desk, artifact, beat, claim, completed, open_desk, store, waits_for_a_lock
from tests.support.puppet import Held as Lease
from tests.support.servers import eventually
from tests.support.world import World

KINDS = ("complete", "expire", "claim", "beat")
ORDERS = [order for length in (2, 3, 4) for order in itertools.permutations(KINDS, length)]
STEPS = ("row", "job", "attempt", "artifact", "commit")
"""Where the first one is held: before it has the row, before it writes to a table, before its commit."""

pytestmark = pytest.mark.fault(3)


# --------------------------------------------------------------------------------------------- what may come out


class Ending(NamedTuple):
    """Where a job stands after some commands, and what each was answered."""

    phase: str
    answers: tuple[tuple[str, str], ...]


def by_the_rules(order: Sequence[str]) -> Ending:
    """Return what commands that come one after the other give, on a job of epoch 1 whose lease is over."""
    phase, answers = "overdue", {}
    for kind in order:
        match kind, phase:
            case "complete", "taken":
                answers[kind] = "stale"
            case "complete", _:
                phase, answers[kind] = "completed", "accepted"
            case "expire", "overdue":
                phase, answers[kind] = "lapsed", "done"
            case "expire", _:
                answers[kind] = "nothing"
            case "claim", "overdue":
                phase, answers[kind] = "taken", "granted"
            case "claim", _:
                answers[kind] = "denied"
            case _, "taken" | "completed":
                answers[kind] = "lost"
            case _:
                phase, answers[kind] = "held", "held"
    return Ending(phase, tuple(sorted(answers.items())))


STANDS = {
    "held": ("processing", 1, None),
    "lapsed": ("pending", 1, None),
    "taken": ("processing", 2, None),
    "completed": ("completed", 1, 1),
}
"""State, epoch and result's epoch of a job in each phase."""


def said(answer: Answer) -> str:
    """Return an answer in one word."""
    match answer:
        case Judged(verdict):
            return str(verdict)
        case Grant():
            return "granted"
        case Denial():
            return "denied"
        case Held():
            return "held"
        case Lost():
            return "lost"
        case Done():
            return "done"
        case Nothing():
            return "nothing"
        case other:
            raise AssertionError(other)


# ---------------------------------------------------------------------------------------- several writers, one row


@pytest.mark.parametrize("step", STEPS)
async def test_whatever_meets_at_whatever_step_one_of_the_two_holds(ledger_pool: asyncpg.Pool, step: str) -> None:
    orders = [order for order in ORDERS if step != "artifact" or order[0] == "complete"]
    async with _desks(ledger_pool) as desks:
        await _make_gate(ledger_pool, step)
        for order in orders:
            job_id, commands = await _overdue(desks[0], order)
            async with _held_back(ledger_pool, step, job_id):
                waiting = []
                for number, desk in enumerate(desks[: len(order)], 1):
                    waiting.append(asyncio.create_task(desk.do(commands[number - 1])))
                    await waits_for_a_lock(ledger_pool, number)
            answers = await asyncio.gather(*waiting)

            await _ends_well(desks[0], job_id, order, answers)


async def test_the_same_in_one_commit_and_in_commits_of_two_writers_in_turn(ledger_pool: asyncpg.Pool) -> None:
    async with _desks(ledger_pool) as desks:
        for order in ORDERS:
            job_id, commands = await _overdue(desks[0], order)
            together = await desks[0].ledger.do_many(commands)
            await _ends_well(desks[0], job_id, order, together, exactly=True)

            job_id, commands = await _overdue(desks[0], order)
            in_turn = [await desks[number % 2].do(command) for number, command in enumerate(commands)]
            await _ends_well(desks[0], job_id, order, in_turn, exactly=True)


@asynccontextmanager
async def _desks(pool: asyncpg.Pool) -> AsyncIterator[list[Desk]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_desk(pool)) for _ in KINDS]


async def _overdue(desk: Desk, order: Sequence[str]) -> tuple[UUID, list[Command]]:
    """Make a job of epoch 1 whose lease is over and whose file is there; return what is to happen to it."""
    job_id = await desk.held()
    assert await store(desk.queries, job_id, artifact()) == [True]
    await desk.pool.execute("UPDATE job SET lease_expires_at = tandem_now() - interval '1 s' WHERE id = $1", job_id)
    commands: dict[str, Command] = {
        "complete": completed(job_id, artifacts=[artifact()]),
        "expire": Expire(job_id=job_id),
        "claim": claim(job_id, "book", count=2),  # JetStream has handed the message out again
        "beat": beat(job_id),
    }
    return job_id, [commands[kind] for kind in order]


async def _ends_well(
    desk: Desk, job_id: UUID, order: Sequence[str], answers: Sequence[Answer], *, exactly: bool = False
) -> None:
    """Check that an order of whole commands gives this, the one held back being the first; then bring it to its end."""
    got = tuple(sorted((kind, said(answer)) for kind, answer in zip(order, answers, strict=True)))
    orders = [order] if exactly else [(order[0], *rest) for rest in itertools.permutations(order[1:])]
    endings = {ending.answers: ending.phase for ending in map(by_the_rules, orders)}
    assert got in endings, f"{order}: no order of these gives {got}"
    phase = endings[got]
    row = await desk.row(job_id)
    assert (row["state"], row["epoch"], row["result_epoch"]) == STANDS[phase], (order, got)
    files = [(file["epoch"], file["linked"]) for file in await desk.rows("artifact", job_id)]
    assert files == [(1, phase == "completed")], (order, got)

    await _bring_to_its_end(desk, job_id, phase)
    row, attempts = await desk.row(job_id), await desk.rows("attempt", job_id)
    assert row["state"] == "completed", (order, got)
    accepted = [attempt["epoch"] for attempt in attempts if attempt["outcome"] == "completed"]
    assert accepted == [row["result_epoch"]] == [row["epoch"]], (order, got)
    assert all(attempt["ended_at"] for attempt in attempts)


async def _bring_to_its_end(desk: Desk, job_id: UUID, phase: str) -> None:
    """Nothing is lost: whoever is to have the job now can finish it."""
    if phase == "lapsed":
        for command in (Dispatch(job_id=job_id), Offered(job_id=job_id, seq=2), claim(job_id, "book", 2)):
            answer = await desk.do(command)
        assert isinstance(answer, Grant)
        assert answer.epoch == 2
    last: FileReport = completed(job_id, 1) if phase in ("held", "completed") else completed(job_id, 2, "book")
    verdict = Verdict.DUPLICATE if phase == "completed" else Verdict.ACCEPTED
    judged = await desk.do(last)
    assert isinstance(judged, Judged)
    assert judged.verdict is verdict


async def _make_gate(pool: asyncpg.Pool, step: str) -> None:
    """Have every writer stop for a look at an advisory lock at this step."""
    await pool.execute(
        "CREATE FUNCTION stop_here() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(3); RETURN NEW; END $$"
    )
    if step == "commit":
        await pool.execute(
            "CREATE CONSTRAINT TRIGGER stop AFTER UPDATE ON job DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION stop_here()"
        )
    elif step != "row":
        await pool.execute(
            f"CREATE TRIGGER stop BEFORE INSERT OR UPDATE ON {step} FOR EACH ROW EXECUTE FUNCTION stop_here()"
        )


@asynccontextmanager
async def _held_back(pool: asyncpg.Pool, step: str, job_id: UUID) -> AsyncIterator[None]:
    """Hold whoever comes to this step until the block is left."""
    async with pool.acquire() as connection, connection.transaction():
        if step == "row":
            await connection.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", job_id)
        else:
            await connection.execute("SELECT pg_advisory_xact_lock(3)")
        yield


# ----------------------------------------------------------------------------------- over the streams, one coordinator


@pytest.mark.parametrize("first", ["report", "reaper"])
@pytest.mark.parametrize("commits", [1, 2])
async def test_a_report_in_the_stream_meets_the_reaper(world: World, first: str, commits: int) -> None:
    mini = await world.puppet("mini")
    held, other = await _held_and_another(world, mini)
    await world.move_clock(91)

    async with _writer_stopped(world, UUID(held.job_id) if commits == 2 else other):
        reaping = None
        for number, who in enumerate((first, "reaper" if first == "report" else "report"), 2 - commits):
            if who == "report":
                await held.report()
            else:
                reaping = asyncio.create_task(world.coordinator.reaper.once())
            await _writer_has(world, waiting=number)
    assert reaping is not None
    await reaping
    await held.verdict("accepted")

    seen = await world.until(held.job_id, "completed")
    assert (seen["epoch"], seen["result_epoch"], seen["lease_losses"]) == (1, 1, 0)
    assert [a["outcome"] for a in seen["attempts"]] == ["completed"]
    await world.coordinator.reconciler.once()
    assert await mini.try_pull() is None


@pytest.mark.parametrize("first", ["report", "claim"])
@pytest.mark.parametrize("commits", [1, 2])
async def test_a_report_in_the_stream_meets_the_next_claim(world: World, first: str, commits: int) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    held, other = await _held_and_another(world, mini)
    await world.pass_time(91)
    offer = await macbook.pull()
    await eventually(lambda: world.coordinator.effects.idle)

    async with _writer_stopped(world, UUID(held.job_id) if commits == 2 else other):
        claiming = None
        for number, who in enumerate((first, "claim" if first == "report" else "report"), 2 - commits):
            if who == "report":
                await held.report()
            else:
                claiming = asyncio.create_task(macbook.claim(offer))
            await _writer_has(world, waiting=number)
    assert claiming is not None
    answer = await claiming

    if first == "report":
        await held.verdict("accepted")
        assert (answer["verdict"], answer["reason"]) == ("denied", "settled")
    else:
        await held.verdict("stale")
        assert (answer["verdict"], answer["epoch"]) == ("granted", 2)
        assert (await world.job(held.job_id))["state"] == "processing"
        await macbook.report(held.job_id, 2)
        await macbook.hears("verdict", job_id=held.job_id, epoch=2, verdict="accepted")
    seen = await world.until(held.job_id, "completed")
    epoch = 1 if first == "report" else 2
    assert (seen["epoch"], seen["result_epoch"]) == (epoch, epoch)
    assert [a["epoch"] for a in seen["attempts"] if a["outcome"] == "completed"] == [epoch]


async def _held_and_another(world: World, mini: Any) -> tuple[Lease, UUID]:
    """Return a lease, and a job that is not due for long."""
    await world.submit()
    held = await mini.take()
    return held, UUID((await world.submit(run_after="2999-01-01T00:00:00Z"))["id"])


@asynccontextmanager
async def _writer_stopped(world: World, job_id: UUID) -> AsyncIterator[None]:
    """Hold a row that the writer is going to want; if nothing else is due to want it, have it wanted at once."""
    wanting = None
    async with world.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(
            "SELECT run_after > tandem_now() AS later FROM job WHERE id = $1 FOR UPDATE", job_id
        )
        if row["later"]:
            wanting = asyncio.create_task(world.coordinator.ledger.do(Dispatch(job_id=job_id)))
            await _writer_has(world, waiting=0)
        yield
    if wanting is not None:
        assert await wanting == Nothing("not due")


async def _writer_has(world: World, *, waiting: int) -> None:
    """Return once the writer stands at a lock with so many commands behind it."""
    await waits_for_a_lock(world.pool)
    await eventually(lambda: world.coordinator.ledger.status()["waiting"] == waiting)
