"""NATS goes away and comes back: everyone reconnects, and what was promised still holds."""

from tests.support.servers import eventually
from tests.support.world import World


async def test_a_job_survives_a_restart_of_nats_in_every_stage(world: World) -> None:
    mini = await world.puppet("mini")
    waiting, running, finished = await world.submit(), await world.submit(), await world.submit()
    held = [await mini.take() for _ in range(3)]
    by_id = {h.job_id: h for h in held}
    late = by_id[waiting["id"]]
    await late.report("released", error={"code": "drain", "message": "drained"})
    await late.verdict("accepted")
    await by_id[finished["id"]].report()
    await by_id[finished["id"]].verdict("accepted")

    await world.servers.nats.restart()
    await world.reconnected(mini)

    await by_id[running["id"]].report()
    await by_id[running["id"]].verdict("accepted")
    again = await mini.take()
    assert (again.job_id, again.epoch) == (waiting["id"], 2)
    await again.report()
    await again.verdict("accepted")
    for job in (waiting, running, finished):
        assert (await world.job(job["id"]))["state"] == "completed"


async def test_leases_get_grace_after_the_blindness(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await world.servers.nats.stop()
    await eventually(lambda: not world.coordinator.bus.connected)

    await world.pass_time(600)
    assert (await world.job(job["id"]))["state"] == "processing"
    await world.servers.nats.start()
    await world.reconnected(mini)
    await world.coordinator.reaper.once()

    assert (await world.job(job["id"]))["state"] == "processing"
    assert (await held.ask())["lease"] == "held"
    assert (await world.job(job["id"]))["epoch"] == 1


async def test_jobs_submitted_over_http_while_nats_is_away_run_afterwards(world: World) -> None:
    mini = await world.puppet("mini")
    await world.servers.nats.stop()
    await eventually(lambda: not world.coordinator.bus.connected)
    job = await world.submit()

    await world.servers.nats.start()
    await world.reconnected(mini)
    held = await mini.take()

    assert held.job_id == job["id"]
