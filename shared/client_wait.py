"""Waiting for a job over HTTP: asking again and again is the truth, `GET /v1/events` makes it quick and cheap."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

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


async def wait_for(http: Http, job_id: UUID | str, *, may_be_unknown: bool = False) -> JobView:
    """Return the job once it is settled.

    UnreachableError, or the server's own error, after a minute without a proper answer; RefusedRequestError at once
    for what only a person can change. `may_be_unknown`: it was taken while the ledger was away, and is yet to be
    admitted.
    """
    loop = asyncio.get_running_loop()
    answered_at = loop.time()
    async with _listening(http, job_id) as ear:
        while True:
            ear.news.clear()
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
                    await ear.news.wait()


def _passes(error: UnreachableError | RefusedRequestError, may_be_unknown: bool) -> bool:  # noqa: FBT001 - private
    """Say whether it is worth asking again: a proxy speaks for a coordinator that is away, the ledger comes back."""
    if isinstance(error, UnreachableError):
        return True
    return error.status >= _SERVER_ERROR or (may_be_unknown and error.status == _NOT_FOUND)


@dataclass(slots=True)
class _Ear:
    hears: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self, http: Http, job_id: UUID | str) -> None:
        """Note each line of the job's events, the first of which says that they are heard; for ever."""
        while True:
            with contextlib.suppress(UnreachableError, RefusedRequestError):
                async with contextlib.aclosing(http.lines("/v1/events", [("job_id", str(job_id))])) as lines:
                    async for line in lines:
                        self.hears = True
                        if line:
                            self.news.set()
            self.hears = False
            self.news.set()
            await asyncio.sleep(_AGAIN_S)


@contextlib.asynccontextmanager
async def _listening(http: Http, job_id: UUID | str) -> AsyncIterator[_Ear]:
    ear = _Ear()
    task = asyncio.create_task(ear.listen(http, job_id), name="events heard")
    try:
        yield ear
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
