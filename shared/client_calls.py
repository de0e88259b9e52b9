"""What a client asks and does over HTTP beside submitting: one method a request. `Client` (client.py) is made of it."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Literal
from urllib.parse import quote
from uuid import UUID

import orjson

from shared.client_answers import (
    CallbackLine,
    Event,
    HeartbeatLine,
    JobPage,
    JobView,
    LaneLine,
    PublicationLine,
    Rejected,
    UndeliveredLine,
    Unpublished,
    WorkerLine,
)
from shared.client_http import Http, read, read_list
from shared.states import Priority


class Calls(ABC):
    """The requests; whoever has a server is a subclass."""

    @property
    @abstractmethod
    def _http(self) -> Http:
        """The server; ConfigurationError without one."""

    # ---- look

    async def jobs(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        model: str | None = None,
        worker: str | None = None,
        labels: Mapping[str, str] | None = None,
        text: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobPage:
        """Return a page of jobs, newest first; `text` begins an id or a key, is a label's value, or words of an error.

        A page may be shorter than `limit`, or empty, though there is a next one.
        """
        query = {"state": state, "kind": kind, "model": model, "worker": worker, "text": text}
        pairs = [(name, value) for name, value in query.items() if value is not None]
        pairs += [("label", f"{name}:{value}") for name, value in (labels or {}).items()]
        pairs += _limit(limit) + ([("cursor", cursor)] if cursor is not None else [])
        return read(JobPage, await self._http.get("/v1/jobs", pairs))

    async def job(self, job_id: UUID | str) -> JobView:
        """Return one job with its attempts and files."""
        return read(JobView, await self._http.get(f"/v1/jobs/{job_id}"))

    async def heartbeats(self, job_id: UUID | str, limit: int | None = None) -> list[HeartbeatLine]:
        """Return the kept heartbeats of a job, newest first."""
        answer = await self._http.get(f"/v1/jobs/{job_id}/heartbeats", _limit(limit))
        return read_list(HeartbeatLine, answer, "heartbeats")

    async def logs(self, job_id: UUID | str, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the newest log lines about a job, newest last: `timestamp`, `level`, `event`, and facts by name."""
        answer = await self._http.get(f"/v1/jobs/{job_id}/logs", _limit(limit))
        lines: list[dict[str, Any]] = answer["lines"]
        return lines

    async def artifact(self, job_id: UUID | str, name: str) -> AsyncIterator[bytes]:
        """Yield a file's content; the caller checks it against the artifact's sha256."""
        async with contextlib.aclosing(self._content(job_id, name)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def events(self, job_id: UUID | str | None = None) -> AsyncIterator[Event]:
        """Yield what happens to jobs, or to one job, as it happens, until the server ends it. Best effort."""
        query = [("job_id", str(job_id))] if job_id is not None else []
        async with contextlib.aclosing(self._http.lines("/v1/events", query)) as lines:
            async for line in lines:
                if line.startswith(b"data: {"):
                    yield read(Event, orjson.loads(line.removeprefix(b"data: ")))

    async def workers(self) -> list[WorkerLine]:
        """Return every worker that was ever heard of."""
        return read_list(WorkerLine, await self._http.get("/v1/workers"), "workers")

    async def lanes(self) -> list[LaneLine]:
        """Return every lane that ever had a job."""
        return read_list(LaneLine, await self._http.get("/v1/lanes"), "lanes")

    async def rejected(self, limit: int | None = None) -> Rejected:
        """Return the last reports and submissions that were refused."""
        return read(Rejected, await self._http.get("/v1/rejected", _limit(limit)))

    async def undelivered(self, limit: int | None = None) -> list[UndeliveredLine]:
        """Return the last callbacks that were given up."""
        return read_list(UndeliveredLine, await self._http.get("/v1/callbacks", _limit(limit)), "undelivered")

    async def unpublished(self, limit: int | None = None) -> Unpublished:
        """Return what is not published in a CMS yet, or failed, and the sources whose site is paused."""
        return read(Unpublished, await self._http.get("/v1/publications", _limit(limit)))

    async def status(self) -> dict[str, Any]:
        """Return what /status says."""
        return await self._http.get("/status")

    # ---- act

    async def cancel(self, job_id: UUID | str, note: str | None = None) -> JobView:
        """Call a job off."""
        return await self._act(job_id, "cancel", note=note)

    async def retry(self, job_id: UUID | str, note: str | None = None) -> JobView:
        """Start a settled job anew, with all counters at zero."""
        return await self._act(job_id, "retry", note=note)

    async def approve(self, job_id: UUID | str, note: str | None = None) -> JobView:
        """Accept a result that awaits review."""
        return await self._act(job_id, "approve", note=note)

    async def reject(self, job_id: UUID | str, note: str | None = None, *, again: bool = False) -> JobView:
        """Refuse a result that awaits review; `again`: the job runs anew instead of being canceled."""
        return await self._act(job_id, "reject", note=note, again=again or None)

    async def prioritize(self, job_id: UUID | str, priority: Priority, note: str | None = None) -> JobView:
        """Move a job that waits within the backlog."""
        return await self._act(job_id, "priority", note=note, priority=priority)

    async def callback_again(self, job_id: UUID | str) -> list[CallbackLine]:
        """Have a job's last callback sent again; refused (409) if it never had one."""
        _, answer = await self._http.ask("POST", f"/v1/jobs/{job_id}/callbacks/again", body=b"")
        return read_list(CallbackLine, answer, "callbacks")

    async def publish_again(self, job_id: UUID | str) -> list[PublicationLine]:
        """Have a job's last result published again; refused (409) if nothing is to be, or it is tried by itself."""
        _, answer = await self._http.ask("POST", f"/v1/jobs/{job_id}/publications/again", body=b"")
        return read_list(PublicationLine, answer, "publications")

    async def check_site(self, source: str) -> None:
        """Have a source's paused site looked at now; refused (409) if it is not paused."""
        await self._http.ask("POST", f"/v1/publications/{quote(source, safe='')}/check", body=b"")

    async def order(self, worker: str, order: Literal["drain", "pause", "resume"]) -> None:
        """Tell a worker what it is to do."""
        await self._http.ask("POST", f"/v1/workers/{quote(worker, safe='')}/{order}", body=b"")

    async def pause_lane(self, lane: str, *, paused: bool) -> None:
        """Pause a lane, or resume it."""
        await self._http.ask("POST", f"/v1/lanes/{quote(lane, safe='')}/{'pause' if paused else 'resume'}", body=b"")

    # ---- inside

    def _content(self, job_id: UUID | str, name: str) -> AsyncGenerator[bytes, None]:
        return self._http.content(f"/v1/jobs/{job_id}/artifacts/{quote(name, safe='')}")

    async def _act(self, job_id: UUID | str, action: str, **said: Any) -> JobView:
        body = {name: value for name, value in said.items() if value is not None}
        path = f"/v1/jobs/{job_id}/{action}"
        _, answer = await self._http.ask("POST", path, body=orjson.dumps(body) if body else b"")
        if "state" not in answer:  # the ledger went away between the change and the look at it
            return await self.job(job_id)
        return read(JobView, answer)


def _limit(limit: int | None) -> list[tuple[str, str]]:
    return [("limit", str(limit))] if limit is not None else []
