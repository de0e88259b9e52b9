"""How far a prompt is: events of the websocket become stages, steps and signs of life. Called by `comfyui_prompt`."""

import asyncio
from collections.abc import Callable
from typing import Any

from agent.executors.base import Progress
from agent.executors.clocks import Clocks
from agent.executors.comfyui_templates import Nodes

_ENDS = {"execution_success", "execution_error", "execution_interrupted"}


def stage_of(class_type: str) -> str | None:
    """Return the stage that a node belongs to; None: it changes nothing."""
    if class_type == "UpscaleModelLoader":
        return None  # the server may load it before anything else
    if "Loader" in class_type:
        return "loading_model"
    if "Upscale" in class_type or class_type.startswith("ImageScale"):
        return "upscaling"
    if "Sampler" in class_type and "Select" not in class_type:
        return "generating_image"
    if class_type.startswith(("VAEDecode", "SaveImage", "PreviewImage")):
        return "finalizing"
    return None


class Follower:
    """Takes the events of one prompt. What repeats what was known is no sign of life."""

    def __init__(
        self, prompt_id: str, nodes: Nodes, progress: Progress, clocks: Clocks, now: Callable[[], float]
    ) -> None:
        """`now` is the clock of the timings."""
        self._id, self._nodes, self._progress, self._clocks, self._now = prompt_id, nodes, progress, clocks, now
        self._node, self._value = "", -1.0
        self._stage, self._since = "queued", now()
        self._place = -1
        self.timings: dict[str, float] = {}
        """Seconds by stage, as far as the socket told."""
        self.moved = asyncio.Event()
        """Set when the prompt has probably ended: ask the history now."""
        progress.stage(self._stage)

    def take(self, kind: str, data: dict[str, Any]) -> None:
        """Take one event; those of other prompts are not for us."""
        if kind == "binary":
            self._clocks.output()  # a preview: alive
            return
        if data.get("prompt_id") != self._id:
            if kind == "executing" and "prompt_id" not in data:  # said once to a client that comes back
                self._begin_node(data.get("node"))
            return
        if kind in _ENDS:
            self._clocks.output()
            self.moved.set()
        elif kind == "execution_start":
            self.started()
        elif kind == "executing":
            if data.get("node") is None:
                self.moved.set()
            self._begin_node(data.get("node"))
        elif kind == "progress":
            self._step(data)
        elif kind == "executed":
            self._clocks.output()

    def waiting(self, place: int) -> None:
        """Note how many are before it; a queue that moves is no hang."""
        if place != self._place:
            self._place = place
            self._clocks.wait_again()
            self._progress.detail(f"{place} before it")

    def started(self) -> None:
        """Note that the server has begun with it."""
        if self._stage == "queued":
            self._clocks.output()
            self._enter("loading_model")

    @property
    def begun(self) -> bool:
        """Whether the server has begun with it."""
        return self._stage != "queued"

    def end(self) -> None:
        """Count the last stage."""
        self._enter("")

    def _begin_node(self, node: Any) -> None:
        if not isinstance(node, str) or node == self._node:
            return
        self._node, self._value = node, -1.0
        self._clocks.output()
        entry = self._nodes.get(node, {})
        stage = stage_of(str(entry.get("class_type", "")))
        late = stage == "loading_model" and self._stage not in ("queued", stage)  # a loader that is needed only now
        if stage is not None and not late:
            self._enter(stage)
        self._progress.detail(self._name(node))

    def _step(self, data: dict[str, Any]) -> None:
        value, most, node = data.get("value"), data.get("max"), data.get("node")
        if not isinstance(value, int | float) or not isinstance(most, int | float) or most <= 0:
            return
        self._begin_node(node)
        if value == self._value:
            return
        self._value = value
        self._clocks.output()
        self._progress.progress(value / most)
        self._progress.detail(f"{self._name(self._node)}: step {value:g} of {most:g}")

    def _enter(self, stage: str) -> None:
        now = self._now()
        if stage == self._stage:
            return
        name = f"{self._stage}_s"
        self.timings[name] = round(self.timings.get(name, 0.0) + now - self._since, 3)
        self._stage, self._since = stage, now
        if stage:
            self._progress.stage(stage)

    def _name(self, node: str) -> str:
        entry = self._nodes.get(node, {})
        meta = entry.get("_meta")
        title = meta.get("title") if isinstance(meta, dict) else None
        return str(title or entry.get("class_type") or node)[:100]


class Unheard:
    """A Progress that nobody hears."""

    def stage(self, name: str) -> None:
        """Say nothing."""

    def progress(self, fraction: float) -> None:
        """Say nothing."""

    def detail(self, text: str) -> None:
        """Say nothing."""
