"""Two agents, one job: one gets it, whatever both do."""

from tests.support.world import World


async def test_only_one_of_two_agents_gets_the_job(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()

    held = await mini.take()

    assert held.job_id == job["id"]
    assert held.epoch == 1
    assert await macbook.try_pull() is None


async def test_a_claim_through_a_copied_delivery_is_denied_while_the_lease_is_live(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    await world.submit()
    held = await mini.take()

    answer = await macbook.claim(held.offer)

    assert answer["verdict"] == "denied"
    assert answer["reason"] == "leased"
    assert 0 < answer["retry_in_s"] <= 90
    assert (await held.ask())["lease"] == "held"


async def test_a_repeated_claim_gets_the_same_grant(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()

    again = await mini.claim(held.offer)

    assert again["verdict"] == "granted"
    assert again["epoch"] == held.epoch


async def test_two_jobs_go_to_two_agents(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    first, second = await world.submit(), await world.submit()

    one, other = await mini.take(), await macbook.take()

    assert {one.job_id, other.job_id} == {first["id"], second["id"]}
