"""Taking messages from JetStream consumers by raw pull requests, each on an inbox of its own.

Never nats-py's `fetch` (it stalls, and a cancelled one hoards), never a pull on the bus's shared inbox: a delivered
message keeps its own subject, and only a subscription of its own says which pull it answers (facts/nats.md §3, §6).
Leaving a pull unsubscribes its inbox, which makes the server drop it.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any, Self

import orjson
import structlog

from shared.bus_connection import Connection
from shared.bus_types import BusDown, BusTimeout, Message, NoResponders

_log = structlog.get_logger()

_NO_RESPONDERS = 503
_EXPIRED = {404, 408}
_LATE_S = 2.0
"""The server ends a pull at `expires`; this much later it is taken for lost."""

_AGAIN_S = 1.0
"""Wait after a pull that was refused: its consumer is missing, or JetStream is not up yet."""


async def pull_one(
    connection: Connection, stream: str, consumer: str, expires_s: float, options: dict[str, Any]
) -> Message | None:
    """Return one message; None when there was none in time, the server ended the pull, or the connection went.

    BusDown: not connected; NoResponders: no such consumer, or JetStream is away; Denied: not this identity's to pull.
    When cancelled, the pull is withdrawn; a message that crosses the withdrawal stays unclaimed until it is offered
    again.
    """
    subject = f"{connection.js_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def take(message: Message) -> None:
        if not answer.done():
            answer.set_result(message)

    inbox = connection.new_inbox()
    sid = connection.attach(inbox, take)
    connection.answers[inbox] = (answer, subject)
    try:
        body = {"batch": 1, **options}
        if "no_wait" not in options:  # with both, the server waits
            body["expires"] = round(expires_s * 1e9)
        connection.post(subject, orjson.dumps(body), reply=inbox)
        async with asyncio.timeout(expires_s + _LATE_S):
            message = await answer
    except (BusTimeout, TimeoutError):
        return None
    finally:
        connection.detach(sid)
        del connection.answers[inbox]
    if message.status == _NO_RESPONDERS:
        raise NoResponders(subject)
    return message if message.status is None else None


class Consumption:
    """A consumer's messages as an endless iterator; one pull request is open as long as there is room.

    At most `queue_max` messages are held here, so what is not taken stays with the server. After a lost connection
    the pull is made again; what was queued is kept (the server hands it out again after ack-wait: the ledger, or an
    idempotent handler, must know). Leaving the context withdraws the pull and forgets what was queued.
    """

    def __init__(
        self, connection: Connection, stream: str, consumer: str, *, batch: int, queue_max: int, expires_s: float
    ) -> None:
        """Made by `Bus.consume`; pulls `batch` at a time, each pull good for `expires_s`."""
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._batch = min(batch, queue_max)
        self._queue_max = queue_max
        self._expires_s = expires_s
        self._queue: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._expected = 0
        self._pull = 0
        self._inbox = ""
        self._sid = 0
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        self._refused = False

    async def __aenter__(self) -> Self:
        """Subscribe, and pull as soon as connected."""
        self._open = True
        self._inbox = self._connection.new_inbox()
        self._sid = self._connection.attach(f"{self._inbox}.*", self._take)
        self._connection.on_state(self._state)
        self._ask()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Withdraw the pull; what was queued goes to others after ack-wait."""
        self._open = False
        self._connection.off_state(self._state)
        self._connection.detach(self._sid)
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()

    def __aiter__(self) -> Self:
        """Iterate over messages, for ever."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message, oldest first."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        message = self._queue.popleft()
        if not self._expected:
            self._ask()
        return message

    async def take(self, most: int) -> list[Message]:
        """Return what has arrived, at least one message and at most `most`."""
        messages = [await anext(self)]
        while self._queue and len(messages) < most:
            messages.append(self._queue.popleft())
        if not self._expected:
            self._ask()
        return messages

    def _ask(self) -> None:
        """Open the next pull, if connected and there is room for a useful one."""
        room = min(self._batch, self._queue_max - len(self._queue))
        if not self._open or room < (self._batch + 1) // 2:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._pull += 1
        body = orjson.dumps({"batch": room, "expires": round(self._expires_s * 1e9)})
        try:
            self._connection.post(
                f"{self._connection.js_prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                body,
                reply=f"{self._inbox}.{self._pull}",
            )
        except BusDown:
            self._expected = 0
            return  # `_state` asks when the next link is up
        self._expected = room
        self._timer = asyncio.get_running_loop().call_later(self._expires_s + _LATE_S, self._ask_again)

    def _ask_again(self) -> None:
        self._expected = 0
        self._ask()

    def _take(self, message: Message) -> None:
        status = message.status
        if status is None:
            self._refused = False
            self._queue.append(message)
            self._expected -= 1
            if self._expected <= 0:
                self._ask_again()
            self._arrived.set()
            return
        if message.subject.rpartition(".")[2] != str(self._pull):
            return  # the end of an earlier pull
        if status in _EXPIRED:
            self._ask_again()
            return
        if not self._refused:
            told = _log.debug if status == _NO_RESPONDERS else _log.warning  # its stream may just not be made yet
            told("pull refused", consumer=self._consumer, status=status, text=message.status_text)
        self._refused = True
        self._expected = 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._ask_again)

    def _state(self, connected: bool) -> None:  # noqa: FBT001 - the shape of a state callback
        self._expected = 0
        if connected:
            self._ask()
