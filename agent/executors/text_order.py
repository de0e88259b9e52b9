"""What a text job asks of its backend, made complete: nothing that changes the text is left to a server's defaults."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import Field

from agent.executors import text_json
from agent.executors.base import Permanent
from agent.executors.http import HttpSettings
from shared import subjects
from shared.submission import ArticleSpec

_MOST_SEED = 2**31
_QUOTED_LEAST = 8
"""Less is a word that the server may have of its own."""


class TextSettings(HttpSettings):
    """What every text executor can be told."""

    models: list[str] | dict[str, str] = Field(default_factory=list)
    """The models to offer, empty: all that the server has; as a table: the names in jobs, and the server's for them."""
    default_model: str | None = None
    """For jobs that name none; None: a loaded one, else the first."""
    probe_model: str | None = None
    """For the tiny generation; None: a loaded one, else a small one, or the one that is used (`openai`)."""
    probe_tokens: int = Field(default=8, ge=1, le=64)
    """How long the tiny generation is."""
    context: int = Field(default=8192, ge=256)
    """Context length in tokens, for jobs that give none. Another one makes some servers load the model again."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens of an answer, for jobs that give none."""
    most_bytes: int = Field(default=500_000, ge=1000, le=1_000_000)
    """An answer of more text than this is stopped: it would not fit into a report."""

    def names(self, found: Sequence[str]) -> dict[str, str]:
        """Return what to offer of what the server has: the name in jobs, and the server's name for it."""
        if isinstance(self.models, dict):
            return {name: there for name, there in self.models.items() if there in found}
        wanted = {subjects.slug(name) for name in self.models}
        return {name: name for name in found if not wanted or subjects.slug(name) in wanted}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a job asks of the backend, by which any server would write the same."""

    model: str  # the server's name for it
    messages: list[dict[str, str]]
    prompt: str  # the same as one text, for servers and models without a chat format
    seed: int
    max_tokens: int
    context: int
    temperature: float | None
    extra: dict[str, Any]  # sampling options that go to the server as they are
    format: str | dict[str, Any]  # markdown, json, or a JSON schema
    allow_length: bool  # an answer that was cut at max_tokens counts
    keep_alive: str | int | None = None  # how long the model stays loaded, for servers that can be told; None: as set

    def without_prompt(self, said: str) -> str:
        """Return what a server said, without what it quotes of the prompt: errors are kept and shown."""
        for message in self.messages:
            for quoted in (message["content"], orjson.dumps(message["content"]).decode()[1:-1]):
                if len(quoted) >= _QUOTED_LEAST:
                    said = said.replace(quoted, "[prompt]")
        return said

    def settings(self) -> dict[str, Any]:
        """Return what is recorded with the result."""
        known = {"seed": self.seed, "max_tokens": self.max_tokens, "context": self.context, "format": self.format}
        return self.extra | known | ({} if self.temperature is None else {"temperature": self.temperature})


def order_of(spec: ArticleSpec, settings: TextSettings, model: str) -> Order:
    """Return what to ask of the server's `model`; Permanent for options that can't be meant."""
    extra = dict(spec.options.model_extra or {})
    allow_length = extra.pop("allow_length", spec.options.max_tokens is not None)
    _check_options(extra, allow_length)
    if isinstance(spec.format, dict):
        text_json.check_schema(spec.format)
    seed = spec.options.seed
    given = [message.model_dump() for message in spec.messages or []] or [
        {"role": "user", "content": spec.prompt or ""}
    ]
    system = "\n\n".join(part for part in (spec.system, text_json.instruction(spec.format)) if part)
    return Order(
        model=model,
        messages=([{"role": "system", "content": system}] if system else []) + given,
        prompt="\n\n".join(([spec.system] if spec.system else []) + [message["content"] for message in given]),
        seed=secrets.randbelow(_MOST_SEED) if seed is None or seed < 0 else seed,
        max_tokens=spec.options.max_tokens or settings.max_tokens,
        context=spec.options.context or settings.context,
        temperature=spec.options.temperature,
        extra=extra,
        format=spec.format,
        allow_length=bool(allow_length),
    )


def tiny_order(settings: TextSettings, model: str) -> Order:
    """Return what is asked to see whether a server generates at all."""
    return Order(
        model=model,
        messages=[{"role": "user", "content": "Count to three."}],
        prompt="1, 2, 3, 4,",
        seed=1,
        max_tokens=settings.probe_tokens,
        context=settings.context,
        temperature=0.0,
        extra={},
        format="markdown",
        allow_length=True,
    )


def _check_options(extra: Mapping[str, Any], allow_length: object) -> None:
    """Refuse options that hurt a server: mlx_lm's only generation thread dies of a `stop` that is no text."""
    stop = extra.get("stop")
    texts = stop if isinstance(stop, list) else [stop]
    if stop is not None and not all(isinstance(text, str) and text for text in texts):
        raise Permanent("bad_spec", "options.stop must be a text or a list of texts, none of them empty")
    if not isinstance(allow_length, bool):
        raise Permanent("bad_spec", "options.allow_length must be true or false")
