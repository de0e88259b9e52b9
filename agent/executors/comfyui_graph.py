"""What is posted for a job: a template filled with the job's fields, or the caller's workflow with its inputs.

Pure: nothing is sent here. Called by `comfyui`.
"""

import hashlib
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.executors import comfyui_templates as templates
from agent.executors.base import Permanent
from agent.executors.comfyui_settings import ImageModel
from agent.executors.comfyui_templates import Nodes
from shared.submission import ImageSpec

_NAMESPACE = uuid.UUID("0f4e3c3e-6f55-5d0c-9a5c-5a4b6a1c7f10")
_SEED_BITS = 53
"""A seed that we choose survives JavaScript, so that a person can type it into ComfyUI's editor."""

_SAVER = "filename_prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What is posted, and what must come of it."""

    nodes: Nodes
    outputs: frozenset[str]  # the nodes whose images are the product; empty: whatever the server saves
    size: tuple[int, int] | None = None  # what each image must have; None: whatever comes
    count: int | None = None  # how many images; None: at least one
    settings: dict[str, Any] = field(default_factory=dict)  # for the record: what it really runs with


def prompt_id_of(job_id: str, epoch: int, turn: int = 1) -> str:
    """Return the name of an attempt's prompt: the same after a restart of the agent, another for each turn."""
    return str(uuid.uuid5(_NAMESPACE, f"{job_id}\n{epoch}" if turn == 1 else f"{job_id}\n{epoch}\n{turn}"))


def seed_of(job_id: str, epoch: int) -> int:
    """Return the seed of an attempt whose job names none: the same after a restart, another for each attempt."""
    digest = hashlib.sha256(f"seed\n{job_id}\n{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def from_fields(spec: ImageSpec, model: ImageModel, *, seed: int, prefix: str) -> Graph:
    """Fill the model's template. `prefix` is where the server saves; it must be new, or a cached file is returned."""
    values = {name: getattr(model, name) for name in ImageModel.model_fields}
    values |= {
        "prompt": spec.prompt,
        "negative_prompt": spec.negative_prompt or "",
        "width": spec.width,
        "height": spec.height,
        "n": spec.n,
        "seed": seed,
        "steps": spec.steps or model.steps,
        "cfg": model.cfg if spec.cfg is None else spec.cfg,
        _SAVER: prefix,
    }
    nodes = templates.fill(model.template, values)
    size = (spec.width * spec.upscale, spec.height * spec.upscale)
    if spec.upscale > 1:
        _add_upscaling(nodes, upscaler_of(model), values, size)
    recorded = ("template", "steps", "cfg", "sampler", "scheduler", "width", "height", "n", "seed")
    settings = {name: values[name] for name in recorded} | {"upscale": spec.upscale}
    if spec.upscale > 1:
        settings["upscale_model"] = model.upscale_model or "lanczos"
    if model.template == "flux":
        settings["guidance"] = model.guidance
    saver = templates.id_of(nodes, "save")
    return Graph(nodes=nodes, outputs=frozenset({saver}), size=size, count=spec.n, settings=settings)


def upscaler_of(model: ImageModel) -> str:
    """Return the template that makes a model's images larger."""
    return "upscale-model" if model.upscale_model else "upscale-plain"


def _add_upscaling(nodes: Nodes, template: str, values: Mapping[str, Any], size: tuple[int, int]) -> None:
    """Put the stage between decoding and saving: a model of any factor, then exactly the size that was asked for."""
    saver = nodes[templates.id_of(nodes, "save")]
    wanted = {**values, "images": saver["inputs"]["images"], "upscaled_width": size[0], "upscaled_height": size[1]}
    stage = templates.fill(template, wanted)
    saver["inputs"]["images"] = [templates.id_of(stage, "upscaled"), 0]
    nodes.update(stage)


def probe(model: ImageModel | None) -> Graph:
    """Return what makes a tiny picture, another each time so that it is not cached; without a model: of one colour."""
    if model is None:
        nodes = templates.fill("probe", {"color": random.randrange(1, 2**24)})  # noqa: S311 - any colour will do
        return Graph(nodes=nodes, outputs=frozenset({templates.id_of(nodes, "preview")}), size=(64, 64), count=1)
    spec = ImageSpec(prompt="a lighthouse", width=64, height=64, steps=1)
    graph = from_fields(spec, model, seed=random.getrandbits(32), prefix="")
    for key in graph.outputs:  # into the server's folder for temporary files
        graph.nodes[key]["class_type"] = "PreviewImage"
        del graph.nodes[key]["inputs"][_SAVER]
    return graph


def from_workflow(spec: ImageSpec, inputs: Mapping[str, Any], *, prefix: str) -> Graph:
    """Put `inputs` ("title.input" or "id.input") into the caller's workflow; Permanent names every fault."""
    workflow = spec.workflow or {}
    faults = _shape_faults(workflow)
    if not faults:
        workflow = {key: {**node, "inputs": dict(node["inputs"])} for key, node in workflow.items()}
        faults = [fault for name, value in inputs.items() if (fault := _put(workflow, name, value))]
    if faults:
        raise Permanent("bad_workflow", "; ".join(faults)[:2000], faults)
    savers = {key for key, node in workflow.items() if isinstance(node["inputs"].get(_SAVER), str)}
    for number, key in enumerate(sorted(savers)):
        workflow[key]["inputs"][_SAVER] = f"{prefix}-{number}"
    asked = {"width", "height"} <= spec.model_fields_set
    size = (spec.width * spec.upscale, spec.height * spec.upscale) if asked else None
    settings = {"template": "workflow", "inputs": sorted(inputs), **_recorded(workflow)}
    return Graph(nodes=workflow, outputs=frozenset(savers), size=size, settings=settings)


def _shape_faults(workflow: Mapping[str, Any]) -> list[str]:
    if isinstance(workflow.get("nodes"), list):
        return ["workflow: this is the editor's format; export it in the API format"]
    faults = []
    for key, node in workflow.items():
        if not isinstance(node, dict):
            faults.append(f"workflow.{key}: a node is an object")
        elif not isinstance(node.get("class_type"), str):
            faults.append(f"workflow.{key}: class_type is missing")
        elif not isinstance(node.get("inputs"), dict):
            faults.append(f"workflow.{key}: inputs is missing")
    return faults if workflow else ["workflow: it has no nodes"]


def _put(workflow: Nodes, name: str, value: Any) -> str | None:
    """Put one input into its node; return what is wrong with it."""
    node_name, dot, field_name = name.rpartition(".")
    if not dot:
        return f"inputs.{name}: give the node's title or id, a dot, and the input"
    found = [key for key, node in workflow.items() if _title(node) == node_name]
    if not found and node_name in workflow:
        found = [node_name]
    if len(found) != 1:
        return f"inputs.{name}: {'no node' if not found else f'{len(found)} nodes'} called {node_name!r}"
    fields = workflow[found[0]]["inputs"]
    if field_name not in fields:
        return f"inputs.{name}: the node has no input {field_name!r}; it has {', '.join(sorted(fields)) or 'none'}"
    if isinstance(fields[field_name], list):
        return f"inputs.{name}: comes from another node"
    fields[field_name] = value
    return None


def _title(node: Mapping[str, Any]) -> str | None:
    meta = node.get("_meta")
    title = meta.get("title") if isinstance(meta, dict) else None
    return title if isinstance(title, str) else None


def _recorded(workflow: Nodes) -> dict[str, Any]:
    """Return what a workflow's sampler is run with, as far as its nodes say so."""
    names = {"seed": "seed", "noise_seed": "seed", "steps": "steps", "cfg": "cfg", "sampler_name": "sampler"}
    found: dict[str, Any] = {}
    for node in workflow.values():
        for name, word in names.items():
            value = node["inputs"].get(name)
            if isinstance(value, int | float | str):
                found.setdefault(word, value)
    return found
