"""Image jobs on a false ComfyUI: what is posted, what is followed, what is published."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from agent.executors import comfyui_graph as graphs
from agent.executors.base import Elsewhere, Permanent, Transient
from tests.support.comfyui_rig import FIELDS, FLUX, JOB, OTHER, SDXL, Told, job, other_prompt, running, texts_of
from tests.support.fake_comfyui import FakeComfyUI, steps
from tests.support.servers import eventually


@pytest.fixture(params=["0.30.2", "0.3.64"])
async def comfy(request, tmp_path):
    async with FakeComfyUI(tmp_path / "comfy", request.param) as server:
        yield server


async def test_fields_become_a_picture(comfy, tmp_path):
    comfy.before["KSampler"] = steps(4)
    told = Told()
    async with running(comfy) as executor:
        product = await executor.run(job(tmp_path / "w", **FIELDS, negative_prompt="fog", seed=7), told)
    (file,) = product.files
    with Image.open(file.path) as image:
        assert image.size == (64, 96)
    assert (file.artifact, file.media_type) == ("image-1.png", "image/png")
    assert product.model == "sdxl"
    assert product.result == {"images": 1, "seed": 7}
    recorded = {"template": "checkpoint", "seed": 7, "steps": 4, "sampler": "euler", "comfyui_version": comfy.version}
    assert recorded.items() <= product.settings.items()
    assert product.settings["timings"].keys() >= {"queued_s", "loading_model_s", "generating_image_s", "total_s"}
    assert told.stages == ["queued", "loading_model", "generating_image", "finalizing"]
    assert told.fractions == [0.25, 0.5, 0.75, 1.0]
    assert "sampler: step 3 of 4" in told.details
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["image-1.png"]


async def test_what_is_posted_names_the_attempt_and_never_a_number(comfy, tmp_path):
    async with running(comfy) as executor:
        await executor.run(job(tmp_path / "w"), Told())
    (posted,) = comfy.posts
    assert posted.keys() == {"prompt", "prompt_id", "client_id"}
    assert posted["prompt_id"] == posted["client_id"] == graphs.prompt_id_of(JOB, 1)
    assert posted["prompt"]["9"]["inputs"]["filename_prefix"] == f"tandem/{posted['prompt_id']}"


async def test_a_model_of_the_other_template_has_its_own_loaders(comfy, tmp_path):
    async with running(comfy) as executor:
        product = await executor.run(job(tmp_path / "w", model="flux", **FIELDS, cfg=2.5), Told())
    inputs = {node["class_type"]: node["inputs"] for node in comfy.posts[0]["prompt"].values()}
    assert inputs["UNETLoader"] == {"unet_name": "flux1-dev.safetensors", "weight_dtype": "default"}
    assert inputs["DualCLIPLoader"]["clip_name2"] == "clip_l.safetensors"
    assert inputs["FluxGuidance"]["guidance"] == 3.5
    assert inputs["KSampler"]["cfg"] == 2.5
    assert product.settings["template"] == "flux"


@pytest.mark.parametrize("model", ["sdxl", "flux"])
async def test_upscaling_is_a_stage_of_its_own_and_gives_exactly_the_size(comfy, tmp_path, model):
    told = Told()
    async with running(comfy) as executor:
        product = await executor.run(job(tmp_path / "w", model=model, **FIELDS, upscale=2), told)
    with Image.open(product.files[0].path) as image:
        assert image.size == (128, 192)
    assert told.stages == ["queued", "loading_model", "generating_image", "finalizing", "upscaling", "finalizing"]
    assert product.settings["upscale_model"] == (SDXL["upscale_model"] if model == "sdxl" else "lanczos")


async def test_several_images_are_several_files(comfy, tmp_path):
    async with running(comfy) as executor:
        product = await executor.run(job(tmp_path / "w", **FIELDS, n=3), Told())
    assert [file.artifact for file in product.files] == ["image-1.png", "image-2.png", "image-3.png"]
    assert len({file.path.read_bytes() for file in product.files}) == 3


async def test_the_seed_that_really_ran_is_recorded_and_is_another_in_the_next_attempt(comfy, tmp_path):
    async with running(comfy) as executor:
        seeds = [
            (await executor.run(job(tmp_path / f"{epoch}", epoch=epoch), Told())).settings["seed"] for epoch in (1, 2)
        ]
    assert [posted["prompt"]["5"]["inputs"]["seed"] for posted in comfy.posts] == seeds
    assert len(set(seeds)) == 2
    assert max(seeds) < 2**53
    assert seeds[0] == graphs.seed_of(JOB, 1)


async def test_the_prompt_in_the_file_is_not_published(comfy, tmp_path):
    async with running(comfy) as executor:
        product = await executor.run(job(tmp_path / "w"), Told())
    (saved,) = (comfy.folder / "output" / "tandem").iterdir()
    assert FIELDS["prompt"] in texts_of(saved)["prompt"]
    assert texts_of(product.files[0].path) == {}
    with Image.open(saved) as before, Image.open(product.files[0].path) as after:
        assert before.tobytes() == after.tobytes()


async def test_the_metadata_stays_if_the_job_asks_for_it(comfy, tmp_path):
    async with running(comfy) as executor:
        product = await executor.run(job(tmp_path / "w", **FIELDS, keep_metadata=True), Told())
    assert json.loads(texts_of(product.files[0].path)["prompt"]) == comfy.posts[0]["prompt"]


async def test_a_flat_picture_is_tried_once_on_each_worker(comfy, tmp_path):
    comfy.change = lambda made: replace(made, flat=True)
    async with running(comfy) as executor:
        with pytest.raises(Transient, match="flat_image"):
            await executor.run(job(tmp_path / "1"), Told())
        with pytest.raises(Elsewhere):  # not here again
            await executor.run(job(tmp_path / "2", epoch=2, attempt=2), Told())
    async with running(comfy) as another:
        with pytest.raises(Transient, match="flat_image"):
            await another.run(job(tmp_path / "3", epoch=3, attempt=2), Told())


@pytest.mark.parametrize(
    ("saved", "code"),
    [
        (lambda _: b"", "no_image"),
        (lambda _: b"<html>out of order</html>", "no_image"),
        (lambda data: data[: len(data) // 2], "no_image"),
    ],
)
async def test_a_file_that_is_no_picture_is_no_result(comfy, tmp_path, saved, code):
    comfy.saved = saved
    async with running(comfy) as executor:
        with pytest.raises(Transient, match=code):
            await executor.run(job(tmp_path / "w"), Told())


async def test_a_picture_of_another_size_is_no_result(comfy, tmp_path):
    comfy.change = lambda made: replace(made, width=32)
    async with running(comfy) as executor:
        with pytest.raises(Transient, match=r"wrong_size: .* is 32x96 instead of 64x96"):
            await executor.run(job(tmp_path / "w"), Told())


async def test_too_few_pictures_are_no_result(comfy, tmp_path):
    comfy.change = lambda made: replace(made, count=2)
    async with running(comfy) as executor:
        with pytest.raises(Transient, match="images_missing"):
            await executor.run(job(tmp_path / "w", **FIELDS, n=3), Told())


async def test_a_file_over_the_limit_is_not_taken(comfy, tmp_path):
    async with running(comfy, most_image_bytes=100) as executor:
        with pytest.raises(Permanent, match="too_large"):
            await executor.run(job(tmp_path / "w"), Told())


async def test_a_file_that_is_gone_is_made_again_under_another_name(comfy, tmp_path):
    async def remove(_):
        for path in (comfy.folder / "output").rglob("*.png"):
            path.unlink()

    comfy.history_gap = remove
    async with running(comfy) as executor:
        with pytest.raises(Transient, match="file_gone"):
            await executor.run(job(tmp_path / "1", **FIELDS, seed=7), Told())
        comfy.history_gap = None
        product = await executor.run(job(tmp_path / "2", epoch=2, **FIELDS, seed=7), Told())
    assert len(product.files) == 1  # cached but for the save node, whose prefix is new


async def test_a_job_that_can_t_run_here_goes_elsewhere(comfy, tmp_path):
    async with running(comfy) as executor:
        with pytest.raises(Elsewhere, match="no_model"):
            await executor.run(job(tmp_path / "w", model="dreams"), Told())
        with pytest.raises(Elsewhere, match="unknown_kind"):
            await executor.run(job(tmp_path / "w", kind="article"), Told())
        with pytest.raises(Permanent, match="bad_spec"):
            await executor.run(job(tmp_path / "w", prompt="x", width=63), Told())
    assert comfy.posts == []


async def test_a_job_that_names_no_model_gets_the_first_that_is_there(comfy, tmp_path):
    comfy.files["checkpoints"] = []
    async with running(comfy) as executor:
        assert (await executor.run(job(tmp_path / "w", model=None), Told())).model == "flux"


async def test_a_model_is_found_by_its_lane_too(comfy, tmp_path):
    async with running(comfy) as executor:
        assert (await executor.run(job(tmp_path / "w", model="SDXL"), Told())).model == "sdxl"


async def test_what_it_made_last_is_warm_and_needs_no_memory(comfy, tmp_path):
    async with running(comfy, models={"sdxl": SDXL | {"memory_gib": 6}, "flux": FLUX}) as executor:
        assert await executor.need_bytes(job(tmp_path)) == 6 * 1024**3
        assert await executor.need_bytes(job(tmp_path, model="flux")) is None
        await executor.run(job(tmp_path / "w"), Told())
        assert await executor.need_bytes(job(tmp_path)) == 0
        await eventually(lambda: executor.warm() == ["sdxl"])
        await executor.unload()
        assert comfy.calls == [("/free", {"unload_models": True, "free_memory": True})]
        await eventually(lambda: executor.warm() == [])


@pytest.mark.parametrize("what", ["somebody else's prompt", "a restart", "no answer"])
async def test_a_model_that_is_gone_since_needs_its_memory_again(comfy, tmp_path, what):
    async with running(comfy, models={"sdxl": SDXL | {"memory_gib": 6}}, look_s=1000, retry_s=1000) as executor:
        await executor.run(job(tmp_path / "w"), Told())
        await eventually(lambda: executor.warm() == ["sdxl"])  # the look after the job is over
        if what == "a restart":
            await comfy.restart()
        elif what == "no answer":
            await comfy.stop()
        else:
            await other_prompt(executor)
            comfy.wake.set()
            await eventually(lambda: OTHER in comfy.history)
        assert await executor.need_bytes(job(tmp_path)) == 6 * 1024**3
