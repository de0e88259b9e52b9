"""The executor for Ollama: `/api/chat` streamed as NDJSON.

Ollama's traps (facts/executors.md B.2): no byte comes while a model loads; an error after the first byte is a line
inside a 200; a stream may end without `done`; `num_ctx` is chosen by the machine unless it is sent, and another one
loads the model anew; the oldest messages are dropped silently when they don't fit; dropping the connection cancels.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from pydantic import Field

from agent.executors.base import BackendDown, Elsewhere, RunnableJob
from agent.executors.http import Found
from agent.executors.text import TextExecutor
from agent.executors.text_answer import Answer, Telling
from agent.executors.text_order import Order, TextSettings
from agent.executors.transport import Refused, amount, count, lines, parsed, part, words_of
from agent.executors.verdicts import Finding, Verdict

_LATEST = ":latest"
_TOP_LEVEL = ("think",)  # options that stand beside `options`
_FOR_EVER_S = 10_000_000
_UNLOAD_S = 20.0
_UNLOAD_ROUND_S = 0.1
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_NS = 1e9
_OK = 200
_CHARS_A_TOKEN = 4
_TOO_MANY_CHARS = 7
"""No text has so many characters for each of its tokens: the rest was not read."""


class OllamaSettings(TextSettings):
    """`[executors.ollama]`."""

    url: str = Field(default="http://127.0.0.1:11434", pattern=r"^https?://[^\s]+$")
    """Where Ollama listens."""
    keep_alive: str | int | None = None
    """How long a model stays loaded after a job, as Ollama takes it ("10m", seconds, -1); None: Ollama's own."""
    probe_cold_s: float = Field(default=3600, ge=0)
    """A tiny generation after so long when no model is loaded: one is loaded for it, and unloaded again."""


@dataclass(frozen=True, slots=True)
class Model:
    """An installed model."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory."""

    context: int | None
    expires_at: datetime | None


class OllamaExecutor(TextExecutor):
    """Implements `base.Executor` and `base.Backed`."""

    name: ClassVar[str] = "ollama"

    def __init__(self, settings: OllamaSettings) -> None:
        """Nothing is opened."""
        super().__init__(settings)
        self._own = settings
        self._models: dict[str, Model] = {}  # by the full name
        self._loaded: dict[str, Loaded] = {}
        self._writes: dict[str, bool] = {}  # by digest: whether it is a model that writes

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        """Make it from `[executors.ollama]`."""
        return cls(OllamaSettings.model_validate(dict(table)))

    async def look(self) -> Found:
        """Ask for version, installed and loaded models."""
        version, tags = [(await self._get(path)) for path in ("/api/version", "/api/tags")]
        self._models = {
            str(entry["name"]): Model(str(entry.get("digest") or ""), int(entry.get("size") or 0))
            for entry in tags.get("models") or []
        }
        await self._see_loaded()
        await self._learn()
        writing = sorted(name for name, model in self._models.items() if self._writes.get(model.digest, True))
        names = self._own.names([*writing, *(name.removesuffix(_LATEST) for name in writing if name.endswith(_LATEST))])
        capabilities = self.offers(names)
        warm = [name for name, there in self.offered.items() if _full(there) in self._loaded]
        return Found(capabilities=capabilities, warm=warm, version=str(version.get("version") or ""))

    async def generate(self, order: Order, telling: Telling) -> Answer:
        """Chat."""
        answer = Answer()
        async with self.transport.stream("/api/chat", self._body(order)) as response:
            async for line in lines(response.content):
                if line:
                    _take(parsed(line), answer, telling)
                if answer.finish is not None:
                    break
        return answer

    def tiny_order(self, model: str) -> Order:
        """Return an order that leaves memory as it is: a loaded model keeps its context and its end, another goes."""
        order, loaded = super().tiny_order(model), self._loaded.get(_full(model))
        if loaded is None:
            return replace(order, keep_alive=0)
        return replace(order, context=loaded.context or order.context, keep_alive=_left_s(loaded.expires_at))

    def probe_every_s(self) -> float:
        """With nothing loaded seldom: the probe would load a model."""
        return self._own.probe_s if self._loaded else self._own.probe_s and self._own.probe_cold_s

    def small_model(self) -> str:
        """Return the smallest."""
        return min(self.offered.values(), key=lambda there: self._model(there).size_bytes)

    async def need_bytes(self, job: RunnableJob) -> int | None:
        """Return the size of the job's model, 0 if it is loaded."""
        try:
            await self._see_loaded()
            there = self.model_of(job)
        except (BackendDown, Elsewhere):
            return None
        return 0 if _full(there) in self._loaded else self._model(there).size_bytes or None

    async def unload(self) -> None:
        """Unload every model, and wait until the server says so."""
        async with asyncio.timeout(_UNLOAD_S):
            while loaded := (await self._get("/api/ps")).get("models"):
                for entry in loaded:  # not what the last look found: a job has loaded another since
                    await self.transport.ask("POST", "/api/generate", {"model": entry["name"], "keep_alive": 0})
                await asyncio.sleep(_UNLOAD_ROUND_S)  # the server announces nothing
        self._loaded = {}

    def same_model(self, asked: str, answered: str) -> bool:
        """Compare full names."""
        return _full(asked) == _full(answered)

    def digest(self, model: str) -> str | None:
        """Return the model's digest."""
        return self._model(model).digest or None

    def remedy(self, model: str) -> str:
        """Return how to get a model."""
        return f"run: ollama pull {model}; or correct executors.ollama"

    def check(self, order: Order, answer: Answer) -> tuple[Finding, str] | None:
        """Find out that the beginning of the conversation was dropped: far fewer tokens were read than were sent."""
        sent = sum(len(message["content"]) for message in order.messages)
        read = answer.prompt_tokens
        if read is None or sent < order.context * _CHARS_A_TOKEN or sent < read * _TOO_MANY_CHARS:
            return None
        said = f"{read} tokens were read of a prompt of {sent} characters: it does not fit into {order.context} tokens"
        return Finding(Verdict.FAIL, "prompt_too_long"), said

    def weigh(self, refused: Refused) -> Finding | None:
        """Say that a model which needs more memory than this machine has never runs here."""
        found = re.search(r"more system memory \(([\d.]+) ([KMGT]iB)\)", refused.text)
        if found is None or float(found[1]) * _UNITS[found[2]] <= _memory_bytes():
            return None
        return Finding(Verdict.ROUTE, "too_large")

    # ---- on the wire

    def _body(self, order: Order) -> dict[str, Any]:
        extra = {name: value for name, value in order.extra.items() if name not in _TOP_LEVEL}
        options = extra | {"num_ctx": order.context, "num_predict": order.max_tokens, "seed": order.seed}
        if order.temperature is not None:
            options["temperature"] = order.temperature
        body: dict[str, Any] = {
            "model": order.model,
            "messages": order.messages,
            "stream": True,
            "truncate": False,  # servers that know it refuse what does not fit; see `check` for those that don't
            "options": options,
            **{name: order.extra[name] for name in _TOP_LEVEL if name in order.extra},
        }
        if order.format != "markdown":
            body["format"] = order.format
        keep_alive = self._own.keep_alive if order.keep_alive is None else order.keep_alive
        if keep_alive is not None:
            body["keep_alive"] = keep_alive
        return body

    async def _see_loaded(self) -> None:
        """Find out what is in memory: models leave it by themselves."""
        self._loaded = {
            str(entry["name"]): Loaded(entry.get("context_length"), _instant(entry.get("expires_at")))
            for entry in (await self._get("/api/ps")).get("models") or []
        }

    async def _learn(self) -> None:
        """Find out which of the models that are new write: embedding models do not."""
        for name, model in self._models.items():
            if model.digest in self._writes:
                continue
            answer = await self.transport.ask("POST", "/api/show", {"model": name})
            if answer.status != _OK:
                continue  # removed meanwhile
            abilities = answer.json().get("capabilities")
            self._writes[model.digest] = abilities is None or "completion" in abilities

    async def _get(self, path: str) -> dict[str, Any]:
        answer = await self.transport.ask("GET", path)
        found = answer.json() if answer.status == _OK else None
        if not isinstance(found, dict):
            raise BackendDown("no_answer", f"GET {path} answered {answer.status}")
        return found

    def _model(self, there: str) -> Model:
        return self._models.get(_full(there), Model("", 0))


def _full(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else name + _LATEST


def _take(event: Mapping[str, Any], answer: Answer, telling: Telling) -> None:
    """Take one line of the stream."""
    if event.get("error") is not None:
        raise Refused(None, words_of(event["error"]))
    answer.model = part(event.get("model"), str) or answer.model
    message = part(event.get("message"), dict)
    if thought := part(message.get("thinking"), str):
        telling.output(answer, thought, thinking=True)
    if text := part(message.get("content"), str):
        telling.output(answer, text)
    if event.get("done") is True:
        answer.finish = part(event.get("done_reason"), str) or "stop"
        answer.prompt_tokens, answer.tokens = count(event.get("prompt_eval_count")), count(event.get("eval_count"))
        spent = {"load_s": "load_duration", "prompt_s": "prompt_eval_duration", "generation_s": "eval_duration"}
        answer.timings = {name: took / _NS for name, key in spent.items() if (took := amount(event.get(key)))}


def _instant(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else None


def _left_s(expires_at: datetime | None) -> int | None:
    """Return how long a model would still stay loaded, as keep_alive; None: as usual."""
    if expires_at is None:
        return None
    left_s = (expires_at - datetime.now(UTC)).total_seconds()
    return -1 if left_s > _FOR_EVER_S else max(1, round(left_s))


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
