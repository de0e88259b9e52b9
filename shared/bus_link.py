"""One connection to NATS, for its life: opened once, lost once, never mended.

nats-py's client does the handshake (INFO, TLS, nkey, CONNECT; TCP or websocket). What comes after it is replaced here,
since its own reconnecting has states that nobody comes out of (facts/nats.md §6): a link that fails in any way, an
`-ERR`, a silent peer, an exception while reading, is aborted at once and reported by `lost`; `bus_connection.py` then
builds a new one. Aborting needs no answer from the peer, so a half-open link, also TLS, also with unsent data, is gone
within one ping round. Bytes in are cut by `feed` and handed straight to their sink; bytes out are gathered and written
once per turn of the loop.

Pinned to nats-py 2.16 by tests/integration/test_bus.py: each override names the method of `Client` that it replaces.
"""

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from nats import errors
from nats.aio.client import Client
from nats.aio.transport import WebSocketTransport

from shared.bus_types import BusDown, Message

_log = structlog.get_logger()

Sink = Callable[[Message], None]
"""Takes one message inside the read loop: must be quick."""

OUT_HIGH_BYTES = 4 * 1024 * 1024
"""More unsent bytes than this, and senders wait."""

_CANCEL_AGAIN_S = 0.05
_READ_BYTES = 256 * 1024
_LINE_MOST_BYTES = 1024 * 1024
_LINE_SEEN_BYTES = 64
_MESSAGE_LETTERS = b"MH"
"""MSG and HMSG: no other line that a server sends begins like them."""

_DENIED = re.compile(r"""permissions violation for (publish|subscription) to "([^"]*)\"""", re.IGNORECASE)


class Link(Client):
    """A connection with its read, write and ping tasks. Owned by the bus's supervisor; dead for good once lost."""

    def __init__(
        self,
        sinks: Mapping[int, Sink],
        *,
        on_lost: Callable[["Link"], None],
        on_denied: Callable[[str, str], None],
    ) -> None:
        """Deliver to `sinks` by subscription id; call `on_lost` once, `on_denied(kind, subject)` for each refusal."""
        super().__init__()
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._sinks = sinks
        self._on_lost = on_lost
        self._on_denied = on_denied
        self._url = ""
        self._wants_tls = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._awaited_pongs: deque[asyncio.Future[None] | None] = deque()
        self._unanswered_pings = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._needed_bytes = 0

    async def open(
        self, url: str, *, tls: ssl.SSLContext | None, seed: str | None, timeout_s: float, **options: Any
    ) -> None:
        """Connect and authenticate; any failure leaves the link to be discarded. TimeoutError after `timeout_s`.

        A cancellation always ends it: nats-py's handshake is cancelled until it is over, since `asyncio.wait_for` in it
        forgets one that comes in the same turn of the loop as the awaited result (Python before 3.12, gh-86296).
        """
        self._url = url
        self._wants_tls = tls is not None or url.startswith(("tls://", "wss://"))
        handshake = asyncio.create_task(
            self.connect(
                url,
                tls=tls,
                nkeys_seed_str=seed,
                allow_reconnect=False,
                pending_size=0,
                error_cb=_note,
                **options,
            ),
            name=f"handshake:{options.get('name', url)}",
        )
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({handshake})
        finally:
            while not handshake.done():
                handshake.cancel()
                await asyncio.wait({handshake}, timeout=_CANCEL_AGAIN_S)
            failure = None if handshake.cancelled() else handshake.exception()
        if failure is not None:
            raise failure
        if self._status != Client.CONNECTED:
            msg = "the server did not answer the first PING"
            raise errors.Error(msg)

    # ---- out

    def send(self, command: bytes) -> None:
        """Queue bytes of the protocol in order; they leave with the next turn of the loop, or never if lost."""
        self._out.append(command)
        self._out_bytes += len(command)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def crowded(self) -> bool:
        """Whether a sender ought to wait for `room` first."""
        return self._out_bytes > OUT_HIGH_BYTES

    async def room(self) -> None:
        """Wait until what is queued has left; BusDown when the link is lost meanwhile."""
        while self.crowded:
            if self.lost.done():
                msg = "connection lost"
                raise BusDown(msg)
            waiter = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    async def flush(self, timeout: float = 10) -> None:  # noqa: ASYNC109 - replaces Client.flush
        """Return when the server has handled all that was sent before (PING is queued, so in order: §6); BusDown."""
        if self.lost.done():
            msg = "connection lost"
            raise BusDown(msg)
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited_pongs.append(pong)
        self.send(b"PING\r\n")
        async with asyncio.timeout(timeout):
            await pong

    # ---- end

    def lose(self, why: Exception) -> None:
        """End the link now, without a word to the peer. Idempotent."""
        if self.lost.done():
            return
        self.lost.set_result(why)
        self._status = Client.CLOSED
        self._abort()
        for waiter in [*self._room, *self._awaited_pongs]:
            if waiter is not None and not waiter.done():
                waiter.set_exception(BusDown("connection lost"))
                waiter.exception()  # a waiter that was cancelled meanwhile is no unretrieved error
        self._on_lost(self)

    async def discard(self, timeout_s: float) -> None:
        """Lose the link if it is not lost yet, and leave no task or socket of it behind."""
        self.lose(errors.ConnectionClosedError())
        tasks = [t for t in (self._reading_task, self._flusher_task, self._ping_interval_task) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(self._transport, WebSocketTransport):
            response = getattr(self._transport._ws, "_response", None)  # noqa: SLF001
            if response is not None:
                response.close()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._transport._client.close()  # noqa: SLF001 - Transport offers no other way than a polite one
            except (OSError, TimeoutError):
                _log.debug("websocket close failed")

    def _abort(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        socket = getattr(self._transport, "_ws", None)
        connection = getattr(getattr(socket, "_response", None), "connection", None)
        if connection is not None and connection.transport is not None:
            connection.transport.abort()

    # ---- what replaces nats-py's own

    async def _select_next_server(self) -> None:
        """Replace the original: one try, and its failure is the caller's to pace."""
        server = self._server_pool[0]
        self._current_server = server
        await self._connect_to_server(server)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002
        """Replace the original, with its signature: a server that offers no TLS where it is wanted is refused."""
        encrypted = info.get("tls_required") or self._url.startswith("wss://")
        if initial_connection and self._wants_tls and not encrypted:
            msg = "TLS is wanted, but the server offers none"
            raise errors.Error(msg)

    async def _process_op_err(self, e: Exception) -> None:
        """Replace the original: no reconnecting in place."""
        self.lose(e)

    async def _flusher(self) -> None:
        """Replace the original: one write for all that was queued since the last."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                if not self._out:
                    self._wake = loop.create_future()
                    await self._wake
                batch, self._out, self._out_bytes = self._out, [], 0
                self._transport.write(b"".join(batch))  # type: ignore[union-attr]
                await self._transport.drain()  # type: ignore[union-attr]
                while self._room:
                    waiter = self._room.popleft()
                    if not waiter.done():
                        waiter.set_result(None)
        except (OSError, RuntimeError) as error:
            self.lose(error)

    async def _ping_interval(self) -> None:
        """Replace the original: pings go through the same queue, and silence aborts."""
        while True:
            await asyncio.sleep(self.options["ping_interval"])
            if self._unanswered_pings >= self.options["max_outstanding_pings"]:
                self.lose(errors.StaleConnectionError())
                return
            self._unanswered_pings += 1
            self._awaited_pongs.append(None)
            self.send(b"PING\r\n")

    async def _read_loop(self) -> None:
        """Replace the original: whatever goes wrong ends the link, so that no half-dead one looks connected."""
        try:
            while data := await self._transport.read(_READ_BYTES):  # type: ignore[union-attr]
                self.feed(data)
            self.lose(errors.UnexpectedEOF())
        except Exception as error:  # noqa: BLE001 - acted upon: the supervisor reconnects
            self.lose(error)

    # ---- in

    def feed(self, data: bytes) -> None:
        """Cut what arrived into protocol lines and messages, and act on each; the unfinished rest is kept.

        From bytes to handler, headers read, a heartbeat takes 9 us, and 23 us in nats-py (parser, queue, task; measured
        side by side under uvloop).
        """
        if self._rest:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes < self._needed_bytes:
                return
            data = b"".join(self._rest)
            self._rest = []
        position, size = 0, len(data)
        while position < size:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                if size - position > _LINE_MOST_BYTES:
                    raise errors.ProtocolError
                needed = size - position + 1
                break
            first = data[position]
            if first in _MESSAGE_LETTERS:
                start = line_end + 2
                parts = data[position:line_end].split()
                end = start + int(parts[-1])
                if size < end + 2:
                    needed = end + 2 - position
                    break
                self._deliver(parts, data, start, end)
                position = end + 2
            else:
                self._control(data[position:line_end])
                position = line_end + 2
        else:
            return
        self._rest, self._rest_bytes, self._needed_bytes = [data[position:]], size - position, needed

    def _deliver(self, parts: list[bytes], data: bytes, start: int, end: int) -> None:
        sink = self._sinks.get(int(parts[2]))
        if sink is None:
            return
        raw_headers = b""
        after_sid = 4
        if parts[0] == b"HMSG":
            raw_headers = data[start : start + int(parts[-2])]
            start += int(parts[-2])
            after_sid = 5
        reply = parts[3].decode() if len(parts) > after_sid else ""
        try:
            sink(Message(parts[1].decode(), data[start:end], reply, raw_headers=raw_headers))
        except Exception:  # noqa: BLE001 - logged; a handler's fault must not cost the connection
            _log.exception("handler failed", subject=parts[1].decode("utf-8", "replace"))

    def _control(self, line: bytes) -> None:
        word = line[:4].upper()
        if word == b"PING":
            self.send(b"PONG\r\n")
        elif word == b"PONG":
            self._unanswered_pings = 0
            pong = self._awaited_pongs.popleft() if self._awaited_pongs else None
            if pong is not None and not pong.done():
                pong.set_result(None)
        elif word == b"-ERR":
            self._refused(line[4:].strip().strip(b"'").decode("utf-8", "replace"))
        elif word != b"INFO" and line != b"+OK":
            msg = f"unknown protocol: {line[:_LINE_SEEN_BYTES]!r}"
            raise errors.Error(msg)

    def _refused(self, text: str) -> None:
        denied = _DENIED.search(text)
        if denied is None:
            self.lose(errors.Error(f"nats: {text}"))
            return
        self._on_denied(denied[1].lower(), denied[2])


async def _note(error: Exception) -> None:
    """Take what nats-py reports during the handshake; `open` raises the same, so it is only for a close look."""
    _log.debug("handshake failed", error=repr(error))
