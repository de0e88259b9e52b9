"""Waiting for a job over HTTP: asking again and again is the truth, `GET /v1/events` makes it quick and cheap."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import orjson

from shared.client_answers import JobView, RefusedRequestError
from shared.client_http import Http, read
from shared.errors import UnreachableError
from shared.states import SETTLED

_ASK_S: Final = 0.3  # between two questions while no event is heard
_HEARING_S: Final = 5.0  # and while they are: one may be lost
_AGAIN_S: Final = 5.0
"""A server that has no events for us, or ends them, is asked for them again after so long."""

_PATIENCE_S: Final = 60.0
"""How long a server that can't be reached is borne: a coordinator that is restarted is back by then."""

_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


async def wait_for(http: Http, ear: "Ear", job_id: UUID, *, may_be_unknown: bool = False) -> JobView:
    """Return the job once it is settled.

    UnreachableError, or the server's own error, after a minute without a proper answer; RefusedRequestError at once
    for what only a person can change. `may_be_unknown`: it was taken while the ledger was away, and is yet to be
    admitted.
    """
    loop = asyncio.get_running_loop()
    answered_at = loop.time()
    async with ear.listening(http, job_id) as news:
        while True:
            news.clear()
            try:
                job = read(JobView, await http.get(f"/v1/jobs/{job_id}"))
            except (UnreachableError, RefusedRequestError) as error:
                if not _passes(error, may_be_unknown) or loop.time() - answered_at > _PATIENCE_S:
                    raise
            else:
                answered_at = loop.time()
                if job.state in SETTLED:
                    return job
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARING_S if ear.hears else _ASK_S):
                    await news.wait()


def _passes(error: UnreachableError | RefusedRequestError, may_be_unknown: bool) -> bool:  # noqa: FBT001 - private
    """Say whether it is worth asking again: a proxy speaks for a coordinator that is away, the ledger comes back."""
    if isinstance(error, UnreachableError):
        return True
    return error.status >= _SERVER_ERROR or (may_be_unknown and error.status == _NOT_FOUND)


class Ear:
    """A client's one stream of events, open while it waits for any job: each event wakes those who wait for its job."""

    def __init__(self) -> None:
        """Hear nothing yet."""
        self.hears = False
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def listening(self, http: Http, job_id: UUID) -> AsyncIterator[asyncio.Event]:
        """Lend what is set when something happened to the job, and when events begin or cease to be heard."""
        news = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(news)
        if self._task is None:
            self._task = asyncio.create_task(self._listen(http), name="events heard")
        try:
            yield news
        finally:
            self._waiting[job_id].discard(news)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
            if not self._waiting:
                await self._stop()

    async def _listen(self, http: Http) -> None:
        while True:
            with contextlib.suppress(UnreachableError, RefusedRequestError):
                async with contextlib.aclosing(http.lines("/v1/events")) as lines:
                    async for line in lines:
                        if not self.hears:  # the first line says that they are heard from now on
                            self._turn(hears=True)
                        self._wake(line)
            self._turn(hears=False)
            await asyncio.sleep(_AGAIN_S)

    def _turn(self, *, hears: bool) -> None:
        self.hears = hears
        for waiting in self._waiting.values():
            for news in waiting:
                news.set()

    def _wake(self, line: bytes) -> None:
        if not line.startswith(b"data: {"):
            return
        try:
            job_id = UUID(orjson.loads(line.removeprefix(b"data: "))["job_id"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # not an event of a job
        for news in self._waiting.get(job_id, ()):
            news.set()

    async def _stop(self) -> None:
        task, self._task, self.hears = self._task, None, False
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
