"""What a ComfyUI server offers, as far as it is really there: files, classes, and a worker that lives."""

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from agent.executors.comfyui import ComfyUIExecutor
from tests.support.comfyui_rig import FIELDS, FLUX, QUICK, SDXL, Time, Told, doing, job, running
from tests.support.fake_comfyui import FILES, FakeComfyUI, steps
from tests.support.fake_comfyui_nodes import WorkerDies
from tests.support.servers import eventually


@pytest.fixture
async def comfy(tmp_path):
    async with FakeComfyUI(tmp_path / "comfy") as server:
        yield server


def offered(executor):
    return [model for capability in executor.capabilities() for model in capability.models]


@pytest.mark.parametrize("version", ["0.30.2", "0.3.64"])
async def test_exactly_the_models_whose_files_are_there_are_offered(tmp_path, version):
    async with FakeComfyUI(tmp_path / "comfy", version) as comfy, running(comfy, workflows=False) as executor:
        assert offered(executor) == ["sdxl", "flux"]
        comfy.files["text_encoders"] = ["clip_l.safetensors"]
        await eventually(lambda: offered(executor) == ["sdxl"])
        assert executor.status()["missing"] == {"flux": ["clip: t5xxl_fp8.safetensors"]}
        comfy.files["checkpoints"] = []
        await eventually(lambda: executor.capabilities() == [])
        comfy.files |= FILES
        await eventually(lambda: offered(executor) == ["sdxl", "flux"])
        assert executor.status()["version"] == version


async def test_a_loader_that_is_not_installed_has_no_files(comfy):
    comfy.absent.add("DualCLIPLoader")
    async with running(comfy) as executor:
        assert offered(executor) == ["sdxl", "*"]


async def test_an_upscaler_that_is_configured_must_be_there(comfy):
    comfy.files["upscale_models"] = []
    async with running(comfy) as executor:
        assert offered(executor) == ["flux", "*"]


async def test_lists_of_newer_nodes_are_read(comfy):
    comfy.newer_lists = True
    async with running(comfy) as executor:
        assert offered(executor) == ["sdxl", "flux", "*"]


async def test_nothing_is_offered_while_the_server_is_away(comfy):
    async with running(comfy) as executor:
        await comfy.stop()
        await eventually(lambda: executor.capabilities() == [])
        assert executor.known()
        await comfy.start()
        await eventually(lambda: executor.up)


async def test_the_first_tiny_picture_comes_before_the_first_offer(comfy):
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(execution):
        begun.set()
        await execution.until(go)

    comfy.before["EmptyImage"] = wait
    executor = ComfyUIExecutor.from_settings(QUICK | {"url": comfy.url, "probe_s": 3600})
    await executor.start()
    try:
        await begun.wait()
        assert executor.capabilities() == []
        go.set()
        await eventually(lambda: executor.up)
    finally:
        await executor.aclose()


async def test_a_worker_that_died_is_seen_when_the_next_tiny_picture_is_due(comfy):
    async def die(_):
        raise WorkerDies

    now = Time()
    async with running(comfy, now, probe_s=3600, probe_limit_s=0.3, stop_s=0.3) as executor:
        comfy.before["EmptyImage"] = die
        now.s += 3601
        await eventually(lambda: not executor.up)  # though /system_stats and /object_info answer
        comfy.before.clear()
        await comfy.restart()
        await eventually(lambda: executor.up)


async def test_a_tiny_picture_can_be_made_with_a_model(comfy):
    async with running(comfy, probe_s=3600, probe_model="sdxl"):
        (posted,) = comfy.posts
    by_class = {node["class_type"]: node["inputs"] for node in posted["prompt"].values()}
    assert by_class["CheckpointLoaderSimple"] == {"ckpt_name": SDXL["checkpoint"]}
    assert (by_class["KSampler"]["steps"], by_class["EmptyLatentImage"]["width"]) == (1, 64)
    assert "SaveImage" not in by_class
    assert not (comfy.folder / "output").exists()


async def test_a_model_that_makes_black_pictures_is_not_offered(comfy):
    comfy.change = lambda made: replace(made, flat=True)
    executor = ComfyUIExecutor.from_settings(QUICK | {"url": comfy.url, "probe_s": 3600, "probe_model": "sdxl"})
    await executor.start()
    try:
        await eventually(lambda: "one flat colour" in executor.status()["reason"])
        assert executor.capabilities() == []
    finally:
        await executor.aclose()


async def test_a_job_does_not_wait_for_a_tiny_picture(comfy, tmp_path):
    async def wait(execution):
        await execution.until(asyncio.Event())

    now = Time()
    async with running(comfy, now, probe_s=3600) as executor:
        comfy.before["EmptyImage"] = wait
        now.s += 3601
        await eventually(lambda: comfy.running)
        await executor.run(job(tmp_path / "w"), Told())
        tiny = comfy.ran[-2]
        assert comfy.history[tiny]["status"]["messages"][-1][0] == "execution_interrupted"


async def test_nothing_is_asked_beside_a_job(comfy, tmp_path):
    go = asyncio.Event()
    comfy.before["KSampler"] = steps(2, go)
    async with running(comfy) as executor, doing(executor, job(tmp_path / "w")) as task:
        await eventually(lambda: comfy.running)
        looks = comfy.looks
        await asyncio.wait({task}, timeout=0.2)
        assert comfy.looks == looks
        go.set()
        await task


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({}, "offers nothing"),
        ({"models": {"a": {"template": "checkpoint"}}}, "needs checkpoint"),
        ({"models": {"a": SDXL | {"vae": "x"}}}, "has no use for vae"),
        ({"models": {"a": {"template": "sketch"}}}, "template"),
        ({"models": {"*": SDXL}}, "is no model's name"),
        ({"models": {"a": FLUX}, "probe_model": "b"}, "none of models"),
        ({"models": {"a": FLUX}, "artifacts_url": "http://x"}, "belong together"),
        ({"models": {"a": FLUX}, "urll": "http://x"}, "urll"),
        ({"models": {"a": FLUX}, "url": "ftp://x"}, "url"),
    ],
)
def test_settings_that_can_t_work_are_refused(table, text):
    with pytest.raises(ValidationError, match=text):
        ComfyUIExecutor.from_settings(table)


async def test_a_server_that_is_something_else_is_not_used(comfy):
    comfy.version = None
    executor = ComfyUIExecutor.from_settings(QUICK | {"url": comfy.url})
    await executor.start()
    try:
        await eventually(lambda: "no ComfyUI" in executor.status()["reason"])
        assert executor.capabilities() == []
    finally:
        await executor.aclose()


async def test_the_password_in_a_url_is_told_to_nobody(comfy):
    comfy.version = None
    url = comfy.url.replace("//", "//artist:hunter2@")
    executor = ComfyUIExecutor.from_settings(QUICK | {"url": url})
    await executor.start()
    try:
        await eventually(lambda: f"{comfy.url} is no ComfyUI" in executor.status()["reason"])
        assert "hunter2" not in str(executor.status())
    finally:
        await executor.aclose()


def test_a_publisher_may_ask_for_the_metadata():
    from shared.submission import ImageSpec  # noqa: PLC0415

    assert ImageSpec(**FIELDS).keep_metadata is None
    assert ImageSpec(**FIELDS, keep_metadata=True).keep_metadata
