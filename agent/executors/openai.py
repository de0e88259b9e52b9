"""The executor for OpenAI-compatible servers: llama.cpp's, mlx_lm's, LM Studio, and others; streamed as SSE.

They differ where it hurts (facts/executors.md B.3, each seen in recorded traffic): llama.cpp answers any model's name
with the one that it has, and gives a waiting request no byte until a slot is free; mlx_lm drops its model when it
hears a name that it doesn't know, says 404 to anything, and its killed stream ends like a good one, but for `[DONE]`;
pings may go on while nothing is generated any more. So: never a name that the server did not list, always a stream,
and no text without its `finish_reason` and `[DONE]`.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import aiohttp
from pydantic import Field

from agent.executors.base import BackendDown, Elsewhere, Permanent, RunnableJob
from agent.executors.http import Found
from agent.executors.text import TextExecutor
from agent.executors.text_answer import Answer, Telling
from agent.executors.text_order import Order, TextSettings
from agent.executors.transport import Refused, amount, count, error_text, lines, parsed, part, words_of

LLAMA_CPP, MLX = "llama.cpp", "mlx"
DEFAULT_MODEL = "default_model"
_DONE = b"[DONE]"
_OK, _NOT_FOUND, _UNAVAILABLE = 200, 404, 503
_RESERVED = {"model", "messages", "prompt", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens"}
_LOADING_LOOK_S = 1.0
_SETTLE_LOOK_S = 0.1


class OpenAISettings(TextSettings):
    """`[executors.openai]`."""

    url: str = Field(default="http://127.0.0.1:8080", pattern=r"^https?://[^\s]+$")
    """Where the server listens, without `/v1`."""
    api: Literal["chat", "completions"] = "chat"
    """Which of its interfaces is used: `completions` for base models, which know no chat."""
    server: Literal["auto", "llama.cpp", "mlx", "lmstudio", "other"] = "auto"
    """Which server it is; `auto` knows llama.cpp and mlx_lm by their headers."""
    queue_look_s: float = Field(default=5, gt=0)
    """How often llama.cpp is asked whether a job still waits for one of its slots."""
    settle_s: float = Field(default=5, ge=0)
    """How long llama.cpp may take to become idle after a job was stopped."""


class OpenAIExecutor(TextExecutor):
    """Implements `base.Executor` and `base.Backed`."""

    name: ClassVar[str] = "openai"

    def __init__(self, settings: OpenAISettings) -> None:
        """Nothing is opened."""
        super().__init__(settings)
        self._own = settings
        self._contexts: dict[str, int] = {}  # by the server's name of a model: the context that it was started with
        self.server = "" if settings.server in {"auto", "other"} else settings.server

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        """Make it from `[executors.openai]`."""
        return cls(OpenAISettings.model_validate(dict(table)))

    async def look(self) -> Found:
        """Ask for health and models."""
        await self._healthy()
        answer = await self.transport.ask("GET", "/v1/models")
        if answer.status != _OK:
            raise BackendDown(
                "no_answer", f"GET /v1/models: {answer.status} {error_text(answer.body.decode(errors='replace'))}"
            )
        if self._own.server == "auto":
            self.server = _server_of(answer.headers)
        listed = self._listed(answer.json() if answer.body.strip() else {})
        names = self._own.names(listed)
        if isinstance(self._own.models, list):
            names = {_short(name): there for name, there in names.items()}
        capabilities = self.offers(names)
        warm = list(self.offered) if self.server == LLAMA_CPP else []
        return Found(capabilities=capabilities, warm=warm, version=self.server)

    def _listed(self, found: Any) -> list[str]:
        """Return the models that may be named to the server."""
        entries = found.get("data") if isinstance(found, dict) else None
        known = {str(entry["id"]): entry for entry in entries or [] if isinstance(entry, dict) and "id" in entry}
        meta = {name: entry["meta"] for name, entry in known.items() if isinstance(entry.get("meta"), dict)}
        self._contexts = {name: said["n_ctx"] for name, said in meta.items() if isinstance(said.get("n_ctx"), int)}
        listed = list(known)
        if self.server != MLX:
            return [name for name in listed if self._own.models or "embed" not in _short(name).lower()]
        # mlx_lm lists whatever lies in its cache, and would load any of it in place of the model that it was started
        # with; only a model that somebody chose may be named
        if self._own.models:
            chosen = self._own.models.values() if isinstance(self._own.models, dict) else self._own.models
            return [*listed, *(name for name in chosen if name == DEFAULT_MODEL)]
        return listed if len(listed) == 1 else [DEFAULT_MODEL]

    async def generate(self, order: Order, telling: Telling) -> Answer:
        """Have it written; while the server says that it loads its model, wait."""
        while True:
            try:
                return await self._generate(order, telling)
            except Refused as refused:
                if refused.status != _UNAVAILABLE or "loading model" not in refused.text.lower():
                    raise
            telling.waiting("the server loads its model")
            await asyncio.sleep(_LOADING_LOOK_S)

    def order_of(self, job: RunnableJob) -> Order:
        """Return what to ask; options that would change what the answer is are refused.

        The context is the server's: no request can set it.
        """
        order = super().order_of(job)
        if wrong := sorted(_RESERVED & order.extra.keys()):
            raise Permanent("bad_spec", f"options can't set {', '.join(wrong)}")
        has = self._contexts.get(order.model)
        if has is None:
            return order
        asked = (job.spec.get("options") or {}).get("context")
        if asked is not None and asked > has:
            raise Elsewhere("context_too_small", f"a context of {asked} tokens is asked for; the server has {has}")
        return replace(order, context=has)

    def small_model(self) -> str:
        """Return the model that gave the last good answer, else the default one, else the first.

        Which one is loaded or small is not told, and LM Studio loads another in place of the one that works.
        """
        if self.proven in self.offered.values():
            return self.proven
        default = self._own.default_model and self.there(self._own.default_model)
        return default or super().small_model()

    def same_model(self, asked: str, answered: str) -> bool:
        """Compare; LM Studio numbers its instances, and mlx_lm says what it was told, which proves nothing."""
        return self.server == MLX or answered == asked or re.fullmatch(re.escape(asked) + r":\d+", answered) is not None

    async def settle(self) -> None:
        """Wait until llama.cpp has stopped what was dropped; the others don't tell."""
        if self.server != LLAMA_CPP:
            return
        loop = asyncio.get_running_loop()
        last_at = loop.time() + self._own.settle_s  # not asyncio.timeout: before 3.11.3 it fails in a cancelled task
        try:
            while any(await self._slots()):
                if loop.time() >= last_at:
                    self.hold_back(f"still busy {self._own.settle_s:g} s after a job was stopped")
                    return
                await asyncio.sleep(_SETTLE_LOOK_S)
        except BackendDown as error:  # so nobody knows whether it has stopped
            self.hold_back(error.message)

    # ---- on the wire

    async def _healthy(self) -> None:
        """Raise BackendDown if the server says that it can't generate: llama.cpp loads, mlx_lm's thread died."""
        answer = await self.transport.ask("GET", "/health")
        if answer.status == _UNAVAILABLE:
            said = error_text(answer.body.decode(errors="replace"))
            dead = "unavailable" in said and "loading" not in said.lower()
            raise BackendDown("unavailable", f"{said}; restart the server" if dead else said)

    async def _generate(self, order: Order, telling: Telling) -> Answer:
        answer = Answer()
        path = "/v1/chat/completions" if self._own.api == "chat" else "/v1/completions"
        async with self._watching_queue(telling) as began, self.transport.stream(path, self._body(order)) as response:
            began()
            async for data in _events(response.content, telling):
                if data == _DONE:
                    return answer
                _take(parsed(data), answer, telling)
        answer.finish = None  # without [DONE] it was cut off, whatever it said before
        return answer

    @contextlib.asynccontextmanager
    async def _watching_queue(self, telling: Telling) -> AsyncIterator[Any]:
        """See to it that the first-output clock does not run while llama.cpp has others' requests before this one."""
        if self.server != LLAMA_CPP:
            yield lambda: None
            return
        watch = asyncio.create_task(self._watch_queue(telling), name="watch queue")
        try:
            yield watch.cancel
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    async def _watch_queue(self, telling: Telling) -> None:
        while True:
            await asyncio.sleep(self._own.queue_look_s)
            with contextlib.suppress(BackendDown):
                slots = await self._slots()
                if slots and all(slots):
                    telling.waiting("waiting for a free slot of the server")

    async def _slots(self) -> list[bool]:
        """Return of each of llama.cpp's slots whether it works; empty if it doesn't tell."""
        answer = await self.transport.ask("GET", "/slots")
        return [bool(slot.get("is_processing")) for slot in answer.json()] if answer.status == _OK else []

    def _body(self, order: Order) -> dict[str, Any]:
        body = order.extra | {
            "model": order.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": order.max_tokens,
            "seed": order.seed,
        }
        if order.temperature is not None:
            body["temperature"] = order.temperature
        if self.server == LLAMA_CPP:
            body.setdefault("cache_prompt", False)  # else the text depends on the requests before this one
        if self._own.api == "chat":
            return body | {"messages": order.messages} | _response_format(order.format)
        return body | {"prompt": order.prompt} | self._json_schema(order.format)

    def _json_schema(self, wanted: str | dict[str, Any]) -> dict[str, Any]:
        """Return what holds llama.cpp's completions to JSON: they ignore `response_format` silently."""
        if self.server != LLAMA_CPP or wanted == "markdown":
            return {}
        return {"json_schema": wanted if isinstance(wanted, dict) else {}}


def _server_of(headers: Mapping[str, str]) -> str:
    said = headers.get("Server", "")
    if "llama.cpp" in said:
        return LLAMA_CPP
    return MLX if said.startswith("BaseHTTP") else ""


def _short(name: str) -> str:
    """Return what to call a model in jobs that the server calls by the path of its file."""
    return name.rpartition("/")[2].removesuffix(".gguf") if name.startswith("/") else name


def _response_format(wanted: str | dict[str, Any]) -> dict[str, Any]:
    if wanted == "markdown":
        return {}
    if isinstance(wanted, dict):
        schema = {"name": "answer", "strict": True, "schema": wanted}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": "json_object"}}


async def _events(content: aiohttp.StreamReader, telling: Telling) -> AsyncIterator[bytes]:
    """Return the data of each event: they end at blank lines, not with the chunks that they come in.

    A ping is no output: llama.cpp sends them from a server that is about to end. mlx_lm's tell how far the prompt was
    read, and count as far as they move on.
    """
    data: list[bytes] = []
    reading = b""
    async for line in lines(content):
        if line.startswith(b":"):
            if b"keepalive" in line and line != reading:
                reading = line
                telling.waiting("reading the prompt")
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"{"):  # LM Studio may answer a stream with a plain error
            yield line
        elif not line and data:
            yield b"\n".join(data)
            data.clear()
    if data:
        yield b"\n".join(data)


def _take(event: Mapping[str, Any], answer: Answer, telling: Telling) -> None:
    """Take one event of the stream; `choices` may be empty, `content` null or absent."""
    if (error := event.get("error")) is not None:
        status = error.get("code") if isinstance(error, dict) else None
        raise Refused(status if isinstance(status, int) else None, words_of(error))
    answer.model = part(event.get("model"), str) or answer.model
    for entry in part(event.get("choices"), list)[:1]:
        choice = part(entry, dict)
        delta = part(choice.get("delta"), dict)
        if thought := part(delta.get("reasoning_content") or delta.get("reasoning"), str):
            telling.output(answer, thought, thinking=True)
        if text := part(delta.get("content") or choice.get("text"), str):
            telling.output(answer, text)
        answer.finish = part(choice.get("finish_reason"), str) or answer.finish
    if used := part(event.get("usage"), dict):
        answer.prompt_tokens, answer.tokens = count(used.get("prompt_tokens")), count(used.get("completion_tokens"))
    if measured := part(event.get("timings"), dict):
        spent = {"prompt_s": "prompt_ms", "generation_s": "predicted_ms"}
        answer.timings = {name: took / 1000 for name, key in spent.items() if (took := amount(measured.get(key)))}
    if fingerprint := part(event.get("system_fingerprint"), str):
        answer.facts["system_fingerprint"] = fingerprint
