"""Unfinished multipart uploads in a bucket: what a coordinator leaves that dies while it uploads a large file.

They can't be read and don't show in a listing of the bucket, but they take room. obstore (0.12) neither lists nor
aborts those that it did not begin, so the two requests are made here, signed with AWS Signature Version 4 (the S3
API's reference: ListMultipartUploads, AbortMultipartUpload). Called by `artifact_s3.py` for the sweeper.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree as ET

import aiohttp
from pydantic import SecretStr
from yarl import URL

from coordinator.artifacts import StoreDownError

_TIMEOUT: Final = aiohttp.ClientTimeout(total=60.0, connect=5.0)
_NOTHING: Final = hashlib.sha256(b"").hexdigest()
_MOST_BYTES: Final = 8 * 1024 * 1024  # of one answer; a page of a thousand uploads has about 1 MB
_PAGES: Final = 10  # a round; the next one finds the rest
_LIVE_S: Final = 86_400.0  # younger ones may still be arriving over a slow line, whatever the grace of files is


class _Upload(NamedTuple):
    """An upload that was begun and not ended."""

    key: str
    id: str
    begun_at: datetime


class Unfinished:
    """Finds and aborts them, below one prefix of one bucket."""

    def __init__(self, address: str, prefix: str, region: str, key_id: str, secret_key: SecretStr) -> None:
        """`address` is the bucket's, path style: https://host/bucket."""
        self._address = address
        self._prefix = f"{prefix}/sha256/" if prefix else "sha256/"
        self._region = region
        self._key_id = key_id
        self._secret_key = secret_key

    async def abort(self, older_than_s: float) -> int:
        """Abort those begun longer ago than this, and at least a day; return how many. Raises StoreDownError."""
        begun_before = datetime.now(UTC) - timedelta(seconds=max(older_than_s, _LIVE_S))
        aborted = 0
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            more: Mapping[str, str] | None = {}
            for _ in range(_PAGES):
                if more is None:
                    break
                query = {"uploads": "", "prefix": self._prefix, **more}
                uploads, more = _read(await self._ask(session, "GET", "", query))
                for upload in uploads:
                    if upload.begun_at < begun_before and upload.key.startswith(self._prefix):
                        await self._ask(session, "DELETE", upload.key, {"uploadId": upload.id})
                        aborted += 1
        return aborted

    async def _ask(self, session: aiohttp.ClientSession, method: str, key: str, query: Mapping[str, str]) -> bytes:
        at = f"{self._address}/{_quoted(key, keep='/')}" if key else self._address
        ordered = "&".join(f"{_quoted(name)}={_quoted(query[name])}" for name in sorted(query))
        url = URL(f"{at}?{ordered}", encoded=True)
        try:
            async with session.request(method, url, headers=self._signed(method, url, datetime.now(UTC))) as answer:
                body = await answer.content.read(_MOST_BYTES)
                if answer.status in (200, 204) or (method == "DELETE" and answer.status == 404):  # noqa: PLR2004
                    return body
                msg = f"{method} of unfinished uploads: status {answer.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            msg = f"{method} of unfinished uploads: {type(error).__name__}"
        raise StoreDownError(msg)

    def _signed(self, method: str, url: URL, now: datetime) -> dict[str, str]:
        """Return the headers of a request without a body (AWS Signature Version 4)."""
        day, moment = f"{now:%Y%m%d}", f"{now:%Y%m%dT%H%M%SZ}"
        headers = {"host": url.raw_authority, "x-amz-content-sha256": _NOTHING, "x-amz-date": moment}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"{method}\n{url.raw_path}\n{url.raw_query_string}\n{lines}\n{names}\n{_NOTHING}"
        scope = f"{day}/{self._region}/s3/aws4_request"
        said = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self._secret_key.get_secret_value()}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.new(key, said.encode(), hashlib.sha256).hexdigest()
        credential = f"Credential={self._key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _read(body: bytes) -> tuple[list[_Upload], dict[str, str] | None]:
    """Read a page of the listing; return its uploads, and what to ask the next one with, None if it is the last."""

    def text(parent: ET.Element, name: str) -> str:
        return parent.findtext(f"{{*}}{name}") or ""

    try:
        root = ET.fromstring(body)  # noqa: S314 - of the store that holds our files; expat bounds expansion (2.4.1)
        uploads = [
            _Upload(text(one, "Key"), text(one, "UploadId"), datetime.fromisoformat(text(one, "Initiated")))
            for one in root.iterfind("{*}Upload")
        ]
    except (ET.ParseError, ValueError) as error:
        msg = "the listing of unfinished uploads can't be read"
        raise StoreDownError(msg) from error
    if text(root, "IsTruncated") != "true":
        return uploads, None
    return uploads, {"key-marker": text(root, "NextKeyMarker"), "upload-id-marker": text(root, "NextUploadIdMarker")}


def _quoted(text: str, keep: str = "") -> str:
    return quote(text, safe="-_.~" + keep)
