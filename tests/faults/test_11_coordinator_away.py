"""Fault 11: a coordinator away for ten minutes while twenty jobs run. None changes state while its beats go on.

The ledger's clock moves on in steps of one heartbeat, and every holder sends its beat at each.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.coordinator_process import coordinator_process
from tests.support.puppet import Held
from tests.support.servers import eventually
from tests.support.world import World, eventually_async

JOBS, WORKERS = 20, 4
HEARTBEAT_S = 30.0
AWAY_S = 600.0

pytestmark = pytest.mark.fault(11)


async def test_twenty_jobs_keep_their_epoch_over_ten_minutes_without_a_coordinator(world: World) -> None:
    held = await _twenty(world)
    finished, going = held[:2], held[2:]

    await world.stop_coordinator()
    for step in range(int(AWAY_S / HEARTBEAT_S)):
        await world.move_clock(HEARTBEAT_S)
        await _beat(held if step < 10 else going)
        if step == 10:  # their reports wait in REPORTS
            for one in finished:
                await one.report()
    await world.start_coordinator()
    await world.coordinator.reaper.once()
    for one in finished:
        await world.until(one.job_id, "completed")

    assert await _standing(world) == {("completed", 1, 0): len(finished), ("processing", 1, 0): len(going)}
    for _ in range(5):  # and it goes on as before
        await _beat_heard(world, going)
        await world.pass_time(HEARTBEAT_S)
    assert await _standing(world) == {("completed", 1, 0): len(finished), ("processing", 1, 0): len(going)}
    await _all_done(world, going)


async def test_those_who_fell_silent_meanwhile_lapse_one_ttl_after_its_return(world: World) -> None:
    held = await _twenty(world)
    silent, going = held[:5], held[5:]

    await world.stop_coordinator()
    await world.move_clock(AWAY_S)
    await world.start_coordinator()
    await world.pass_time(60)
    assert await _standing(world) == {("processing", 1, 0): JOBS}
    await _beat_heard(world, going)
    await world.pass_time(31)

    states = {one.job_id: (await world.job(one.job_id))["state"] for one in held}
    assert [states[one.job_id] for one in silent] == ["pending"] * len(silent)
    assert [states[one.job_id] for one in going] == ["processing"] * len(going)


async def test_another_coordinator_takes_over_the_beats_of_one_that_was_killed(world: World, tmp_path: Path) -> None:
    held = await _twenty(world)
    async with coordinator_process(world.servers, world.dsn, tmp_path / "other") as other:
        await _beat(held)
        await eventually_async(lambda: _beats_in_the_ledger(world, JOBS))
        await other.kill()
        await eventually_async(lambda: _are_all_heard(world, held))  # once the server has noticed that it is gone

    heard = world.coordinator.heartbeats.taken
    for step in range(1, int(AWAY_S / HEARTBEAT_S) + 1):
        await _beat(held)
        await eventually(lambda beats=step: world.coordinator.heartbeats.taken == heard + beats * JOBS)
        await world.pass_time(HEARTBEAT_S)

    assert await _standing(world) == {("processing", 1, 0): JOBS}
    await _all_done(world, held)


async def _twenty(world: World) -> list[Held]:
    """Start the jobs, all held."""
    puppets = [await world.puppet(f"mac-{n}", slots=JOBS // WORKERS) for n in range(WORKERS)]
    for _ in range(JOBS):
        await world.submit()
    held = [await puppet.take() for puppet in puppets for _ in range(JOBS // WORKERS)]
    assert len({one.job_id for one in held}) == JOBS
    return held


async def _beat(held: Sequence[Held]) -> None:
    """Send one beat of each, and return when the server has them."""
    for one in held:
        await one.beat()
    for puppet in {one.puppet for one in held}:
        await puppet.bus.flush()


async def _are_all_heard(world: World, held: Sequence[Held]) -> bool:
    """Send one beat of each; say whether this coordinator had them all."""
    before = world.coordinator.heartbeats.taken
    await _beat(held)
    with suppress(TimeoutError):
        await eventually(lambda: world.coordinator.heartbeats.taken == before + len(held), within_s=2)
        return True
    return False


async def _beat_heard(world: World, held: Sequence[Held]) -> None:
    """Send one beat of each, and return when the ledger has them."""
    before = world.coordinator.heartbeats.taken
    await _beat(held)
    await eventually(lambda: world.coordinator.heartbeats.taken == before + len(held))


async def _beats_in_the_ledger(world: World, jobs: int) -> bool:
    beaten: int = await world.pool.fetchval("SELECT count(*) FROM attempt WHERE heartbeats > 0")
    return beaten == jobs


async def _standing(world: World) -> dict[tuple[str, int, int], int]:
    """Return how many jobs stand where: state, epoch, leases lost."""
    rows = await world.pool.fetch("SELECT state, epoch, lease_losses, count(*) AS jobs FROM job GROUP BY 1, 2, 3")
    return {(row["state"], row["epoch"], row["lease_losses"]): row["jobs"] for row in rows}


async def _all_done(world: World, held: Sequence[Held]) -> None:
    for one in held:
        await one.report()
        await one.verdict("accepted")
    assert await _standing(world) == {("completed", 1, 0): JOBS}
