"""Prompts that hang or fail: what the clocks see, and what the errors mean."""

import asyncio

import pytest
from aiohttp import web

from agent.executors.base import BackendDown, Elsewhere, Permanent, Surroundings, Transient
from agent.executors.verdicts import MOST_RELEASES
from tests.support.comfyui_rig import ID, Time, Told, doing, job, other_prompt, running
from tests.support.fake_comfyui import FakeComfyUI, raising, steps
from tests.support.fake_comfyui_nodes import MPS_OOM, NodeError, StagingError, WorkerDies
from tests.support.servers import eventually

CUDA_OOM = NodeError("torch.OutOfMemoryError", "Allocation on device 0 would exceed allowed memory. (out of memory)\n")


class Troubled(FakeComfyUI):
    """So many questions for the queue, or for a prompt that has ended, are answered by what stands before it."""

    bad_queues, bad_histories = 0, 0

    async def _queue(self, request):
        if self.bad_queues and self.pending + list(self.running.values()):
            self.bad_queues -= 1
            return web.Response(status=500, text="a proxy's")
        return await super()._queue(request)

    async def _history(self, request):
        if self.bad_histories and request.match_info["id"] in self.history:
            self.bad_histories -= 1
            return web.Response(text="<html>just a moment</html>", content_type="text/html")
        return await super()._history(request)


@pytest.fixture
async def comfy(tmp_path):
    async with Troubled(tmp_path / "comfy") as server:
        yield server


@pytest.fixture
def go(comfy):
    """An event for which the sampler waits, after two of four steps."""
    event = asyncio.Event()
    comfy.before["KSampler"] = steps(4, event, at=2)
    return event


# ---- hung


async def die(_):
    raise WorkerDies


async def too_late(now, task):
    """Move the clock on until the task ends."""
    while not task.done():
        now.s += 2
        await asyncio.wait({task}, timeout=0.15)


async def test_a_worker_that_died_in_our_prompt_is_seen_by_the_idle_clock(comfy, tmp_path):
    now = Time()
    async with running(comfy, now, idle_s=5, stop_s=0.3, probe_limit_s=0.3, probe_s=3600) as executor:
        comfy.before["CheckpointLoaderSimple"] = die
        async with doing(executor, job(tmp_path / "w")) as task:
            await eventually(lambda: ID in comfy.ran and not comfy.worker_alive)
            await too_late(now, task)
            with pytest.raises(Transient, match=r"no_progress.*idle"):
                await task
        assert not executor.up


async def test_a_worker_that_died_before_our_prompt_costs_the_job_nothing(comfy, tmp_path):
    now = Time()
    async with running(comfy, now, first_s=5, stop_s=0.3, probe_limit_s=0.3, probe_s=3600) as executor:
        comfy.before["EmptyImage"] = die
        await other_prompt(executor)
        await eventually(lambda: not comfy.worker_alive)
        comfy.running.clear()  # the other face: nothing runs, and what waits waits for ever
        async with doing(executor, job(tmp_path / "w")) as task:
            await eventually(lambda: ID in comfy.ran)
            await too_late(now, task)
            with pytest.raises(BackendDown, match="did not begin"):
                await task
        assert comfy.pending == []
        assert not executor.up
        await eventually(lambda: "no tiny generation" in executor.status()["reason"])


async def test_a_prompt_that_never_begins_is_charged_in_the_end(comfy, tmp_path):
    now = Time()
    comfy.before["LabSleep"] = steps(2, asyncio.Event(), at=1)
    async with running(comfy, now, first_s=5) as executor:
        await other_prompt(executor)
        await eventually(lambda: comfy.running)
        for epoch in range(1, MOST_RELEASES + 2):
            async with doing(executor, job(tmp_path / f"{epoch}", epoch=epoch)) as task:
                await eventually(lambda: len(comfy.pending) == 1)
                await too_late(now, task)
                raised = BackendDown if epoch <= MOST_RELEASES else Transient
                with pytest.raises(raised, match="did not begin"):
                    await task


async def test_a_prompt_without_progress_is_interrupted(comfy, go, tmp_path):
    now = Time()
    told = Told()
    async with (
        running(comfy, now, first_s=9, idle_s=5, probe_s=3600) as executor,
        doing(executor, job(tmp_path / "w"), told) as task,
    ):
        await eventually(lambda: told.fractions == [0.25, 0.5])
        now.s += 4.9
        await asyncio.wait({task}, timeout=0.3)
        assert not task.done()
        now.s += 0.2
        with pytest.raises(Transient, match=r"no_progress.*idle"):
            await task
        assert ("/interrupt", ID) in comfy.calls
        assert ID in comfy.history
        await eventually(lambda: len(comfy.ran) == 3)  # another tiny picture, before more work is taken


async def test_a_queue_that_moves_is_no_hang(comfy, tmp_path):
    now = Time()
    told = Told()
    ids = [f"0b8f7e1e-6a52-4d0e-9d5b-2f3f5f0f9a{number}" for number in (11, 12, 13)]
    async with running(comfy, now, first_s=5) as executor:
        for seed, prompt_id in enumerate(ids):
            await other_prompt(executor, prompt_id, seed=seed)
        async with doing(executor, job(tmp_path / "w"), told) as task:
            for before, prompt_id in zip((3, 2, 1), ids, strict=True):
                await eventually(lambda before=before: f"{before} before it" in told.details)
                now.s += 4
                await executor.client.interrupt(prompt_id)
            await task


# ---- errors


@pytest.mark.parametrize("error", [NodeError("RuntimeError", MPS_OOM), CUDA_OOM])
async def test_out_of_memory_frees_and_tries_once_more(comfy, tmp_path, error):
    comfy.before["KSampler"] = raising(error)
    async with running(comfy) as executor:
        product = await executor.run(job(tmp_path / "w"), Told())
    assert comfy.calls == [("/free", {"unload_models": True, "free_memory": True})]
    assert len(set(comfy.ran)) == 2
    assert product.settings["turn"] == 2


async def test_out_of_memory_frees_the_memory_of_others_before_it_tries_once_more(comfy, tmp_path):
    comfy.before["KSampler"] = raising(NodeError("RuntimeError", MPS_OOM))
    freed = []

    async def free(why):
        freed.append((why, len(set(comfy.ran))))

    async with running(comfy) as executor:
        executor.attach(Surroundings(free_memory=free))
        await executor.run(job(tmp_path / "w"), Told())
    assert freed == [("comfyui ran out of memory", 1)]


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (NodeError("RuntimeError", "mat1 and mat2 shapes cannot be multiplied"), Permanent, "graph_error"),
        (NodeError("RuntimeError", "the moon is in the wrong house"), Transient, "unknown_error"),
        (StagingError("graph.DependencyCycleError", "Dependency cycle detected"), Permanent, "bad_workflow"),
    ],
)
async def test_run_time_errors_mean_what_the_table_says(comfy, tmp_path, error, raised, code):
    comfy.before["KSampler"] = raising(error, error)
    async with running(comfy) as executor:
        with pytest.raises(raised, match=code) as caught:
            await executor.run(job(tmp_path / "w"), Told())
    detail = caught.value.detail
    assert detail["executor"] == "comfyui"
    assert str(error).strip()[:20] in detail["text"]
    assert detail["version"] == "0.30.2"
    assert "must not be passed on" not in str(detail)  # current_inputs


async def test_an_unknown_error_is_not_tried_here_again(comfy, tmp_path):
    error = NodeError("RuntimeError", "the moon is in the wrong house")
    comfy.before["KSampler"] = raising(error, error)
    async with running(comfy) as executor:
        with pytest.raises(Transient):
            await executor.run(job(tmp_path / "1"), Told())
        with pytest.raises(Elsewhere):
            await executor.run(job(tmp_path / "2", epoch=2, attempt=2), Told())
    async with running(comfy) as another:
        with pytest.raises(Transient):
            await another.run(job(tmp_path / "3", epoch=3, attempt=2), Told())


async def test_a_history_that_can_t_be_read_is_deleted_and_the_workflow_s_fault(comfy, tmp_path):
    comfy.unreadable.add(ID)
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match="bad_workflow"):
            await executor.run(job(tmp_path / "w"), Told())
    assert ("/history", {"delete": [ID]}) in comfy.calls


async def test_a_queue_that_answers_500_says_nothing_about_the_history(comfy, go, tmp_path):
    comfy.bad_queues = 6
    async with running(comfy) as executor, doing(executor, job(tmp_path / "w")) as task:
        await eventually(lambda: not comfy.bad_queues)
        go.set()
        assert len((await task).files) == 1
    assert ("/history", {"delete": [ID]}) not in comfy.calls


async def test_a_history_that_is_no_json_is_no_answer_and_the_prompt_has_not_vanished(comfy, tmp_path):
    comfy.bad_histories = 4
    async with running(comfy) as executor:
        assert len((await executor.run(job(tmp_path / "w"), Told())).files) == 1
    assert (comfy.bad_histories, comfy.ran) == (0, [ID])
