"""What a broken or hostile agent or publisher can send, and what must not come of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import orjson
import pytest
import pytest_asyncio

from shared import subjects
from shared.streams import last_message_seq
from tests.support.puppet import WAIT_S
from tests.support.servers import eventually, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, max_attempts=2) as made:
        yield made


@pytest.mark.parametrize(
    "delivery",
    [
        "$JS.ACK.WORK.a b.1.1.1.1.1",
        "$JS.ACK.WORK.article--any.1.1.1 .1.1",
        "$JS.ACK.WORK.article--any.1.1.1.1.1.1",
        "$JS.ACK.REPORTS.reports.1.1.1.1.1",
        "$JS.ACK.WORK.>.1.1.1.1.1",
        "$JS.ACK.WORK.article--any.0.0.0.0.0",
        "_INBOX.mini.x",
        "",
    ],
)
async def test_a_claim_through_what_is_no_delivery_is_answered_and_harms_nobody(world: World, delivery: str) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()

    answer = await mini.ask_claim({"job_id": job["id"], "delivery": delivery})

    assert (answer["verdict"], answer["reason"]) == ("denied", "unknown")
    assert (await mini.take()).job_id == job["id"]


async def test_a_claim_with_an_invented_sequence_is_denied_and_the_job_runs(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    delivery = "$JS.ACK.WORK.article--any.1.900000000000000000.1.1.0"

    answer = await mini.ask_claim({"job_id": job["id"], "delivery": delivery})

    assert answer["reason"] == "settled"
    assert (await mini.take()).job_id == job["id"]


async def test_a_claim_for_a_job_through_another_jobs_delivery_is_denied(world: World) -> None:
    mini = await world.puppet("mini")
    first, second = await world.submit(), await world.submit()
    offer = await mini.pull()
    other = second["id"] if orjson.loads(offer.data)["job_id"] == first["id"] else first["id"]
    subject = subjects.work("article.any", UUID(other))
    await world.offered_after(subject, 0)

    answer = await mini.ask_claim({"job_id": other, "delivery": offer.reply})

    assert answer["verdict"] == "denied"


@pytest.mark.parametrize(
    "body",
    [
        b'{"job_id":"%s","epoch":"100000000000000000000","outcome":"released"}',
        b'{"job_id":"%s","epoch":-1,"outcome":"completed"}',
        b'{"job_id":"%s","epoch":9,"outcome":"completed","result":{"text":"x"}}',
        b'{"job_id":"%s","epoch":1,"outcome":"no such word"}',
        b"\xff\xfe",
        b"[]",
        b"",
    ],
)
async def test_a_report_that_makes_no_sense_is_set_aside_and_the_next_one_counts(world: World, body: bytes) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    sent = body % held.job_id.encode() if b"%s" in body else body

    await mini.bus.js_publish(subjects.report("mini", UUID(held.job_id)), sent)
    await eventually_async(lambda: _recorded(world))
    if b"no such word" not in body:
        await held.report()
        await held.verdict("accepted")
        assert (await world.job(held.job_id))["state"] == "completed"


async def test_an_unreadable_report_ends_its_attempt_as_a_failure_so_that_nothing_goes_round_for_ever(
    world: World,
) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    for _ in range(2):
        held = await mini.take()
        await held.report(elapsed_s="not a number")
        await mini.hears("verdict", job_id=job["id"], epoch=held.epoch)
        await world.pass_time(13)
        world.coordinator.dispatcher.wake()

    seen = await world.until(job["id"], "failed")
    assert (seen["attempt"], seen["error"]["code"]) == (2, "unreadable_report")


async def test_text_that_mentions_nul_is_fine_and_text_that_has_it_is_not(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit(spec={"prompt": r"explain \u0000 in JSON"})
    held = await mini.take()
    await held.report(result={"text": r"\u0000 is NUL"})
    await held.verdict("accepted")

    refused = await world.submit(spec={"prompt": "a\x00b"}, expect=422)

    assert [fault["field"] for fault in refused["error"]["faults"]] == ["spec.prompt"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Tandem-Epoch": "1" + "0" * 30},
        {"Tandem-Epoch": "-1"},
        {"Tandem-Job": "nobody"},
        {"Tandem-Worker": "mini\tx"},
        {"Tandem-Elapsed": "later"},
    ],
)
async def test_a_heartbeat_that_makes_no_sense_is_counted_and_changes_nothing(
    world: World, headers: dict[str, str]
) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()

    await held.beat(**headers)
    await eventually(lambda: world.coordinator.heartbeats.bad == 1)

    assert (await held.ask())["lease"] == "held"


async def test_a_heartbeat_with_numbers_out_of_range_is_kept_in_range(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()

    await held.beat(**{"Tandem-Elapsed": "nan", "Tandem-Progress": "17", "Tandem-Detail": "x" * 1000})
    await eventually(lambda: world.coordinator.heartbeats.taken == 1)

    async with world.http.get(f"/v1/jobs/{held.job_id}/heartbeats") as answer:
        [beat] = (await answer.json())["heartbeats"]
    assert (beat["elapsed_s"], beat["progress"], len(beat["detail"])) == (0, 1, 200)


@pytest.mark.parametrize("body", [b"x", b"{}", b'{"instance":"a\\u0000b"}', b'{"instance":"i","slots":-1}'])
async def test_a_presence_that_makes_no_sense_is_answered_with_its_faults(world: World, body: bytes) -> None:
    mini = await world.puppet("mini")

    answer = await mini.bus.request("tandem.presence.mini", body, timeout_s=5)

    assert orjson.loads(answer.data)["error"]["faults"]


async def test_a_message_that_another_agent_acked_away_is_offered_again(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    offer = await macbook.pull()
    await macbook.bus.publish(offer.reply, b"+TERM")
    await macbook.bus.flush()
    await eventually_async(lambda: _is_gone(world, job["id"]))
    await world.move_clock(10)

    await world.coordinator.reconciler.once()

    assert (await mini.take()).job_id == job["id"]


async def test_a_message_of_no_job_is_taken_away_and_hinders_nobody(world: World) -> None:
    bus = world.coordinator.bus
    await world.coordinator.effects.lanes.ensure("article.any")
    await bus.js_publish("tandem.work.article.any.notauuid", b"?")

    await world.coordinator.reconciler.once()

    assert await last_message_seq(bus, "tandem.work.article.any.notauuid") is None


async def test_a_presence_with_thousands_of_models_costs_few_consumers_and_harms_nobody(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    models = [f"model-{n}" for n in range(200)]

    lanes = (await macbook.announce(models=tuple(models)))["lanes"]
    await world.submit(model="fresh")

    assert len(lanes) == 64
    assert (await mini.take("article.fresh")).grant["job"]["model"] == "fresh"


async def test_a_corrected_submission_under_the_same_key_is_admitted(world: World) -> None:
    mini = await world.puppet("mini")
    async with world.servers.open("publisher:local") as publisher:
        for kind in (b"artcle", b"article"):
            body = b'{"key":"k","kind":"%s","spec":{"prompt":"x"}}' % kind
            ack = await publisher.js_publish("tandem.submit.local", body, msg_id="localk")
            while ack.duplicate:  # within the window's second
                ack = await publisher.js_publish("tandem.submit.local", body, msg_id="localk")

    assert (await world.job((await mini.take()).job_id))["key"] == "k"


async def test_a_released_job_leaves_no_message_behind_while_its_window_is_full(world: World) -> None:
    mini = await world.puppet("mini", slots=0)
    for _ in range(6):
        await world.submit()
    held = await mini.take()
    await eventually(lambda: world.coordinator.effects.idle)
    await held.report("released", error={"code": "drain", "message": "drained"})
    await held.verdict("accepted")
    await eventually(lambda: world.coordinator.effects.idle)
    await world.move_clock(10)

    await world.coordinator.reconciler.once()

    mended = world.coordinator.reconciler.mended
    assert (mended.missing, mended.orphaned, mended.unrecorded) == (0, 0, 0)


async def test_an_approval_right_after_the_first_announcement_is_announced_too(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(review=True)
    held = await mini.take()
    await held.report()
    await held.verdict("accepted")
    async with world.servers.open("publisher:local") as publisher:
        first = await publisher.pull_one("RESULTS", "results-local", expires_s=WAIT_S)
        await world.pool.execute("UPDATE job SET unpublished = true, published_epoch = NULL")  # the ack was lost
        await world.act(job["id"], "approve")
        second = await publisher.pull_one("RESULTS", "results-local", expires_s=WAIT_S)

    assert first is not None
    assert second is not None
    assert [orjson.loads(m.data)["state"] for m in (first, second)] == ["awaiting_review", "completed"]


async def test_a_result_too_large_for_one_message_is_announced_without_its_text(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit(labels={f"label-{n}": "x" * 500 for n in range(40)})
    held = await mini.take()
    await held.report(result={"text": "x" * (2 * 1024 * 1024 - 1500)})
    await held.verdict("accepted")

    async with world.servers.open("publisher:local") as publisher:
        message = await publisher.pull_one("RESULTS", "results-local", expires_s=WAIT_S)

    assert message is not None
    body = orjson.loads(message.data)
    assert (body["state"], body["result"], body["error"]["code"]) == ("completed", None, "result_too_large")


async def _recorded(world: World) -> bool:
    async with world.http.get("/v1/rejected") as answer:
        return len((await answer.json())["results"]) > 0


async def _is_gone(world: World, job_id: str) -> bool:
    return await last_message_seq(world.coordinator.bus, subjects.work("article.any", UUID(job_id))) is None
