"""Which of the configured models can a server run? Asked of its loaders, one small question each.

The list of all nodes is near a megabyte, so it is never asked for. Called by `comfyui`.
"""

from collections.abc import Mapping

from agent.executors import comfyui_templates as templates
from agent.executors.comfyui_client import Client
from agent.executors.comfyui_graph import upscaler_of
from agent.executors.comfyui_settings import ImageModel


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
