"""Each kind of charge has its limit, so that nothing goes round for ever."""

from tests.support.world import World


async def test_a_job_fails_when_its_attempts_are_used_up(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(max_attempts=2)
    await (await mini.take()).fail("transient", "hiccup")
    await world.pass_time(13)
    world.coordinator.dispatcher.wake()

    await (await mini.take()).fail("transient", "hiccup")

    seen = await world.until(job["id"], "failed")
    assert (seen["attempt"], seen["error"]["code"]) == (2, "hiccup")


async def test_a_job_that_loses_every_worker_ends(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()

    for _ in range(5):
        await mini.take()
        await world.pass_time(91)

    seen = await world.until(job["id"], "failed")
    assert seen["error"]["code"] == "worker_lost"
    assert seen["error"]["message"].startswith("worker lost × 5")  # noqa: RUF001 - the sign for times


async def test_an_operators_retry_starts_from_zero(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(max_attempts=1)
    old = await mini.take()
    await old.fail("transient")
    await world.until(job["id"], "failed")

    await world.act(job["id"], "retry")
    held = await mini.take()

    assert (held.epoch, held.grant["attempt"]) == (2, 1)
    await old.report()
    await old.verdict("stale")
    await held.report()
    await held.verdict("accepted")
