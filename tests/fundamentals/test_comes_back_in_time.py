"""A Mac wakes before anyone took over: it keeps its epoch, and its work counts."""

from tests.support.world import World


async def test_a_heartbeat_after_the_lapse_resumes_the_same_epoch(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await world.pass_time(91)
    assert (await world.job(job["id"]))["state"] == "pending"

    answer = await held.ask()

    assert answer["lease"] == "held"
    seen = await world.job(job["id"])
    assert (seen["state"], seen["epoch"], seen["lease_losses"]) == ("processing", 1, 0)


async def test_nobody_else_is_offered_a_resumed_job(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    await world.submit()
    held = await mini.take()
    await world.pass_time(91)
    await held.ask()

    offer = await macbook.try_pull()

    assert offer is None or (await macbook.claim(offer))["verdict"] == "denied"


async def test_a_result_after_the_lapse_is_accepted_and_the_loss_refunded(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await world.pass_time(91)

    await held.report()
    await held.verdict("accepted")

    seen = await world.job(job["id"])
    assert (seen["state"], seen["epoch"], seen["lease_losses"]) == ("completed", 1, 0)
