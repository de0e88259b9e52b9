"""Fault 19: an operator's "run again" soon after a completion. It runs: no window for duplicates swallows anything.

Message ids are those that real agents and the outbox use (`<job>:<epoch>`), so that every such window is in play.
"""

from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from shared import subjects
from shared.bus import Bus
from tests.support.agents import agent
from tests.support.puppet import WAIT_S, Held
from tests.support.world import World

pytestmark = pytest.mark.fault(19)


@pytest.mark.parametrize("later_s", [0, 10])
async def test_run_again_after_a_completion_runs_again(world: World, later_s: float) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(key="post-812")
    async with world.servers.open("publisher:local") as publisher:
        await _done(await mini.take(), "once")
        first = await _result(publisher)
        await world.move_clock(later_s)
        again = await world.act(job["id"], "retry")
        held = await mini.take()
        await _done(held, "twice")
        second = await _result(publisher)

    assert again["state"] == "pending"
    assert (held.job_id, held.epoch) == (job["id"], 2)
    assert [(m["job_id"], m["epoch"], m["state"]) for m in (first, second)] == [
        (job["id"], 1, "completed"),
        (job["id"], 2, "completed"),
    ]
    assert [m["result"]["text"] for m in (first, second)] == ["once", "twice"]
    seen = await world.job(job["id"])
    assert (seen["state"], seen["result_epoch"], seen["result"]) == ("completed", 2, {"text": "twice"})


async def test_run_again_ten_times_in_a_row_runs_ten_times(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    epochs = []
    async with world.servers.open("publisher:local") as publisher:
        for _ in range(10):
            await _done(await mini.take(), "the same words each time")
            epochs.append((await _result(publisher))["epoch"])
            await world.act(job["id"], "retry")
        assert (await mini.take()).epoch == 11

    assert epochs == list(range(1, 11))


async def test_run_again_at_once_with_a_real_agent_makes_both_results(world: World, tmp_path: Path) -> None:
    async with agent(world.servers, "mini", tmp_path), world.servers.open("publisher:local") as publisher:
        job = await world.submit()
        first = await _result(publisher)
        await world.act(job["id"], "retry")
        second = await _result(publisher)

    assert [(m["job_id"], m["epoch"], m["state"]) for m in (first, second)] == [
        (job["id"], 1, "completed"),
        (job["id"], 2, "completed"),
    ]


async def test_run_again_of_a_job_that_failed_and_of_one_that_was_canceled(world: World) -> None:
    mini = await world.puppet("mini")
    for end in ("failed", "canceled"):
        job = await world.submit()
        held = await mini.take()
        if end == "failed":
            await held.fail("permanent")
        else:
            await world.act(job["id"], "cancel")
        await world.until(job["id"], end)

        await world.act(job["id"], "retry")
        again = await mini.take()

        assert (again.job_id, again.epoch) == (job["id"], 2)
        await _done(again, "after all")
        assert (await world.job(job["id"]))["state"] == "completed"


async def _done(held: Held, text: str) -> None:
    """Report as an agent does: under the epoch's message id."""
    body = {"job_id": held.job_id, "epoch": held.epoch, "outcome": "completed", "result": {"text": text}}
    subject = subjects.report(held.puppet.worker, UUID(held.job_id))
    await held.puppet.bus.js_publish(subject, orjson.dumps(body), msg_id=f"{held.job_id}:{held.epoch}")
    await held.verdict("accepted")


async def _result(publisher: Bus) -> dict[str, Any]:
    """Return the next message in RESULTS for the publisher."""
    message = await publisher.pull_one("RESULTS", "results-local", expires_s=WAIT_S)
    assert message is not None
    await publisher.ack(message)
    body: dict[str, Any] = orjson.loads(message.data)
    return body
