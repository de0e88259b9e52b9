"""What happens, told to whoever looks: the coordinator's ear on the live feed, shared by all streams of `live.py`.

Pages wait for "something happened" (`Shown`), `GET /v1/events` for each event (`Hearer`). It listens only while
somebody looks.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import orjson

from shared.bus import BusError, Message, Subscription
from shared.errors import LedgerDownError

ROUND_S: Final = 1.0
"""A page is rendered no more often."""

CALM_S: Final = 3.0
"""And, while somebody looks, no less often: heartbeats and what agents announce are no events."""

MOST_STREAMS: Final = 500
"""Of pages, and as many of events: publishers who wait for their jobs take no page from a person."""

_MOST_HELD: Final = 1000  # events that one hearer has not read yet

Fragments: TypeAlias = dict[str, str]  # HTML by the id of its element
Key: TypeAlias = tuple[str, str, bool]  # the page, which one of its kind, and whether for one who may act
Subscribe: TypeAlias = Callable[[Callable[[Message], None]], Awaitable[Subscription]]


class TooManyError(Exception):
    """As many look as may."""


class Shown:
    """A page as those see it who look at it now."""

    def __init__(self, draw: Callable[[], Awaitable[Fragments]]) -> None:
        self._draw = draw
        self._version = 0
        self._parts: dict[str, tuple[int, str, bytes]] = {}  # by id: since which version, the HTML, as it is sent
        self._rounds = 0
        self._drawn_at = -ROUND_S
        self._drawing = asyncio.Lock()
        self.stale = asyncio.Event()
        self.watched = 0

    async def after(self, seen: int) -> tuple[int, bytes]:
        """Return what came after the version `seen`, once there may be something: its version, and events to send."""
        if seen >= self._version:
            rounds = self._rounds
            if self._rounds:
                await _set_within(self.stale, CALM_S)
            async with self._drawing:
                if self._rounds == rounds:  # nobody was quicker
                    await self._round()
        return self._version, b"".join(sent for since, _, sent in self._parts.values() if since > seen)

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._drawn_at + ROUND_S - loop.time())
        self.stale.clear()
        try:
            drawn = {"": "", **await self._draw()}
        except LedgerDownError:
            drawn = {"": "The ledger does not answer; what is shown is from before."}
        self._drawn_at = loop.time()
        self._rounds += 1
        changed = {
            name: html for name, html in drawn.items() if name not in self._parts or self._parts[name][1] != html
        }
        if changed:
            self._version += 1
            self._parts |= {name: (self._version, html, _event(name, html)) for name, html in changed.items()}


class Hearer:
    """One who wants each event; `missed` when it read too slowly."""

    def __init__(self, source: str | None, job_id: str | None) -> None:
        self.source, self.job_id = source, job_id
        self.missed = False
        self.news = asyncio.Event()
        self._held: list[bytes] = []

    def tell(self, event: dict[str, Any], sent: bytes) -> None:
        """Take an event if it is one of those that are wanted."""
        if self.job_id not in (None, event["job_id"]) or self.source not in (None, event.get("source")):
            return
        self.missed = self.missed or len(self._held) >= _MOST_HELD
        if not self.missed:
            self._held.append(sent)
        self.news.set()

    async def heard(self, within_s: float) -> bytes:
        """Return what came since the last call, as soon as there is something; empty if nothing came in time."""
        await _set_within(self.news, within_s)
        self.news.clear()
        held, self._held = self._held, []
        return b"".join(held)


@dataclass(slots=True, eq=False)
class Live:
    """All that is looked at. `close()` ends every stream."""

    subscribe: Subscribe | None = None  # to the live feed of all coordinators; None: pages are drawn every CALM_S
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    _open: Counter[str] = field(default_factory=Counter)  # streams, by what they are of
    _shown: dict[Key, Shown] = field(default_factory=dict)
    _hearers: set[Hearer] = field(default_factory=set)
    _ear: Subscription | None = None
    _turning: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def streams(self) -> int:
        """How many are open."""
        return self._open.total()

    @asynccontextmanager
    async def looking(self, key: Key, draw: Callable[[], Awaitable[Fragments]]) -> AsyncIterator[Shown]:
        """Lend the page `key`, drawn by `draw` if nobody looks at it yet; TooManyError."""
        async with self._stream("pages"):
            shown = self._shown.setdefault(key, Shown(draw))
            shown.watched += 1
            try:
                yield shown
            finally:
                shown.watched -= 1
                if not shown.watched:
                    del self._shown[key]

    @asynccontextmanager
    async def hearing(self, source: str | None, job_id: str | None) -> AsyncIterator[Hearer]:
        """Lend the events of one source, or of one job; TooManyError."""
        async with self._stream("events"):
            hearer = Hearer(source, job_id)
            self._hearers.add(hearer)
            try:
                yield hearer
            finally:
                self._hearers.discard(hearer)

    def touch(self) -> None:
        """Have everything drawn anew: a person did something that no event tells."""
        for shown in self._shown.values():
            shown.stale.set()

    async def close(self) -> None:
        """End all streams."""
        self.closed.set()
        self.touch()
        for hearer in self._hearers:
            hearer.news.set()

    @asynccontextmanager
    async def _stream(self, of: Literal["pages", "events"]) -> AsyncIterator[None]:
        if self._open[of] >= MOST_STREAMS:
            raise TooManyError
        self._open[of] += 1
        try:
            await self._turn()
            yield
        finally:
            self._open[of] -= 1
            await self._turn()

    async def _turn(self) -> None:
        """Listen exactly while somebody looks; without NATS the pages are drawn from time to time."""
        async with self._turning:
            if self.streams and self._ear is None and self.subscribe is not None:
                try:
                    self._ear = await self.subscribe(self._heard)
                except BusError:
                    return
            elif not self.streams and self._ear is not None:
                ear, self._ear = self._ear, None
                await ear.close()

    def _heard(self, message: Message) -> None:
        _, _, rest = message.subject.partition("tandem.event.")
        job_id = rest.partition(".")[0]
        for (_, which, _), shown in self._shown.items():
            if which in ("", job_id):
                shown.stale.set()
        if self._hearers:
            event = orjson.loads(message.data)
            sent = b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), message.data)
            for hearer in self._hearers:
                hearer.tell(event, sent)


def _event(name: str, html: str) -> bytes:
    kind = b"fragment" if name else b"trouble"
    return b"event: %b\ndata: %b\n\n" % (kind, orjson.dumps({"id": name, "html": html}))


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
