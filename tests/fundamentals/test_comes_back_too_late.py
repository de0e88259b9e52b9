"""A Mac wakes after another took over: it is told so, and nothing of what it brings counts."""

from tests.support.world import World


async def test_a_late_result_is_stale_and_on_record(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    late = await macbook.take()
    await world.pass_time(91)
    held = await mini.take()

    await late.report(result={"text": "late"})
    await late.verdict("stale")
    await held.report(result={"text": "in time"})
    await held.verdict("accepted")

    seen = await world.job(job["id"])
    assert (seen["state"], seen["result"], seen["worker"]) == ("completed", {"text": "in time"}, "mini")
    async with world.http.get("/v1/rejected") as answer:
        rejected = (await answer.json())["results"]
    assert [(r["job_id"], r["epoch"], r["current_epoch"], r["verdict"]) for r in rejected] == [
        (job["id"], 1, 2, "stale")
    ]


async def test_a_late_result_after_the_newer_one_is_stale_too(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    late = await macbook.take()
    await world.pass_time(91)
    held = await mini.take()
    await held.report(result={"text": "in time"})
    await held.verdict("accepted")

    await late.report(result={"text": "late"})
    await late.verdict("stale")

    assert (await world.job(job["id"]))["result"] == {"text": "in time"}


async def test_a_late_heartbeat_is_answered_by_a_revoke_and_changes_nothing(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    late = await macbook.take()
    await world.pass_time(91)
    await mini.take()
    before = await world.job(job["id"])

    await late.beat()
    revoke = await macbook.hears("revoke", job_id=job["id"], epoch=1)

    assert revoke["reason"] == "stale"
    after = await world.job(job["id"])
    assert (after["worker"], after["epoch"]) == ("mini", 2)
    assert after["lease_expires_at"] == before["lease_expires_at"]


async def test_a_file_of_an_older_epoch_is_refused_before_a_byte_is_wasted(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    await world.submit()
    late = await macbook.take()
    await world.pass_time(91)
    await mini.take()

    headers = {
        "Authorization": f"Bearer {late.grant['upload']['token']}",
        "Digest": "sha-256=Zz2i8kCEHNE9SGVSQbaIvhz4zVhFuLT1VMCsgSHbXZY=",
    }
    async with world.http.put(f"{late.grant['upload']['url']}/article.md", data=b"late", headers=headers) as answer:
        assert answer.status == 409
