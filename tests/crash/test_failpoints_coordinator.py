"""A coordinator dies between two durable steps; another one starts. Each job is done once, whoever had to ask again.

Where an agent is at work meanwhile, its attempt goes on: epoch 1 completes, whatever the coordinator had just done.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from pydantic import SecretStr

from shared import subjects
from shared.failpoints import Failpoint
from tests.crash.failpoint_rig import Rig
from tests.support.proxy import Proxy
from tests.support.puppet import puppet
from tests.support.servers import eventually
from tests.support.world import eventually_async


@asynccontextmanager
async def _death_at_work(rig: Rig, point: Failpoint, *, skip: int = 0, **spec: Any) -> AsyncIterator[str]:
    """Have a coordinator die while an agent that lives on does a job; yield the job under the next coordinator."""
    async with AsyncExitStack() as stack:
        async with rig.dying_coordinator(point, skip=skip):
            await rig.ready()
            await stack.enter_async_context(rig.agent())
            submitting = asyncio.create_task(rig.submit(**spec), name="submit")
        await rig.restart()
        yield await submitting


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.LANE_MADE,
        Failpoint.OFFER_UNNOTED,
        Failpoint.GRANT_UNANSWERED,
        Failpoint.LEASE_UNANSWERED,
        Failpoint.FILE_SYNCED,
        Failpoint.FILE_RENAMED,
        Failpoint.FILE_UNRECORDED,
        Failpoint.FILE_UNANSWERED,
        Failpoint.REPORT_UNSETTLED,
        Failpoint.DELIVERY_UNSETTLED,
        Failpoint.VERDICT_UNTOLD,
        Failpoint.RESULT_UNSENT,
        Failpoint.RESULT_UNMARKED,
    ],
)
async def test_an_attempt_outlives_its_coordinator(rig: Rig, point: Failpoint) -> None:
    async with _death_at_work(rig, point) as job_id:
        await rig.ended(job_id, ["completed"], files=2)
        assert await rig.count("job") == 1
        assert await rig.count("rejected_result") == 0


async def test_half_a_file_is_removed_and_sent_again(rig: Rig) -> None:
    simulate = {"pad_bytes": 8_000_000}
    async with _death_at_work(rig, Failpoint.FILE_HALF_STORED, skip=12, simulate=simulate) as job_id:
        await rig.ended(job_id, ["completed"], files=3)


@pytest.mark.parametrize("skip", range(5))
@pytest.mark.parametrize("point", [Failpoint.COMMIT_UNSENT, Failpoint.COMMIT_UNHEARD])
async def test_an_attempt_outlives_any_of_its_commits(rig: Rig, point: Failpoint, skip: int) -> None:
    """The commits of a job: admission, place of the offer, claim, heartbeats, lease question, report."""
    async with _death_at_work(rig, point, skip=skip, simulate={"seconds": 0.7}) as job_id:
        await rig.ended(job_id, ["completed"], files=2)
        assert await rig.count("job") == 1


# ---- submissions


async def test_a_submission_that_got_no_answer_is_the_same_job_when_it_comes_again(rig: Rig) -> None:
    body = {"kind": "image", "key": "one", "spec": {"prompt": "A harbour", "width": 64, "height": 64}}
    async with rig.dying_coordinator(Failpoint.SUBMISSION_UNANSWERED):
        await rig.ready()
        assert await rig.post("/v1/jobs", body) is None
    await rig.restart()
    answer = await rig.post("/v1/jobs", body)
    assert answer is not None
    assert answer[0] == 200
    async with rig.agent():
        await rig.ended(answer[1]["id"], ["completed"], files=1)
    assert await rig.count("job") == 1


async def test_a_submission_queued_without_a_ledger_is_the_same_job_when_it_comes_again(rig: Rig) -> None:
    dsn = urlsplit(rig.world.dsn)
    assert dsn.hostname is not None
    assert dsn.port is not None
    async with Proxy(dsn.hostname, dsn.port) as proxy:
        through = SecretStr(rig.world.dsn.replace(f":{dsn.port}/", f":{proxy.port}/"))
        async with rig.dying_coordinator(Failpoint.SUBMISSION_QUEUED, postgres=through):
            await rig.ready()
            proxy.refuse()
            proxy.cut()
            submitting = asyncio.create_task(rig.submit(), name="submit")
    await rig.restart()
    async with rig.agent():
        await rig.ended(await submitting, ["completed"], files=2)
    assert await rig.count("job") == 1


@pytest.mark.parametrize("point", [Failpoint.COMMIT_UNSENT, Failpoint.SUBMISSION_UNSETTLED])
async def test_a_submission_leaves_submit_once_it_is_one_job(rig: Rig, point: Failpoint) -> None:
    async with rig.dying_coordinator(point):
        await rig.ready()
        await _publish(rig, {"kind": "image", "spec": {"prompt": "A harbour", "width": 64, "height": 64}})
    assert await rig.count("job") == (0 if point is Failpoint.COMMIT_UNSENT else 1)
    await rig.restart()
    async with rig.agent():
        await eventually_async(lambda: rig.count("job"))
        job_id = await rig.world.pool.fetchval("SELECT id::text FROM job")
        await rig.ended(job_id, ["completed"], files=1)
    assert await rig.count("job") == 1


async def test_a_refused_submission_is_on_record_once_a_delivery_and_does_not_stop_the_next(rig: Rig) -> None:
    async with rig.dying_coordinator(Failpoint.REFUSAL_RECORDED):
        await rig.ready()
        await _publish(rig, {"kind": "image", "spec": {"prompt": "A harbour", "width": 1}})
    assert await rig.count("rejected_submission") == 1
    await rig.restart()
    job_id = await rig.submit()
    async with rig.agent():
        await rig.ended(job_id, ["completed"], files=2)
    assert await rig.count("job") == 1
    assert await rig.count("rejected_submission") == 2


async def test_a_cancel_that_got_no_answer_is_done(rig: Rig) -> None:
    async with rig.dying_coordinator(Failpoint.ACTION_UNANSWERED):
        await rig.ready()
        job_id = await rig.submit()
        assert await rig.post(f"/v1/jobs/{job_id}/cancel") is None
    await rig.restart()
    answer = await rig.post(f"/v1/jobs/{job_id}/cancel")
    assert answer is not None
    assert answer[0] == 409
    await rig.ended(job_id, [], state="canceled")
    assert await rig.count("operator_action") == 1


# ---- offers


async def test_an_offer_is_made_anew_after_its_older_message_went(rig: Rig) -> None:
    simulate = {"fail": "transient", "fail_attempts": 1}
    async with _death_at_work(rig, Failpoint.OLD_OFFER_REMOVED, simulate=simulate) as job_id:
        await rig.ended(job_id, ["failed", "completed"], files=2)


async def test_an_offer_that_was_taken_back_leaves_no_message(rig: Rig) -> None:
    async with rig.dying_coordinator(Failpoint.OFFER_UNREMOVED):
        await rig.ready()
        job_id = await rig.submit()
        assert await rig.post("/v1/lanes/image.any/pause") is not None
    await rig.restart()
    mended = rig.world.coordinator.reconciler.mended
    await eventually(lambda: mended.orphaned == 1)
    async with rig.agent():
        assert (await rig.world.job(job_id))["state"] == "pending"
        assert await rig.post("/v1/lanes/image.any/resume") is not None
        await rig.ended(job_id, ["completed"], files=2)


# ---- reports


@pytest.mark.parametrize("point", [Failpoint.COMMIT_UNSENT, Failpoint.COMMIT_UNHEARD])
async def test_a_report_leaves_reports_once_it_is_judged_though_its_agent_is_gone(rig: Rig, point: Failpoint) -> None:
    job_id = ""

    async def offered() -> bool:
        return bool(await rig.world.pool.fetchval("SELECT offered_seq FROM job WHERE id = $1", job_id))

    # it dies at the fourth commit, after the admission, the offer's place and the claim
    async with (
        puppet(rig.world.servers, "book") as book,
        rig.dying_coordinator(point, skip=3, unclaimed_s=60.0),
    ):
        await rig.ready()
        await book.announce(kinds=("image",))
        job_id = await rig.submit()
        await eventually_async(offered)
        await (await book.take("image.any")).report()
    await rig.restart()
    await rig.ended(job_id, ["completed"])


@pytest.mark.parametrize("point", [Failpoint.UNREADABLE_RECORDED, Failpoint.UNREADABLE_UNSETTLED])
async def test_an_unreadable_report_ends_its_attempt_once(rig: Rig, point: Failpoint) -> None:
    async with puppet(rig.world.servers, "book") as book:
        async with rig.dying_coordinator(point):
            await rig.ready()
            await book.announce(kinds=("image",))
            job_id = await rig.submit()
            held = await book.take("image.any")
            body = orjson.dumps({"job_id": job_id, "epoch": 1, "outcome": "wonderful"})
            await book.bus.js_publish(subjects.report("book", held.job_id), body)
        await rig.restart()
        await eventually_async(lambda: _none(rig, "REPORTS"))
        again = await book.take("image.any")
        file = await again.upload("image-1.png", b"an image")
        await again.report(artifacts=[file])
        job = await rig.ended(job_id, ["failed", "completed"], files=1)
    assert job["attempt"] == 1
    assert await rig.count("rejected_result") == 2  # once a delivery


# ---- NATS lost its disk


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.LOSS_NOTED,
        Failpoint.STREAM_MADE,
        Failpoint.STREAMS_MADE,
        Failpoint.INTAKE_MADE,
        Failpoint.LANES_UNRENEWED,
    ],
)
async def test_what_nats_lost_is_made_anew_though_the_first_try_died(rig: Rig, point: Failpoint) -> None:
    await rig.restart()
    async with rig.agent():
        done = await rig.submit(key="done")
        await rig.ended(done, ["completed"], files=2)
    waiting = await rig.submit(key="waiting")
    await rig.world.stop_coordinator()
    await rig.world.servers.nats.wipe()
    async with rig.dying_coordinator(point):
        pass  # it dies while it starts
    await rig.restart()
    async with rig.agent():
        await rig.ended(waiting, ["completed"], files=2)
        await rig.ended(done, ["completed"], files=2)


# ---- announcements


async def test_an_announcement_whose_leases_were_not_looked_at_costs_no_lease(rig: Rig) -> None:
    async with AsyncExitStack() as stack:
        async with rig.dying_coordinator(Failpoint.PRESENCE_UNHELD, skip=3, presence_s=0.5):
            await rig.ready()
            await stack.enter_async_context(rig.agent())
            job_id = await rig.submit(simulate={"seconds": 3})
        await rig.restart()
        await rig.ended(job_id, ["completed"], files=2)


# ---- orders


async def test_an_order_that_was_not_told_is_learnt_with_the_next_presence(rig: Rig) -> None:
    async with AsyncExitStack() as stack:
        async with rig.dying_coordinator(Failpoint.ORDER_UNTOLD, presence_s=0.5):
            await rig.ready()
            await stack.enter_async_context(rig.agent())
            assert await rig.post("/v1/workers/mini/drain") is None
        await rig.restart()

        async def draining() -> bool:
            async with rig.world.http.get("/v1/workers") as answer:
                (mini,) = (await answer.json())["workers"]
                return mini["wanted"] == mini["presence"]["state"] == "draining"

        await eventually_async(draining)
        assert await rig.post("/v1/workers/mini/resume") is not None
        await rig.ended(await rig.submit(), ["completed"], files=2)


async def _none(rig: Rig, stream: str) -> bool:
    return await rig.messages(stream) == 0


async def _publish(rig: Rig, body: dict[str, Any]) -> None:
    async with rig.world.servers.open("publisher:local") as bus:
        await bus.js_publish(subjects.submit("local"), orjson.dumps(body))
