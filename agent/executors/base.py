"""What an executor is: the contract between the agent and a generator's plugin.

An executor knows its backend and nothing of leases, heartbeats or reports. It gets a job and somewhere to tell its
progress, and returns a Product or raises one of the errors below; any other exception is taken for a crash of the
executor (transient). Cancelling `run` must stop the backend's work before it returns: the slot is given to the next
job when `run` has ended.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from agent.host import Clock
from shared.states import ErrorClass
from shared.wire import Capability, Failure


class ExecutorError(Exception):
    """A job did not succeed; the subclass says what is to be done about it."""

    error_class: ClassVar[ErrorClass] = ErrorClass.TRANSIENT

    def __init__(self, code: str, message: str, detail: Any = None) -> None:
        """`code` is one word for statistics, `message` a sentence for people, `detail` any JSON."""
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.detail = detail


class Transient(ExecutorError):  # noqa: N818 - the words of PROTOCOL
    """It may work next time: tried again after the backoff, an attempt is charged."""


class Elsewhere(ExecutorError):  # noqa: N818
    """This Mac can't (model missing, too little memory): tried at once on another."""

    error_class = ErrorClass.ELSEWHERE


class Permanent(ExecutorError):  # noqa: N818
    """The job itself is wrong: failed now."""

    error_class = ErrorClass.PERMANENT


class BackendDown(ExecutorError):  # noqa: N818
    """The generator is not there: the job is released uncharged, and the agent stops pulling for it a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnableJob:
    """A granted job as its executor sees it."""

    id: str
    epoch: int  # with `id` the name for everything that a backend should recognise after a restart
    attempt: int  # 1 = the first that counts
    kind: str
    model: str | None
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    open_workspace: Callable[[], Path]
    no_progress_s: float | None = None  # how long its generator may be silent, learned; None: not known
    failures: Sequence[Failure] | None = None  # what is charged to it, whichever worker met it; None: not known

    @property
    def workspace(self) -> Path:
        """The job's own directory, made when first asked for; it is removed after the job."""
        return self.open_workspace()


class Progress(Protocol):
    """Where an executor tells how far it is; cheap, may be called often, never raises."""

    def stage(self, name: str) -> None:
        """Begin a stage (PROTOCOL, Words)."""

    def progress(self, fraction: float) -> None:
        """Say how much is done, 0 to 1."""

    def detail(self, text: str) -> None:
        """Say what is going on, for people; at most 200 characters are shown."""


@dataclass(frozen=True, slots=True)
class ProductFile:
    """A file of a product, a regular one inside the job's workspace; it is moved away from there."""

    path: Path
    media_type: str
    name: str = ""  # the artifact's name; empty: the file's own

    @property
    def artifact(self) -> str:
        """The artifact's name."""
        return self.name or self.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What came out of a job."""

    result: dict[str, Any] | None = None  # small; JSON
    files: Sequence[ProductFile] = ()
    model: str | None = None  # what really ran
    settings: dict[str, Any] = field(default_factory=dict)  # the settings that it really ran with


class Executor(Protocol):
    """One plugin, one object for the life of the process; `run` is called for several jobs at once if slots allow."""

    name: ClassVar[str]

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        """Make it from its table in the agent's settings; pydantic's ValidationError for what is wrong there."""

    def capabilities(self) -> list[Capability]:
        """Return what it can run right now, from memory; empty while its backend is down."""

    async def start(self) -> None:
        """Begin whatever it needs (sessions, probes); not reaching a backend is no error."""

    async def aclose(self) -> None:
        """End all of it."""

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        """Do the job."""


async def _free_nothing(_why: str) -> None:
    """There is nobody else whose memory could be freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an executor with a backend may know of the agent around it; the defaults serve one that stands alone."""

    now: Callable[[], float] = field(default_factory=lambda: Clock().now)  # seconds; runs on while the machine sleeps
    changed: Callable[[], None] = lambda: None  # to be called when `capabilities` or `warm` answer something new
    gpu_free: Callable[[], bool] = lambda: True  # no job uses the GPU right now: a probe may
    gpu_turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext  # a turn among the jobs, for a probe
    free_memory: Callable[[str], Awaitable[None]] = _free_nothing  # unloads the others' idle models; takes the reason


@runtime_checkable
class Backed(Protocol):
    """What an executor has besides `Executor` if it leans on a server of its own. `http.HttpExecutor` is one."""

    gpu: bool
    """Whether its jobs use this machine's GPU and memory: only so many of those run at once (memory.py)."""

    def attach(self, surroundings: Surroundings) -> None:
        """Take what the agent offers; called once, before `start`."""

    def known(self) -> list[Capability]:
        """Return what it could run when its backend was last seen, down or not; else what its settings say."""

    @property
    def up(self) -> bool:
        """Whether its backend generates, as far as is known."""

    def warm(self) -> list[str]:
        """Return the models that its backend holds in memory, as its capabilities call them."""

    def hold_back(self, reason: str) -> None:
        """Believe that its backend is down until a probe succeeds."""

    async def need_bytes(self, job: RunnableJob) -> int | None:
        """Ask how much memory the job's model will take; 0: it is loaded now; None: that is not known. Never raises."""

    async def stand_aside(self) -> None:
        """Stop a probe that runs: a job, its own or another's, needs the GPU."""

    async def unload(self) -> None:
        """Let the backend give back the memory of its models; called only while none of its jobs runs."""

    def status(self) -> dict[str, Any]:
        """Return what a person wants to know of the backend, as JSON.

        `up`, `reason` (empty while it is up), `url`, `version`, `models`, `warm`, `probe_took_s`; `proven_ago_s` since
        it last generated well, None = never, only of one that probes by itself.
        """


@runtime_checkable
class Lacking(Protocol):
    """What an executor has besides `Executor` if its settings may name what is not there."""

    def lacks(self) -> dict[str, str]:
        """Return each thing that is set and missing, and what to do about it, as far as its backend was seen."""


@runtime_checkable
class Proposing(Protocol):
    """What an executor has besides `Executor` if a backend that was found needs settings before it offers anything."""

    async def proposal(self) -> dict[str, Any]:
        """Return the settings that let it offer what its backend has; called once the backend has answered."""
