"""Heartbeats: every `+WPI` that passes by extends the ledger's lease too (DESIGN §1; PROTOCOL, Take work, 4)."""

import asyncio
import math
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from coordinator.effects import control_message
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Answer, Heartbeat, Held, Lost, Tell
from coordinator.workers import Directory
from shared import subjects
from shared.bus import Bus, BusError, Message, Subscription
from shared.errors import LedgerDownError
from shared.ids import JobId

_log = structlog.get_logger()

_MAX_DETAIL = 200
_MAX_EPOCH = 2**31 - 1
_MAX_STAGE = 64
_MAX_ELAPSED_S = 1e9
_MAX_INSTANCE = 100

_BATCH = 500
_WAITING_MOST = 65_536
"""More beats than this behind the ledger, and the oldest is dropped: the lease's next one says the same."""


@dataclass(slots=True)
class Heartbeats:
    """Listens to `$JS.ACK.WORK.>`; a beat for a lease that is gone is answered with a revoke."""

    bus: Bus
    ledger: Ledger
    directory: Directory
    taken: int = 0
    lost: int = 0  # beats whose lease was gone
    bad: int = 0  # `+WPI` without readable headers, or from a wrong sender
    _beats: deque[Message] = field(default_factory=lambda: deque(maxlen=_WAITING_MOST))
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def subscribe(self) -> list[Subscription]:
        """Start listening; the coordinators share the beats."""
        return [await self.bus.subscribe(subjects.HEARTBEATS, self._on_ack, queue=subjects.COORDINATORS)]

    async def run(self) -> None:
        """Take the beats that came, together; those that come meanwhile are the next commit's. Until cancelled."""
        while True:
            while not self._beats:
                self._came.clear()
                await self._came.wait()
            await self._take([self._beats.popleft() for _ in range(min(len(self._beats), _BATCH))])

    def _on_ack(self, message: Message) -> None:
        if message.data == b"+WPI":  # our own settlements pass here too
            self._beats.append(message)
            self._came.set()

    async def _take(self, messages: Sequence[Message]) -> None:
        try:
            commands = [command for m in messages if (command := await self._read(m)) is not None]
        except LedgerDownError:
            return  # the next beats count; leases get grace when the ledger is back
        for command, answer in zip(commands, await self.ledger.do_each(commands), strict=True):
            if isinstance(answer, Exception):
                continue  # the ledger has said so
            await self._answered(command, answer)

    async def _read(self, message: Message) -> Heartbeat | None:
        """Return the beat if it can be read, and is of the worker that it names."""
        command = read(message.headers or {})
        if command is not None and await self.directory.is_sender(message.sender, command.worker):
            return command
        self.bad += 1
        return None

    async def _answered(self, command: Heartbeat, answer: Answer) -> None:
        if isinstance(answer, Held):
            self.taken += 1
            return
        assert isinstance(answer, Lost)
        self.lost += 1
        _log.info(
            "lease lost",
            job_id=str(command.job_id),
            epoch=command.epoch,
            worker=command.worker,
            reason=str(answer.reason),
        )
        revoke = Tell(command.worker, command.job_id, command.epoch, answer.reason)
        told = control_message(revoke, instance=command.instance)  # the epoch may be another process's by now
        try:
            await self.bus.publish(subjects.control(command.worker), told)
        except BusError:
            return  # its next beat brings the next revoke


def read(headers: Mapping[str, str]) -> Heartbeat | None:
    """Read a heartbeat's headers; None if they are no heartbeat of Tandem's."""
    try:
        epoch = int(headers["Tandem-Epoch"])
        if not 0 < epoch <= _MAX_EPOCH:
            return None
        progress = headers.get("Tandem-Progress")
        return Heartbeat(
            job_id=JobId(uuid.UUID(headers["Tandem-Job"])),
            worker=headers["Tandem-Worker"],
            epoch=epoch,
            stage=_text(headers.get("Tandem-Stage", ""), _MAX_STAGE) or "",
            elapsed_s=_number(headers.get("Tandem-Elapsed"), 0.0, _MAX_ELAPSED_S),
            progress=_number(progress, 0.0, 1.0) if progress else None,
            detail=_text(headers.get("Tandem-Detail"), _MAX_DETAIL),
            instance=_text(headers.get("Tandem-Instance"), _MAX_INSTANCE),
        )
    except (KeyError, ValueError):
        return None


def _number(value: str | None, least: float, most: float) -> float:
    number = float(value or least)
    return min(max(number, least), most) if math.isfinite(number) else least


def _text(value: str | None, most: int) -> str | None:
    return value.replace("\x00", "")[:most] if value else None
