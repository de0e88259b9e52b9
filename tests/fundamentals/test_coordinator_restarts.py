"""The coordinator is away for a while: agents work on, nothing changes state, nothing is lost."""

from shared.streams import remove_message
from shared.subjects import parse_delivery
from tests.support.world import World


async def test_a_running_job_keeps_its_epoch_and_its_result_counts(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()

    await world.stop_coordinator()
    await held.report()
    await world.start_coordinator()
    await held.verdict("accepted")

    seen = await world.job(job["id"])
    assert (seen["state"], seen["epoch"]) == ("completed", 1)


async def test_leases_get_a_full_ttl_of_grace(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await world.pass_time(60)

    await world.stop_coordinator()
    await world.start_coordinator()
    await world.pass_time(60)

    assert (await world.job(job["id"]))["state"] == "processing"
    assert (await held.ask())["lease"] == "held"


async def test_a_lease_that_ran_out_meanwhile_gets_grace_too(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()

    await world.stop_coordinator()
    await world.move_clock(600)
    await world.start_coordinator()
    await world.coordinator.reaper.once()

    seen = await world.job(job["id"])
    assert (seen["state"], seen["epoch"], seen["lease_losses"]) == ("processing", 1, 0)
    assert (await held.ask())["lease"] == "held"


async def test_a_submission_made_meanwhile_over_nats_becomes_a_job(world: World) -> None:
    mini = await world.puppet("mini")
    async with world.servers.open("publisher:local") as publisher:
        await world.stop_coordinator()
        await publisher.js_publish("tandem.submit.local", b'{"key":"k","kind":"article","spec":{"prompt":"x"}}')
        await world.start_coordinator()

    held = await mini.take()

    assert (await world.job(held.job_id))["key"] == "k"


async def test_an_offer_that_was_decided_but_never_sent_is_made_up_for(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    offer = await mini.pull()
    delivery = parse_delivery(offer.reply)
    assert delivery is not None
    await remove_message(world.coordinator.bus, "WORK", delivery.seq)  # as if it had never been sent
    await world.move_clock(10)

    await world.coordinator.reconciler.once()
    held = await mini.take()

    assert held.job_id == job["id"]
    assert world.coordinator.reconciler.mended.missing == 1
