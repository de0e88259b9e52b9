"""The bus's connection: keeps a link open, restores subscriptions on each new one, and passes on what happens to it.

One supervisor task opens a link, holds it until it is lost, and opens the next on the reconnect schedule; the first
connection is no different from any later one. `Bus` (shared/bus.py) is what callers use; `bus_pull.py` and it are the
only users of this class. Answers awaited over a link that is lost end at once, as of unknown outcome.
"""

import asyncio
import logging
import random
import re
import secrets
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import structlog

from shared.backoff import RECONNECT_S, reconnect_delay_s
from shared.bus_link import Link, Sink
from shared.bus_subscription import Subscription
from shared.bus_types import BusDown, BusTimeout, Denied, Message, TooLarge, encode_headers
from shared.errors import ConfigurationError
from shared.nkey import public_key

_log = structlog.get_logger()

_SUBJECT_MOST_BYTES = 2000
"""Of a control line of 4096 with subject and reply, over which the server closes the connection (facts/nats.md §6)."""

_DENIALS_KEPT = 32

_KEY_REFUSED = re.compile(r"authorization (violation|failed)|authentication (revoked|expired)", re.IGNORECASE)
"""What a server says to a key that it does not know, or no longer."""
_TODO = "its key was revoked or replaced, or never was this server's: an agent is invited again (`tandem-agent join`)"
_NOISE = "returning true from eof_received() has no effect when using ssl"
"""Said by asyncio each time that a server ends a TLS connection: nats-py's stream takes it for a plain one."""


class Connection:
    """A connection that mends itself. `async with`: entering starts connecting and does not wait."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        seed: str | None = None,
        inbox_prefix: str = "_INBOX",
        js_prefix: str = "$JS.API",
        tls: ssl.SSLContext | None = None,
        reconnect_delays_s: Sequence[float] = RECONNECT_S,
        ping_interval_s: float = 10.0,
        max_outstanding_pings: int = 2,
        connect_timeout_s: float = 5.0,
        stuck_s: float = 2.0,
    ) -> None:
        """Remember how to connect; `url` may list several servers with commas, `seed` is an nkey's secret half.

        `inbox_prefix` is where this identity may hear answers; a random part is added, so that several processes can
        share one. A peer that leaves `max_outstanding_pings` unanswered is aborted. `stuck_s` bounds a polite goodbye.
        Raises ConfigurationError for a seed that is none: no server will ever take it.
        """
        self._urls = [part.strip() for part in url.split(",")]
        self._name = name
        self._seed = _checked_seed(name, seed)
        self._tls = tls
        self._delays_s = reconnect_delays_s
        self._ping_interval_s = ping_interval_s
        self._max_outstanding_pings = max_outstanding_pings
        self._connect_timeout_s = connect_timeout_s
        self._stuck_s = stuck_s
        self.js_prefix = js_prefix
        self.connections = 0
        self.denials: deque[str] = deque(maxlen=_DENIALS_KEPT)
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._state_callbacks: list[Callable[[bool], None]] = []
        self._restored: dict[int, tuple[str, str]] = {}
        self._sinks: dict[int, Sink] = {}
        self._last_sid = 0
        self.inbox = f"{inbox_prefix}.{secrets.token_hex(8)}"
        self._last_token = 0
        self.answers: dict[str, tuple[asyncio.Future[Message], str]] = {}
        self.subscriptions: set[Subscription] = set()
        self._denied_subjects: set[str] = set()

    async def __aenter__(self) -> Self:
        """Start connecting, and go on trying for as long as the bus is open."""
        logging.getLogger("asyncio").addFilter(_is_no_noise)
        self._supervisor = asyncio.create_task(self._keep_connected(), name=f"bus:{self._name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is queued, if the server takes it within `stuck_s`, and close."""
        link = self._link
        if link is not None:
            try:
                await link.flush(self._stuck_s)
            except (BusDown, TimeoutError):
                _log.info("bus closed unflushed", name=self._name)
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    # ---- the connection

    @property
    def connected(self) -> bool:
        """Whether a call made now would be sent, and every subscription is known to the server."""
        return self._up.is_set()

    async def wait_connected(self, timeout_s: float) -> None:
        """Return once connected, subscriptions included; BusDown when `timeout_s` has passed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            msg = f"no connection to {', '.join(self._urls)} within {timeout_s} s"
            raise BusDown(msg) from None

    def on_state(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(connected)` at each change, inside the loop; it must be quick."""
        self._state_callbacks.append(callback)

    def off_state(self, callback: Callable[[bool], None]) -> None:
        """Stop calling what `on_state` was given."""
        self._state_callbacks.remove(callback)

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Return when the server has handled all that was sent before; refusals of it are in `denials` by then."""
        try:
            await self.live_link().flush(timeout_s)
        except TimeoutError:
            msg = f"no answer to a flush within {timeout_s} s"
            raise BusTimeout(msg) from None

    # ---- for Bus and bus_pull

    def post(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, reply: str = "") -> None:
        """Queue one message, whatever else is queued."""
        link = self.live_link()
        link.send(self.frame(link, subject, data, headers, reply))

    def attach(self, subject: str, sink: Sink, queue: str = "") -> int:
        """Subscribe now, if connected, and on every link to come; return the subscription's id."""
        _check(subject)
        _check(queue or "-")
        self._last_sid += 1
        sid = self._last_sid
        self._sinks[sid] = sink
        self._restored[sid] = (subject, queue)
        if self._link is not None:
            self._link.send(_sub(sid, subject, queue))
        return sid

    def detach(self, sid: int) -> None:
        """Unsubscribe: nothing reaches the sink any more, and the server drops pulls that answer to it."""
        self._sinks.pop(sid, None)
        known = self._restored.pop(sid, None)
        if known is not None and self._link is not None:
            self._link.send(b"UNSUB %d\r\n" % sid)

    def live_link(self) -> Link:
        """Return the link to send on; BusDown when there is none."""
        if self._link is None:
            msg = "not connected"
            raise BusDown(msg)
        return self._link

    def new_inbox(self) -> str:
        """Return a subject that nobody else hears, within this identity's inbox."""
        self._last_token += 1
        return f"{self.inbox}p.{self._last_token:x}"

    # ---- the supervisor

    async def _keep_connected(self) -> None:
        """Open a link, hold it until it is lost, open the next; for ever."""
        failures = tries = 0
        loop = asyncio.get_running_loop()
        while True:
            url = self._urls[tries % len(self._urls)]
            tries += 1
            opened_at = None
            link = Link(self._sinks, on_lost=self._down, on_denied=self._denied)
            try:
                await self._open(link, url)
                opened_at = loop.time()
                why = await asyncio.shield(link.lost)
                _log.warning("bus lost", name=self._name, url=url, error=repr(why))
            except Exception as error:  # noqa: BLE001 - acted upon: whatever ended a link, the next one is tried
                if failures & (failures + 1) == 0:  # the 1st, and each doubling: an outage must not fill the log
                    self._log_failure(url, error, failures + 1)
            finally:
                await link.discard(self._stuck_s)
            if opened_at is not None and loop.time() - opened_at > self._delays_s[0]:
                failures = 0  # not for a link that is cut as soon as it is up: that one backs off too
            await asyncio.sleep(reconnect_delay_s(failures, random.uniform(-1, 1), self._delays_s))  # noqa: S311 - jitter
            failures += 1

    def _log_failure(self, url: str, error: Exception, failures: int) -> None:
        if _KEY_REFUSED.search(str(error)):
            _log.error("bus connect failed", name=self._name, url=url, error=str(error), todo=_TODO, failures=failures)
        else:
            _log.warning("bus connect failed", name=self._name, url=url, error=repr(error), failures=failures)

    async def _open(self, link: Link, url: str) -> None:
        """Connect, and restore the subscriptions; only when the server has them does anyone hear of it."""
        await link.open(
            url,
            tls=self._tls,
            seed=self._seed,
            timeout_s=self._connect_timeout_s,
            name=self._name,
            ping_interval=self._ping_interval_s,
            max_outstanding_pings=self._max_outstanding_pings,
        )
        self._link = link
        for sid, (subject, queue) in self._restored.items():
            link.send(_sub(sid, subject, queue))
        await link.flush(self._connect_timeout_s)
        self.connections += 1
        self._up.set()
        _log.info("bus connected", name=self._name, url=url, connections=self.connections)
        self._tell(connected=True)

    def _down(self, link: Link) -> None:
        if self._link is not link:
            return
        was_up = self._up.is_set()
        self._link = None
        self._up.clear()
        for answer, subject in self.answers.values():
            _fail(answer, BusTimeout(f"{subject}: connection lost before the answer"))
        if was_up:
            self._tell(connected=False)

    def _tell(self, *, connected: bool) -> None:
        for callback in list(self._state_callbacks):
            try:
                callback(connected)
            except Exception:  # noqa: BLE001 - logged; a callback's fault must not cost the connection
                _log.exception("state callback failed", name=self._name)

    def _denied(self, kind: str, subject: str) -> None:
        """Fail the requests and pulls on that subject at once: the server will never answer them."""
        _log.warning("bus denied", name=self._name, kind=kind, subject=subject)
        self.denials.append(f"{kind} to {subject}")
        if kind == "publish":
            for answer, asked in self.answers.values():
                if asked == subject:
                    _fail(answer, Denied(f"publish to {subject}"))
        else:
            self._denied_subjects.add(subject)

    # ---- messages

    def frame(self, link: Link, subject: str, data: bytes, headers: Mapping[str, str] | None, reply: str) -> bytes:
        """Return the bytes of one publish; ValueError for a subject, TooLarge for a size that would cost the link."""
        _check(subject)
        if reply:
            _check(reply)
        block = encode_headers(headers) if headers else b""
        size = len(block) + len(data)
        if size > link.max_payload:
            msg = f"{subject}: {size} bytes with headers, the server takes {link.max_payload}"
            raise TooLarge(msg)
        if block:
            return f"HPUB {subject} {reply} {len(block)} {size}\r\n".encode() + block + data + b"\r\n"
        return f"PUB {subject} {reply} {size}\r\n".encode() + data + b"\r\n"


def _checked_seed(name: str, seed: str | None) -> str | None:
    if seed is None:
        return None
    try:
        public_key(seed)
    except ValueError:
        msg = f"{name}: the NATS seed is no nkey seed (SU...)"
        raise ConfigurationError(msg) from None
    return seed.strip()


def _is_no_noise(record: logging.LogRecord) -> bool:
    return _NOISE not in str(record.msg)


def _fail(answer: asyncio.Future[Message], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # whoever waits still gets it; if nobody does any more, that is no error


def _check(subject: str) -> None:
    """Refuse what would break the protocol line, or the server's patience with it."""
    if (
        not subject
        or " " in subject
        or not (subject.isascii() and subject.isprintable())
        or len(subject) > _SUBJECT_MOST_BYTES
    ):
        msg = f"not a subject: {subject[:80]!r}"
        raise ValueError(msg)


def _sub(sid: int, subject: str, queue: str) -> bytes:
    return f"SUB {subject} {queue} {sid}\r\n".encode()
