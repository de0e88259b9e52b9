"""`/review` over HTTP: who waits longest comes first, each can be asked for, a verdict is on what was seen."""

import re
from uuid import UUID

import pytest
import pytest_asyncio

from tests.support.web import Web
from tests.web.test_pages_jobs import post, shown_after, state


async def made(site: Web, text: str) -> UUID:
    """Return a job whose result awaits review."""
    job_id = await site.submit(review=True)
    await site.report(job_id, await site.claim(job_id), result={"text": text})
    return job_id


async def made_again(site: Web, job_id: UUID, text: str) -> None:
    """Have another result await review."""
    await site.call("POST", f"/v1/jobs/{job_id}/retry")
    await site.report(job_id, await site.claim(job_id), result={"text": text})


@pytest_asyncio.fixture(loop_scope="session")
async def many(site: Web) -> list[UUID]:
    """Return 52 jobs that await review, the longest waiting first, in two lanes."""
    jobs = [await site.submit(review=True, model=("a", "b")[n % 2]) for n in range(52)]
    for n, job_id in enumerate(jobs):
        epoch = await site.claim(job_id, lane=f"article--{'ab'[n % 2]}")
        await site.report(job_id, epoch, result={"text": f"No. {n}."})
    return jobs


async def test_of_many_the_longest_waiting_is_first_and_any_can_be_asked_for(site: Web, many: list[UUID]) -> None:
    page = await site.call("GET", "/review")
    assert "No. 0." in page
    assert "1 of 50 (and more)" in page
    assert f"/review?job={many[1]}" in page
    page = await site.call("GET", f"/review?job={many[51]}")
    assert "No. 51." in page
    assert "Not among the 50 that wait longest" in page
    assert f"/review?job={many[0]}" in page


async def test_one_that_does_not_wait_is_not_shown(site: Web) -> None:
    done, waiting = await made(site, "Bees."), await made(site, "Wasps.")
    await site.call("POST", f"/v1/jobs/{done}/approve")
    for asked in (done, UUID(int=1), "nonsense"):
        page = await site.call("GET", f"/review?job={asked}")
        assert "Wasps." in page
        assert f'action="/jobs/{waiting}/approve"' in page


@pytest.mark.parametrize("action", ["approve", "reject"])
@pytest.mark.parametrize("path", ["/review", "/jobs/{}"])
async def test_a_verdict_on_a_result_that_is_replaced_meanwhile_does_nothing(site: Web, path: str, action: str) -> None:
    job_id = await made(site, "Bees.")
    here = path.format(job_id)
    page = await site.call("GET", here)
    seen = re.search(r'name="epoch" value="([^"]*)"', page)
    assert seen is not None
    await made_again(site, job_id, "Wasps.")
    page = await shown_after(site, f"/jobs/{job_id}/{action}", here, back=here, epoch=seen[1])
    assert f"Can't {action}: the result is another one by now." in page.replace("&#39;", "'")
    assert await state(site, job_id) == "awaiting_review"
    seen = re.search(r'name="epoch" value="([^"]*)"', page)
    assert seen is not None
    await post(site, f"/jobs/{job_id}/{action}", here, epoch=seen[1])
    assert await state(site, job_id) == {"approve": "completed", "reject": "canceled"}[action]


async def test_a_jobs_page_says_to_both_forms_which_result_it_shows(site: Web) -> None:
    job_id = await made(site, "Bees.")
    page = await site.call("GET", f"/jobs/{job_id}")
    for action in ("approve", "reject"):
        assert f'<form id="do-{action}"' in page
        assert f'<input type="hidden" name="epoch" value="1" form="do-{action}">' in page


@pytest.mark.parametrize("action", ["approve", "reject"])
async def test_programs_may_say_which_result_they_mean(site: Web, action: str) -> None:
    job_id = await made(site, "Bees.")
    await made_again(site, job_id, "Wasps.")
    path = f"/v1/jobs/{job_id}/{action}"
    error = (await site.call("POST", path, json={"epoch": 1}, expect=409))["error"]
    assert error["message"] == f"can't {action}: the result is another one by now"
    for bad in (0, "2", 10**9):
        error = (await site.call("POST", path, json={"epoch": bad}, expect=422))["error"]
        assert [fault["field"] for fault in error["faults"]] == ["epoch"]
    await site.call("POST", path, json={"epoch": 2})


@pytest.mark.parametrize("epoch", ["x", "0", "9" * 5000, "²"])
async def test_a_form_whose_epoch_is_none_is_refused(site: Web, epoch: str) -> None:
    job_id = await made(site, "Bees.")
    await post(site, f"/jobs/{job_id}/approve", "/review", expect=422, epoch=epoch)
    assert await state(site, job_id) == "awaiting_review"
