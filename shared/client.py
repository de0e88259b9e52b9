"""A client of the HTTP interface: submit, look, act, wait. What the command line uses, and publishers may.

    async with Client("http://127.0.0.1:8420", token) as client:
        sent = await client.submit({"kind": "article", "spec": {"prompt": "Spring in the harbour"}})
        job = await client.wait(sent.id)

Raises UnreachableError when no answer came (whether a change was made is then unknown: submit with a `key` and it may
be repeated), RefusedRequestError for an answer that says no. Answers keep fields that this version has no name for.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

import aiohttp
import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from shared.errors import ConfigurationError, TandemError, UnreachableError
from shared.states import SETTLED, JobState
from shared.wire import Fault

_Model = TypeVar("_Model", bound=BaseModel)
_CHUNK_BYTES = 256 * 1024
_WATCH_S = 0.3
_PATIENCE_S = 60.0
"""How long `wait` bears a server that can't be reached: a coordinator that is restarted is back by then."""


class RefusedRequestError(TandemError):
    """The server answered, and refused; `code` is one word for programs, each fault names a field."""

    def __init__(self, status: int, code: str, message: str, faults: list[Fault]) -> None:
        """Keep what the server said."""
        super().__init__(message)
        self.status, self.code, self.faults = status, code, faults


class _Answer(BaseModel):
    """A part of an answer; what is not named here is kept."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())


class Submitted(_Answer):
    """What became of a submission."""

    id: UUID
    state: str  # of the job; `queued` while the ledger is away
    how: Literal["created", "same", "queued"]


class PredictedFinish(_Answer):
    """When a job that waits or runs will be done: half of such jobs are by `median`, nine of ten by `p90`."""

    median: datetime
    p90: datetime
    basis: str  # what it rests on, for people: "mini, 41 jobs"


class JobLine(_Answer):
    """A job as lists show it. Durations in seconds."""

    id: UUID
    key: str | None = None
    source: str
    kind: str
    model: str | None = None
    lane: str
    state: JobState
    labels: dict[str, str] = {}
    priority: str = "normal"
    created_at: datetime
    finished_at: datetime | None = None
    worker: str | None = None  # who holds it, or held it last
    stage: str | None = None
    progress: float | None = None
    duration_s: float | None = None  # of the last attempt
    predicted_finish: PredictedFinish | None = None  # None: not known, or it is settled
    lease_left_s: float | None = None
    epoch: int = 0
    attempt: int = 0
    max_attempts: int = 0
    lease_losses: int = 0
    silences: int = 0
    error: dict[str, Any] | None = None


class AttemptLine(_Answer):
    """One epoch of a job."""

    epoch: int
    number: int
    worker: str
    claimed_at: datetime
    ended_at: datetime | None = None
    duration_s: float | None = None
    outcome: str | None = None
    stage: str | None = None
    progress: float | None = None
    heartbeats: int = 0
    error: dict[str, Any] | None = None


class ArtifactLine(_Answer):
    """A file of the accepted result."""

    name: str
    media_type: str
    size: int  # bytes
    sha256: str
    url: str


class CallbackLine(_Answer):
    """What a job's `callback_url` was told of one state, or is to be told."""

    epoch: int
    state: str
    webhook_id: str
    url: str
    size: int  # of the body, bytes
    since: datetime
    attempts: int
    next_at: datetime | None = None  # exactly one of these three
    delivered_at: datetime | None = None
    given_up_at: datetime | None = None
    tried_at: datetime | None = None
    status: int | None = None  # the last answer's
    error: str | None = None  # why the last try failed


class UndeliveredLine(_Answer):
    """A callback that was given up."""

    job_id: UUID
    epoch: int
    state: str
    source: str
    url: str
    attempts: int
    given_up_at: datetime
    status: int | None = None
    error: str | None = None


class ActionLine(_Answer):
    """What a person did to a job."""

    at: datetime
    actor: str
    action: str


class JobView(JobLine):
    """A job with everything about it."""

    spec: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    result_epoch: int | None = None
    models: list[str] | None = None  # in order of preference; `model` is the one that it has now
    why: list[str] = []  # why it is where it is, for people
    used_model: str | None = None
    attempts: list[AttemptLine] = []
    artifacts: list[ArtifactLine] = []
    callbacks: list[CallbackLine] = []  # oldest first, as these
    actions: list[ActionLine] = []


class JobPage(_Answer):
    """A page of jobs, newest first; `next` is the next page's cursor."""

    jobs: list[JobLine]
    next: str | None = None


class HeartbeatLine(_Answer):
    """A heartbeat that is still kept."""

    epoch: int
    worker: str
    at: datetime
    stage: str
    elapsed_s: float
    progress: float | None = None
    detail: str | None = None


class WorkerLine(_Answer):
    """A worker as it was last heard of."""

    name: str
    present: bool
    wanted: str
    seen_age_s: float | None = None
    presence: dict[str, Any] | None = None
    holds: list[dict[str, Any]] = []
    last_hour: dict[str, int] = {}
    aside: list[dict[str, Any]] = []  # lanes that it gets nothing from for now: lane, failures, code, reason ...


class LaneLine(_Answer):
    """A lane and how many of its jobs are where."""

    name: str
    paused: bool
    waiting: int
    offered: int
    processing: int
    waits_s: float | None = None


class RejectedResult(_Answer):
    """A report that was not accepted; one that could not be read names no epoch, or not even a job."""

    job_id: UUID | None = None
    epoch: int | None = None
    worker: str
    verdict: str
    reason: str
    current_epoch: int
    at: datetime


class RejectedSubmission(_Answer):
    """A submission that was refused."""

    source: str
    at: datetime
    code: str
    reason: str
    faults: list[Fault] = []


class Rejected(_Answer):
    """The last refusals, newest first."""

    results: list[RejectedResult]
    submissions: list[RejectedSubmission]


class Client:
    """One server, one token. `async with` opens and closes its connections."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = 15.0) -> None:
        """`url` without a path; `timeout_s` bounds each request. ConfigurationError for what is no http URL."""
        if not url.startswith(("http://", "https://")):
            msg = f"not an http URL: {url!r}"
            raise ConfigurationError(msg)
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open a session; nothing is sent yet."""
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ---- submit, look

    async def submit(self, submission: Mapping[str, Any] | bytes) -> Submitted:
        """Submit a job (PROTOCOL, Submit); repeating it with the same `key` returns the same job."""
        body = submission if isinstance(submission, bytes) else orjson.dumps(dict(submission))
        status, answer = await self._ask("POST", "/v1/jobs", body=body)
        how = {200: "same", 201: "created"}.get(status, "queued")
        return _read(Submitted, {**answer, "how": how, "state": answer.get("state", "pending")})

    async def jobs(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        worker: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobPage:
        """Return a page of jobs, newest first."""
        query = {"state": state, "kind": kind, "worker": worker, "limit": limit, "cursor": cursor}
        pairs = [(name, str(value)) for name, value in query.items() if value is not None]
        pairs += [("label", f"{name}:{value}") for name, value in (labels or {}).items()]
        return _read(JobPage, await self._get("/v1/jobs", pairs))

    async def job(self, job_id: UUID | str) -> JobView:
        """Return one job with its attempts and files."""
        return _read(JobView, await self._get(f"/v1/jobs/{job_id}"))

    async def heartbeats(self, job_id: UUID | str, limit: int | None = None) -> list[HeartbeatLine]:
        """Return the kept heartbeats of a job, newest first."""
        pairs = [("limit", str(limit))] if limit is not None else []
        answer = await self._get(f"/v1/jobs/{job_id}/heartbeats", pairs)
        return _read_list(HeartbeatLine, answer, "heartbeats")

    async def workers(self) -> list[WorkerLine]:
        """Return every worker that was ever heard of."""
        return _read_list(WorkerLine, await self._get("/v1/workers"), "workers")

    async def lanes(self) -> list[LaneLine]:
        """Return every lane that ever had a job."""
        return _read_list(LaneLine, await self._get("/v1/lanes"), "lanes")

    async def rejected(self, limit: int | None = None) -> Rejected:
        """Return the last reports and submissions that were refused."""
        pairs = [("limit", str(limit))] if limit is not None else []
        return _read(Rejected, await self._get("/v1/rejected", pairs))

    async def undelivered(self, limit: int | None = None) -> list[UndeliveredLine]:
        """Return the last callbacks that were given up."""
        pairs = [("limit", str(limit))] if limit is not None else []
        return _read_list(UndeliveredLine, await self._get("/v1/callbacks", pairs), "undelivered")

    async def callback_again(self, job_id: UUID | str) -> list[CallbackLine]:
        """Have a job's last callback sent again; refused (409) if it never had one."""
        _, answer = await self._ask("POST", f"/v1/jobs/{job_id}/callbacks/again", body=b"")
        return _read_list(CallbackLine, answer, "callbacks")

    async def status(self) -> dict[str, Any]:
        """Return what /status says."""
        return await self._get("/status")

    async def artifact(self, job_id: UUID | str, name: str) -> AsyncIterator[bytes]:
        """Yield a file's content; the caller checks it against the artifact's sha256."""
        path = f"/v1/jobs/{job_id}/artifacts/{quote(name, safe='')}"
        try:
            async with self._open().get(self.url + path, allow_redirects=False) as answer:
                if answer.status != 200:  # noqa: PLR2004
                    raise _refused(answer.status, await answer.read())
                async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    # ---- act, wait

    async def cancel(self, job_id: UUID | str) -> JobView:
        """Call a job off."""
        return await self._act(job_id, "cancel")

    async def retry(self, job_id: UUID | str) -> JobView:
        """Start a settled job anew, with all counters at zero."""
        return await self._act(job_id, "retry")

    async def wait(self, job_id: UUID | str) -> JobView:
        """Return the job once it is settled; a server that is away for a while is borne."""
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while True:
            try:
                job = await self.job(job_id)
            except UnreachableError:
                if loop.time() - heard_at > _PATIENCE_S:
                    raise
            else:
                heard_at = loop.time()
                if job.state in SETTLED:
                    return job
            await asyncio.sleep(_WATCH_S)

    async def _act(self, job_id: UUID | str, action: str) -> JobView:
        _, answer = await self._ask("POST", f"/v1/jobs/{job_id}/{action}", body=b"")
        if "state" not in answer:  # the ledger went away between the change and the look at it
            return await self.job(job_id)
        return _read(JobView, answer)

    # ---- one request

    async def _get(self, path: str, query: list[tuple[str, str]] | None = None) -> dict[str, Any]:
        _, answer = await self._ask("GET", path, query=query)
        return answer

    async def _ask(
        self, method: str, path: str, *, query: list[tuple[str, str]] | None = None, body: bytes | None = None
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            async with self._open().request(
                method, self.url + path, params=query, data=body, headers=headers, allow_redirects=False
            ) as answer:
                status, raw = answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        if not 200 <= status < 300:  # noqa: PLR2004
            raise _refused(status, raw)
        try:
            decoded: dict[str, Any] = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise _no_tandem(self.url) from None
        return status, decoded

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            msg = "the client is not open: async with Client(...)"
            raise RuntimeError(msg)
        return self._session

    def _unreachable(self, error: Exception) -> UnreachableError:
        if isinstance(error, aiohttp.ClientConnectorError):
            error = error.os_error
        why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        return UnreachableError(f"can't reach {self.url}: {why}")


def _refused(status: int, raw: bytes) -> RefusedRequestError:
    """Read the one form that refusals have; anything else is some other server's."""
    try:
        error = orjson.loads(raw)["error"]
        faults = [Fault.model_validate(fault) for fault in error.get("faults", [])]
        return RefusedRequestError(status, str(error["code"]), str(error["message"]), faults)
    except (ValueError, KeyError, TypeError):
        return RefusedRequestError(status, "http", f"HTTP {status}", [])


def _no_tandem(what: str) -> TandemError:
    return TandemError(f"{what} does not answer as a Tandem coordinator does")


def _read(model: type[_Model], answer: Any) -> _Model:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        raise _no_tandem("the answer has unexpected fields: the server") from error


def _read_list(model: type[_Model], answer: dict[str, Any], name: str) -> list[_Model]:
    try:
        return TypeAdapter(list[model]).validate_python(answer[name])  # type: ignore[valid-type]
    except (ValidationError, KeyError) as error:
        raise _no_tandem("the answer has unexpected fields: the server") from error
