"""One job, one agent: from submission to the accepted result, with everything an operator asks afterwards."""

import hashlib
import io
from pathlib import Path

import orjson
from PIL import Image

from tests.support.agents import agent
from tests.support.puppet import WAIT_S
from tests.support.world import World


async def test_an_article_from_submission_to_result(world: World, tmp_path: Path) -> None:
    async with agent(world.servers, "mini", tmp_path):
        job = await world.submit(spec={"prompt": "Two Macs and a queue"}, labels={"post": "812"})
        seen = await world.until(job["id"], "completed")

    assert seen["worker"] == "mini"
    assert (seen["epoch"], seen["attempt"], seen["lease_losses"]) == (1, 0, 0)
    assert seen["result"]["text"].startswith("#")
    [file] = seen["artifacts"]
    assert file["name"] == "article.md"
    async with world.http.get(file["url"]) as answer:
        content = await answer.read()
    assert hashlib.sha256(content).hexdigest() == file["sha256"]
    assert content.decode().strip() == seen["result"]["text"].strip()


async def test_the_ledger_tells_all_that_an_operator_asks(world: World, tmp_path: Path) -> None:
    async with agent(world.servers, "mini", tmp_path):
        job = await world.submit(spec={"prompt": "Stages", "simulate": {"seconds": 1.5}})
        seen = await world.until(job["id"], "completed")
        async with world.http.get(f"/v1/jobs/{job['id']}/heartbeats") as answer:
            beats = (await answer.json())["heartbeats"]

    [attempt] = seen["attempts"]
    assert attempt["worker"] == "mini"
    assert attempt["outcome"] == "completed"
    assert attempt["claimed_at"] <= attempt["ended_at"]
    assert attempt["model"]
    assert attempt["settings"]
    assert attempt["bytes"] == sum(file["size"] for file in seen["artifacts"])
    assert [mark["stage"] for mark in attempt["stages"]][:2] == ["loading_model", "generating_text"]
    assert beats
    assert {"at", "stage", "elapsed_s", "worker", "epoch"} <= beats[0].keys()


async def test_an_image_has_the_asked_size_and_is_not_one_flat_colour(world: World, tmp_path: Path) -> None:
    async with agent(world.servers, "mini", tmp_path):
        job = await world.submit("image", spec={"prompt": "A lighthouse", "width": 320, "height": 200, "n": 2})
        seen = await world.until(job["id"], "completed")

    assert [file["name"] for file in seen["artifacts"]] == ["image-1.png", "image-2.png"]
    for file in seen["artifacts"]:
        async with world.http.get(file["url"]) as answer:
            assert answer.headers["Content-Type"] == "image/png"
            picture = Image.open(io.BytesIO(await answer.read()))
        assert picture.size == (320, 200)
        assert len(picture.convert("RGB").getcolors(320 * 200) or []) > 10


async def test_a_submission_over_nats_comes_back_on_results(world: World, tmp_path: Path) -> None:
    async with agent(world.servers, "mini", tmp_path), world.servers.open("publisher:local") as publisher:
        body = {"key": "post-812-rev-3", "kind": "article", "spec": {"prompt": "Over NATS"}}
        await publisher.js_publish("tandem.submit.local", orjson.dumps(body))
        message = await publisher.pull_one("RESULTS", "results-local", expires_s=WAIT_S)
        assert message is not None
        await publisher.ack(message)

    result = orjson.loads(message.data)
    assert (result["state"], result["key"], result["worker"]) == ("completed", "post-812-rev-3", "mini")


async def test_the_same_submission_again_is_the_same_job(world: World) -> None:
    first = await world.submit(key="post-1")
    again = await world.submit(key="post-1", expect=200)
    other = await world.submit(key="post-1", spec={"prompt": "Something else"}, expect=409)

    assert again["id"] == first["id"]
    assert other["error"]["code"] == "conflict"


async def test_a_bad_submission_over_nats_is_on_record_and_delays_nobody(world: World) -> None:
    mini = await world.puppet("mini")
    async with world.servers.open("publisher:local") as publisher:
        await publisher.js_publish("tandem.submit.local", b"\xff not json")
        await publisher.js_publish("tandem.submit.local", b'{"kind":"image","spec":{"prompt":"x","width":65}}')
        await publisher.js_publish("tandem.submit.local", b'{"key":"good","kind":"article","spec":{"prompt":"x"}}')

    held = await mini.take()

    assert (await world.job(held.job_id))["key"] == "good"
    async with world.http.get("/v1/rejected") as answer:
        rejected = (await answer.json())["submissions"]
    assert sorted((r["source"], r["code"]) for r in rejected) == [("local", "invalid"), ("local", "not_json")]
    assert any("spec.width" in r["reason"] for r in rejected)
