"""Callbacks: what a job's publisher wants to be told is posted to its `callback_url`, signed, until it is taken.

A callback begins in the statement that marks its result as published, so that neither is without the other; its body is
that of the RESULTS message. It is sent at least once: a coordinator that dies between the answer and its note has
another send it again, with the same `webhook-id`. A try is taken for a while, longer than it may last, so that several
coordinators never send the same at once, and no transaction stays open for it.

What a publisher names is not trusted: an address that is not public is refused unless the settings allow it, looked at
when the connection is made (a name that is resolved twice could answer twice); without TLS a callback goes to networks
that the settings name, and nowhere else; redirects are not followed; an answer costs at most LIMIT_S; a receiver that
is dead holds up `PER_HOST` tries and no other receiver.
"""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import aiohttp
import structlog
from standardwebhooks import Webhook

from coordinator.addresses import Network, is_allowed, is_named
from coordinator.ledger.queries import CallbackRow, Queries
from coordinator.retry_after import asked_s
from shared.backoff import retry_delay_s
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach

_log = structlog.get_logger()

LIMIT_S: Final = 15.0
"""How long one try may take in all."""

TAKEN_S: Final = 60.0
"""How long a try belongs to the coordinator that took it."""

GIVEN_UP_S: Final = 24 * 3600.0
"""A callback is tried for so long."""

AT_ONCE: Final = 32
PER_HOST: Final = 4

_BASE_S: Final = 5.0
_FACTOR: Final = 3
_MOST_S: Final = 3600.0
_READ_BYTES: Final = 4096  # of an answer; nobody looks at it
_GONE: Final = 410
_SLOW_DOWN: Final = (429, 502, 503, 504)


def pause_s(attempts: int, jitter: float, asked_s: float | None = None) -> float:
    """Return how long to wait after so many failed tries: 5 s x 3^(n-1), up to an hour; `jitter` in [-1, 1].

    A receiver may ask for longer (Retry-After), up to the same hour.
    """
    usual = retry_delay_s(attempts, jitter, base_s=_BASE_S, most_s=_MOST_S, factor=_FACTOR)
    return max(usual, min(asked_s or 0.0, _MOST_S))


@dataclass(slots=True)
class Callbacks:
    """Each round begins what is due and there is room for; the tries run beside it, until `close`."""

    queries: Queries
    secret_of: Callable[[str], str]  # a source's, as `whsec_...`
    allowed: Collection[Network]
    wake: Callable[[], None] = lambda: None  # there is room again; set by the composition
    delivered: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # tries, by what went wrong
    given_up: int = 0
    _running: dict[asyncio.Task[None], str] = field(default_factory=dict)  # -> host
    _sessions: dict[str, aiohttp.ClientSession] = field(default_factory=dict)  # by scheme

    async def once(self) -> None:
        """Begin what is due; raises LedgerDownError."""
        room = AT_ONCE - len(self._running)
        if room <= 0:
            return
        busy = [host for host, tries in Counter(self._running.values()).items() if tries >= PER_HOST]
        for row in await self.queries.take_callbacks(room, PER_HOST, busy, TAKEN_S):
            task = asyncio.create_task(self._try(row), name=f"callback:{row.webhook_id}")
            self._running[task] = row.host
            task.add_done_callback(self._ended)

    async def again(self, job_id: UUID, actor: str) -> bool:
        """Send a job's last callback again, since a person said so; False if it never had one."""
        armed = await self.queries.callback_again(job_id, actor=actor)
        self.wake()
        return armed

    async def close(self) -> None:
        """Stop what is being tried; it is tried again when its time is over."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for session in self._sessions.values():
            await session.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            task.exception()  # `_try` has no other than LedgerDownError: it is tried again then
        self.wake()

    async def _try(self, row: CallbackRow) -> None:
        """Send once, and note how that ended."""
        reach(Failpoint.CALLBACK_UNSENT)
        status, why, wait_s = await self._post(row)
        reach(Failpoint.CALLBACK_UNNOTED)
        again_s = None
        if why is not None and status != _GONE:
            pause = pause_s(row.attempts, random.uniform(-1, 1), wait_s)  # noqa: S311 - spreads retries
            again_s = pause if row.age_s + pause <= GIVEN_UP_S else None
        try:
            await self.queries.end_callback(row, status, why, again_s)
        except LedgerDownError as error:
            _log.info("callback not noted", webhook_id=row.webhook_id, error=str(error))
            raise
        self._count(row, why, again_s)

    def _count(self, row: CallbackRow, why: str | None, again_s: float | None) -> None:
        known = {"job_id": str(row.job_id), "epoch": row.epoch, "state": row.state, "attempts": row.attempts}
        if why is None:
            self.delivered += 1
            _log.info("callback delivered", **known)
            return
        self.failed[why.partition(":")[0]] += 1
        if again_s is None:
            self.given_up += 1
            _log.warning("callback given up", host=row.host, why=why, **known)
        elif row.attempts & (row.attempts - 1) == 0:  # the 1st, 2nd, 4th, 8th
            _log.info("callback failed", host=row.host, why=why, again_s=round(again_s, 1), **known)

    async def _post(self, row: CallbackRow) -> tuple[int | None, str | None, float | None]:
        """Return the status, why it counts as failed (None: it does not), and how long the receiver asked to wait."""
        now = datetime.now(UTC)  # signed when it is sent: receivers refuse what is older than five minutes
        try:
            signature = Webhook(self.secret_of(row.source)).sign(row.webhook_id, now, row.body.decode())
            headers = {
                "content-type": "application/json",
                "user-agent": "tandem",
                "webhook-id": row.webhook_id,
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": signature,
            }
            async with (
                asyncio.timeout(LIMIT_S),
                self._open(row.url).post(row.url, data=row.body, headers=headers, allow_redirects=False) as answer,
            ):
                await answer.content.read(_READ_BYTES)
                wait_s = asked_s(answer.headers.get("Retry-After"), now) if answer.status in _SLOW_DOWN else None
                return answer.status, _fault_of(answer.status), wait_s
        except TimeoutError:
            return None, f"timeout: no answer within {LIMIT_S:g} s", None
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, RefusedAddressError)
            return None, f"{'address' if refused else 'unreachable'}: {error.os_error}"[:300], None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return None, f"broken: {type(error).__name__}: {error}"[:300], None

    def _open(self, url: str) -> aiohttp.ClientSession:
        scheme = urlsplit(url).scheme
        if scheme not in self._sessions:
            connector = aiohttp.TCPConnector(
                limit=AT_ONCE,
                limit_per_host=PER_HOST,
                ttl_dns_cache=10,
                force_close=True,  # a kept connection would have been checked long ago
                socket_factory=partial(self._socket, scheme == "https"),
            )
            self._sessions[scheme] = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=LIMIT_S), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._sessions[scheme]

    def _socket(self, tls: bool, where: "aiohttp.AddrInfoType") -> socket.socket:  # noqa: FBT001 - see partial
        """Make the socket for the very address that is connected to, or refuse to."""
        family, kind, protocol, _, address = where
        found = ip_address(str(address[0]).partition("%")[0])
        if not is_allowed(found, self.allowed):
            msg = f"{found} is not a public address, and callback_allow does not name it"
            raise RefusedAddressError(msg)
        if not tls and not is_named(found, self.allowed):
            msg = f"{found} would be told without TLS, and callback_allow does not name it"
            raise RefusedAddressError(msg)
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made


class RefusedAddressError(OSError):
    """An address that no callback may go to."""


def _fault_of(status: int) -> str | None:
    if 200 <= status < 300:  # noqa: PLR2004
        return None
    if 300 <= status < 400:  # noqa: PLR2004
        return f"redirect: {status}; redirects are not followed"
    return f"status: {status}"
