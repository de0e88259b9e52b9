"""The worker of the false ComfyUI: its queue, what it runs, and what it tells its clients."""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.fake_comfyui_nodes import Made, NodeError, StagingError, WorkerDies, compute, png

TO_EVERYBODY = ("progress", "progress_state", "execution_interrupted")
"""Events of a prompt without a client that go to all clients; the others go to nobody."""


class Interrupted(Exception):  # noqa: N818 - it is what happened to the prompt
    """The flag was seen."""


@dataclass
class Execution:
    """A prompt that runs, as a node's hook sees it."""

    comfy: "Worker"
    prompt_id: str
    client_id: str | None
    node: str = ""
    waits: bool = False  # in a node that waits for something
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> None:
        if self.interrupted.is_set():
            raise Interrupted

    async def step(self, value: int, most: int) -> None:
        self.check()
        await self.comfy.say_state(self, {self.node: (value, most, "running")})
        await self.comfy.say(
            self.client_id, "progress", value=value, max=most, prompt_id=self.prompt_id, node=self.node
        )

    async def until(self, event: asyncio.Event) -> None:
        """Wait for an event, watching the flag meanwhile."""
        waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.interrupted.wait())}
        self.waits = True
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.waits = False
            for wait in waits:
                wait.cancel()
        self.check()


Hook = Callable[[Execution], Awaitable[None]]


def steps(count: int, then: asyncio.Event | None = None, at: int = 0) -> Hook:
    """Return a hook that reports its steps; before step `at` + 1 it waits for `then`."""

    async def hook(execution: Execution) -> None:
        for number in range(1, count + 1):
            if then is not None and number == at + 1:
                await execution.until(then)
            await execution.step(number, count)

    return hook


def raising(*errors: NodeError | None) -> Hook:
    """Return a hook that raises these one after the other; None and the end of the list: nothing."""
    left = list(errors)

    async def hook(_: Execution) -> None:
        if left and (error := left.pop(0)) is not None:
            raise error

    return hook


class Worker:
    """One thread's worth of work; everything that a test may change about it is a field."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before: dict[str, Hook] = {}  # by class, before the node does anything
        self.change: Callable[[Made], Made] = lambda made: made  # what a save node is given instead
        self.saved: Callable[[bytes], bytes] = lambda data: data  # what is written instead of a PNG
        self.mute = False  # the websocket says nothing
        self.history_gap: Hook | None = None  # between execution_success and the entry of the history
        self.wake = asyncio.Event()  # ends every LabSleep
        self.posts: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None
        self.forget()

    @property
    def old(self) -> bool:
        return False

    def forget(self) -> None:
        """Be as new: the queue, the history and the caches live in memory."""
        self.pending: list[tuple[Any, ...]] = []
        self.running: dict[int, tuple[Any, ...]] = {}
        self.history: dict[str, dict[str, Any]] = {}
        self.execution: Execution | None = None
        self.sockets: dict[str, web.WebSocketResponse] = {}
        self.cache: dict[str, Any] = {}
        self.temp: dict[str, bytes] = {}
        self.last: tuple[str | None, str | None] = (None, None)  # client and node
        self._numbers = itertools.count()
        self._put = asyncio.Event()

    @property
    def worker_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def ran(self) -> list[str]:
        """The ids that were posted, in order."""
        return [body["prompt_id"] for body in self.posts]

    def start_worker(self) -> None:
        self._task = asyncio.create_task(self._work(), name="fake comfyui")

    async def stop_worker(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()

    def put(self, body: dict[str, Any], prompt_id: str | None, outputs: list[str]) -> tuple[int, str]:
        """Queue a prompt; the same id may be there twice."""
        number = next(self._numbers)
        prompt_id = prompt_id or f"00000000-0000-4000-8000-{number:012}"
        extra = {"client_id": body["client_id"]} if "client_id" in body else {}
        if not self.old:
            extra |= {"create_time": int(time.time() * 1000)}
        self.pending.append((number, prompt_id, body["prompt"], extra, outputs))
        self.posts.append(body | {"prompt_id": prompt_id})
        self._put.set()
        return number, prompt_id

    # ---- events

    async def say(self, client_id: str | None, kind: str, **data: Any) -> None:
        """Send an event to its client; status goes to everybody."""
        if self.mute:
            return
        everybody = kind == "status" or (client_id is None and kind in TO_EVERYBODY)
        listening = list(self.sockets.values()) if everybody else [self.sockets.get(client_id or "")]
        for socket in listening:
            if socket is not None and not socket.closed:
                try:
                    await socket.send_str(json.dumps({"type": kind, "data": data}))
                except ConnectionError:
                    continue

    async def say_state(self, execution: Execution, nodes: dict[str, tuple[float, float, str]]) -> None:
        about = {
            node: {
                "value": value,
                "max": most,
                "state": state,
                "node_id": node,
                "prompt_id": execution.prompt_id,
                "display_node_id": node,
                "parent_node_id": None,
                "real_node_id": node,
            }
            for node, (value, most, state) in nodes.items()
        }
        await self.say(execution.client_id, "progress_state", prompt_id=execution.prompt_id, nodes=about)

    async def say_status(self) -> None:
        await self.say(None, "status", status=self.status())

    def status(self) -> dict[str, Any]:
        return {"exec_info": {"queue_remaining": len(self.pending) + len(self.running)}}

    # ---- the worker

    async def _work(self) -> None:
        while True:
            while not self.pending:
                self._put.clear()
                await self._put.wait()
            self.pending.sort(key=lambda entry: (entry[0], entry[1]))
            entry = self.pending.pop(0)
            self.running[entry[0]] = entry
            await self.say_status()
            try:
                await self._run(entry)
            except WorkerDies:
                return  # a zombie: the prompt runs for ever, HTTP goes on
            del self.running[entry[0]]
            await self.say_status()
            if entry[3].get("client_id"):
                await self.say(entry[3]["client_id"], "executing", node=None, prompt_id=entry[1])
            self.last = (None, None)

    async def _run(self, entry: tuple[Any, ...]) -> None:
        number, prompt_id, graph, extra, wanted = entry
        execution = self.execution = Execution(self, prompt_id, extra.get("client_id"))
        messages: list[Any] = []
        outputs: dict[str, Any] = {}

        async def tell(kind: str, **data: Any) -> None:
            about = {**data, "prompt_id": prompt_id, "timestamp": int(time.time() * 1000)}
            messages.append([kind, about])
            await self.say(execution.client_id, kind, **about)

        await tell("execution_start")
        order = _order(graph, wanted)
        signs = {node: self.sign(graph, node) for node in order}
        cached = [node for node in order if signs[node] in self.cache]
        await tell("execution_cached", nodes=cached)
        status = {"status_str": "success", "completed": True}
        done: list[str] = []
        values: dict[str, Any] = {}
        blocked: set[str] = set()
        node = ""
        try:
            for node in order:
                if signs[node] in self.cache:
                    values[node], shown = self.cache[signs[node]]
                else:
                    execution.node = node
                    values[node], shown = await self._node(execution, graph, node, values, blocked)
                    done.append(node)
                    if node not in blocked:
                        self.cache[signs[node]] = (values[node], shown)
                if shown is not None:
                    outputs[node] = shown
                    await self.say(
                        execution.client_id, "executed", node=node, display_node=node, output=shown, prompt_id=prompt_id
                    )
            await tell("execution_success")
        except Interrupted:
            status = {"status_str": "error", "completed": False}
            about = {"node_id": node, "node_type": graph[node]["class_type"], "executed": done}
            await tell("execution_interrupted", **about)
        except NodeError as error:
            if not isinstance(error, StagingError):
                status = {"status_str": "error", "completed": False}
            await tell("execution_error", **_error(graph, node, done, error))
        if self.history_gap is not None:
            await self.history_gap(execution)
        meta = {key: {"node_id": key, "display_node": key, "parent_node": None, "real_node_id": key} for key in outputs}
        self.history[prompt_id] = {
            "prompt": [number, prompt_id, graph, extra, wanted],
            "outputs": outputs,
            "status": {**status, "messages": messages},
            "meta": meta,
        }

    async def _node(
        self, execution: Execution, graph: dict[str, Any], node: str, values: dict[str, Any], blocked: set[str]
    ) -> tuple[Made, dict[str, Any] | None]:
        class_type, inputs = graph[node]["class_type"], graph[node]["inputs"]
        await self.say_state(execution, {node: (0.0, 1.0, "running")})
        self.last = (execution.client_id, node)
        about = {"node": node, "display_node": node, "prompt_id": execution.prompt_id}
        await self.say(execution.client_id, "executing", **about)
        execution.check()
        if class_type in self.before:
            await self.before[class_type](execution)
        sources = {value[0] for value in inputs.values() if isinstance(value, list)}
        if sources & blocked:
            fault = _error(graph, node, [], NodeError("ExecutionBlocked", "Execution Blocked: nothing to do"))
            await self.say(execution.client_id, "execution_error", prompt_id=execution.prompt_id, **fault)
            blocked.add(node)
            return Made(), None
        if class_type == "LabBlock":
            blocked.add(node)
            return Made(), None
        given = {name: values[value[0]] if isinstance(value, list) else value for name, value in inputs.items()}
        if class_type == "LabProgress":
            for number in range(1, given["steps"] + 1):
                await execution.step(number, given["steps"])
        if class_type == "LabSleep":
            await (execution.until(self.wake) if given["checks_interrupt"] else self.wake.wait())
        made = compute(class_type, given, self.folder)
        await self.say_state(execution, {node: (1.0, 1.0, "finished")})
        if class_type == "SaveImage":
            return made, {"images": self._save(graph, self.change(made), inputs["filename_prefix"])}
        if class_type == "PreviewImage":
            return made, {"images": self._preview(graph, self.change(made))}
        return made, None

    def _save(self, graph: dict[str, Any], made: Made, prefix: str) -> list[dict[str, str]]:
        folder, _, name = prefix.rpartition("/")
        directory = self.folder / "output" / folder
        directory.mkdir(parents=True, exist_ok=True)
        listed = []
        first = 1 + len(list(directory.glob(f"{name}_*_.png")))
        for number in range(first, first + made.count):
            file = f"{name}_{number:05}_.png"
            (directory / file).write_bytes(self.saved(png(made, number, graph)))
            listed.append({"filename": file, "subfolder": folder, "type": "output"})
        return listed

    def _preview(self, graph: dict[str, Any], made: Made) -> list[dict[str, str]]:
        file = f"ComfyUI_temp_{len(self.temp):05}_.png"
        self.temp[file] = self.saved(png(made, 1, graph))
        return [{"filename": file, "subfolder": "", "type": "temp"}]

    def sign(self, graph: dict[str, Any], node: str) -> str:
        """Name a node by all that it depends on: the same name is taken from the cache."""
        inputs = {
            name: self.sign(graph, value[0]) if isinstance(value, list) else value
            for name, value in graph[node]["inputs"].items()
        }
        return json.dumps([graph[node]["class_type"], inputs], sort_keys=True)


def _order(graph: dict[str, Any], wanted: list[str]) -> list[str]:
    """Return the nodes on which the wanted ones depend, each after those that it needs."""
    order: list[str] = []

    def visit(node: str) -> None:
        if node in order:
            return
        for value in graph[node]["inputs"].values():
            if isinstance(value, list) and value and value[0] in graph:
                visit(value[0])
        order.append(node)

    for node in wanted:
        visit(node)
    return order


def _error(graph: dict[str, Any], node: str, done: list[str], error: NodeError) -> dict[str, Any]:
    return {
        "node_id": node,
        "node_type": graph[node]["class_type"],
        "executed": done,
        "exception_message": str(error),
        "exception_type": error.kind,
        "traceback": ["File ..."],
        "current_inputs": {"text": ["a prompt that must not be passed on"]},
        "current_outputs": list(graph),
    }
