"""What all executors with an HTTP backend share: its health, small questions, streams, and the errors of the transport.

A backend is up when it answered `look` and has proven by a tiny generation that it generates: servers answer /health
and list their models while generation hangs (facts/executors.md B.4). After anything doubtful it is down until the
next tiny generation succeeds, so that no job is pulled for it. Nothing is asked of it while a job runs on it.
A subclass says how to look, how to generate a little, how to do a job, and how to free memory.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import aiohttp
import structlog
from pydantic import Field, SecretStr
from yarl import URL

from agent.executors.base import BackendDown, Product, Progress, RunnableJob, Surroundings
from agent.executors.clocks import Limits, OutOfTime, Seconds
from agent.executors.transport import CutOff, Refused, Transport
from agent.executors.verdicts import Judge
from shared.loops import Loop
from shared.wire import Capability

NOT_YET = "not looked at yet"
"""The reason of a backend of which nothing is known so far."""
_PATIENCE_S = 30.0
"""How long a doubt is left to the gaps between others' jobs, before the tiny generation takes a turn like a job."""
_MOST_PATIENCE_S = 3600.0
"""The longest pause between two such turns; each that fails doubles it: a dead backend must not hold up the others."""
_log = structlog.get_logger()


class HttpSettings(Limits):
    """What every HTTP executor can be told, besides the limits of its clocks."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """Where the server listens."""
    api_key: SecretStr | None = None
    """Sent as a bearer token."""
    gpu: bool = True
    """Whether its jobs use this machine's GPU and memory (false: the server is elsewhere, or uses the CPU)."""
    connect_s: Seconds = 5
    """How long a connection may take."""
    answer_s: Seconds = 20
    """How long a small question may take; a server that loads a model answers late."""
    look_s: Seconds = 15
    """How often is looked which models there are."""
    retry_s: Seconds = 5
    """How often is looked while it is down."""
    probe_s: Annotated[float, Field(ge=0)] = 300
    """A tiny generation after so long without any (0 = never, not even before the first job)."""
    probe_limit_s: Seconds = 300
    """How long the tiny generation may take, loading the model included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at a backend found."""

    capabilities: list[Capability] = field(default_factory=list)
    warm: list[str] = field(default_factory=list)  # models in memory, named as in the capabilities
    version: str = ""


class HttpExecutor(ABC):
    """Implements `base.Executor` and `base.Backed`, but for what a backend does its own way."""

    name: ClassVar[str]

    def __init__(self, settings: HttpSettings) -> None:
        """Nothing is opened."""
        self.gpu = settings.gpu
        self.judge = Judge(self.name)
        self.surroundings = Surroundings()
        self.found = Found()
        self._seen = False  # something was found
        self.running = 0
        self._settings = settings
        self._up = False
        self._reason = NOT_YET
        self._doubt = settings.probe_s > 0
        self._patience_s = _PATIENCE_S
        self._turn_at: float | None = None  # when a doubt is worth a turn on the GPU
        self._proven_at = float("-inf")
        self._proof_took_s: float | None = None
        self._not_before = float("-inf")
        self._proof: asyncio.Task[None] | None = None
        self.transport = Transport(
            settings.url,
            api_key=settings.api_key.get_secret_value() if settings.api_key else None,
            connect_s=settings.connect_s,
            answer_s=settings.answer_s,
        )
        self._loop = Loop(f"backend {self.name}", self.once, settings.retry_s)
        self._task: asyncio.Task[None] | None = None

    # ---- what a subclass does

    @abstractmethod
    async def look(self) -> Found:
        """Say what the backend offers; BackendDown if it doesn't answer well."""

    @abstractmethod
    async def generate_a_little(self) -> None:
        """Make it generate something tiny, and check it; any of this module's exceptions if that fails."""

    @abstractmethod
    async def work(self, job: RunnableJob, progress: Progress) -> Product:
        """Do a job. When cancelled, return only when the backend has stopped, as far as that can be known."""

    def expected(self) -> list[Capability]:
        """Return what the settings say that it can run, if they say it."""
        return []

    async def unload(self) -> None:  # noqa: B027 - some can't
        """Free the memory of its models, if it can."""

    async def need_bytes(self, job: RunnableJob) -> int | None:  # noqa: ARG002
        """Ask how much memory loading the job's model takes; 0: it is loaded now; None: not known."""
        return None

    def probe_every_s(self) -> float:
        """Return after how long without a generation a tiny one is due."""
        return self._settings.probe_s

    # ---- Executor and Backed

    def attach(self, surroundings: Surroundings) -> None:
        """Take what the agent offers."""
        self.surroundings = surroundings

    def session(self) -> aiohttp.ClientSession:
        """Return the session for requests that `transport` has no form for."""
        return self.transport.session()

    def now(self) -> float:
        """Return the time by the clock that runs on in sleep."""
        return self.surroundings.now()

    @property
    def up(self) -> bool:
        """Whether it generates, as far as is known."""
        return self._up

    def known(self) -> list[Capability]:
        """Return what it could run when last seen; before that, what the settings say."""
        return self.found.capabilities if self._seen else self.expected()

    def capabilities(self) -> list[Capability]:
        """Return what it can run right now."""
        return self.found.capabilities if self._up else []

    def warm(self) -> list[str]:
        """Return the models in memory."""
        return self.found.warm if self._up else []

    def status(self) -> dict[str, Any]:
        """Return what a person wants to know of the backend."""
        return {
            "up": self._up,
            "reason": self._reason,
            "url": str(URL(self._settings.url).with_user(None)),
            "version": self.found.version,
            "models": [model for capability in self.found.capabilities for model in capability.models],
            "warm": self.found.warm,
            "probe_took_s": self._proof_took_s,
            **self._proven(),
        }

    def _proven(self) -> dict[str, float | None]:
        if not self.probe_every_s():
            return {}
        proven = self._proven_at > float("-inf")
        return {"proven_ago_s": round(self.now() - self._proven_at, 3) if proven else None}

    async def start(self) -> None:
        """Begin to look after the backend."""
        self._task = asyncio.create_task(self._loop.run(), name=f"backend:{self.name}")

    async def aclose(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.stand_aside()
        await self.transport.close()

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        """Do a job."""
        if (refusal := self.judge.refusal(job)) is not None:
            raise refusal
        self.running += 1
        try:
            await self.stand_aside()
            product = await self.work(job, progress)
        except BackendDown as error:
            self.hold_back(error.message)
            raise
        finally:
            self.running -= 1
            self._loop.wake()
        self._proven_at = self.now()
        return product

    def hold_back(self, reason: str, for_s: float = 0) -> None:
        """Be down until a tiny generation succeeds, which is not tried for `for_s`."""
        self._doubt = self._settings.probe_s > 0
        self._not_before = max(self._not_before, self.now() + for_s)
        self._judge_up(None, reason or "down")
        self._loop.wake()

    async def stand_aside(self) -> None:
        """End a tiny generation that runs: a job comes first."""
        if self._proof is not None:
            self._proof.cancel()
            await asyncio.wait({self._proof})

    # ---- health

    async def once(self) -> None:
        """Look, and let it generate a little if that is due. Never fails."""
        if self.running or self.now() < self._not_before:
            return
        try:
            found = await self.look()
            before, self.found, self._seen = self.found, found, True
            proven = await self._prove_if_due()
        except (BackendDown, Refused, CutOff, OutOfTime) as error:
            self._judge_up(None, str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - whatever listens there, it is not what was expected
            self._judge_up(None, f"{type(error).__name__}: {error}")
        else:
            if proven and not self.running:
                self._judge_up(before, "")

    async def _prove_if_due(self) -> bool:
        """Say whether the backend may be believed to generate."""
        every_s = self.probe_every_s()
        due = self._doubt or (every_s > 0 and self.now() - self._proven_at >= every_s)
        if not due or not self.found.capabilities:
            return True
        if self._worth_a_turn():
            return await self._prove_in_turn()
        if self.gpu and not self.surroundings.gpu_free():
            return not self._doubt
        return await self._prove()

    def _worth_a_turn(self) -> bool:
        """Whether a doubt has lasted too long: while others have work, no gap between their jobs is long enough."""
        if not self._doubt or not self.gpu:
            return False
        if self._turn_at is None:
            self._turn_at = self.now() + self._patience_s
        return self.now() >= self._turn_at

    async def _prove_in_turn(self) -> bool:
        async with self.surroundings.gpu_turn():
            try:
                return await self._prove()
            finally:
                if self._doubt:
                    self._patience_s = min(2 * self._patience_s, _MOST_PATIENCE_S)
                    self._turn_at = self.now() + self._patience_s

    async def _prove(self) -> bool:
        if self.running:
            return not self._doubt
        began_at = self.now()
        self._proof = asyncio.create_task(self._generate_a_little(), name=f"probe:{self.name}")
        try:
            await asyncio.wait({self._proof})
        finally:
            proof, self._proof = self._proof, None
            proof.cancel()
            await asyncio.wait({proof})
        if proof.cancelled():
            return not self._doubt  # a job came, or it ends: nothing was learned
        try:
            proof.result()
        except Exception:
            self._doubt = True
            raise
        self._doubt, self._proven_at = False, self.now()
        self._patience_s, self._turn_at = _PATIENCE_S, None
        self._proof_took_s = round(self._proven_at - began_at, 3)
        return True

    async def _generate_a_little(self) -> None:
        try:
            async with asyncio.timeout(self._settings.probe_limit_s):
                await self.generate_a_little()
        except TimeoutError:
            raise BackendDown("probe", f"no tiny generation in {self._settings.probe_limit_s:g} s") from None

    def _judge_up(self, before: Found | None, reason: str) -> None:
        """Note whether it is up, and tell whom it concerns; `before` is what was found the time before."""
        was, self._up = self._up, not reason
        if reason != self._reason:
            _log.info("backend", executor=self.name, up=self._up, reason=reason[:200], version=self.found.version)
        self._reason = reason
        self._loop.every_s = self._settings.look_s if self._up else self._settings.retry_s
        if was != self._up or (before is not None and before != self.found):
            self.surroundings.changed()
