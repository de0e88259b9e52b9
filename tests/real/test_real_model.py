"""Articles by llama.cpp's server and a real model, through the whole system: every part is a process of its own."""

import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.demo_model import MODEL, ModelServer
from shared.states import AttemptOutcome, JobState
from tests.real.rig import ARTICLE, PATIENCE_S, WORKERS, Rig, tandem_with
from tests.support.processes import tandem
from tests.support.world import eventually_async

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest_asyncio.fixture(loop_scope="session")
async def rig() -> AsyncIterator[Rig]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    try:
        async with ModelServer(folder) as model, tandem_with(model, folder) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_an_article_is_written_by_a_real_model(rig: Rig) -> None:
    sent = await rig.client.submit(ARTICLE)

    job = await rig.settled(sent.id)

    assert (job.state, job.epoch, job.used_model) == (JobState.COMPLETED, 1, MODEL), job.error
    assert job.result is not None
    assert job.result["finish"] == "stop"
    assert job.result["usage"]["tokens"] > 1
    assert job.result["text"].strip()
    content = await rig.article(job.id)
    assert content.decode() == job.result["text"]
    assert [(file.name, file.size, file.sha256) for file in job.artifacts] == [
        ("article.md", len(content), hashlib.sha256(content).hexdigest())
    ]
    status, found = await rig.audit()
    assert status == 0, found


async def test_an_agent_that_is_killed_while_the_model_writes_loses_its_job_to_another(rig: Rig) -> None:
    sent = await rig.client.submit(ARTICLE)

    async def is_being_written() -> bool:
        job = await rig.client.job(sent.id)
        assert job.state in {JobState.PENDING, JobState.PROCESSING}, "it was done before anybody could be killed"
        return job.stage == "generating_text" and bool(job.progress)

    await eventually_async(is_being_written, within_s=PATIENCE_S)
    holder = (await rig.client.job(sent.id)).worker
    assert holder is not None

    await rig.agents[holder].killed()

    (other,) = set(WORKERS) - {holder}
    job = await rig.settled(sent.id)
    assert (job.state, job.epoch, job.result_epoch, job.worker) == (JobState.COMPLETED, 2, 2, other), job.error
    lost, won = job.attempts
    assert (lost.worker, lost.outcome, lost.stage) == (holder, AttemptOutcome.LEASE_EXPIRED, "generating_text")
    assert (won.worker, won.outcome) == (other, AttemptOutcome.COMPLETED)
    assert job.result is not None
    assert job.result["finish"] == "stop"
    assert [file.name for file in job.artifacts] == ["article.md"]
    assert (await rig.article(job.id)).decode() == job.result["text"]
    assert (await rig.client.rejected()).results == []
    status, found = await rig.audit()
    assert status == 0, found


async def test_the_demo_with_a_real_model_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    monkeypatch.setattr("tests.support.processes.PATIENCE_S", 400.0)
    try:
        status, out, error = await tandem("demo", "--real", cwd=folder)

        assert status == 0, out + error
        assert "12 of 12" in out
        assert "Every job was done exactly once." in out
        assert f"as {MODEL} wrote it" in out
        assert list((folder / "demo-data").glob("**/*.pid")) == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
