"""The executor without a model: writes Markdown and draws PNGs, to try the system and to test it.

Kinds: `article`, `image`, and `noop` (a few bytes, no file; for the bench), as the settings list them. It follows the
spec's `simulate` (shared/submission.py): takes time, names stages, fails, adds bulk.

    [executors.sketch]
    kinds = ["article", "image"]
    models = ["*"]
"""

import asyncio
import importlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.executors import prose
from agent.executors.base import (
    Elsewhere,
    ExecutorError,
    Permanent,
    Product,
    ProductFile,
    Progress,
    RunnableJob,
    Transient,
)
from shared.errors import ConfigurationError
from shared.states import ErrorClass
from shared.submission import ArticleSpec, ImageSpec, Simulate
from shared.wire import Capability, faults_of

_DRAWING = "agent.executors.drawing"
_STEP_S = 0.25
_MOST_PIXELS = 120_000_000
_BLOCK_BYTES = 1024 * 1024
_FAULTS: Mapping[ErrorClass, type[ExecutorError]] = {
    ErrorClass.TRANSIENT: Transient,
    ErrorClass.ELSEWHERE: Elsewhere,
    ErrorClass.PERMANENT: Permanent,
}


class SketchSettings(BaseModel):
    """What it offers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kinds: list[Literal["article", "image", "noop"]] = Field(default=["article", "image"], min_length=1)
    """What it does."""
    models: list[str] = Field(default=["*"], min_length=1)
    """Which models it pretends to be; `*` is every one."""


class SketchExecutor:
    """Implements `base.Executor`."""

    name: ClassVar[str] = "sketch"

    def __init__(self, settings: SketchSettings) -> None:
        """Nothing is opened."""
        self._capabilities = [
            Capability(kind=kind, models=settings.models, executor=self.name) for kind in settings.kinds
        ]

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        """Make it from `[executors.sketch]`."""
        return cls(SketchSettings.model_validate(dict(table)))

    def capabilities(self) -> list[Capability]:
        """Return its kinds; there is no backend that could be down."""
        return self._capabilities

    async def start(self) -> None:
        """Load the library for drawing, which takes a while and is an extra; ConfigurationError if it is missing."""
        if any(capability.kind == "image" for capability in self._capabilities):
            try:
                await asyncio.to_thread(importlib.import_module, _DRAWING)
            except ImportError as error:
                msg = f"executors.sketch: kind image needs Pillow ({error}); install tandem[agent]"
                raise ConfigurationError(msg) from None

    async def aclose(self) -> None:
        """Nothing to end."""

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        """Write or draw."""
        if job.kind == "noop":
            return Product(result={"text": "done"}, model=job.model or self.name)
        try:
            if job.kind == "article":
                return await self._article(job, progress, ArticleSpec.model_validate(job.spec))
            if job.kind == "image":
                return await self._image(job, progress, ImageSpec.model_validate(job.spec))
        except ValidationError as error:
            faults = [fault.model_dump() for fault in faults_of(error, "spec")]
            raise Permanent("bad_spec", "the spec can't be read", faults) from None
        raise Elsewhere("unknown_kind", f"sketch does not do {job.kind}")

    async def _article(self, job: RunnableJob, progress: Progress, spec: ArticleSpec) -> Product:
        await self._simulate(job, progress, spec.simulate, ["loading_model", "generating_text"])
        seed = spec.options.seed or 0
        prompt = spec.prompt if spec.prompt is not None else "\n".join(m.content for m in spec.messages or [])
        if spec.format == "markdown":
            text, name, media_type = prose.article(prompt, seed), "article.md", "text/markdown"
        else:
            schema = spec.format if isinstance(spec.format, dict) else None
            text = orjson.dumps(prose.document(prompt, seed, schema), option=orjson.OPT_INDENT_2).decode()
            name, media_type = "article.json", "application/json"
        files = await asyncio.to_thread(_write, job, name, media_type, text, spec.simulate)
        settings = {"seed": seed, "format": spec.format if isinstance(spec.format, str) else "schema"}
        return Product(result={"text": text}, files=files, model=job.model or self.name, settings=settings)

    async def _image(self, job: RunnableJob, progress: Progress, spec: ImageSpec) -> Product:
        if spec.width * spec.height * spec.upscale**2 > _MOST_PIXELS:
            msg = f"{spec.width * spec.upscale} x {spec.height * spec.upscale} pixels; at most {_MOST_PIXELS} here"
            raise Elsewhere("too_large", msg)
        stages = ["loading_model", "generating_image"]
        await self._simulate(job, progress, spec.simulate, stages)
        seed, prompt = spec.seed or 0, spec.prompt or "workflow"
        files: list[ProductFile] = []
        for number in range(1, spec.n + 1):
            if number > 1:
                progress.stage(stages[-1])
            progress.detail(f"image {number} of {spec.n}")
            path = job.workspace / f"image-{number}.png"
            await _draw(path, progress, spec, prompt=prompt, seed=seed + number - 1)
            files.append(ProductFile(path, "image/png"))
        files += await asyncio.to_thread(_pad, job, spec.simulate)
        settings = {"seed": seed, "width": spec.width, "height": spec.height, "n": spec.n, "upscale": spec.upscale}
        return Product(result={"images": spec.n}, files=files, model=job.model or self.name, settings=settings)

    async def _simulate(
        self, job: RunnableJob, progress: Progress, simulate: Simulate | None, stages: list[str]
    ) -> None:
        """Go through the stages, spending the time that was asked for, and fail if asked to."""
        if simulate is None:
            progress.stage(stages[-1])
            return
        stages = simulate.stages or stages
        for stage in stages:
            progress.stage(stage)
            await _spend(simulate.seconds / len(stages), progress)
        if simulate.fail is not None and job.attempt <= simulate.fail_attempts:
            message = f"attempt {job.attempt} was told to fail"
            raise _FAULTS[simulate.fail]("simulated", message, {"attempt": job.attempt})


async def _spend(seconds: float, progress: Progress) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (passed := loop.time() - began) < seconds:
        progress.progress(passed / seconds)
        await asyncio.sleep(min(_STEP_S, seconds - passed))


async def _draw(path: Path, progress: Progress, spec: ImageSpec, *, prompt: str, seed: int) -> None:
    """Draw in a thread; when cancelled, return only after the thread has stopped."""
    drawing = importlib.import_module(_DRAWING)
    cancelled = threading.Event()

    def check(fraction: float) -> None:
        if cancelled.is_set():
            raise InterruptedError
        progress.progress(fraction)
        if spec.upscale > 1 and fraction >= 0.7:  # noqa: PLR2004 - the drawing is done, see drawing.draw
            progress.stage("upscaling")

    what = {"prompt": prompt, "seed": seed, "width": spec.width, "height": spec.height, "upscale": spec.upscale}
    work = asyncio.ensure_future(asyncio.to_thread(drawing.draw, path, **what, check=check))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait({work})
        work.exception()
        raise


def _write(job: RunnableJob, name: str, media_type: str, text: str, simulate: Simulate | None) -> list[ProductFile]:
    path = job.workspace / name
    path.write_text(text, encoding="utf-8")
    return [ProductFile(path, media_type), *_pad(job, simulate)]


def _pad(job: RunnableJob, simulate: Simulate | None) -> list[ProductFile]:
    """Return the extra file that `simulate` asks for, written in blocks."""
    if simulate is None or not simulate.pad_bytes:
        return []
    path = job.workspace / "pad.bin"
    block, left = bytes(range(256)) * (_BLOCK_BYTES // 256), simulate.pad_bytes
    with path.open("wb") as target:
        while left:
            left -= target.write(block[: min(left, _BLOCK_BYTES)])
    return [ProductFile(path, "application/octet-stream")]
