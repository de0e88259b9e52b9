"""Which of the configured models can a server run, and what do the others lack? Asked of its loaders, one by one.

The list of all nodes is near a megabyte, so it is never asked for. Called by `comfyui`.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from agent.executors import comfyui_templates as templates
from agent.executors.comfyui_client import Client
from agent.executors.comfyui_graph import upscaler_of
from agent.executors.comfyui_settings import ImageModel

_FOLDERS = {
    "checkpoint": "checkpoints",
    "unet": "diffusion_models",
    "clip": "text_encoders",
    "clip2": "text_encoders",
    "vae": "vae",
    "upscale_model": "upscale_models",
}
_MOST_PROPOSED = 100
_NAME_MOST = 200


async def missing_files(client: Client, models: Mapping[str, ImageModel]) -> dict[str, list[str]]:
    """Return what each model lacks, as "placeholder: file"; models that lack nothing are not in it."""
    known: dict[tuple[str, str], list[str] | None] = {}
    missing: dict[str, list[str]] = {}
    for name, model in models.items():
        loaders = templates.files_in(model.template) | templates.files_in(upscaler_of(model))
        for placeholder, loader in loaders.items():
            if loader not in known:
                known[loader] = await client.choices(*loader)
            file = getattr(model, placeholder)
            if file not in (known[loader] or ()):
                missing.setdefault(name, []).append(f"{placeholder}: {file}")
    return missing


def remedies(missing: Mapping[str, list[str]]) -> dict[str, str]:
    """Return what to do for each model that lacks files; `missing` as above."""
    found = {}
    for model, lacks in missing.items():
        pairs = [lack.partition(": ") for lack in lacks]
        folders = ", ".join(f"{file} into models/{_FOLDERS[placeholder]}" for placeholder, _, file in pairs)
        names = ", ".join(placeholder for placeholder, _, _ in pairs)
        found[f"model {model}"] = f"put {folders} of ComfyUI, or correct {names} in executors.comfyui.models.{model}"
    return found


async def proposed_models(client: Client) -> dict[str, dict[str, Any]]:
    """Return the settings of a model for each checkpoint of the server, named as its file is.

    A checkpoint has all parts in one file; what is in parts (Flux as it is published) only a person can put together.
    """
    files = await client.choices(*templates.files_in("checkpoint")["checkpoint"]) or []
    named: dict[str, dict[str, Any]] = {}
    for file in files:
        name = PurePosixPath(file.replace("\\", "/")).stem
        if 0 < len(name) <= _NAME_MOST and name != "*" and len(named) < _MOST_PROPOSED:
            named.setdefault(name, {"template": "checkpoint", "checkpoint": file})
    return named
