"""The only NATS client of coordinator, agent and publisher: one name that stays, over links that come and go.

`Bus` keeps a link open (supervised; a lost one is replaced on the reconnect schedule), restores every subscription on
the new one, and gives each call one honest outcome: done, `BusDown` (nothing was sent), `BusTimeout` (unknown), or a
refusal. Nothing is ever buffered while offline, so that a pull made before a nap can't hoard jobs after it. It decides
nothing about jobs. Below it: `bus_connection.py` (staying connected), `bus_link.py` (one connection), `bus_pull.py`,
`bus_subscription.py`, `bus_types.py`.

Not for several threads or loops: one Bus belongs to the loop that entered it.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import orjson
import structlog

from shared.bus_connection import Connection
from shared.bus_pull import Consumption, pull_one
from shared.bus_subscription import Handler, Subscription
from shared.bus_types import (
    ApiError,
    BusDown,
    BusError,
    BusTimeout,
    Denied,
    Message,
    NoResponders,
    PubAck,
    TooLarge,
)

__all__ = [
    "ApiError",
    "Bus",
    "BusDown",
    "BusError",
    "BusTimeout",
    "Consumption",
    "Denied",
    "Message",
    "NoResponders",
    "PubAck",
    "Subscription",
    "TooLarge",
]

_log = structlog.get_logger()

_NO_RESPONDERS = 503
_ACK_PREFIX = "$JS.ACK."
_REPLY_PREFIXES = ("_INBOX.", "_R_.")


class Bus(Connection):
    """Publish, request, subscribe, and JetStream, over a connection that mends itself; made as `Connection` says."""

    _hears_answers = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the handlers, send what is queued, and close."""
        for subscription in list(self.subscriptions):
            await subscription.close()
        await super().__aexit__(kind, error, trace)

    # ---- core

    async def publish(
        self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Send one message, at most once: it is on its way when this returns, and nobody says whether it arrived."""
        link = self.live_link()
        if link.crowded:
            await link.room()
        self.post(subject, data, headers=headers, reply=reply)

    async def respond(self, message: Message, data: bytes) -> None:
        """Answer a request; one whose reply subject is no inbox is left alone (facts/nats.md §8: no deputies)."""
        if message.reply.startswith(_REPLY_PREFIXES):
            await self.publish(message.reply, data)
        else:
            _log.warning("reply subject refused", subject=message.subject, reply=message.reply)

    async def request(
        self, subject: str, data: bytes = b"", *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Ask, and return the first answer. NoResponders, Denied, BusDown: nothing happened; BusTimeout: unknown."""
        link = self.live_link()
        if not self._hears_answers:  # only now: an identity that never asks may have no inbox
            self._hears_answers = True
            self.attach(f"{self.inbox}.*", self._take_answer)
        self._last_token += 1
        token = format(self._last_token, "x")
        command = self.frame(link, subject, data, headers, f"{self.inbox}.{token}")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Message] = loop.create_future()
        self.answers[token] = (answer, subject)
        timer = loop.call_later(timeout_s, _expire, answer, subject, timeout_s)
        try:
            if link.crowded:
                await link.room()
            link.send(command)
            message = await answer
        finally:
            timer.cancel()
            del self.answers[token]
        if message.status == _NO_RESPONDERS:
            raise NoResponders(subject)
        return message

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = 256
    ) -> Subscription:
        """Hear a subject until closed, over all reconnects; when this returns, the server knows. Denied if it refuses.

        A plain handler runs inside the read loop, in order: it must be quick. A coroutine handler runs as tasks,
        begun in order, at most `concurrency` at once (1 = one after the other). Their exceptions are logged.
        """
        subscription = Subscription(self, subject, handler, concurrency)
        self._denied_subjects.discard(subject)
        subscription.sid = self.attach(subject, subscription.take, queue)
        self.subscriptions.add(subscription)
        if self._link is not None:
            try:
                await self._link.flush(self._connect_timeout_s)
            except (BusDown, TimeoutError):
                return subscription  # registered: the next link restores it
            if subject in self._denied_subjects:
                await subscription.close()
                msg = f"subscription to {subject}"
                raise Denied(msg)
        return subscription

    # ---- JetStream

    async def js_publish(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> PubAck:
        """Return when a message is stored. ApiError: refused; BusTimeout: unknown, repeat with the same `msg_id`."""
        if msg_id is not None:
            headers = {**(headers or {}), "Nats-Msg-Id": msg_id}
        ack = _parse(await self.request(subject, data, timeout_s=timeout_s, headers=headers))
        return PubAck(ack["stream"], ack["seq"], ack.get("duplicate", False))

    async def api(
        self, suffix: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Ask JetStream's JSON API for `<js_prefix>.<suffix>`; ApiError when it refuses."""
        data = b"" if body is None else orjson.dumps(body)
        return _parse(await self.request(f"{self.js_prefix}.{suffix}", data, timeout_s=timeout_s))

    async def pull_one(
        self,
        stream: str,
        consumer: str,
        *,
        expires_s: float,
        no_wait: bool = False,
        group: str | None = None,
        priority: int | None = None,
    ) -> Message | None:
        """Ask a consumer for one message and wait up to `expires_s` for it; see `bus_pull.pull_one`."""
        body = {"no_wait": no_wait or None, "group": group, "priority": priority}
        return await pull_one(self, stream, consumer, expires_s, {k: v for k, v in body.items() if v is not None})

    def consume(
        self, stream: str, consumer: str, *, batch: int, queue_max: int, expires_s: float = 30.0
    ) -> Consumption:
        """Take a consumer's messages without pause: `async with bus.consume(…) as found: async for each in found`."""
        return Consumption(self, stream, consumer, batch=batch, queue_max=queue_max, expires_s=expires_s)

    async def ack(self, delivery: Message | str, *, timeout_s: float = 5.0) -> None:
        """Remove a delivered message, and return when the server has done it; BusTimeout: unknown, do it again."""
        await self.request(_ack_subject(delivery), b"+ACK", timeout_s=timeout_s)

    async def nak(self, delivery: Message | str, delay_s: float = 0.0) -> None:
        """Have a delivered message handed out again, after `delay_s`. One-way."""
        tail = b' {"delay":%d}' % round(delay_s * 1e9) if delay_s > 0 else b""
        await self.publish(_ack_subject(delivery), b"-NAK" + tail)

    async def term(self, delivery: Message | str, reason: str) -> None:
        """Remove a delivered message for good, telling the server why. One-way."""
        await self.publish(_ack_subject(delivery), f"+TERM {reason}".encode())

    # ---- inside

    def closed(self, subscription: Subscription) -> None:
        """Forget a subscription; `Subscription.close` calls it."""
        self.detach(subscription.sid)
        self.subscriptions.discard(subscription)

    def _take_answer(self, message: Message) -> None:
        waiting = self.answers.get(message.subject.rpartition(".")[2])
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(message)


def _ack_subject(delivery: Message | str) -> str:
    reply = delivery if isinstance(delivery, str) else delivery.reply
    if not reply.startswith(_ACK_PREFIX):
        msg = f"not a delivery: {reply[:80]!r}"
        raise ValueError(msg)
    return reply


def _expire(answer: asyncio.Future[Message], subject: str, timeout_s: float) -> None:
    if not answer.done():
        answer.set_exception(BusTimeout(f"{subject}: no answer within {timeout_s} s"))


def _parse(message: Message) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads(message.data)
    fault = answer.get("error")
    if fault is not None:
        raise ApiError(fault.get("err_code", 0), fault.get("code", 0), fault.get("description", ""))
    return answer
