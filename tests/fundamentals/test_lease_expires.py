"""A Mac falls silent: its lease ends, and the job goes to another with the next epoch."""

from tests.support.world import World


async def test_job_of_a_silent_agent_goes_to_another_with_the_next_epoch(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    await macbook.take()

    await world.pass_time(91)
    held = await mini.take()

    assert (held.job_id, held.epoch) == (job["id"], 2)
    seen = await world.job(job["id"])
    assert (seen["attempt"], seen["lease_losses"]) == (0, 1)
    assert [a["outcome"] for a in seen["attempts"]] == ["lease_expired", None]


async def test_heartbeats_keep_a_long_job_in_its_first_epoch(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()

    for _ in range(20):
        await world.pass_time(45)
        assert (await held.ask())["lease"] == "held"

    seen = await world.job(job["id"])
    assert (seen["state"], seen["epoch"]) == ("processing", 1)


async def test_a_lease_that_is_not_over_stays(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    await mini.take()

    await world.pass_time(89)

    assert (await world.job(job["id"]))["state"] == "processing"


async def test_heartbeats_can_not_extend_an_attempt_past_its_timeout(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(timeout_s=100, max_attempts=1)
    held = await mini.take()
    await world.pass_time(60)
    assert (await held.ask())["ttl_s"] <= 40

    await world.pass_time(41)

    seen = await world.until(job["id"], "failed")
    assert seen["error"]["code"] == "timeout"
    assert (await mini.hears("revoke", job_id=job["id"]))["reason"] == "deadline"
