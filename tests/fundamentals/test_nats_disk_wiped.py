"""NATS loses its disk: streams, consumers and WORK are made again from the ledger; nothing is lost or doubled."""

import orjson

from tests.support.puppet import WAIT_S
from tests.support.servers import eventually
from tests.support.world import World


async def test_everything_is_rebuilt_from_the_ledger(world: World) -> None:
    mini = await world.puppet("mini")
    running = await world.submit()
    held = await mini.take()
    waiting = await world.submit()

    await world.servers.nats.wipe()
    await world.reconnected(mini)
    await world.move_clock(10)
    await world.coordinator.reconciler.once()
    again = await mini.take()

    assert (again.job_id, again.epoch) == (waiting["id"], 1)
    assert (await held.ask())["lease"] == "held"
    await held.report()
    await held.verdict("accepted")
    assert (await world.job(running["id"]))["state"] == "completed"


async def test_results_that_were_lost_with_the_disk_go_out_again(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await held.report()
    await held.verdict("accepted")
    await eventually(lambda: world.coordinator.results.published == 1)

    await world.servers.nats.wipe()
    await world.reconnected(mini)
    async with world.servers.open("publisher:local") as publisher:
        message = await publisher.pull_one("RESULTS", "results-local", expires_s=WAIT_S)

    assert message is not None
    assert orjson.loads(message.data)["job_id"] == job["id"]


async def test_an_ack_from_before_the_loss_hits_no_message_from_after_it(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()

    await world.servers.nats.wipe()
    await world.reconnected(mini)
    await world.submit()
    await mini.bus.publish(held.offer.reply, b"+ACK")
    await mini.bus.flush()

    assert (await mini.pull()).reply.split(".")[5] > held.offer.reply.split(".")[5]


async def test_a_report_that_was_acknowledged_and_lost_is_sent_again_and_counts(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await world.stop_coordinator()
    await held.report()

    await world.servers.nats.wipe()
    await world.start_coordinator()
    assert (await held.ask())["lease"] == "held"  # so its agent knows that it must send again
    await held.report()
    await held.verdict("accepted")

    assert (await world.job(job["id"]))["state"] == "completed"
