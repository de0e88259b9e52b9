"""The nodes of the false ComfyUI: what they take and what they make.

A picture is described, not computed: it becomes pixels when it is saved. The Lab nodes are those with which the
recordings were made.
"""

import io
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, PngImagePlugin

SAMPLERS = ["euler", "dpmpp_2m"]
SCHEDULERS = ["normal", "karras", "simple"]
SCALERS = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Made:
    """What flows along a link."""

    width: int = 0
    height: int = 0
    count: int = 1
    seed: int | None = None  # None: one flat colour
    color: int = 0
    flat: bool = False


class NodeError(Exception):
    """A node raises: becomes execution_error with this type and text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class StagingError(NodeError):
    """A failure while a node is staged: status_str stays at success."""


class WorkerDies(BaseException):
    """The node ends the worker thread."""


INT, FLOAT, TEXT = ("INT", 0, 2**64), ("FLOAT", 0, 1e9), ("STRING",)
SIZE = ("INT", 1, 16384)
IMAGE, LATENT, MODEL, CLIP, VAE, COND, UPSCALER = (
    (name,) for name in ("IMAGE", "LATENT", "MODEL", "CLIP", "VAE", "CONDITIONING", "UPSCALE_MODEL")
)

# class: (inputs, outputs, is an output node); an input is its type, or the name of a list of the server's files
CLASSES: dict[str, tuple[dict[str, Any], tuple[str, ...], bool]] = {
    "CheckpointLoaderSimple": ({"ckpt_name": "checkpoints"}, ("MODEL", "CLIP", "VAE"), False),
    "UNETLoader": ({"unet_name": "diffusion_models", "weight_dtype": ["default"]}, ("MODEL",), False),
    "DualCLIPLoader": (
        {"clip_name1": "text_encoders", "clip_name2": "text_encoders", "type": ["flux", "sdxl"]},
        ("CLIP",),
        False,
    ),
    "VAELoader": ({"vae_name": "vae"}, ("VAE",), False),
    "UpscaleModelLoader": ({"model_name": "upscale_models"}, ("UPSCALE_MODEL",), False),
    "CLIPTextEncode": ({"clip": CLIP, "text": TEXT}, ("CONDITIONING",), False),
    "FluxGuidance": ({"conditioning": COND, "guidance": FLOAT}, ("CONDITIONING",), False),
    "EmptyLatentImage": ({"width": SIZE, "height": SIZE, "batch_size": SIZE}, ("LATENT",), False),
    "EmptySD3LatentImage": ({"width": SIZE, "height": SIZE, "batch_size": SIZE}, ("LATENT",), False),
    "KSampler": (
        {
            "model": MODEL,
            "positive": COND,
            "negative": COND,
            "latent_image": LATENT,
            "seed": INT,
            "steps": ("INT", 1, 10000),
            "cfg": ("FLOAT", 0, 100),
            "sampler_name": SAMPLERS,
            "scheduler": SCHEDULERS,
            "denoise": ("FLOAT", 0, 1),
        },
        ("LATENT",),
        False,
    ),
    "VAEDecode": ({"samples": LATENT, "vae": VAE}, ("IMAGE",), False),
    "EmptyImage": ({"width": SIZE, "height": SIZE, "batch_size": SIZE, "color": INT}, ("IMAGE",), False),
    "ImageInvert": ({"image": IMAGE}, ("IMAGE",), False),
    "ImageScale": (
        {"image": IMAGE, "upscale_method": SCALERS, "width": SIZE, "height": SIZE, "crop": ["disabled", "center"]},
        ("IMAGE",),
        False,
    ),
    "ImageUpscaleWithModel": ({"upscale_model": UPSCALER, "image": IMAGE}, ("IMAGE",), False),
    "LoadImage": ({"image": "input"}, ("IMAGE", "MASK"), False),
    "SaveImage": ({"images": IMAGE, "filename_prefix": TEXT}, (), True),
    "PreviewImage": ({"images": IMAGE}, (), True),
    "LabProgress": (
        {"image": IMAGE, "steps": INT, "step_seconds": FLOAT, "preview": ("BOOLEAN",), "seed": INT},
        ("IMAGE",),
        False,
    ),
    "LabSleep": (
        {"image": IMAGE, "seconds": FLOAT, "checks_interrupt": ("BOOLEAN",), "seed": INT},
        ("IMAGE",),
        False,
    ),
    "LabRaise": ({"image": IMAGE, "kind": TEXT, "seed": INT}, ("IMAGE",), False),
    "LabBlock": ({"image": IMAGE, "message": TEXT, "seed": INT}, ("IMAGE",), False),
    "LabCycle": ({"image": IMAGE, "seed": INT}, ("IMAGE",), False),
}

MPS_OOM = (
    "MPS backend out of memory (MPS allocated: 17.9 GB, other allocations: 1.1 GB, max allowed: 18.1 GB). "
    "Tried to allocate 1.2 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for "
    "memory allocations (may cause system failure).\n"
)
RAISES = {
    "mps_oom": NodeError("RuntimeError", MPS_OOM),
    "torch_oom": NodeError("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB.\n"),
    "shape": NodeError("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (77x2048 and 768x320)\n"),
}


def choices(files: dict[str, list[str]], kind: Any) -> list[str] | None:
    """Return what an input may be; None if it is no list."""
    if isinstance(kind, str):
        return files.get(kind, [])
    return kind if isinstance(kind, list) else None


def compute(class_type: str, given: dict[str, Any], folder: Path) -> Made:
    """Return what a node makes of its inputs, links already replaced."""
    if class_type.startswith("Empty"):
        return Made(given["width"], given["height"], given["batch_size"], color=given.get("color", 0))
    if class_type == "KSampler":
        return replace(given["latent_image"], seed=given["seed"])
    if class_type == "ImageScale":
        return replace(given["image"], width=given["width"], height=given["height"])
    if class_type == "ImageUpscaleWithModel":
        return replace(given["image"], width=given["image"].width * 4, height=given["image"].height * 4)
    if class_type == "LoadImage":
        try:
            with Image.open(folder / "input" / given["image"]) as image:
                return Made(image.width, image.height, seed=1)
        except OSError:
            text = f"cannot identify image file '<input>/{given['image']}'\n"
            raise NodeError("PIL.UnidentifiedImageError", text) from None
    picture = next((value for value in given.values() if isinstance(value, Made)), Made())
    if class_type == "LabRaise":
        raise WorkerDies if given["kind"] == "system_exit" else RAISES[given["kind"]]
    if class_type == "LabCycle":
        raise StagingError("graph.DependencyCycleError", "Dependency cycle detected")
    if class_type == "LabProgress":
        return replace(picture, seed=given["seed"])
    return picture


def png(made: Made, number: int, graph: dict[str, Any] | None) -> bytes:
    """Return a real PNG, with the whole graph in its text chunk as SaveImage writes it."""
    if made.seed is None or made.flat:
        image = Image.new("RGB", (made.width, made.height), made.color)
    else:
        noise = random.Random(made.seed + number).randbytes(16 * 16 * 3)
        small = Image.frombytes("RGB", (16, 16), noise)
        image = ImageOps.posterize(small, 8).resize((made.width, made.height), Image.Resampling.BILINEAR)
    info = PngImagePlugin.PngInfo()
    if graph is not None:
        info.add_text("prompt", json.dumps(graph))
    stream = io.BytesIO()
    image.save(stream, "PNG", pnginfo=info, compress_level=1)
    return stream.getvalue()
