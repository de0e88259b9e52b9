"""A prompt's life: adopted, followed, stopped. The history is the truth, the socket a hint."""

import asyncio

import pytest
from aiohttp import web

from agent.executors import comfyui_graph as graphs
from agent.executors.base import BackendDown, Transient
from agent.executors.comfyui_settings import ImageModel
from shared.submission import ImageSpec
from tests.support.comfyui_rig import FIELDS, ID, JOB, OTHER, SDXL, Told, doing, job, other_prompt, running, sampling
from tests.support.fake_comfyui import FakeComfyUI, raising, steps
from tests.support.fake_comfyui_nodes import MPS_OOM, NodeError
from tests.support.servers import eventually


class ClosedQueue(FakeComfyUI):
    """Its queue can't be changed, if it is told so."""

    queue_is_closed = False

    async def _change_queue(self, request):
        return web.Response(status=502) if self.queue_is_closed else await super()._change_queue(request)


@pytest.fixture
async def comfy(tmp_path):
    async with ClosedQueue(tmp_path / "comfy") as server:
        yield server


@pytest.fixture
def go(comfy):
    """An event for which the sampler waits, after two of four steps."""
    event = asyncio.Event()
    comfy.before["KSampler"] = steps(4, event, at=2)
    return event


# ---- adopted


async def test_an_agent_that_comes_back_takes_up_the_running_prompt(comfy, go, tmp_path):
    async with running(comfy) as killed:
        work = asyncio.create_task(killed.client.post(graph_of(), ID))
        await work
        await eventually(lambda: sampling(comfy))
    told = Told()
    async with running(comfy) as executor, doing(executor, job(tmp_path / "w"), told) as task:
        await eventually(lambda: "generating_image" in told.stages)  # said once to a client that comes back
        go.set()
        product = await task
    assert product.settings["adopted"] is True
    assert comfy.ran == [ID]
    assert told.fractions[-1] == 1.0


async def test_an_agent_that_comes_back_takes_the_finished_prompt(comfy, tmp_path):
    async with running(comfy) as executor:
        first = await executor.run(job(tmp_path / "1"), Told())
        again = await executor.run(job(tmp_path / "2"), Told())
    assert comfy.ran == [ID]
    assert (first.settings["adopted"], again.settings["adopted"]) == (False, True)
    assert first.files[0].path.read_bytes() == again.files[0].path.read_bytes()


async def test_an_agent_that_comes_back_takes_up_the_second_turn(comfy, tmp_path):
    comfy.before["KSampler"] = raising(NodeError("RuntimeError", MPS_OOM))
    async with running(comfy) as executor:
        await executor.run(job(tmp_path / "1"), Told())
        assert comfy.ran == [ID, graphs.prompt_id_of(JOB, 1, 2)]
        again = await executor.run(job(tmp_path / "2"), Told())
    assert len(comfy.ran) == 2
    assert again.settings["turn"] == 2


async def test_a_post_whose_answer_is_lost_is_looked_up_and_not_repeated(comfy, tmp_path):
    comfy.lose_answers = 1
    async with running(comfy) as executor:
        await executor.run(job(tmp_path / "w"), Told())
    assert comfy.ran == [ID]


async def test_a_post_that_was_answered_500_may_have_been_taken(comfy, tmp_path):
    comfy.refuse_posts = [500]
    async with running(comfy) as executor:
        await executor.run(job(tmp_path / "w"), Told())
    assert comfy.ran == [ID]


def graph_of():
    """Return the graph of the job as the executor would post it."""
    model = ImageModel(**SDXL)
    seed = graphs.seed_of(JOB, 1)
    return graphs.from_fields(ImageSpec(**FIELDS), model, seed=seed, prefix=f"tandem/{ID}").nodes


# ---- followed


async def test_a_socket_that_closes_is_opened_again(comfy, go, tmp_path):
    told = Told()
    async with running(comfy) as executor, doing(executor, job(tmp_path / "w"), told) as task:
        await eventually(lambda: told.fractions == [0.25, 0.5])
        await comfy.sockets[ID].close()
        await eventually(lambda: ID in comfy.sockets)
        go.set()
        await task
    assert told.fractions == [0.25, 0.5, 0.75, 1.0]


async def test_a_socket_that_falls_silent_is_opened_again(comfy, go, tmp_path):
    async with running(comfy, quiet_s=0.1) as executor, doing(executor, job(tmp_path / "w")) as task:
        await eventually(lambda: ID in comfy.sockets)
        first = comfy.sockets[ID]
        await eventually(lambda: ID in comfy.sockets and comfy.sockets[ID] is not first)
        go.set()
        await task


async def test_a_large_message_does_not_cut_the_socket(comfy, go, tmp_path):
    written = asyncio.Event()

    async def gap(execution):
        await execution.until(written)

    comfy.history_gap = gap
    told = Told()
    async with running(comfy) as executor, doing(executor, job(tmp_path / "w"), told) as task:
        await eventually(lambda: told.fractions == [0.25, 0.5])
        first = comfy.sockets[ID]
        await comfy.say(ID, "executed", node="7", output={"text": ["x" * 5_000_000]}, prompt_id=ID)
        go.set()
        await eventually(lambda: told.fractions == [0.25, 0.5, 0.75, 1.0])  # what was told after it is heard
        assert comfy.sockets[ID] is first
        written.set()
        await task


async def test_the_history_may_be_written_after_the_success_was_told(comfy, tmp_path):
    written = asyncio.Event()

    async def gap(execution):
        await execution.until(written)

    comfy.history_gap = gap
    told = Told()
    async with running(comfy, poll_s=60) as executor, doing(executor, job(tmp_path / "w"), told) as task:
        await eventually(lambda: "finalizing" in told.stages)
        written.set()
        await task  # by the event that the prompt left the worker: no poll is due


async def test_http_that_stands_still_is_no_failure(comfy, go, tmp_path):
    async with running(comfy, answer_s=0.1) as executor, doing(executor, job(tmp_path / "w")) as task:
        await eventually(lambda: sampling(comfy))
        comfy.answer.clear()
        go.set()
        await eventually(lambda: ID in comfy.history)
        assert not task.done()
        comfy.answer.set()
        assert len((await task).files) == 1


async def test_a_post_during_a_stall_runs_once(comfy, tmp_path):
    async with running(comfy, answer_s=0.2) as executor:
        comfy.answer.clear()
        async with doing(executor, job(tmp_path / "w")) as task:
            await asyncio.wait({task}, timeout=0.5)
            comfy.answer.set()
            await task
    assert comfy.ran == [ID]


async def test_its_place_in_the_queue_is_told(comfy, tmp_path):
    told = Told()
    async with running(comfy) as executor:
        await other_prompt(executor)
        await eventually(lambda: comfy.running)
        async with doing(executor, job(tmp_path / "w"), told) as task:
            await eventually(lambda: "1 before it" in told.details)
            await executor.client.interrupt(OTHER)
            await task
    assert told.stages[0] == "queued"


async def test_what_other_prompts_tell_everybody_is_not_ours(comfy, tmp_path):
    go, told = asyncio.Event(), Told()
    comfy.before["LabProgress"] = steps(3, go)
    nodes = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 1}},
        "2": {"class_type": "LabProgress", "inputs": {"image": ["1", 0], "steps": 3, "step_seconds": 0.0, "seed": 1}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    }
    nodes["2"]["inputs"]["preview"] = False
    async with running(comfy) as executor:
        async with executor.session().post(f"{comfy.url}/prompt", json={"prompt": nodes}) as answer:
            assert answer.status == 200
        async with doing(executor, job(tmp_path / "w"), told) as task:
            await eventually(lambda: ID in comfy.ran)
            go.set()
            await task
    assert told.fractions == []


# ---- stopped


async def test_a_cancelled_job_interrupts_its_prompt_and_no_other(comfy, go, tmp_path):
    async with running(comfy) as executor:
        async with doing(executor, job(tmp_path / "w")) as task:
            await eventually(lambda: sampling(comfy))
            await other_prompt(executor)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not any(entry[1] == ID for entry in comfy.running.values())  # really idle when run has ended
        await eventually(lambda: any(entry[1] == OTHER for entry in comfy.running.values()))
        assert {call for call in comfy.calls if call[0] == "/interrupt"} == {("/interrupt", ID)}
        assert comfy.history[ID]["status"]["messages"][-1][0] == "execution_interrupted"
        assert executor.up


async def test_a_cancelled_job_that_only_waits_is_taken_out_of_the_queue(comfy, tmp_path):
    async with running(comfy) as executor:
        await other_prompt(executor)
        async with doing(executor, job(tmp_path / "w")) as task:
            await eventually(lambda: any(entry[1] == ID for entry in comfy.pending))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert comfy.calls == [("/queue", {"delete": [ID]})]
        assert comfy.pending == []
        assert comfy.running  # the other one goes on


async def test_a_job_that_is_cancelled_while_its_post_is_unanswered_leaves_nothing_behind(comfy, go, tmp_path):
    comfy.stall_at_post = True
    async with running(comfy) as executor:
        async with doing(executor, job(tmp_path / "w")) as task:
            await comfy.stalled.wait()
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
            assert not task.done()
            comfy.answer.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert comfy.ran == [ID]
        assert not comfy.running
        assert not comfy.pending


async def test_cancelling_again_does_not_shorten_the_stop(comfy, go, tmp_path):
    comfy.deaf = True
    async with running(comfy) as executor, doing(executor, job(tmp_path / "w")) as task:
        await eventually(lambda: sampling(comfy))
        for _ in range(3):
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not comfy.running


async def test_a_server_that_does_not_stop_is_broken(comfy, go, tmp_path):
    comfy.deaf = True
    async with running(comfy, stop_s=0.3, probe_s=3600) as executor:
        async with doing(executor, job(tmp_path / "w")) as task:
            await eventually(lambda: sampling(comfy))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not executor.up  # until a tiny picture has been made
        go.set()
        await eventually(lambda: executor.up)


async def test_a_prompt_that_somebody_stopped_is_tried_again(comfy, go, tmp_path):
    async with running(comfy) as executor, doing(executor, job(tmp_path / "w")) as task:
        await eventually(lambda: sampling(comfy))
        await executor.client.interrupt(ID)
        with pytest.raises(Transient, match="interrupted"):
            await task


async def test_a_prompt_that_somebody_deleted_is_tried_again(comfy, tmp_path):
    async with running(comfy) as executor:
        await other_prompt(executor)
        for raised in (BackendDown, Transient):  # as after a restart, the first time
            async with doing(executor, job(tmp_path / "w")) as task:
                await eventually(lambda: any(entry[1] == ID for entry in comfy.pending))
                await executor.client.delete(ID)
                with pytest.raises(raised, match="vanished"):
                    await task


async def test_a_quick_restart_costs_a_job_as_little_as_a_slow_one_but_not_each_time(comfy, go, tmp_path):
    async with running(comfy, refused_s=[0.2] * 50) as executor:
        for attempt, raised in ((1, BackendDown), (1, Transient), (2, Transient)):
            async with doing(executor, job(tmp_path / "w", attempt=attempt)) as task:
                await eventually(lambda: sampling(comfy))
                await comfy.restart()
                with pytest.raises(raised, match="vanished"):
                    await task
            await eventually(lambda: executor.up)


async def test_what_an_earlier_process_left_is_interrupted_even_if_the_queue_does_not_answer(comfy, go):
    comfy.queue_is_closed = True
    async with running(comfy) as executor:
        await executor.client.post(graph_of(), ID)
        await eventually(lambda: sampling(comfy))
        await executor.abandon(JOB, 1)
        await eventually(lambda: not comfy.running)
    assert comfy.history[ID]["status"]["messages"][-1][0] == "execution_interrupted"


async def test_what_an_earlier_process_left_has_stopped_when_it_is_given_up(comfy):
    go = asyncio.Event()
    comfy.before["KSampler"] = lambda _: go.wait()  # hears no interrupt before
    async with running(comfy) as executor:
        await executor.client.post(graph_of(), ID)
        await eventually(lambda: sampling(comfy))
        giving_up = asyncio.create_task(executor.abandon(JOB, 1))
        await eventually(lambda: comfy.calls.count(("/interrupt", ID)) > 1)
        assert not giving_up.done()
        go.set()
        await giving_up
        assert not comfy.running
        assert executor.up


async def test_a_server_that_does_not_stop_what_was_left_is_down(comfy):
    go = asyncio.Event()
    comfy.before["KSampler"] = lambda _: go.wait()
    async with running(comfy, stop_s=0.3, retry_s=1000, look_s=1000) as executor:
        await executor.client.post(graph_of(), ID)
        await eventually(lambda: sampling(comfy))
        await executor.abandon(JOB, 1)
        assert (executor.up, executor.status()["reason"]) == (False, f"prompt {ID} did not stop in 0.3 s")
        go.set()


async def test_a_server_that_is_gone_is_down_and_the_job_is_given_back(comfy, go, tmp_path):
    async with running(comfy) as executor:
        async with doing(executor, job(tmp_path / "w")) as task:
            await eventually(lambda: sampling(comfy))
            await comfy.stop()
            with pytest.raises(BackendDown, match="unreachable"):
                await task
        assert executor.capabilities() == []
        await comfy.start()
        await eventually(lambda: executor.up)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_job_under_which_the_server_dies_again_may_be_the_reason(comfy, go, tmp_path, begun):
    async with running(comfy) as executor:
        for epoch, raised in ((1, BackendDown), (2, Transient)):
            if not begun:
                await other_prompt(executor)
            async with doing(executor, job(tmp_path / f"{epoch}", epoch=epoch)) as task:
                await eventually(lambda: sampling(comfy) if begun else len(comfy.pending) == 1)
                await comfy.stop()
                with pytest.raises(raised):
                    await task
            assert not executor.up
            await comfy.start()
            await eventually(lambda: executor.up)
