"""An agent dies between two durable steps, and its next process starts on the same folder.

Until its result lies whole in the spool the job is made again, under the next epoch; from then on the result is
delivered under its own epoch, whatever had been sent already.
"""

import signal
from typing import Any

import pytest

from shared.failpoints import Failpoint
from tests.crash.failpoint_rig import LIVELY, Rig


async def _death(rig: Rig, point: Failpoint, *, skip: int = 0, **spec: Any) -> str:
    """Have an agent die while it does a job; return the job."""
    await rig.restart()
    async with rig.dying_agent(point, skip=skip):
        return await rig.submit(**spec)


async def test_a_job_that_was_pulled_and_not_claimed_is_offered_again(rig: Rig) -> None:
    job_id = await _death(rig, Failpoint.PULLED)
    async with rig.agent():
        await rig.ended(job_id, ["completed"], files=2)


@pytest.mark.parametrize(
    ("point", "skip"),
    [
        (Failpoint.GRANTED, 0),
        (Failpoint.GENERATED, 0),
        (Failpoint.FILE_MOVED, 0),
        (Failpoint.FILE_MOVED, 1),
        (Failpoint.PARCEL_WRITTEN, 0),
    ],
)
async def test_what_was_not_spooled_whole_is_made_again(rig: Rig, point: Failpoint, skip: int) -> None:
    job_id = await _death(rig, point, skip=skip)
    async with rig.agent():
        await rig.ended(job_id, ["lease_expired", "completed"], files=2)
        assert rig.workspaces() == []


async def test_what_was_not_spooled_whole_is_made_by_another_when_the_lease_is_over(rig: Rig) -> None:
    job_id = await _death(rig, Failpoint.PARCEL_WRITTEN)
    async with rig.agent("book"):
        await rig.world.move_clock(LIVELY["lease_ttl_s"] + 1)
        await rig.world.until(job_id, "completed")
    async with rig.agent():
        job = await rig.ended(job_id, ["lease_expired", "completed"], files=2)
    assert [attempt["worker"] for attempt in job["attempts"]] == ["mini", "book"]


async def test_a_failure_that_was_not_spooled_whole_happens_again(rig: Rig) -> None:
    job_id = await _death(rig, Failpoint.LINE_WRITTEN, simulate={"fail": "transient", "fail_attempts": 1})
    async with rig.agent():
        job = await rig.ended(job_id, ["lease_expired", "failed", "completed"], files=2)
    assert job["attempt"] == 1


@pytest.mark.parametrize(
    ("point", "skip"),
    [
        (Failpoint.ENTRY_IN_PLACE, 0),
        (Failpoint.FILE_HALF_SENT, 0),
        (Failpoint.FILE_UPLOADED, 0),
        (Failpoint.FILE_UPLOADED, 1),
        (Failpoint.ALL_UPLOADED, 0),
        (Failpoint.REPORT_STORED, 0),
        (Failpoint.VERDICT_HEARD, 0),
        (Failpoint.ENTRY_HALF_GONE, 0),
    ],
)
async def test_what_was_spooled_is_delivered_under_its_epoch(rig: Rig, point: Failpoint, skip: int) -> None:
    job_id = await _death(rig, point, skip=skip, simulate={"pad_bytes": 1_000_000})
    async with rig.agent():
        await rig.ended(job_id, ["completed"], files=3)
        assert rig.workspaces() == []
    assert await rig.count("rejected_result") == 0


async def test_a_failure_in_place_of_a_result_wins_over_what_is_left_of_that(rig: Rig) -> None:
    await rig.restart(max_artifact_bytes=1000)
    async with rig.dying_agent(Failpoint.FAILURE_SPOOLED):
        job_id = await rig.submit(width=512, height=512)
    assert len(rig.spooled()) == 2
    async with rig.agent():
        job = await rig.ended(job_id, ["failed"], state="failed")
    assert job["error"]["code"] == "artifact_too_large"


async def test_a_job_that_was_given_back_at_a_drain_is_done_by_another(rig: Rig) -> None:
    await rig.restart()
    async with rig.dying_agent(Failpoint.VERDICT_HEARD, drain_limit_s=0.1) as dying:
        job_id = await rig.submit("article", simulate={"seconds": 3, "stages": ["generating_text"]})
        await rig.world.until(job_id, "processing")
        dying.process.send_signal(signal.SIGTERM)
    async with rig.agent("book"):
        await rig.world.until(job_id, "completed")
    async with rig.agent():
        job = await rig.ended(job_id, ["released", "completed"], files=1)
    assert [attempt["worker"] for attempt in job["attempts"]] == ["mini", "book"]
    assert job["attempt"] == 0
