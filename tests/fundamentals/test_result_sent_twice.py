"""The answer to a result was lost, and the agent sends it again: a normal answer, and nothing is doubled."""

import orjson

from tests.support.puppet import WAIT_S
from tests.support.world import World


async def test_the_second_sending_is_a_duplicate(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    file = await held.upload("article.md", b"# Done")

    await held.report(artifacts=[file])
    await held.verdict("accepted")
    await held.report(artifacts=[file])
    await held.verdict("duplicate")

    seen = await world.job(job["id"])
    assert seen["state"] == "completed"
    assert [a["name"] for a in seen["artifacts"]] == ["article.md"]
    assert len(seen["attempts"]) == 1


async def test_publisher_gets_one_message_with_the_result(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(key="post-1", labels={"post": "1"})
    held = await mini.take()
    file = await held.upload("article.md", b"# Done")
    for verdict in ("accepted", "duplicate"):
        await held.report(artifacts=[file])
        await held.verdict(verdict)

    async with world.servers.open("publisher:local") as publisher:
        message = await publisher.pull_one("RESULTS", "results-local", expires_s=WAIT_S)
        assert message is not None
        await publisher.ack(message)
        assert await publisher.pull_one("RESULTS", "results-local", expires_s=0.2) is None

    body = orjson.loads(message.data)
    assert message.subject == f"tandem.result.local.article.{job['id']}"
    assert (body["state"], body["key"], body["labels"], body["worker"]) == (
        "completed",
        "post-1",
        {"post": "1"},
        "mini",
    )
    assert body["result"] == {"text": "# Done"}
    async with world.http.get(body["artifacts"][0]["url"]) as answer:
        assert await answer.read() == b"# Done"


async def test_another_result_of_the_same_epoch_changes_nothing(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await held.report(result={"text": "first"})
    await held.verdict("accepted")

    await held.report(result={"text": "second"})
    await held.verdict("duplicate")

    assert (await world.job(job["id"]))["result"] == {"text": "first"}


async def test_a_result_whose_file_never_came_is_a_transient_failure(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()

    await held.report(artifacts=[{"name": "a.md", "media_type": "text/markdown", "size": 3, "sha256": "0" * 64}])
    await held.verdict("accepted")

    seen = await world.job(job["id"])
    assert (seen["state"], seen["attempt"]) == ("pending", 1)
    assert seen["attempts"][0]["error"]["code"] == "artifact_missing"
