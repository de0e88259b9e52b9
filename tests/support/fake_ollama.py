"""An Ollama that a test can tell how to misbehave: /api/chat as NDJSON, tags, ps, show, version, unloading."""

from typing import Any

import orjson
from aiohttp import web

from tests.support.fake_server import FakeServer, Script

GIB = 2**30


class FakeOllama(FakeServer):
    """Installed are a big model, a small one with the tag `latest`, and one that only embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.version = "0.32.6"
        self.installed: dict[str, dict[str, Any]] = {
            "llama3.1:8b": {"digest": "46e0c10c039e", "size": 5 * GIB, "capabilities": ["completion", "tools"]},
            "tiny:latest": {"digest": "aa11", "size": GIB, "capabilities": ["completion"]},
            "nomic-embed-text:latest": {"digest": "0a10", "size": GIB // 4, "capabilities": ["embedding"]},
        }
        self.loaded: dict[str, dict[str, Any]] = {}
        self.unloaded: list[str] = []
        self.loads_meanwhile: list[str] = []  # one of them at each unloading: another client wants it

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/version", self.small(lambda _: {"version": self.version})),
            web.get("/api/tags", self.small(lambda _: {"models": self._tags()})),
            web.get("/api/ps", self.small(lambda _: {"models": [self._loaded(name) for name in self.loaded]})),
            web.post("/api/show", self.small(self._show)),
            web.post("/api/generate", self.small(self._load_or_unload)),
            web.post("/api/chat", self.generate),
        ]

    def _tags(self) -> list[dict[str, Any]]:
        return [{"name": n, "model": n, "size": m["size"], "digest": m["digest"]} for n, m in self.installed.items()]

    def _loaded(self, name: str) -> dict[str, Any]:
        return {"name": name, "model": name, "size": self.installed[name]["size"], **self.loaded[name]}

    def _show(self, body: dict[str, Any]) -> Any:
        model = self.installed.get(body["model"])
        if model is None:
            return self.json({"error": f"model '{body['model']}' not found"}, 404)
        return {"details": {}, **({"capabilities": model["capabilities"]} if "capabilities" in model else {})}

    def _load_or_unload(self, body: dict[str, Any]) -> Any:
        if body.get("keep_alive") == 0 and not body.get("prompt"):
            self.unloaded.append(body["model"])
            self.loaded.pop(body["model"], None)
            if self.loads_meanwhile:
                self.loaded[self.loads_meanwhile.pop()] = {}
            return {"model": body["model"], "response": "", "done": True, "done_reason": "unload"}
        return self.json({"error": "not here"}, 400)

    def stream_response(self) -> web.StreamResponse:
        return web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})

    def word(self, _path: str, model: str, text: str, *, thinking: bool = False) -> bytes:
        said = {"content": "", "thinking": text} if thinking else {"content": text}
        return self._line(model, {"message": {"role": "assistant", **said}, "done": False})

    def ending(self, _path: str, model: str, script: Script) -> bytes:
        counted = {
            "done_reason": script.finish,
            "total_duration": 32_400_000_000,
            "load_duration": 4_100_000_000,
            "prompt_eval_count": 12,
            "prompt_eval_duration": 900_000_000,
            "eval_count": len(script.words),
            "eval_duration": 3_000_000_000,
        }
        return self._line(
            model, {"message": {"role": "assistant", "content": ""}, "done": True} | counted | script.more
        )

    def stream_error(self, text: str) -> bytes:
        return orjson.dumps({"error": text}) + b"\n"

    def _line(self, model: str, more: dict[str, Any]) -> bytes:
        return orjson.dumps({"model": model, "created_at": "2026-09-20T08:00:01.1Z", **more}) + b"\n"
