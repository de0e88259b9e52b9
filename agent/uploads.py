"""Sending one file of a result to the coordinator (PROTOCOL, Take work 5).

Streamed from disk, so a large file costs no memory. `send` makes one attempt and returns what it came to; when to try
again is the reporter's business. An upload may take hours on a slow line, but not a minute without moving a byte.
"""

import asyncio
import base64
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import quote

import aiohttp
import structlog
from yarl import URL

from shared.addresses import http_in_the_clear
from shared.failpoints import Failpoint, reach
from shared.wire import Artifact, Upload

CHUNK_BYTES = 256 * 1024
_log = structlog.get_logger()


class Sent(StrEnum):
    """What an attempt to upload came to."""

    STORED = "stored"  # it is there
    AGAIN = "again"  # the line, or the server, failed: try later
    STALE = "stale"  # the lease is lost
    TOO_LARGE = "too_large"  # the server will never take it
    CORRUPT = "corrupt"  # what arrived was not what was announced
    REFUSED = "refused"  # any other no


_MEANING = {200: Sent.STORED, 201: Sent.STORED, 409: Sent.STALE, 413: Sent.TOO_LARGE, 422: Sent.CORRUPT}
_PASSING = {408, 425, 429}
_SERVER_FAULT = 500


class Uploads:
    """One HTTP session for all uploads."""

    def __init__(self, *, connect_s: float, stall_s: float, tls: ssl.SSLContext | None = None) -> None:
        """Give a connection `connect_s`, and `stall_s` without a byte moved or to the answer after the last one."""
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
        self._stall_s = stall_s
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Nothing is opened before the first upload."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        await self.forget_connections()

    async def forget_connections(self) -> None:
        """Drop every pooled connection: after a sleep they are dead without knowing it."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, upload: Upload, path: Path, artifact: Artifact) -> tuple[Sent, str]:
        """Upload `path` as `artifact`, once; return what came of it, and what the server said for people."""
        if clear := http_in_the_clear(upload.url):
            return Sent.REFUSED, f"{clear} is not encrypted: the coordinator's public_url must be https://"
        headers = {
            "Authorization": f"Bearer {upload.token}",
            "Content-Type": artifact.media_type,
            "Content-Length": str(artifact.size),
            "Digest": "sha-256=" + base64.b64encode(bytes.fromhex(artifact.sha256)).decode(),
        }
        url = f"{upload.url.rstrip('/')}/{quote(artifact.name, safe='')}"
        loop = asyncio.get_running_loop()
        try:
            with await asyncio.to_thread(path.open, "rb") as source:
                async with asyncio.timeout(self._stall_s) as stall:

                    def moved() -> None:
                        stall.reschedule(loop.time() + self._stall_s)

                    body = _chunks(source, moved)
                    async with self._open().put(
                        URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
                    ) as answer:
                        text = (await answer.content.read(2000)).decode("utf-8", "replace")
                        return _meaning(answer.status), f"{answer.status} {text}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Sent.AGAIN, f"{type(error).__name__}: {error}"

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            tls: ssl.SSLContext | bool = self._tls if self._tls is not None else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls), timeout=self._timeout, auto_decompress=False
            )
        return self._session


def digest(path: Path) -> str:
    """Return a file's SHA-256 in hex; blocking, call it in a thread."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _meaning(status: int) -> Sent:
    if status in _PASSING or status >= _SERVER_FAULT:
        return Sent.AGAIN
    return _MEANING.get(status, Sent.REFUSED)


async def _chunks(source: BinaryIO, moved: Callable[[], None]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(source.read, CHUNK_BYTES):
        moved()
        yield chunk
        reach(Failpoint.FILE_HALF_SENT)
    moved()
