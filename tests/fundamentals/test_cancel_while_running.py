"""Someone calls a job off while it runs: its agent is told, and its result no longer counts."""

from tests.support.world import World


async def test_the_agent_is_told_and_its_result_rejected(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()

    await world.act(job["id"], "cancel")

    assert (await mini.hears("revoke", job_id=job["id"], epoch=1))["reason"] == "canceled"
    assert await held.ask() == {"lease": "lost", "reason": "canceled"}
    await held.report()
    await held.verdict("rejected")
    assert (await world.job(job["id"]))["state"] == "canceled"


async def test_a_waiting_job_that_was_called_off_is_never_handed_out(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()

    await world.act(job["id"], "cancel")

    offer = await mini.try_pull()
    assert offer is None or (await mini.claim(offer))["reason"] == "settled"


async def test_canceling_a_finished_job_is_refused_with_the_reason(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await held.report()
    await held.verdict("accepted")

    answer = await world.act(job["id"], "cancel", expect=409)

    assert "completed" in answer["error"]["message"]
