"""The false ComfyUI answers like the real one: each recorded case is played to it, and compared.

Compared are statuses, kinds of answers, keys, error types, and the order of frames on each socket; not ids, numbers
and times. `progress_state` is left out of most recordings, and how often `status` repeats is left to the server.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_comfyui import FakeComfyUI
from tests.support.fake_comfyui_nodes import CLASSES, Made
from tests.support.servers import eventually

FOLDER = Path(__file__).parents[1] / "support" / "recordings" / "comfyui"
CASES = sorted(FOLDER.glob("*/*.json"), key=str)
SHORTER = ("/system_stats", "/object_info", "/features", "/models", "/embeddings", "/api/features", "/api/jobs")
"""Routes of which the false server has no more than is used: its keys must be among the recorded ones."""
UNUSED = ("/features", "/models", "/embeddings", "/api/features", "/api/jobs", "/nope")
"""Routes that it does not have."""


def rests(comfy):
    """Whether it has come to rest: idle, dead, or in a node that waits."""
    if not comfy.worker_alive:
        return True
    if not comfy.running and not comfy.pending:
        return True
    execution = comfy.execution
    return execution is not None and bool(execution.node) and not execution.interrupted.is_set() and execution.waits


async def play(comfy, case) -> dict[str, Any]:
    """Send a case's requests, each when the one before has had its effect; return frames by client id."""
    frames: dict[str, list[str]] = {}
    async with aiohttp.ClientSession() as session:
        listeners = [step["client_id"] for step in case["steps"] if "ws" in step]
        tasks = [asyncio.create_task(listen(session, comfy, client, frames)) for client in listeners]
        await eventually(lambda: all(frames.get(client) for client in listeners))
        try:
            for step in case["steps"]:
                if "removed by hand" in step.get("note", ""):
                    for file in (comfy.folder / "output").rglob("*.png"):
                        file.unlink()
                if "request" in step and playable(step):
                    await compare(session, comfy, step)
                    await eventually(lambda: rests(comfy))
            comfy.wake.set()
            await eventually(lambda: rests(comfy))
            await eventually(lambda: at_end(comfy, case, frames))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks) if tasks else None
    return frames


def at_end(comfy, case, frames):
    """Whether each socket has had its last frame."""
    return all(
        ordered(frames[step["client_id"]])[-1:] == recorded_frames(step)[-1:] for step in case["steps"] if "ws" in step
    )


async def listen(session, comfy, client, frames):
    async with session.ws_connect(f"{comfy.url}/ws", params={"clientId": client}) as socket:
        async for message in socket:
            frames.setdefault(client, []).append(name_of(json.loads(message.data)))


def name_of(message) -> str:
    data = message["data"]
    if message["type"] == "executing":
        return f"executing {data['node']}"
    if message["type"] == "progress":
        return f"progress {data['value']}/{data['max']}"
    return message["type"]


def playable(step) -> bool:
    """Leave out what the false server does not have, and what depends on the moment or on random names."""
    request, response = step["request"], step["response"]
    graph = (request.get("json") or {}).get("prompt") if isinstance(request.get("json"), dict) else None
    classes = {node.get("class_type") for node in graph.values()} if isinstance(graph, dict) else set()
    known = all(name is None or name in CLASSES or name == "NoSuchNode" for name in classes)
    text = json.dumps(request) + step.get("note", "")
    odd = (
        "bare NaN",
        "<graph>",
        "bytes>",
        "headers",
        "preview=",
        "ComfyUI_temp",
        "annotated",
        "[temp]",
        "while running",
        "lengths only",
    )
    left_out = request["path"].startswith(UNUSED) or any(word in text for word in odd) or '"bytes": 10590' in text
    return known and not left_out and "status" in response


async def compare(session, comfy, step):
    request, recorded = step["request"], step["response"]
    async with session.request(request["method"], f"{comfy.url}{request['path']}", **content(request)) as response:
        assert response.status == recorded["status"], step
        text = await response.text() if response.content_type.startswith(("text/", "application/json")) else ""
    if "json" in recorded:
        answer, wanted = json.loads(text), recorded["json"]
        if request["path"].startswith(SHORTER):
            assert names(answer) <= names(wanted), step
        elif request["path"] == "/queue":  # shortened in most recordings
            assert {name: size(listed) for name, listed in answer.items()} == {
                name: size(listed) for name, listed in wanted.items()
            }, step
        elif "<graph>" not in json.dumps(wanted):
            assert set(flat(answer)) == set(flat(wanted)), step
    elif "text" in recorded:
        assert text == recorded["text"], step


def names(value) -> set[str]:
    return {path.partition("=")[0] for path in flat(value)}


def size(listed) -> int:
    return listed if isinstance(listed, int) else len(listed)


def warm(comfy, case):
    """Put into the cache what an earlier case had left there."""
    posted = next((step["request"]["json"]["prompt"] for step in case["steps"] if is_post(step)), {})
    sockets = [frame.get("text") for step in case["steps"] for frame in step.get("ws", ())]
    cached = [
        text["data"]["nodes"] for text in sockets if isinstance(text, dict) and text["type"] == "execution_cached"
    ]
    for node in cached[0] if cached else ():
        comfy.cache[comfy.sign(posted, node)] = (Made(64, 64), None)


def is_post(step) -> bool:
    request = step.get("request", {})
    return request.get("path") == "/prompt" and isinstance(request.get("json", {}).get("prompt"), dict)


def content(request) -> dict[str, Any]:
    if "multipart" in request:
        form = aiohttp.FormData()
        for name, value in request["multipart"].items():
            if isinstance(value, dict):
                form.add_field(name, b"x" * value["bytes"], filename=value["filename"])
            else:
                form.add_field(name, value)
        return {"data": form}
    if "body" in request:
        return {"data": request["body"]}
    return {"json": request["json"]} if "json" in request else {}


IDS = set("0123456789abcdef-")
VALUES = ("type", "status_str", "completed", "exception_type", "error", "class_type", "dependent_outputs", "message")
"""Keys whose values are compared too."""
LEAVES = ("current_inputs", "current_outputs", "input_config", "inputs", "required", "optional", "hidden", "tooltip")
LEAVES += ("traceback", "nodes", "executed", "extra_data")
"""Keys whose values are not looked into."""


def flat(value: Any, path: str = "") -> list[str]:
    """Return each path to a value; an id as a key is the same as any other."""
    last = path.rpartition(".")[2].replace("[]", "")
    if last in LEAVES:
        return [path]
    if isinstance(value, dict):
        found = [path]
        for key, inner in value.items():
            found += flat(inner, f"{path}.{'<id>' if len(key) == 36 and set(key) <= IDS else key}")
        return found
    if isinstance(value, list):
        return [path, *(part for inner in value for part in flat(inner, f"{path}[]"))]
    return [f"{path}={value}" if last in VALUES else path]


def ordered(frames: list[str]) -> list[str]:
    """Leave out what differs from run to run: a status counts only where a prompt leaves the worker."""
    kept = [name for name in frames if name != "progress_state"]
    following = [*kept[1:], ""]
    return [name for name, after in zip(kept, following, strict=True) if name != "status" or after == "executing None"]


def recorded_frames(step) -> list[str]:
    return ordered([name_of(frame["text"]) for frame in step["ws"] if isinstance(frame.get("text"), dict)])


@pytest.mark.parametrize("path", CASES, ids=[f"{path.parent.name}-{path.stem}" for path in CASES])
async def test_the_false_comfyui_is_like_the_real_one(tmp_path, path):
    case = json.loads(path.read_text())
    async with FakeComfyUI(tmp_path / "comfy", path.parent.name) as comfy:
        comfy.files["checkpoints"] = ["broken.safetensors"]
        (comfy.folder / "input").mkdir()
        (comfy.folder / "input" / "example.png").write_bytes(b"")
        warm(comfy, case)
        frames = await play(comfy, case)
    for step in case["steps"]:
        if "ws" in step:
            assert ordered(frames[step["client_id"]]) == recorded_frames(step)
