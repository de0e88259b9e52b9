"""The graphs that ship as data (templates/*.json): ComfyUI's API format, with `$name` where a value belongs.

A placeholder is a whole value and keeps its type. Files are parsed once.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

Nodes = dict[str, dict[str, Any]]
"""A graph in API format: node id to {"class_type", "inputs"}, and "_meta" with its title."""

FILES = frozenset({"checkpoint", "unet", "clip", "clip2", "vae", "upscale_model"})
"""The placeholders that stand for files of the server."""


@cache
def _text(template: str) -> str:
    return resources.files("agent.executors").joinpath("templates", f"{template}.json").read_text(encoding="utf-8")


def load(template: str) -> Nodes:
    """Return a template as it is in its file."""
    nodes: Nodes = json.loads(_text(template))
    return nodes


def names_in(template: str) -> set[str]:
    """Return the placeholders of a template."""
    return {
        value.removeprefix("$")
        for node in load(template).values()
        for value in node["inputs"].values()
        if _is_name(value)
    }


def fill(template: str, values: Mapping[str, Any]) -> Nodes:
    """Return the template with its placeholders replaced; KeyError for one that has no value."""
    nodes = load(template)
    for node in nodes.values():
        for name, value in node["inputs"].items():
            if _is_name(value):
                node["inputs"][name] = values[value.removeprefix("$")]
    return nodes


def files_in(template: str) -> dict[str, tuple[str, str]]:
    """Return which loader takes which file: placeholder to (class_type, input)."""
    return {
        value.removeprefix("$"): (node["class_type"], name)
        for node in load(template).values()
        for name, value in node["inputs"].items()
        if _is_name(value) and value.removeprefix("$") in FILES
    }


def id_of(nodes: Nodes, title: str) -> str:
    """Return the id of the node with a title; KeyError if a template lacks it."""
    for node_id, node in nodes.items():
        if node.get("_meta", {}).get("title") == title:
            return node_id
    raise KeyError(title)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("$")
