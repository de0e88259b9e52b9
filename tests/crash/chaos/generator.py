"""The generator that chaos's agents run: does what a job's plan says, and leaves a line for every start and end.

It is an ordinary plugin of the real agent (`tandem.executors`), which `rig.py` lets the agents find. A job's plan is
JSON in its label `plan`. The lines are the evidence, independent of Tandem, of what was really done:

    side/<job>.<epoch>:   start|end <job> <epoch> <worker> <instance> <attempt> <pid> <monotonic s>

One write with O_APPEND each; a file for each epoch, so small that no limit on file sizes (the full disk) hits it.
"""

import asyncio
import hashlib
import os
import random
import signal
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from agent.executors.base import (
    BackendDown,
    Elsewhere,
    ExecutorError,
    Permanent,
    Product,
    ProductFile,
    Progress,
    RunnableJob,
    Transient,
)
from shared.wire import Capability

PLAN = "plan"
"""The label that holds the plan."""

KINDS = ("article", "image", "render")
VARIANTS = 24
"""How many different large files there are: the store keeps each once, so that a long run does not fill the disk."""

_STEP_S = 0.2


class Plan(BaseModel):
    """What is to happen to a job. Epochs are the ledger's: what a plan does on the first ones, it does once each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = 0.0
    files: list[int] = []  # variants of large files
    fail: int = 0  # transient failures first
    permanent: bool = False
    elsewhere: str = ""  # the worker that can't do it
    release: int = 0  # on so many first epochs the backend is down
    block: float = 0.0  # seconds for which the event loop stands still
    kill: int = 0  # on so many first epochs it kills its agent


class GeneratorSettings(BaseModel):
    """Where it works."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker: str
    side: Path
    data: Path  # the agent's folder: its lock names the instance


class PlannedExecutor:
    """Implements `agent.executors.base.Executor`."""

    name: ClassVar[str] = "planned"

    def __init__(self, settings: GeneratorSettings) -> None:
        self._settings = settings

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        return cls(GeneratorSettings.model_validate(dict(table)))

    def capabilities(self) -> list[Capability]:
        return [Capability(kind=kind, models=["*"], executor=self.name) for kind in KINDS]

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        plan = Plan.model_validate_json(job.labels[PLAN])
        self._line("start", job)
        progress.stage("generating_image" if plan.files else "generating_text")
        await self._spend(plan, job, progress)
        error = self._error_of(plan, job)
        if error is not None:
            self._line("end", job)
            raise error
        files = await asyncio.to_thread(_write, job, plan)
        self._line("end", job)
        return Product(result={"text": text_of(job.id, job.epoch)}, files=files, model=job.model or self.name)

    async def _spend(self, plan: Plan, job: RunnableJob, progress: Progress) -> None:
        began = time.monotonic()
        if plan.block:
            time.sleep(plan.block)  # noqa: ASYNC251 - a plugin that blocks is the fault
        while (passed := time.monotonic() - began) < plan.seconds:
            progress.progress(passed / plan.seconds)
            if job.epoch <= plan.kill and passed > plan.seconds / 2:
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(min(_STEP_S, plan.seconds - passed))

    def _error_of(self, plan: Plan, job: RunnableJob) -> ExecutorError | None:
        if job.epoch <= plan.release:
            return BackendDown("backend_down", "planned: the backend is away")
        if plan.elsewhere == self._settings.worker:
            return Elsewhere("cannot", "planned: not on this worker")
        if plan.permanent:
            return Permanent("wrong", "planned: never")
        if job.attempt <= plan.fail:
            return Transient("hiccup", f"planned: failure {job.attempt} of {plan.fail}")
        return None

    def _line(self, word: str, job: RunnableJob) -> None:
        instance = (self._settings.data / "agent.lock").read_text().strip().rpartition(" ")[2]
        fields = (word, job.id, job.epoch, self._settings.worker, instance, job.attempt, os.getpid())
        line = f"{' '.join(str(field) for field in fields)} {time.monotonic():.3f}\n".encode()
        side = self._settings.side / f"{job.id}.{job.epoch}"
        descriptor = os.open(side, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def text_of(job_id: str, epoch: int) -> str:
    """Return the text that an epoch of a job must have as its result."""
    return f"text of {job_id}, epoch {epoch}"


def content(variant: int) -> bytes:
    """Return a large file's bytes: from 8 KiB to some MiB."""
    chance = random.Random(variant)
    return chance.randbytes(int(8192 * 512 ** ((variant % VARIANTS) / (VARIANTS - 1))))


@cache
def sha256_of(variant: int) -> str:
    """Return the digest of a large file."""
    return hashlib.sha256(content(variant)).hexdigest()


def _write(job: RunnableJob, plan: Plan) -> list[ProductFile]:
    """Write what a job returns: a small file of its own, and its large ones."""
    files = [("own.txt", "text/plain", text_of(job.id, job.epoch).encode())]
    files += [(f"image-{n}.bin", "application/octet-stream", content(v)) for n, v in enumerate(plan.files, 1)]
    for name, _, data in files:
        (job.workspace / name).write_bytes(data)
    return [ProductFile(job.workspace / name, media_type) for name, media_type, _ in files]
