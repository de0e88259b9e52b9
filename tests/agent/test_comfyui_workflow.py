"""Callers' own workflows: inputs put into named nodes, images fetched and uploaded, refusals read."""

import copy
import hashlib
import io
import json

import pytest
from aiohttp import web
from PIL import Image

from agent.executors.base import BackendDown, Elsewhere, Permanent, Transient
from tests.support.comfyui_rig import JOB, WORKFLOW, Told, job, running
from tests.support.fake_comfyui import FakeComfyUI
from tests.support.servers import eventually


@pytest.fixture
async def comfy(tmp_path):
    async with FakeComfyUI(tmp_path / "comfy") as server:
        yield server


def picture(size=(32, 32)):
    stream = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(stream, "PNG")
    return stream.getvalue()


class Strangers:
    """A web server with an image, which notes what it was asked."""

    def __init__(self):
        self.asked = []
        self.url = ""
        self.meanwhile = None  # happens before an image is answered

    async def image(self, request):
        self.asked.append(request)
        if self.meanwhile is not None:
            await self.meanwhile()
        if request.match_info.get("name") == "stored-elsewhere.png":
            elsewhere = self.url.replace("127.0.0.1", "localhost")
            raise web.HTTPFound(elsewhere + "/image.png")
        return web.Response(body=picture(), content_type="image/png")

    async def away(self, request):
        raise web.HTTPFound(request.query["to"])

    async def status(self, request):
        return web.Response(status=int(request.match_info["code"]))

    async def text(self, _):
        return web.Response(text="no picture")


@pytest.fixture
async def strangers():
    made = Strangers()
    app = web.Application()
    app.add_routes(
        [
            web.get("/image.png", made.image),
            web.get("/v1/jobs/{job}/artifacts/{name}", made.image),
            web.get("/away", made.away),
            web.get("/status/{code}", made.status),
            web.get("/text", made.text),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def drawn(**inputs):
    """Return the spec of a workflow that needs no image of the caller's."""
    workflow = copy.deepcopy(WORKFLOW)
    workflow["7"] = {
        "class_type": "LabProgress",
        "inputs": {"image": ["6", 0], "steps": 1, "step_seconds": 0.0, "preview": False, "seed": 5},
        "_meta": {"title": "noise"},
    }
    workflow["6"] = {
        "class_type": "EmptyImage",
        "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0},
    }
    return {"workflow": workflow, "inputs": inputs or None}


async def test_inputs_are_put_into_nodes_by_title_and_by_id(comfy, tmp_path):
    async with running(comfy) as executor:
        product = await executor.run(
            job(tmp_path / "w", model=None, **drawn(**{"scale.width": 48, "8.height": 24})), Told()
        )
    with Image.open(product.files[0].path) as image:
        assert image.size == (48, 24)
    assert product.model == "workflow"
    assert product.settings["seed"] == 5
    assert comfy.posts[0]["prompt"]["9"]["inputs"]["filename_prefix"].startswith("tandem/")
    assert comfy.posts[0]["prompt"]["8"]["inputs"]["image"] == ["7", 0]


async def test_every_wrong_input_is_named(comfy, tmp_path):
    spec = drawn(**{"scael.width": 1, "scale.widht": 1, "scale": 1, "scale.image": "x", "twice.seed": 1})
    spec["workflow"] |= {
        key: {"class_type": "EmptyImage", "inputs": {"seed": 1}, "_meta": {"title": "twice"}} for key in ("20", "21")
    }
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match="bad_workflow") as caught:
            await executor.run(job(tmp_path / "w", model=None, **spec), Told())
    assert caught.value.detail == [
        "inputs.scael.width: no node called 'scael'",
        "inputs.scale.widht: the node has no input 'widht'; it has crop, height, image, upscale_method, width",
        "inputs.scale: give the node's title or id, a dot, and the input",
        "inputs.scale.image: comes from another node",
        "inputs.twice.seed: 2 nodes called 'twice'",
    ]
    assert comfy.posts == []


@pytest.mark.parametrize(
    ("workflow", "fault"),
    [
        ({"nodes": [], "links": []}, "export it in the API format"),
        ({"1": 7, "2": {"inputs": {}}, "3": {"class_type": "X"}}, "1: a node .*2: class_type .*3: inputs"),
        ({}, "it has no nodes"),
    ],
)
async def test_what_is_no_workflow_is_said_before_anything_is_posted(comfy, tmp_path, workflow, fault):
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match=fault):
            await executor.run(job(tmp_path / "w", model=None, workflow=workflow), Told())
    assert comfy.posts == []


async def test_workflows_are_run_only_where_that_is_set(comfy, tmp_path):
    async with running(comfy, workflows=False) as executor:
        assert all("*" not in capability.models for capability in executor.capabilities())
        with pytest.raises(Elsewhere, match="no_workflows"):
            await executor.run(job(tmp_path / "w", **drawn()), Told())


async def test_a_size_that_was_asked_for_is_checked(comfy, tmp_path):
    async with running(comfy) as executor:
        with pytest.raises(Transient, match="wrong_size"):
            await executor.run(job(tmp_path / "w", model=None, **drawn(), width=64, height=128), Told())


# ---- images


async def test_an_image_is_uploaded_under_its_sha256(comfy, strangers, tmp_path):
    inputs = {"reference.image": {"url": f"{strangers.url}/image.png"}}
    async with running(comfy, api_key="secret-of-comfyui") as executor:
        product = await executor.run(job(tmp_path / "w", model=None, workflow=WORKFLOW, inputs=inputs), Told())
    name = f"{hashlib.sha256(picture()).hexdigest()}.png"
    assert ("/upload/image", name) in comfy.calls
    assert comfy.posts[0]["prompt"]["7"]["inputs"]["image"] == name
    assert "Authorization" not in strangers.asked[0].headers
    assert len(product.files) == 1


async def test_an_artifact_of_another_job_is_fetched_with_the_token_that_is_set_for_it(comfy, strangers, tmp_path):
    inputs = {"reference.image": {"artifact": f"{JOB}/image 1.png"}}
    async with running(comfy, artifacts_url=f"{strangers.url}/", artifacts_token="viewer") as executor:
        await executor.run(job(tmp_path / "w", model=None, workflow=WORKFLOW, inputs=inputs), Told())
    (asked,) = strangers.asked
    assert asked.raw_path == f"/v1/jobs/{JOB}/artifacts/image%201.png"
    assert asked.headers["Authorization"] == "Bearer viewer"


async def test_the_token_does_not_follow_a_redirect_to_another_host(comfy, strangers, tmp_path):
    inputs = {"reference.image": {"artifact": f"{JOB}/stored-elsewhere.png"}}
    async with running(comfy, artifacts_url=strangers.url, artifacts_token="viewer") as executor:
        await executor.run(job(tmp_path / "w", model=None, workflow=WORKFLOW, inputs=inputs), Told())
    assert [asked.headers.get("Authorization") for asked in strangers.asked] == ["Bearer viewer", None]


async def test_artifacts_need_a_setting(comfy, tmp_path):
    inputs = {"reference.image": {"artifact": f"{JOB}/image-1.png"}}
    async with running(comfy) as executor:
        with pytest.raises(Elsewhere, match="no_artifacts"):
            await executor.run(job(tmp_path / "w", model=None, workflow=WORKFLOW, inputs=inputs), Told())


@pytest.mark.parametrize(
    ("value", "raised", "text"),
    [
        ({"url": "file:///etc/passwd"}, Permanent, "no http or https URL"),
        ({"url": "ftp://host/x.png"}, Permanent, "no http or https URL"),
        ({"url": 7}, Permanent, "no URL"),
        ({"url": "{base}/away?to=file:///etc/passwd"}, Permanent, "NonHttpUrl"),
        ({"url": "{base}/away?to=/away?to=/image.png"}, None, ""),
        ({"url": "{base}/status/404"}, Permanent, "status 404"),
        ({"url": "{base}/status/503"}, Transient, "status 503"),
        ({"url": "{base}/status/429"}, Transient, "status 429"),
        ({"url": "{base}/text"}, Permanent, "no picture"),
        ({"url": "http://127.0.0.1:1/x.png"}, Transient, "ClientConnectorError"),
        ({"artifact": "../../x"}, Permanent, "an artifact is"),
        ({"artifact": f"{JOB}/../../x"}, Permanent, "an artifact is"),
    ],
)
async def test_an_image_that_can_t_be_had_is_said_to_be_so(comfy, strangers, tmp_path, value, raised, text):
    value = {
        name: part.replace("{base}", strangers.url) if isinstance(part, str) else part for name, part in value.items()
    }
    spec = {"workflow": WORKFLOW, "inputs": {"reference.image": value}}
    async with running(comfy) as executor:
        if raised is None:
            await executor.run(job(tmp_path / "w", model=None, **spec), Told())
            return
        with pytest.raises(raised, match=text):
            await executor.run(job(tmp_path / "w", model=None, **spec), Told())
    assert comfy.posts == []


async def test_an_image_over_the_limit_is_not_fetched_to_its_end(comfy, strangers, tmp_path):
    inputs = {"reference.image": {"url": f"{strangers.url}/image.png"}}
    async with running(comfy, most_input_bytes=100) as executor:
        with pytest.raises(Permanent, match="larger than 100 bytes"):
            await executor.run(job(tmp_path / "w", model=None, workflow=WORKFLOW, inputs=inputs), Told())


async def test_an_uploaded_image_that_the_server_lost_is_uploaded_once_more(comfy, strangers, tmp_path):
    inputs = {"reference.image": {"url": f"{strangers.url}/image.png"}}
    async with running(comfy) as executor:
        comfy.forget_uploads = 1
        await executor.run(job(tmp_path / "1", model=None, workflow=WORKFLOW, inputs=inputs), Told())
        assert len(strangers.asked) == 2
        comfy.forget_uploads = 2
        with pytest.raises(Permanent, match="input_missing"):
            await executor.run(job(tmp_path / "2", model=None, epoch=2, workflow=WORKFLOW, inputs=inputs), Told())


async def test_a_server_that_is_gone_whenever_an_image_is_to_be_uploaded_is_charged_the_second_time(
    comfy, strangers, tmp_path
):
    inputs = {"reference.image": {"url": f"{strangers.url}/image.png"}}
    strangers.meanwhile = comfy.stop
    async with running(comfy) as executor:
        for epoch, raised in ((1, BackendDown), (2, Transient)):
            with pytest.raises(raised):
                await executor.run(
                    job(tmp_path / "w", model=None, epoch=epoch, workflow=WORKFLOW, inputs=inputs), Told()
                )
            assert not executor.up
            await comfy.start()
            await eventually(lambda: executor.up)


# ---- refused


@pytest.mark.parametrize("version", ["0.30.2", "0.3.64"])
async def test_a_node_that_is_not_installed_here_may_be_elsewhere(tmp_path, version):
    async with FakeComfyUI(tmp_path / "comfy", version) as comfy, running(comfy) as executor:
        comfy.absent.add("ImageScale")
        with pytest.raises(Elsewhere, match="node_missing"):
            await executor.run(job(tmp_path / "w", model=None, **drawn()), Told())


async def test_a_model_that_is_not_here_may_be_elsewhere(comfy, tmp_path):
    async with running(comfy) as executor:
        comfy.files["checkpoints"] = ["another.safetensors"]
        with pytest.raises(Elsewhere, match="file_missing"):
            await executor.run(job(tmp_path / "w"), Told())


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"scale.width": 0}, "value_smaller_than_min: width"),
        ({"scale.width": 20000}, "value_bigger_than_max: width"),
        ({"scale.width": "wide"}, "invalid_input_type: width"),
        ({"scale.width": float("nan")}, "invalid_input_type: width"),  # and a bare NaN in the answer
        ({"scale.upscale_method": "magic"}, "value_not_in_list: upscale_method"),
    ],
)
async def test_a_value_that_no_server_takes_is_the_job_s_fault(comfy, tmp_path, inputs, text):
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match=text) as caught:
            await executor.run(job(tmp_path / "w", model=None, **drawn(**inputs)), Told())
    assert caught.value.code == "bad_workflow"
    assert caught.value.detail["status"] == 400
    assert json.loads(json.dumps(caught.value.detail)) == caught.value.detail


async def test_of_several_faults_the_one_that_nobody_can_heal_decides(comfy, tmp_path):
    spec = drawn(**{"scale.width": 0})
    spec["workflow"]["30"] = {"class_type": "VAELoader", "inputs": {"vae_name": "missing.safetensors"}}
    spec["workflow"]["9"]["inputs"] = {"vae": ["30", 0], **spec["workflow"]["9"]["inputs"]}  # this one is found first
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match="value_smaller_than_min"):
            await executor.run(job(tmp_path / "w", model=None, **spec), Told())


async def test_a_200_that_drops_an_output_is_a_refusal(comfy, tmp_path):
    spec = drawn()
    spec["workflow"]["31"] = {"class_type": "ImageScale", "inputs": {**WORKFLOW["8"]["inputs"], "width": 0}}
    spec["workflow"]["32"] = {"class_type": "SaveImage", "inputs": {"images": ["31", 0], "filename_prefix": "second"}}
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match="value_smaller_than_min"):
            await executor.run(job(tmp_path / "w", model=None, **spec), Told())
    assert not comfy.running  # what was accepted of it was stopped, or had ended
    assert not comfy.pending


async def test_a_200_that_drops_what_nobody_wanted_is_none(comfy, tmp_path):
    spec = drawn()
    spec["workflow"]["31"] = {"class_type": "ImageScale", "inputs": {**WORKFLOW["8"]["inputs"], "width": 0}}
    spec["workflow"]["32"] = {"class_type": "PreviewImage", "inputs": {"images": ["31", 0]}}
    async with running(comfy) as executor:
        assert len((await executor.run(job(tmp_path / "w", model=None, **spec), Told())).files) == 1


async def test_a_workflow_without_an_image_at_its_end_is_the_job_s_fault(comfy, tmp_path):
    spec = drawn()
    spec["workflow"]["9"] = {"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}}
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match="output_missing"):
            await executor.run(job(tmp_path / "1", model=None, **spec), Told())
        del spec["workflow"]["9"]
        with pytest.raises(Permanent, match="prompt_no_outputs"):
            await executor.run(job(tmp_path / "2", model=None, epoch=2, **spec), Told())


async def test_a_success_whose_output_was_blocked_is_none(comfy, tmp_path):
    spec = drawn()
    spec["workflow"]["8"] = {"class_type": "LabBlock", "inputs": {"image": ["7", 0], "message": "no", "seed": 1}}
    async with running(comfy) as executor:
        with pytest.raises(Permanent, match="output_missing"):
            await executor.run(job(tmp_path / "w", model=None, **spec), Told())
