"""Fault 1: five thousand leases expire at once, and more while the reaper is at it.

All are pending again within two of its rounds; a row that can't be handled does not stand before those behind it.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import asyncpg
import pytest

from coordinator.ledger.model import Command, Grant, Offered
from tests.support.ledger import POLICY, Desk, admit, claim
from tests.support.servers import eventually
from tests.support.world import World, eventually_async

EXPIRED, MEANWHILE = 5000, 500
TTL_S = POLICY.lease_ttl_s

pytestmark = [pytest.mark.fault(1), pytest.mark.timeout(300)]


async def test_5000_expired_leases_and_more_meanwhile_are_pending_within_two_rounds(world: World, desk: Desk) -> None:
    await _held(desk, EXPIRED)
    await world.move_clock(TTL_S / 2)
    await _held(desk, MEANWHILE)
    await world.move_clock(TTL_S / 2 + 1)

    first = asyncio.create_task(world.coordinator.reaper.once())
    await eventually(lambda: world.coordinator.reaper.expired > 0)
    assert not first.done(), "the new leases must expire while the round goes on"
    await world.move_clock(TTL_S / 2)
    await first
    await world.coordinator.reaper.once()

    assert await _states(world.pool) == {"pending": EXPIRED + MEANWHILE}
    assert world.coordinator.reaper.expired == EXPIRED + MEANWHILE
    outcomes = await world.pool.fetch("SELECT epoch, outcome, count(*) AS n FROM attempt GROUP BY 1, 2")
    assert [tuple(row) for row in outcomes] == [(1, "lease_expired", EXPIRED + MEANWHILE)]
    await eventually_async(lambda: _is_idle(world), within_s=120)
    mini = await world.puppet("mini")
    assert (await mini.take()).epoch == 2


async def test_rows_that_can_not_be_handled_stop_none_of_those_behind_them(world: World, desk: Desk) -> None:
    ids = sorted(await _held(desk, 1200))
    bad = {ids[0], ids[1], ids[700], ids[-1]}  # at the head of the round, within it, at its end
    await _refuse_updates_of(world.pool, bad)
    await world.move_clock(TTL_S + 1)

    await world.coordinator.reaper.once()

    assert await _states(world.pool) == {"processing": len(bad), "pending": len(ids) - len(bad)}
    assert {row["id"] for row in await world.pool.fetch("SELECT id FROM job WHERE state = 'processing'")} == bad
    await world.pool.execute("DROP TRIGGER refuse ON job")
    await world.coordinator.reaper.once()
    assert await _states(world.pool) == {"pending": len(ids)}


async def test_a_round_that_fails_in_the_middle_is_made_up_for_by_the_next(world: World, desk: Desk) -> None:
    ids = sorted(await _held(desk, 1200))
    await world.move_clock(TTL_S + 1)
    async with world.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", ids[900])
        round_ = asyncio.create_task(world.coordinator.reaper.once())
        await eventually(lambda: world.coordinator.reaper.expired == 500)
        round_.cancel()
        await asyncio.gather(round_, return_exceptions=True)

    await world.coordinator.reaper.once()

    assert await _states(world.pool) == {"pending": len(ids)}


async def _held(desk: Desk, count: int) -> Sequence[UUID]:
    """Make jobs that somebody holds, as the ledger makes them; their messages and agents are not needed here."""
    news = [admit(offer=True) for _ in range(count)]
    first_seq = await desk.pool.fetchval("SELECT coalesce(max(offered_seq), 0) + 1 FROM job")
    places = list(enumerate(news, first_seq))
    lives: tuple[list[Command], ...] = (
        list(news),
        [Offered(job_id=new.job_id, seq=seq) for seq, new in places],
        [claim(new.job_id, "gone", seq) for seq, new in places],
    )
    for commands in lives:
        answers = await desk.ledger.do_many(commands)
    assert all(isinstance(answer, Grant) for answer in answers)
    return [new.job_id for new in news]


async def _refuse_updates_of(pool: asyncpg.Pool, bad: set[UUID]) -> None:
    """Let no change of these rows through, as a CHECK does that a newer release has and this one breaks."""
    named = ", ".join(f"'{job_id}'" for job_id in bad)
    await pool.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this row'; END $$"
    )
    await pool.execute(
        f"CREATE TRIGGER refuse BEFORE UPDATE ON job FOR EACH ROW WHEN (OLD.id IN ({named})) EXECUTE FUNCTION refuse()"
    )


async def _states(pool: asyncpg.Pool) -> Counter[str]:
    return Counter(
        {row["state"]: row["n"] for row in await pool.fetch("SELECT state, count(*) AS n FROM job GROUP BY 1")}
    )


async def _is_idle(world: World) -> bool:
    return world.coordinator.effects.idle
