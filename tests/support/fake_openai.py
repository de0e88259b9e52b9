"""OpenAI-compatible servers that a test can tell how to misbehave; each speaks as the recorded one did.

`tests/agent/test_executor_recordings.py` holds them against the recordings.
"""

from typing import Any, ClassVar

import orjson
from aiohttp import web

from tests.support.fake_server import FakeServer, Script


class FakeOpenAI(FakeServer):
    """llama.cpp's server with one model: any name is answered by it."""

    header = "llama.cpp"
    stream_headers: ClassVar[dict[str, str]] = {"X-Accel-Buffering": "no"}

    def __init__(self) -> None:
        super().__init__()
        self.models = ["gemma-3-270m"]
        self.loading = False
        self.slots: int | None = None  # how many others' requests are busy besides; None: as things are
        self.api_key: str | None = None
        self.context: int | None = 16384  # what it was started with

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.small(lambda _: self._or_loading({"status": "ok"}))),
            web.get("/v1/models", self.small(lambda _: self._or_loading(self.listing()))),
            web.get("/slots", self.small(lambda _: self._or_loading(self._slots()))),
            web.post("/v1/chat/completions", self.generate),
            web.post("/v1/completions", self.generate),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            error = {"message": "Invalid API Key", "type": "authentication_error", "code": 401}
            return self.json({"error": error}, 401)
        if self.loading:
            self.asked.append(f"{request.method} {request.path}")
            return self._or_loading({})
        return await super().generate(request)

    def json(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
        return super().json(body, status, {"Server": self.header} | (headers or {}))

    def _or_loading(self, body: Any) -> web.Response:
        if self.loading:
            error = {"message": "Loading model", "type": "unavailable_error", "code": 503}
            return self.json({"error": error}, 503)
        return self.json(body)

    def listing(self) -> dict[str, Any]:
        meta = {"meta": {"n_ctx": self.context}} if self.context else {}
        entries = [{"id": model, "object": "model", "owned_by": "llamacpp", **meta} for model in self.models]
        return {"object": "list", "data": entries}

    def _slots(self) -> list[dict[str, Any]]:
        busy = bool(self.working) if self.slots is None else bool(self.slots)
        return [{"id": 0, "n_ctx": 2048, "speculative": False, "is_processing": busy}]

    def stream_response(self) -> web.StreamResponse:
        headers = {"Server": self.header, "Content-Type": "text/event-stream"} | self.stream_headers
        return web.StreamResponse(headers=headers)

    def opening(self, path: str, model: str) -> bytes:
        if not path.endswith("/chat/completions"):
            return b""
        delta = {"role": "assistant", "content": None}
        return self._event(path, model, {"choices": [{"finish_reason": None, "index": 0, "delta": delta}]})

    def word(self, path: str, model: str, text: str, *, thinking: bool = False) -> bytes:
        if path.endswith("/chat/completions"):
            delta = {"reasoning_content": text} if thinking else {"content": text}
            choice: dict[str, Any] = {"finish_reason": None, "index": 0, "delta": delta}
        else:
            choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": None}
        return self._event(path, model, {"choices": [choice]})

    def ending(self, path: str, model: str, script: Script) -> bytes:
        tokens = len(script.words)
        usage = {"completion_tokens": tokens, "prompt_tokens": 6, "total_tokens": tokens + 6}
        timings = {"prompt_ms": 41.279, "predicted_n": tokens, "predicted_ms": 60.0}
        if path.endswith("/chat/completions"):
            last = self._event(path, model, {"choices": [{"finish_reason": script.finish, "index": 0, "delta": {}}]})
            last += self._event(path, model, {"choices": [], "usage": usage, "timings": timings} | script.more)
        else:
            choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": script.finish}
            last = self._event(path, model, {"choices": [choice], "usage": usage, "timings": timings} | script.more)
        return last + b"data: [DONE]\n\n"

    def stream_error(self, text: str) -> bytes:
        error = {"code": 500, "message": text, "type": "server_error"}
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"

    def _event(self, path: str, model: str, more: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if path.endswith("/chat/completions") else "text_completion"
        body = {"created": 1795985099, "id": "chatcmpl-1", "model": model}
        body |= {"system_fingerprint": "b0-unknown", "object": kind}
        return b"data: " + orjson.dumps(more | body) + b"\n\n"

    def answers_as(self, _model: str) -> str:
        """Name its own model, whatever was asked."""
        return self.models[0]


class FakeMlx(FakeOpenAI):
    """mlx_lm.server: HTTP/1.0, `keepalive` comments, echoes the model's name, 404 to everything."""

    header = "BaseHTTP/0.6 Python/3.11.7"

    def __init__(self) -> None:
        super().__init__()
        self.models = ["mlx-community/gemma-3-270m-bf16"]
        self.context = None
        self.dead = False  # its generation thread has died
        self.empty_listing = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.small(self._health)),
            web.get("/v1/models", self.small(self._models)),
            web.post("/v1/chat/completions", self.generate),
            web.post("/v1/completions", self.generate),
        ]

    def _health(self, _: Any) -> web.Response:
        return self.json({"status": "unavailable"}, 503) if self.dead else self.json({"status": "ok"})

    def _models(self, _: Any) -> web.Response:
        if self.empty_listing:
            return web.Response(body=b"", headers={"Server": self.header})
        return self.json(self.listing())

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if self.dead:
            self.asked.append(f"{request.method} {request.path}")
            return self.json({"error": "generation thread died"}, 404)
        return await super().generate(request)

    def answers_as(self, model: str) -> str:
        return model

    stream_headers: ClassVar[dict[str, str]] = {"Cache-Control": "no-cache"}

    def opening(self, _path: str, _model: str) -> bytes:
        return b": keepalive 1/1\n\n"

    def word(self, path: str, model: str, text: str, *, thinking: bool = False) -> bytes:
        kind = "reasoning" if thinking else "content"
        delta = {"delta": {"role": "assistant", kind: text}}
        choice = {"index": 0, "finish_reason": None, **(delta if "/chat/" in path else {"text": text})}
        return self._event(path, model, {"choices": [choice]})

    def ending(self, path: str, model: str, script: Script) -> bytes:
        last = {"delta": {"role": "assistant"}} if "/chat/" in path else {"text": ""}
        usage = {"prompt_tokens": 6, "completion_tokens": len(script.words), "total_tokens": 6 + len(script.words)}
        return (
            self._event(path, model, {"choices": [{"index": 0, "finish_reason": script.finish, **last}]})
            + self._event(path, model, {"choices": [], "usage": usage} | script.more)
            + b"data: [DONE]\n\n"
        )

    def stream_error(self, text: str) -> bytes:  # noqa: ARG002
        return b""

    def die(self, request: web.Request) -> None:
        """End cleanly: over HTTP/1.0 without a length the client can't tell the difference."""
