"""An S3 API on a socket: moto's server as a process, asked by HTTP what lies in its bucket."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import aiohttp
from pydantic import SecretStr
from yarl import URL

from coordinator.artifact_s3 import Place

BUCKET = "tandem-test"
PREFIX = "team/files"
KEYS = {"key_id": "AKIATEST", "secret_key": SecretStr("not/a+secret")}
_SOMEBODY = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, Signature=0"}
"""Enough for moto, which wants to know who asks, and believes it."""


class S3Server:
    """One server with one bucket; moto checks no signatures."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    def place(self, **changed: Any) -> Place:
        """Return how a store reaches the bucket."""
        known = {"url": f"s3://{BUCKET}/{PREFIX}", "endpoint": self.url, "allow_http": True, **KEYS}
        return Place(**{**known, **changed})

    def settings(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return the coordinator's settings for it."""
        return {
            "artifacts_url": f"s3://{BUCKET}/{PREFIX}",
            "artifacts_endpoint": endpoint or self.url,
            "artifacts_key_id": SecretStr(KEYS["key_id"]),
            "artifacts_secret_key": KEYS["secret_key"],
            "artifacts_allow_http": True,
        }

    async def make_bucket(self, name: str = BUCKET) -> None:
        await self._ask("PUT", f"/{name}")

    async def empty(self) -> None:
        """Remove all that lies in the bucket, unfinished uploads too."""
        for key in await self.keys():
            await self._ask("DELETE", f"/{BUCKET}/{quote(key)}")
        for key, upload in _all(await self._ask("GET", f"/{BUCKET}?uploads"), "Upload", "Key", "UploadId"):
            await self._ask("DELETE", f"/{BUCKET}/{quote(key)}?uploadId={quote(upload, safe='')}")
        assert await self.keys() == await self.unfinished() == []

    async def keys(self) -> list[str]:
        """Return all keys in the bucket, however they came there."""
        found = _all(await self._ask("GET", f"/{BUCKET}?list-type=2"), "Contents", "Key")
        return [key for (key,) in found]

    async def unfinished(self) -> list[str]:
        """Return the keys of the unfinished multipart uploads."""
        found = _all(await self._ask("GET", f"/{BUCKET}?uploads"), "Upload", "Key")
        return [key for (key,) in found]

    async def begin(self, key: str) -> None:
        """Begin a multipart upload, and leave it."""
        await self._ask("POST", f"/{BUCKET}/{quote(key)}?uploads")

    async def put(self, key: str, content: bytes) -> None:
        await self._ask("PUT", f"/{BUCKET}/{key}", data=content)

    async def _ask(self, method: str, path: str, **more: Any) -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, URL(self.url + path, encoded=True), headers=_SOMEBODY, **more) as answer,
        ):
            body = await answer.read()
            assert answer.status in (200, 204), body
            return body


def _all(listing: bytes, element: str, *names: str) -> list[tuple[str, ...]]:
    found = ET.fromstring(listing).iterfind(f"{{*}}{element}")
    return sorted(tuple(one.findtext(f"{{*}}{name}") or "" for name in names) for one in found)


@asynccontextmanager
async def s3_server(port: int = 0) -> AsyncIterator[S3Server]:
    """Run one, empty but for its bucket."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    reading: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(60):
            while True:
                line = await process.stderr.readline()
                assert line, "moto's server has ended"
                if found := re.search(rb"Running on (http://\S+)", line):
                    break
        reading = asyncio.create_task(_drain(process.stderr), name="moto's log")
        made = S3Server(process, found[1].decode())
        await made.make_bucket()
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


async def _drain(log: asyncio.StreamReader) -> None:
    while await log.read(65536):
        pass
