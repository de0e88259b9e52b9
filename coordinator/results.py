"""The outbox: every settled job goes out on RESULTS once, however often a coordinator dies in between.

A job stays marked until JetStream has acknowledged its message; `Nats-Msg-Id` makes a repeat harmless.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit
from uuid import UUID

import structlog

from coordinator.artifacts import artifact_url
from coordinator.ledger.queries import Queries, UnpublishedRow
from shared import subjects, wire
from shared.bus import Bus, TooLarge
from shared.failpoints import Failpoint, reach
from shared.streams import ensure_results_consumer

_log = structlog.get_logger()

_BATCH = 256


@dataclass(slots=True)
class Results:
    """Publishes what is settled and not yet acknowledged."""

    bus: Bus
    queries: Queries
    base_url: str  # of the artifacts' addresses
    published: int = 0
    on_callbacks: Callable[[], None] = lambda: None  # some have begun; set by the composition
    _sources: set[str] = field(default_factory=set)  # whose consumers are known to exist

    def forget(self) -> None:
        """NATS may have lost its disk: make sure of each source's consumer again."""
        self._sources.clear()

    async def ensure(self, source: str) -> None:
        """Create the source's results consumer unless it is known to exist."""
        if source not in self._sources:
            await ensure_results_consumer(self.bus, source)
            self._sources.add(source)

    async def once(self) -> None:
        """Publish until nothing is left; raises BusError when NATS can't take it."""
        if not self.bus.connected:
            return
        while rows := await self.queries.unpublished(_BATCH):
            done = await asyncio.gather(*(self._publish(row) for row in rows), return_exceptions=True)
            acknowledged = [row for row, error in zip(rows, done, strict=True) if error is None]
            if acknowledged:
                reach(Failpoint.RESULT_UNMARKED)
                await self.queries.mark_published([self._marked(row) for row in acknowledged])
                self.published += len(acknowledged)
                if any(row.callback_url for row in acknowledged):
                    self.on_callbacks()
            for error in done:
                if isinstance(error, BaseException):
                    raise error
            if len(rows) < _BATCH:
                return

    async def _publish(self, row: UnpublishedRow) -> None:
        await self.ensure(row.source)
        reach(Failpoint.RESULT_UNSENT)
        subject = subjects.result(row.source, row.kind, row.id)
        try:
            await self.bus.js_publish(subject, self._body(row), msg_id=message_id(row))
        except TooLarge:
            _log.warning("result too large for a message", job_id=str(row.id))
            error = row.error or {"code": "result_too_large", "message": "too large for a message; fetch it over HTTP"}
            small = replace(row, result=None, error=error)
            await self.bus.js_publish(subject, self._body(small), msg_id=message_id(row))

    def _marked(self, row: UnpublishedRow) -> tuple[UUID, int, str, str, bytes]:
        if row.callback_url is None:
            return row.id, row.epoch, row.state, "", b""
        return row.id, row.epoch, row.state, urlsplit(row.callback_url).netloc.rpartition("@")[2], self._body(row)

    def _body(self, row: UnpublishedRow) -> bytes:
        files = [
            wire.ResultArtifact(**file, url=artifact_url(self.base_url, row.id, file["name"])) for file in row.artifacts
        ]
        message = wire.ResultMessage(
            job_id=row.id,
            epoch=row.epoch,
            kind=row.kind,
            state=row.state,
            key=row.key,
            source=row.source,
            labels=row.labels,
            worker=row.worker,
            model=row.model,
            result=row.result,
            artifacts=files,
            error=row.error,
            finished_at=row.finished_at,
        )
        return message.model_dump_json().encode()


def message_id(row: UnpublishedRow) -> str:
    """Return `<job>:<epoch>`; for a later state of an epoch that was published already, that and the state."""
    first = f"{row.id}:{row.epoch}"
    return first if row.published_epoch != row.epoch else f"{first}:{row.state}"
