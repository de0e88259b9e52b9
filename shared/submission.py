"""A submission: what a publisher may ask for, and every fault of what it asked wrongly (PROTOCOL, Submit).

Unknown fields are faults here (typos), unlike in the messages of `shared.wire`.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from shared import subjects
from shared.states import ErrorClass, Priority
from shared.text import MOST_DEPTH, has_nul, too_deep
from shared.wire import BadMessageError, Fault, Kind, Text, faults_of

MAX_SUBMISSION_BYTES = 1024 * 1024
"""A submission's body, HTTP or NATS."""


def _not_any(model: str) -> str:
    if subjects.slug(model) == subjects.ANY:
        msg = f"{model!r} is the name of the lane for jobs without a model; leave model out instead"
        raise ValueError(msg)
    return model


def _in_utc(at: datetime) -> datetime:
    try:
        at.astimezone(UTC)
    except OverflowError:
        msg = "must lie between the years 1 and 9999 in UTC"
        raise ValueError(msg) from None
    return at


Model = Annotated[Text, Field(min_length=1, max_length=200), AfterValidator(_not_any)]
Instant = Annotated[AwareDatetime, AfterValidator(_in_utc)]


class _Strict(BaseModel):
    """A part of a submission: unknown fields are faults."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChatMessage(_Strict):
    """One message of an article's conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text


class ArticleOptions(BaseModel):
    """Sampling options; those that are not named here go to the backend as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)

    temperature: float | None = Field(default=None, ge=0, le=2)
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    context: int | None = Field(default=None, ge=1)  # tokens


class ArticleSpec(_Strict):
    """What an article is made from: `prompt` or `messages`, not both."""

    prompt: Text | None = Field(default=None, min_length=1)
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, max_length=1000)
    system: Text | None = None
    options: ArticleOptions = ArticleOptions()
    format: Literal["markdown", "json"] | dict[str, Any] = "markdown"  # a dict is a JSON schema
    simulate: "Simulate | None" = None

    @model_validator(mode="after")
    def _one_source(self) -> "ArticleSpec":
        if (self.prompt is None) == (self.messages is None):
            msg = "give either prompt or messages"
            raise ValueError(msg)
        return self


class ImageSpec(_Strict):
    """What an image is made from: fields, or a ComfyUI workflow in API format with inputs for its nodes."""

    prompt: Text | None = Field(default=None, min_length=1)
    negative_prompt: Text | None = None
    width: int = Field(default=1024, ge=64, le=4096, multiple_of=8)  # pixels
    height: int = Field(default=1024, ge=64, le=4096, multiple_of=8)  # pixels
    steps: int | None = Field(default=None, ge=1, le=200)
    cfg: float | None = Field(default=None, ge=0, le=100)
    seed: int | None = Field(default=None, ge=0, le=2**64 - 1)
    n: int = Field(default=1, ge=1, le=8)
    upscale: Literal[1, 2, 4] = 1
    workflow: dict[str, Any] | None = None
    inputs: dict[str, Any] | None = None
    keep_metadata: bool | None = None  # ComfyUI writes the whole graph and prompt into a file; kept only if true
    simulate: "Simulate | None" = None

    @model_validator(mode="after")
    def _one_source(self) -> "ImageSpec":
        if (self.prompt is None) == (self.workflow is None):
            msg = "give either prompt or workflow"
            raise ValueError(msg)
        if self.inputs is not None and self.workflow is None:
            msg = "inputs need a workflow"
            raise ValueError(msg)
        return self


class Simulate(_Strict):
    """What the `sketch` executor is told to do besides drawing; other executors ignore it."""

    seconds: float = Field(default=0, ge=0, le=86400)
    stages: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]] | None = Field(default=None, max_length=20)
    fail: ErrorClass | None = None  # fail with this class ...
    fail_attempts: int = Field(default=1_000_000, ge=1)  # ... while the attempt's number is at most this
    pad_bytes: int = Field(default=0, ge=0, le=200 * 1024 * 1024)  # add a file of this size


_SPECS: dict[str, type[BaseModel]] = {"article": ArticleSpec, "image": ImageSpec}


class Submission(_Strict):
    """A job as a publisher asks for it (PROTOCOL, Submit)."""

    key: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    kind: Kind
    model: Model | None = None
    models: Annotated[list[Model], Field(min_length=1, max_length=8)] | None = None  # instead, in order of preference
    spec: dict[str, Any]
    priority: Priority = Priority.NORMAL
    run_after: Instant | None = None
    max_attempts: int | None = Field(default=None, ge=1, le=100)
    timeout_s: float | None = Field(default=None, gt=0, le=7 * 86400)
    review: bool = False
    callback_url: AnyHttpUrl | None = None
    labels: dict[Annotated[Text, Field(max_length=100)], Annotated[Text, Field(max_length=500)]] = Field(
        default={}, max_length=50
    )

    @field_validator("models")
    @classmethod
    def _distinct(cls, models: list[str] | None) -> list[str] | None:
        slugs = [subjects.slug(model) for model in models or ()]
        twice = sorted({slug for slug in slugs if slugs.count(slug) > 1})
        if twice:
            msg = f"named twice, case and punctuation apart: {', '.join(twice)}"
            raise ValueError(msg)
        return models

    @model_validator(mode="after")
    def _one_choice(self) -> "Submission":
        if self.model is not None and self.models is not None:
            msg = "give either model or models"
            raise ValueError(msg)
        return self


def parse_submission(body: bytes, kinds: frozenset[str] | None = None) -> Submission:
    """Parse and check a submission, its spec included.

    `kinds`: the custom kinds that are known beside `article` and `image` (None: any well-formed kind).
    Raises BadMessageError with every fault; codes `too_large`, `not_json`, `invalid`.
    """
    if len(body) > MAX_SUBMISSION_BYTES:
        message = f"{len(body)} bytes; at most {MAX_SUBMISSION_BYTES}"
        raise BadMessageError("too_large", [Fault(field="", message=message)])
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadMessageError("not_json", [Fault(field="", message=f"not JSON: {error}")]) from None
    if too_deep(raw):
        raise BadMessageError("invalid", [Fault(field="", message=f"nested more than {MOST_DEPTH} levels deep")])
    faults: list[Fault] = []
    submission: Submission | None = None
    try:
        submission = Submission.model_validate(raw)
    except ValidationError as error:
        faults += faults_of(error)
    if isinstance(raw, dict):
        named = {fault.field for fault in faults}  # a kind that is malformed is not called unknown as well
        faults += [fault for fault in _spec_faults(raw, kinds) if fault.field != "kind" or "kind" not in named]
    if submission is None or faults:
        raise BadMessageError("invalid", faults)
    return submission


def _spec_faults(raw: dict[str, Any], kinds: frozenset[str] | None) -> list[Fault]:
    kind, spec = raw.get("kind"), raw.get("spec")
    if not isinstance(kind, str) or not isinstance(spec, dict):
        return []
    model = _SPECS.get(kind)
    if model is not None:
        try:
            model.model_validate(spec)
        except ValidationError as error:
            return faults_of(error, "spec")
    elif kinds is not None and kind not in kinds:
        known = ", ".join(sorted({*_SPECS, *kinds}))
        return [Fault(field="kind", message=f"unknown kind {kind!r}; known here: {known}")]
    if has_nul(spec):
        return [Fault(field="spec", message="text must not contain NUL")]
    return []
