"""Three kinds of error: try again, try elsewhere, give up. And a fourth that is nobody's fault."""

from tests.support.world import World


async def test_transient_error_waits_for_its_backoff_and_runs_again(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    await (await mini.take()).fail("transient")
    seen = await world.job(job["id"])
    assert (seen["state"], seen["attempt"]) == ("pending", 1)
    assert await mini.try_pull() is None

    await world.pass_time(13)
    world.coordinator.dispatcher.wake()
    held = await mini.take()

    assert (held.job_id, held.epoch, held.grant["attempt"]) == (job["id"], 2, 2)


async def test_a_heartbeat_after_a_failed_report_resumes_no_ghost(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await held.fail("transient")

    answer = await held.ask()

    assert answer["lease"] == "lost"
    assert (await world.job(job["id"]))["state"] == "pending"


async def test_elsewhere_goes_to_another_worker_at_once_and_charges_nothing(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    await (await macbook.take()).fail("elsewhere", "model_missing")

    held = await mini.take()

    assert (held.job_id, held.epoch, held.grant["attempt"]) == (job["id"], 2, 1)


async def test_an_excluded_worker_is_denied(world: World) -> None:
    await world.puppet("mini")
    macbook = await world.puppet("macbook")
    await world.submit()
    await (await macbook.take()).fail("elsewhere")

    answer = await macbook.claim(await macbook.pull())

    assert (answer["verdict"], answer["reason"]) == ("denied", "elsewhere")


async def test_elsewhere_fails_when_no_capable_worker_is_left(world: World) -> None:
    macbook = await world.puppet("macbook")
    await world.puppet("painter", kinds=("image",))
    job = await world.submit()

    await (await macbook.take()).fail("elsewhere", "model_missing")

    seen = await world.until(job["id"], "failed")
    assert seen["error"]["code"] == "model_missing"


async def test_permanent_error_fails_now(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()

    await (await mini.take()).fail("permanent", "bad_prompt")

    seen = await world.until(job["id"], "failed")
    assert (seen["error"]["code"], seen["error"]["class"], seen["attempt"]) == ("bad_prompt", "permanent", 1)


async def test_a_release_charges_nothing_and_offers_the_job_at_once(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    await (await macbook.take()).report("released", error={"code": "backend_down", "message": "ollama is away"})

    held = await mini.take()

    assert (held.epoch, held.grant["attempt"]) == (2, 1)
    seen = await world.job(job["id"])
    assert (seen["attempt"], seen["lease_losses"]) == (0, 0)
