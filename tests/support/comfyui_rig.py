"""What the tests of the executor `comfyui` share: quick settings, a job, and an ear for its progress."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from PIL import Image

from agent.executors import comfyui_graph as graphs
from agent.executors.base import RunnableJob, Surroundings
from agent.executors.comfyui import ComfyUIExecutor
from tests.support.fake_comfyui import FakeComfyUI
from tests.support.servers import eventually

JOB = "018f3f5e-7d1a-7cc0-a3c2-0123456789ab"
ID = graphs.prompt_id_of(JOB, 1)
OTHER = "0b8f7e1e-6a52-4d0e-9d5b-2f3f5f0f9a11"
SDXL = {
    "template": "checkpoint",
    "checkpoint": "sd_xl_base_1.0.safetensors",
    "steps": 4,
    "upscale_model": "RealESRGAN_x4plus.pth",
}
FLUX = {
    "template": "flux",
    "unet": "flux1-dev.safetensors",
    "clip": "t5xxl_fp8.safetensors",
    "clip2": "clip_l.safetensors",
    "vae": "ae.safetensors",
    "steps": 4,
    "cfg": 1.0,
    "scheduler": "simple",
}
QUICK: dict[str, Any] = {
    "models": {"sdxl": SDXL, "flux": FLUX},
    "workflows": True,
    "probe_s": 0,
    "look_s": 0.05,
    "retry_s": 0.05,
    "poll_s": 0.05,
    "stop_s": 5,
    "answer_s": 5,
    "refused_s": [0.02, 0.02, 0.02],
}
FIELDS: dict[str, Any] = {"prompt": "a harbour at dawn", "width": 64, "height": 96}
WORKFLOW: dict[str, Any] = {
    "7": {"class_type": "LoadImage", "inputs": {"image": "none.png"}, "_meta": {"title": "reference"}},
    "8": {"class_type": "ImageScale", "inputs": {}, "_meta": {"title": "scale"}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "mine"}},
}
WORKFLOW["8"]["inputs"] = {
    "image": ["7", 0],
    "upscale_method": "lanczos",
    "width": 64,
    "height": 64,
    "crop": "disabled",
}


class Told:
    """A Progress that remembers."""

    def __init__(self):
        self.stages, self.fractions, self.details = [], [], []

    def stage(self, name):
        if self.stages[-1:] != [name]:
            self.stages.append(name)

    def progress(self, fraction):
        self.fractions.append(fraction)

    def detail(self, text):
        self.details.append(text)


class Time:
    """Seconds that the test moves."""

    def __init__(self):
        self.s = 1000.0

    def __call__(self):
        return self.s


def job(folder, *, model="sdxl", epoch=1, attempt=1, kind="image", **spec):
    def open_workspace():
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    return RunnableJob(
        id=JOB,
        epoch=epoch,
        attempt=attempt,
        kind=kind,
        model=model,
        spec=spec or FIELDS,
        labels={},
        open_workspace=open_workspace,
    )


@asynccontextmanager
async def running(comfy: FakeComfyUI, now=None, **settings: Any) -> AsyncIterator[ComfyUIExecutor]:
    """Start an executor and wait until it has seen its server."""
    executor = ComfyUIExecutor.from_settings(QUICK | {"url": comfy.url} | settings)
    if now is not None:
        executor.attach(Surroundings(now=now))
    await executor.start()
    try:
        await eventually(lambda: executor.up, within_s=10)
        yield executor
    finally:
        await executor.aclose()


@asynccontextmanager
async def doing(executor: ComfyUIExecutor, work: RunnableJob, told: Told | None = None) -> AsyncIterator[asyncio.Task]:
    """Run a job beside the block, which must await it or cancel it."""
    task = asyncio.create_task(executor.run(work, told or Told()), name="job")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


def texts_of(path) -> dict[str, str]:
    """Return what a picture's file says besides its pixels."""
    with Image.open(path) as image:
        image.load()
        return dict(image.text)


async def other_prompt(executor, prompt_id=OTHER, **inputs):
    """Post somebody else's prompt."""
    nodes = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 1}},
        "2": {"class_type": "LabSleep", "inputs": {"image": ["1", 0], "seconds": 9, "checks_interrupt": True}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "other"}},
    }
    nodes["2"]["inputs"] |= {"seed": 1, **inputs}
    assert (await executor.client.post(nodes, prompt_id)).status == 200


def sampling(comfy):
    """Whether it is in the sampler of a job's prompt."""
    return comfy.execution is not None and comfy.execution.node == "5" and comfy.running
