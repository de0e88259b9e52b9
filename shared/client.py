"""A client: submit, wait, take results; over HTTP look and act as well. What the command line uses (docs/client.md).

    async with Client("http://127.0.0.1:8420", token) as client:
        sent = await client.submit({"kind": "article", "spec": {"prompt": "Spring in the harbour"}})
        job = await client.wait(sent.id)

    async with Client("nats://127.0.0.1:4222", source="blog", seed=seed) as client:
        async for result in client.results():
            ...

The scheme of the URL says which. Over NATS there are `submit`, `submit_many` and `results`; all but `results` is there
over HTTP. Raises UnreachableError when no answer came (whether a change was made is then unknown: submit with a `key`
and it may be repeated), RefusedRequestError for an answer that says no, ConfigurationError for what the transport
doesn't have. Not for several loops: a client belongs to the loop that entered it.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from uuid import UUID

import orjson

from shared.addresses import http_in_the_clear, nats_in_the_clear
from shared.client_answers import (
    ArtifactLine,
    AttemptLine,
    CallbackLine,
    Event,
    HeartbeatLine,
    JobLine,
    JobPage,
    JobView,
    LaneLine,
    PausedSite,
    PredictedFinish,
    PublicationLine,
    RefusedRequestError,
    Rejected,
    RejectedResult,
    RejectedSubmission,
    RunningLine,
    Submitted,
    UndeliveredLine,
    Unpublished,
    UnpublishedLine,
    WorkerLine,
)
from shared.client_calls import Calls
from shared.client_http import Http, read
from shared.client_nats import Nats
from shared.client_wait import Ear, wait_for
from shared.errors import ConfigurationError, TandemError
from shared.ids import NAME_PATTERN
from shared.wire import ResultMessage

__all__ = [
    "ArtifactLine",
    "AttemptLine",
    "CallbackLine",
    "Client",
    "Event",
    "HeartbeatLine",
    "JobLine",
    "JobPage",
    "JobView",
    "LaneLine",
    "PausedSite",
    "PredictedFinish",
    "PublicationLine",
    "RefusedRequestError",
    "Rejected",
    "RejectedResult",
    "RejectedSubmission",
    "ResultMessage",
    "RunningLine",
    "SubmitOutcome",
    "Submitted",
    "UndeliveredLine",
    "Unpublished",
    "UnpublishedLine",
    "WorkerLine",
]

SubmitOutcome: TypeAlias = Submitted | TandemError
"""What became of one of many submissions: RefusedRequestError, UnreachableError, or an answer that is no Tandem's."""

_SCHEMES: Final = {"http": "http", "https": "http", "nats": "nats", "tls": "nats"}
_AT_ONCE: Final = 16


class Client(Calls):
    """One server, one identity. `async with` opens and closes its connections."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        source: str | None = None,
        seed: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 15.0,
    ) -> None:
        """Remember where: over HTTP `url` (without a path) and `token`; over NATS `url`, `source`, and its nkey `seed`.

        `natss://` (or `tls://`) demands TLS; `tls` is for certificates that this machine doesn't know. `timeout_s`
        bounds each request. ConfigurationError for what is no such URL, or leads off this machine without TLS.
        """
        address = url.replace("natss://", "tls://")
        self.url = url
        self._http_side: Http | None = None
        self._nats_side: Nats | None = None
        self._ear = Ear()
        self._queued: set[UUID] = set()  # taken while the ledger was away, and not waited for yet
        match _side_of(address, has_ca=tls is not None):
            case "http":
                self._http_side = Http(address, token, timeout_s)
            case "nats":
                if source is None or not re.fullmatch(NAME_PATTERN, source):
                    msg = f"over NATS a client needs its source, like {NAME_PATTERN}: {source!r}"
                    raise ConfigurationError(msg)
                self._nats_side = Nats(address, source, seed, timeout_s=timeout_s, tls=tls)

    async def __aenter__(self) -> Self:
        """Open; over NATS, connecting has begun."""
        if self._http_side is not None:
            self._http_side.open()
        if self._nats_side is not None:
            await self._nats_side.bus.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        if self._http_side is not None:
            await self._http_side.close()
        if self._nats_side is not None:
            await self._nats_side.bus.__aexit__(kind, error, trace)

    # ---- publish

    async def submit(self, submission: Mapping[str, Any] | bytes) -> Submitted:
        """Submit a job (PROTOCOL, Submit); repeating it with the same `key` returns the same job.

        Over NATS the answer says that it is stored: a coordinator admits it, or puts on record why not (`rejected`).
        """
        body = submission if isinstance(submission, bytes) else _encoded(submission)
        if self._nats_side is not None:
            return await self._nats_side.submit(body)
        status, answer = await self._http.ask("POST", "/v1/jobs", body=body)
        how = {200: "same", 201: "created"}.get(status, "queued")
        sent = read(Submitted, {**answer, "how": how, "state": answer.get("state", "pending")})
        if sent.how == "queued":
            self._queued.add(sent.id)
        return sent

    async def submit_many(
        self, submissions: Iterable[Mapping[str, Any] | bytes], *, at_once: int = _AT_ONCE
    ) -> list[SubmitOutcome]:
        """Submit many, `at_once` at a time; return what became of each, in their order. No one fails the others."""
        turns = asyncio.Semaphore(at_once)

        async def one(submission: Mapping[str, Any] | bytes) -> SubmitOutcome:
            async with turns:
                try:
                    return await self.submit(submission)
                except TandemError as error:
                    return error

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(each), name="submission") for each in submissions]
        return [task.result() for task in tasks]

    async def wait(self, job_id: UUID | str) -> JobView:
        """Return the job once it is settled; a server, or a ledger, that is away for up to a minute is borne.

        However many are waited for, they share one stream of events.
        """
        found = UUID(str(job_id))
        job = await wait_for(self._http, self._ear, found, may_be_unknown=found in self._queued)
        self._queued.discard(found)
        return job

    def results(self) -> AsyncGenerator[ResultMessage, None]:
        """Yield the results of this source (NATS), oldest first, for ever and over all reconnects.

        At least once: each is acknowledged once the body of the loop is done with it, and comes again if the program,
        or the loop, ends before; the body may take as long as it likes. Several clients of a source share its results.
        """
        if self._nats_side is None:
            msg = "results come over NATS; over HTTP wait for a job, or name a callback_url"
            raise ConfigurationError(msg)
        return self._nats_side.results()

    # ---- inside

    @property
    def _http(self) -> Http:
        if self._http_side is None:
            msg = f"this is there over HTTP only, and {self.url} is NATS"
            raise ConfigurationError(msg)
        return self._http_side


def _encoded(submission: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(dict(submission))
    except TypeError as error:
        raise RefusedRequestError(422, "invalid", f"not JSON: {error}", []) from None


def _side_of(url: str, *, has_ca: bool) -> str:
    """Return `http` or `nats`; ConfigurationError for another URL, and for one that needs TLS and has none."""
    scheme, _, rest = url.partition("://")
    side = _SCHEMES.get(scheme) if rest else None
    try:
        clear = nats_in_the_clear(url, has_ca=has_ca) if side == "nats" else http_in_the_clear(url)
    except ValueError:
        side = None
    if side is None:
        msg = "that is not an http, https, nats or natss URL"
        raise ConfigurationError(msg)
    if clear is not None:
        msg = f"{clear} is not encrypted, and what is said would cross the network in the clear: write {scheme}s://"
        raise ConfigurationError(msg)
    return side
