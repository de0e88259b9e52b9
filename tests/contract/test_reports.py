"""The same scenarios through a whole agent: what its runner says of the end of a job to the coordinator."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from agent.executors.base import BackendDown
from agent.runner import How
from tests.contract.comfyui import SAMPLER, ComfyUIBench
from tests.contract.contract import CLASS_OF, Scenario, called
from tests.contract.local import CommandBench, SketchBench
from tests.contract.text import LlamaBench, MlxBench, OllamaBench
from tests.support.agent_world import agent, coordinator, settings_for
from tests.support.servers import eventually

ENDS = [
    (SketchBench, Scenario.SUCCESS),
    (SketchBench, Scenario.ERROR_IN_200),
    (CommandBench, Scenario.SUCCESS),
    (CommandBench, Scenario.BACKEND_DOWN),
    (CommandBench, Scenario.REFUSED),
    (OllamaBench, Scenario.SUCCESS),
    (OllamaBench, Scenario.OOM_MPS),
    (OllamaBench, Scenario.RESTART),
    (LlamaBench, Scenario.HANG_IN_THE_MIDDLE),
    (LlamaBench, Scenario.WRONG_MODEL),
    (MlxBench, Scenario.EMPTY),
    (ComfyUIBench, Scenario.SUCCESS),
    (ComfyUIBench, Scenario.FLAT_IMAGE),
    (ComfyUIBench, Scenario.OOM_CUDA),
    (ComfyUIBench, Scenario.HANG_AFTER_ACCEPT),
]


@pytest_asyncio.fixture(loop_scope="session", name="far")
async def foreign_coordinator(servers):
    async with coordinator(servers) as made:
        made.deadline_s = 1e6  # the clock is moved
        yield made


def overhear(bench):
    """Let the bench hear the progress that its executor tells the agent."""
    run = bench.executor.run

    async def overheard(job, progress):
        bench.task = asyncio.current_task()
        return await run(job, Both(progress, bench.told))

    bench.executor.run = overheard


class Both:
    """A Progress that tells two."""

    def __init__(self, *ears):
        self.ears = ears

    def stage(self, name):
        for ear in self.ears:
            ear.stage(name)

    def progress(self, fraction):
        for ear in self.ears:
            ear.progress(fraction)

    def detail(self, text):
        for ear in self.ears:
            ear.detail(text)


@asynccontextmanager
async def working(bench, settings, servers, far, folder):
    """Run an agent with the bench's executor."""
    await bench.open(settings)
    overhear(bench)
    far.kinds = (bench.kind,)
    try:
        async with agent(settings_for(servers, "mini", folder / "agent"), bench.executor, clock=bench.clock) as mini:
            await bench.up()
            yield mini
    finally:
        await bench.close()


@pytest.mark.parametrize(("bench_class", "scenario"), ENDS, ids=lambda given: str(getattr(given, "name", given)))
async def test_the_end_of_a_job_becomes_the_right_report(servers, far, tmp_path, bench_class, scenario):
    bench, case = bench_class(tmp_path), bench_class.table[scenario]
    async with working(bench, case.settings, servers, far, tmp_path) as mini:
        await called(case.arrange, bench)
        await far.offer(kind=bench.kind, **(case.spec or bench.spec()))
        await called(case.act, bench)
        report = await far.report()
        end = await mini.end()
        assert bench.idle()
        await mini.spool_is_empty()
        assert mini.workspaces == []
    assert end.how.value == report["outcome"]
    if case.end is None:
        assert report["outcome"] == "completed"
        assert report["error"] is None
        assert sorted(far.uploads) == sorted(file["name"] for file in report["artifacts"])
    else:
        assert report["error"]["code"] == case.code
        assert report["artifacts"] == []
        released = case.end is BackendDown
        assert report["outcome"] == ("released" if released else "failed")
        assert released or report["error"]["class"] == CLASS_OF[case.end]
    stages = [mark["stage"] for mark in report["stages"]]
    assert stages[: len(bench.stages)] == list(bench.stages) or not case.whole
    assert far.alien_acks() == []


@pytest.mark.parametrize(
    ("bench_class", "scenario", "where"),
    [
        (CommandBench, Scenario.CANCEL_GENERATING, "generating_text"),
        (OllamaBench, Scenario.CANCEL_GENERATING, 2),
        (MlxBench, Scenario.CANCEL_LOADING, 0),
        (ComfyUIBench, Scenario.CANCEL_GENERATING, SAMPLER),
    ],
)
async def test_a_revoked_job_is_stopped_at_its_backend_and_reports_nothing(
    servers, far, tmp_path, bench_class, scenario, where
):
    bench, case = bench_class(tmp_path), bench_class.table[scenario]
    async with working(bench, case.settings, servers, far, tmp_path) as mini:
        await called(case.arrange, bench)
        job_id = await far.offer(kind=bench.kind, **(case.spec or bench.spec()))
        if isinstance(bench, CommandBench):
            await eventually(lambda: bench.told.stages[-1:] == [where])
        else:
            await bench.at(where)
        await far.say(type="revoke", job_id=job_id, epoch=1, reason="canceled")
        assert (await mini.end()).how is How.LOST
        await eventually(bench.idle)
        assert mini.workspaces == []
        assert mini.spool == []
    assert far.all_reports == []
    assert far.uploads == {}
