"""Fault 17: messages at the head of a stream that nobody can read, or that are too large.

Each is set aside with a reason on record, at its first delivery; those behind it are served, without waiting for any
ack-wait. Likewise a message in WORK that no agent can read.
"""

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from shared import subjects
from shared.ids import job_id_of
from shared.streams import INTAKE, REPORTS, last_message_seq
from tests.support.agents import agent
from tests.support.servers import eventually
from tests.support.world import World, eventually_async

MIB = 1024 * 1024
DEEP = b"[" * 100_000

UNDECODABLE = (b"", b"\xff\xfe\x00", b"{", b"[]", b"null", b'"text"', DEEP, b"x" * (2 * MIB - 1024))
BAD_SUBMISSIONS = (
    *UNDECODABLE,
    b'{"kind":"article","spec":{"prompt":"\\ud800"}}',
    b'{"kind":"article","spec":{"prompt":"a\\u0000b"}}',
    b'{"kind":"article","spec":{"prompt":"x"},"timeout_s":1e999}',
    b'{"kind":"article","spec":{"prompt":"x"},"labels":' + DEEP,
    b'{"kind":"article","spec":{"prompt":"' + b"x" * (MIB + MIB // 2) + b'"}}',
)
BAD_REPORTS = (
    *UNDECODABLE,
    b'{"job_id":"%s","epoch":1,"outcome":"completed","result":{"text":"\\ud800"}}',
    b'{"job_id":"%s","epoch":1e999,"outcome":"completed"}',
    b'{"job_id":"%s","epoch":' + DEEP,
    b'{"job_id":"%s","outcome":"completed","result":{"text":"' + b"x" * (MIB + MIB // 2) + b'"}}',
)

pytestmark = pytest.mark.fault(17)


async def test_bad_submissions_at_the_head_are_set_aside_and_those_behind_become_jobs(world: World) -> None:
    async with world.servers.open("publisher:local") as publisher:
        await world.stop_coordinator()
        for body in BAD_SUBMISSIONS:
            await publisher.js_publish("tandem.submit.local", body)
        for key in ("a", "b", "c"):
            await publisher.js_publish("tandem.submit.local", _submission(key))
        await world.start_coordinator()

    await eventually_async(lambda: _jobs(world, 3))
    await eventually_async(lambda: _is_empty(world, "SUBMIT"))
    refused = await world.pool.fetch("SELECT source, code, reason, size FROM rejected_submission ORDER BY id")
    assert [row["size"] for row in refused] == [len(body) for body in BAD_SUBMISSIONS]
    assert all(row["source"] == "local" and row["code"] and row["reason"] for row in refused)
    assert await _deliveries(world, "SUBMIT", INTAKE) == len(BAD_SUBMISSIONS) + 3


async def test_bad_reports_at_the_head_are_set_aside_and_the_one_behind_counts(world: World) -> None:
    mini = await world.puppet("mini", slots=2)
    await world.submit()
    await world.submit()
    named, behind = await mini.take(), await mini.take()
    subject = subjects.report("mini", UUID(named.job_id))
    await world.stop_coordinator()
    for body in BAD_REPORTS:
        await mini.bus.js_publish(subject, body.replace(b"%s", named.job_id.encode()))
    await behind.report()
    await world.start_coordinator()

    await behind.verdict("accepted")
    await eventually_async(lambda: _is_empty(world, "REPORTS"))
    async with world.http.get("/v1/rejected") as answer:
        shown = (await answer.json())["results"]
    assert {(row["job_id"], row["worker"], row["verdict"]) for row in shown} == {(named.job_id, "mini", "rejected")}
    assert len(shown) == len(BAD_REPORTS)
    assert all(row["reason"] for row in shown)
    assert await _deliveries(world, "REPORTS", REPORTS) == len(BAD_REPORTS) + 1
    assert (await named.ask())["lease"] == "held"
    await named.report()
    await named.verdict("accepted")


async def test_reports_on_subjects_that_name_nothing_are_set_aside(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held, stranger = await mini.take(), uuid4()
    body = orjson.dumps({"job_id": held.job_id, "epoch": 1, "outcome": "completed", "result": {"text": "x"}})
    for named in ("no-uuid", str(stranger)):
        await mini.bus.js_publish(f"tandem.report.mini.{named}", body)
    await held.report()
    await held.verdict("accepted")

    rows = await world.pool.fetch("SELECT job_id, reason FROM rejected_result")
    assert {row["job_id"] for row in rows if held.job_id in row["reason"]} == {None, stranger}
    assert await _deliveries(world, "REPORTS", REPORTS) == 3


@pytest.mark.parametrize("body", [b"", b"\xff\xfe\x00", b"{}", b"x" * 60_000], ids=["empty", "bytes", "none", "large"])
async def test_a_message_in_work_that_no_agent_can_read_stops_nobody_and_is_removed(
    world: World, tmp_path: Path, body: bytes
) -> None:
    nobody = uuid4()
    subject = subjects.work("article.any", nobody)
    bus = world.coordinator.bus
    async with agent(world.servers, "mini", tmp_path):
        await world.coordinator.effects.lanes.ensure("article.any")
        await bus.js_publish(subject, body)
        await eventually_async(lambda: _delivered(world, 1))
        job = await world.submit()
        await world.until(job["id"], "completed")

        await world.coordinator.reconciler.once()

        assert await last_message_seq(bus, subject) is None
        assert await _deliveries(world, "WORK", "article--any") == 2
    async with world.http.get("/status") as answer:
        assert (await answer.json())["health"]["counts"]["mended_orphaned"] == 1


async def test_what_lies_unreadable_in_the_place_of_an_offer_is_made_anew_within_the_unclaimed_time(
    world: World, tmp_path: Path
) -> None:
    """Somebody who may publish put it there before the coordinator's own offer, which JetStream then refuses."""
    job_id = job_id_of("local", "post-812")
    async with agent(world.servers, "mini", tmp_path):
        await world.coordinator.effects.lanes.ensure("article.any")
        await world.coordinator.bus.js_publish(subjects.work("article.any", job_id), b"\xff")
        await eventually_async(lambda: _delivered(world, 1))
        job = await world.submit(key="post-812")
        assert job["id"] == str(job_id)
        await eventually_async(lambda: _delivered(world, 2))
        await eventually(lambda: world.coordinator.effects.idle)
        await world.move_clock(world.settings.unclaimed_s + 1)
        world.coordinator.dispatcher.wake()

        seen = await world.until(job["id"], "completed")

    assert (seen["epoch"], seen["attempt"], seen["lease_losses"]) == (1, 0, 0)
    assert world.coordinator.dispatcher.unclaimed == 1


def _submission(key: str) -> bytes:
    return orjson.dumps({"key": key, "kind": "article", "spec": {"prompt": "A story"}})


async def _jobs(world: World, count: int) -> bool:
    found: int = await world.pool.fetchval("SELECT count(*) FROM job")
    return found == count


async def _is_empty(world: World, stream: str) -> bool:
    return (await world.coordinator.bus.api(f"STREAM.INFO.{stream}"))["state"]["messages"] == 0  # type: ignore[no-any-return]


async def _delivered(world: World, count: int) -> bool:
    return await _deliveries(world, "WORK", "article--any") >= count


async def _deliveries(world: World, stream: str, consumer: str) -> int:
    """Return how often anything was handed out."""
    info: dict[str, Any] = await world.coordinator.bus.api(f"CONSUMER.INFO.{stream}.{consumer}")
    seq: int = info["delivered"]["consumer_seq"]
    return seq
