"""An agent that dies in the middle of a picture: its next process takes up the prompt that ComfyUI goes on with."""

import asyncio
import json
import subprocess
import sys

import pytest
import pytest_asyncio

from agent.executors import comfyui_graph as graphs
from tests.support.agent_processes import PATIENCE_S, ROOT, AgentProcess
from tests.support.comfyui_rig import FIELDS, QUICK, sampling
from tests.support.fake_comfyui import FakeComfyUI, steps
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_server import running
from tests.support.processes import clean_environment
from tests.support.servers import eventually, own_servers
from tests.support.world import world as open_world


class ComfyAgent(AgentProcess):
    """A real agent with the real executor, in a process of its own."""

    def __init__(self, *place):
        super().__init__(*place)
        self.tables = {}

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.comfyui_agent", json.dumps(self.tables)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=clean_environment() | self._environment,
            )

    @property
    def kept(self):
        folder = self.data / "journal"
        return [path.name for path in folder.iterdir()] if folder.exists() else []


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn, tmp_path):
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


@pytest.fixture
async def comfy(tmp_path):
    async with FakeComfyUI(tmp_path / "comfy") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def mini(world, comfy, tmp_path):
    async with world.servers.open("agent:mini"):
        pass  # makes its identity
    agent = ComfyAgent(world.servers, "mini", tmp_path)
    agent.tables["comfyui"] = QUICK | {"url": comfy.url}
    await agent.restarted(world)
    yield agent
    agent.process.kill()
    await asyncio.to_thread(agent.process.wait, PATIENCE_S)


async def begun(world, comfy, mini):
    """Have a picture begun; return its job's id and the event for which the sampler waits."""
    go = asyncio.Event()
    comfy.before["KSampler"] = steps(4, go, at=2)
    job = await world.submit("image", model="sdxl", spec=FIELDS)
    await eventually(lambda: comfy.execution is not None and comfy.execution.waits, within_s=PATIENCE_S)
    assert mini.kept == [f"{job['id']}.1.json"]
    return job["id"], go


async def test_a_killed_agent_takes_up_its_running_prompt(world, comfy, mini):
    job_id, go = await begun(world, comfy, mini)
    await mini.killed()
    await mini.restarted(world)
    go.set()
    seen = await world.until(job_id, "completed")
    assert seen["result_epoch"] == 1
    assert comfy.ran == [graphs.prompt_id_of(job_id, 1)]
    await eventually(lambda: mini.kept == [])
    async with world.http.get(f"/v1/jobs/{job_id}/artifacts/image-1.png") as answer:
        assert (answer.status, answer.content_type) == (200, "image/png")


async def test_a_killed_agent_takes_up_a_prompt_that_ended_meanwhile(world, comfy, mini):
    job_id, go = await begun(world, comfy, mini)
    await mini.killed()
    go.set()
    await eventually(lambda: comfy.history)
    await mini.restarted(world)
    seen = await world.until(job_id, "completed")
    assert seen["result_epoch"] == 1
    assert len(comfy.ran) == 1


async def test_what_was_begun_is_taken_up_before_the_server_has_proven_itself(world, comfy, mini):
    job_id, go = await begun(world, comfy, mini)
    await mini.killed()
    comfy.unwell = True
    await mini.restarted(world)
    go.set()
    assert (await world.until(job_id, "completed"))["result_epoch"] == 1


async def test_a_killed_agent_whose_lease_was_taken_away_stops_what_it_left(world, comfy, mini):
    job_id, _ = await begun(world, comfy, mini)
    await mini.killed()
    await world.act(job_id, "cancel")
    await mini.restarted(world)
    await eventually(lambda: ("/interrupt", graphs.prompt_id_of(job_id, 1)) in comfy.calls)
    await eventually(lambda: not comfy.running)
    await eventually(lambda: mini.kept == [])


async def test_a_stopped_agent_leaves_nothing_to_take_up(world, comfy, mini):
    job_id, go = await begun(world, comfy, mini)
    assert await mini.terminated() == 0
    assert mini.kept == []
    assert not comfy.running  # interrupted, and given back
    go.set()
    await mini.restarted(world)
    assert (await world.until(job_id, "completed"))["result_epoch"] == 2


async def test_a_job_that_kills_its_agent_is_not_taken_up_for_ever(world, comfy, mini):
    job_id, _ = await begun(world, comfy, mini)
    for _ in range(3):
        await mini.killed()
        await mini.restarted(world)
        await eventually(lambda: mini.kept == [f"{job_id}.1.json"])
    await mini.killed()
    comfy.before.clear()
    await mini.restarted(world)
    await eventually(lambda: ("/interrupt", graphs.prompt_id_of(job_id, 1)) in comfy.calls)  # not left for nobody
    assert (await world.until(job_id, "completed"))["result_epoch"] == 2


async def test_what_is_given_up_keeps_the_gpu_until_it_has_stopped(world, comfy, mini):
    go = asyncio.Event()
    comfy.before["KSampler"] = lambda _: go.wait()  # hears no interrupt before
    job_id = (await world.submit("image", model="sdxl", spec=FIELDS))["id"]
    await eventually(lambda: sampling(comfy) and mini.kept, within_s=PATIENCE_S)
    async with running(FakeOllama()) as ollama:
        mini.tables["ollama"] = {"url": ollama.url, "retry_s": 0.05, "look_s": 0.05, "probe_s": 0}
        mini.tables["comfyui"] |= {"stop_s": 60}
        await mini.killed()
        await world.act(job_id, "cancel")
        article = await world.submit("article", model="tiny", spec={"prompt": "Three sentences."})
        await mini.restarted(world)
        stops = ("/interrupt", graphs.prompt_id_of(job_id, 1))
        await eventually(lambda: comfy.calls.count(stops) > 4, within_s=PATIENCE_S)
        assert ollama.requests == []
        go.set()
        await world.until(article["id"], "completed")
        assert len(ollama.requests) == 1
