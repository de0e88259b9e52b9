"""A false ComfyUI: a real server on a socket, with the queue, history, interrupts and events of the real one.

    async with FakeComfyUI(tmp_path) as comfy:
        executor = ComfyUIExecutor.from_settings({"url": comfy.url, ...})
        comfy.before["KSampler"] = steps(20)          # what a node does first: wait, step, raise
        comfy.answer.clear()                          # HTTP stands still until it is set
        await comfy.restart()                         # it forgets everything but its files

Statuses, keys and the order of frames are those of the recordings (test_comfyui_recordings.py holds it to them).
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from aiohttp import WSMsgType, web

from tests.support.fake_comfyui_checks import Validation, class_fault, refused
from tests.support.fake_comfyui_nodes import CLASSES, choices
from tests.support.fake_comfyui_worker import Worker, raising, steps

__all__ = ["FILES", "FakeComfyUI", "raising", "steps"]

FILES = {
    "checkpoints": ["sd_xl_base_1.0.safetensors"],
    "diffusion_models": ["flux1-dev.safetensors"],
    "text_encoders": ["t5xxl_fp8.safetensors", "clip_l.safetensors"],
    "vae": ["ae.safetensors"],
    "upscale_models": ["RealESRGAN_x4plus.pth"],
    "input": [],
}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TROUBLE = "500 Internal Server Error\n\nServer got itself in trouble"


class FakeComfyUI(Worker):
    """`async with` starts and ends it. Everything that a test may change is a field."""

    def __init__(self, folder: Path, version: str | None = "0.30.2") -> None:
        super().__init__(folder)
        self.version = version  # None: it is another server
        self.files = {name: list(listed) for name, listed in FILES.items()}
        self.absent: set[str] = set()  # classes that are not installed
        self.newer_lists = False  # lists of values as nodes of the newer kind send them
        self.answer = asyncio.Event()  # cleared: HTTP stands still
        self.stall_at_post = False  # HTTP stands still as soon as a prompt is posted ...
        self.stalled = asyncio.Event()  # ... which is set then
        self.lose_answers = 0  # so many POSTs of a prompt are carried out and not answered
        self.refuse_posts: list[int] = []  # statuses for the next POSTs, which are carried out
        self.forget_uploads = 0  # so many uploads are answered and lost
        self.unreadable: set[str] = set()  # ids for which the history answers 500
        self.deaf = False  # interrupts change nothing
        self.calls: list[tuple[str, Any]] = []  # (path, body) of what changes something
        self.unwell = False  # /system_stats answers 500
        self.looks = 0  # how often /system_stats was asked
        self.port = 0
        self.answer.set()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def old(self) -> bool:
        """Whether it answers as 0.3.64 does."""
        return str(self.version).startswith("0.3.")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.answer.set()
        await self.stop()

    async def start(self) -> None:
        """Listen; the port stays the same after a stop."""
        self.folder.mkdir(parents=True, exist_ok=True)
        app = web.Application(middlewares=[self._stall], client_max_size=100 * 1024**2)
        for prefix in ("", "/api"):
            app.add_routes(
                [
                    web.get(f"{prefix}/ws", self._ws),
                    web.get(f"{prefix}/prompt", self._remaining),
                    web.post(f"{prefix}/prompt", self._post),
                    web.get(f"{prefix}/queue", self._queue),
                    web.post(f"{prefix}/queue", self._change_queue),
                    web.post(f"{prefix}/interrupt", self._interrupt),
                    web.post(f"{prefix}/free", self._free),
                    web.get(f"{prefix}/history", self._histories),
                    web.get(f"{prefix}/history/{{id}}", self._history),
                    web.post(f"{prefix}/history", self._change_history),
                    web.get(f"{prefix}/view", self._view),
                    web.post(f"{prefix}/upload/image", self._upload),
                    web.get(f"{prefix}/system_stats", self._stats),
                    web.get(f"{prefix}/object_info/{{name}}", self._info),
                ]
            )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        self.start_worker()

    async def stop(self) -> None:
        """End as if killed: sockets break, the queue and the history are gone, files stay."""
        await self.stop_worker()
        await self._accept_no_more()
        for socket in list(self.sockets.values()):
            await socket.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self.forget()

    async def _accept_no_more(self) -> None:
        """Let what was just accepted become a connection: Python 3.11 leaks one whose server is closed in between."""
        if self._site is None or self._site._server is None:
            return
        for listening in self._site._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        self._site = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    # ---- routes

    @web.middleware
    async def _stall(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not self.answer.is_set():
            await self.answer.wait()
        if "Origin" in request.headers:
            return web.Response(status=403)
        return await handler(request)

    async def _ws(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        sid = request.query.get("clientId") or str(len(self.sockets))
        self.sockets.pop(sid, None)
        self.sockets[sid] = socket
        try:
            await socket.send_str(json.dumps({"type": "status", "data": {"status": self.status(), "sid": sid}}))
            if self.last[0] == sid and self.last[1] is not None and not self.mute:
                await socket.send_str(json.dumps({"type": "executing", "data": {"node": self.last[1]}}))
            async for message in socket:
                if message.type is WSMsgType.ERROR:
                    break
        finally:
            self.sockets.pop(sid, None)  # even if it is a newer one: the real one's trap
        return socket

    async def _remaining(self, _: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _post(self, request: web.Request) -> web.StreamResponse:
        if self.stall_at_post:
            self.answer.clear()
            self.stalled.set()
            await self.answer.wait()
        try:
            body = await request.json()
        except ValueError:
            return web.Response(status=500, text=TROUBLE)
        status, answer = self._accept(body)
        if status == 200:
            await self.say_status()
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if self.refuse_posts:
            return web.Response(status=self.refuse_posts.pop(0), text=TROUBLE)
        return web.Response(status=500, text=TROUBLE) if answer is None else web.json_response(answer, status=status)

    def _accept(self, body: Any) -> tuple[int, dict[str, Any] | None]:
        """Return status and answer; None is the text that says that the server got itself in trouble."""
        if not isinstance(body, dict) or "prompt" not in body:
            return 400, refused("no_prompt", "No prompt provided", "No prompt provided")
        graph = body["prompt"]
        numbered = isinstance(body.get("number", 0), int | float)
        if not isinstance(graph, dict) or not numbered or body.get("extra_data", {}) is None:
            return 500, None
        prompt_id = body.get("prompt_id")
        if not self.old and prompt_id is not None and not (isinstance(prompt_id, str) and UUID.fullmatch(prompt_id)):
            details = "prompt_id must be a UUID string in canonical lowercase hyphenated form; "
            details += "omit it to let the server generate one"
            return 400, refused("invalid_prompt_id", "prompt_id must be a valid UUID", details)
        for node_id, node in graph.items():
            if (fault := class_fault(node_id, node, self.absent, old=self.old)) is not None:
                return 400, fault
        targets = body.get("partial_execution_targets")
        outputs = [key for key, node in graph.items() if CLASSES[node["class_type"]][2]]
        outputs = [key for key in outputs if targets is None or key in targets]
        if not outputs:
            return 400, refused("prompt_no_outputs", "Prompt has no outputs", "")
        validation = Validation(graph, self.files, old=self.old)
        if (answer := validation.run(outputs)) is not None:
            return 400, answer
        number, prompt_id = self.put(body, prompt_id, validation.good)
        return 200, {"prompt_id": prompt_id, "number": number, "node_errors": validation.errors}

    async def _queue(self, _: web.Request) -> web.Response:
        return web.json_response({"queue_running": list(self.running.values()), "queue_pending": self.pending[::-1]})

    async def _change_queue(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("/queue", body))
        if body.get("clear"):
            self.pending.clear()
            await self.say_status()
        for prompt_id in body.get("delete", ()):
            found = next((entry for entry in self.pending if entry[1] == prompt_id), None)
            if found is not None:
                self.pending.remove(found)
                await self.say_status()
        return web.Response()

    async def _interrupt(self, request: web.Request) -> web.Response:
        text = await request.text()
        wanted = json.loads(text).get("prompt_id") if text else None
        self.calls.append(("/interrupt", wanted))
        hears = self.execution is not None and self.running and not self.deaf
        if hears and wanted in (None, self.execution.prompt_id):
            self.execution.interrupted.set()
        return web.Response()

    async def _free(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("/free", body))
        if body.get("free_memory"):
            self.cache.clear()
        return web.Response()

    async def _history(self, request: web.Request) -> web.Response:
        prompt_id = request.match_info["id"]
        if prompt_id in self.unreadable and prompt_id in self.history:
            return web.Response(status=500, text=TROUBLE)
        entry = self.history.get(prompt_id)
        return web.json_response({} if entry is None else {prompt_id: entry})

    async def _histories(self, request: web.Request) -> web.Response:
        if self.unreadable & self.history.keys():
            return web.Response(status=500, text=TROUBLE)
        newest = list(self.history)[-int(request.query["max_items"]) :]
        return web.json_response({prompt_id: self.history[prompt_id] for prompt_id in newest})

    async def _change_history(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("/history", body))
        if body.get("clear"):
            self.history.clear()
        for prompt_id in body.get("delete", ()):
            self.history.pop(prompt_id, None)
        return web.Response()

    async def _view(self, request: web.Request) -> web.StreamResponse:
        name, subfolder = request.query.get("filename", ""), request.query.get("subfolder", "")
        kind = request.query.get("type", "output")
        if kind not in ("output", "temp", "input") or ".." in name or name.startswith("/"):
            return web.Response(status=400)
        if ".." in subfolder or subfolder.startswith("/"):
            return web.Response(status=403)
        name = name.rpartition("/")[2]
        path = self.folder / kind / subfolder / name
        data = self.temp.get(name) if kind == "temp" else (path.read_bytes() if name and path.is_file() else None)
        if data is None:
            return web.Response(status=404)
        return web.Response(body=data, content_type="image/png", headers={"Content-Disposition": f'filename="{name}"'})

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        image = form.get("image")
        if not isinstance(image, web.FileField):
            return web.Response(status=400)
        kind, subfolder = str(form.get("type", "input")), str(form.get("subfolder", ""))
        if kind not in ("input", "temp", "output"):
            return web.Response(status=500, text=TROUBLE)
        if ".." in subfolder:
            return web.Response(status=400)
        data, name = image.file.read(), quote(image.filename, safe=" ()%")
        folder = self.folder / kind / subfolder
        folder.mkdir(parents=True, exist_ok=True)
        stem, dot, suffix = name.rpartition(".")
        number = 1
        while "overwrite" not in form and (folder / name).exists() and (folder / name).read_bytes() != data:
            name = f"{stem} ({number}){dot}{suffix}"
            number += 1
        (folder / name).write_bytes(data)
        self.calls.append(("/upload/image", name))
        listed = f"{subfolder}/{name}".lstrip("/")
        if self.forget_uploads:
            self.forget_uploads -= 1
            self.files["input"] = [other for other in self.files["input"] if other != listed]
        elif kind == "input" and listed not in self.files["input"]:
            self.files["input"].append(listed)
        return web.json_response({"name": name, "subfolder": subfolder, "type": kind})

    async def _stats(self, _: web.Request) -> web.Response:
        self.looks += 1
        if self.unwell:
            return web.Response(status=500, text=TROUBLE)
        if self.version is None:
            return web.json_response({"hello": "this is another server"})
        device = {"name": "mps", "type": "mps", "index": None, "vram_total": 25276059648, "vram_free": 21452537856}
        device |= {"torch_vram_total": 25276059648, "torch_vram_free": 21452537856}
        system = {"os": "darwin", "ram_total": 25276059648, "ram_free": 21452537856, "comfyui_version": self.version}
        system |= {
            "python_version": "3.11.7",
            "pytorch_version": "2.14.1",
            "embedded_python": False,
            "argv": ["main.py"],
        }
        return web.json_response({"system": system, "devices": [device]})

    async def _info(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in CLASSES or name in self.absent:
            return web.json_response({})
        inputs, made, is_output = CLASSES[name]
        required = {field_name: self._listed(kind) for field_name, kind in inputs.items()}
        entry = {"input": {"required": required}, "input_order": {"required": list(required)}}
        entry |= {} if self.old else {"is_input_list": False}
        entry |= {"output": made, "output_is_list": [False] * len(made), "output_name": made, "name": name}
        entry |= {"display_name": name, "description": "", "python_module": "nodes", "category": "image"}
        return web.json_response({name: entry | {"output_node": is_output}})

    def _listed(self, kind: Any) -> list[Any]:
        options = choices(self.files, kind)
        if options is None:
            return [kind[0], {}]
        return ["COMBO", {"options": options}] if self.newer_lists else [options, {}]
