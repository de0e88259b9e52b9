"""Files of accepted results on their way out, whole or in part; never shown by a browser as a page of this origin."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

import structlog
from aiohttp import web

from coordinator.artifacts import StoreDownError
from coordinator.ledger import views
from coordinator.web.access import Caller
from coordinator.web.context import WebContext, job_id_of
from coordinator.web.errors import RefusedError
from coordinator.web.uploads import store_down

_log = structlog.get_logger()
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class _Part(NamedTuple):
    """A run of bytes."""

    start: int
    length: int


async def download(context: WebContext, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Send one file of the accepted result; understands Range (one), If-Range and If-None-Match."""
    job_id, name = job_id_of(request), request.match_info["name"]
    file = None if "\x00" in name else await views.artifact(context.pool, job_id, name, caller.source)
    if file is None:
        raise RefusedError(404, "not_found", f"job {job_id} has no such file")
    if file["trimmed_at"] is not None:
        raise RefusedError(410, "trimmed", f"{name!r} is not kept any more, since {file['trimmed_at']:%Y-%m-%d}")
    size, tag = file["size"], f'"{file["sha256"]}"'
    headers = {
        "Server": "tandem",
        "ETag": tag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",  # a retry may bring another file under the same name
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Content-Disposition": _disposition(name),
        "X-Content-Type-Options": "nosniff",
    }
    if _names(request.headers.get("If-None-Match"), tag):
        return web.Response(status=304, headers=headers)
    part = _part(request.headers, tag, size) if request.method == "GET" else _Part(0, size)  # RFC 9110, 14.2
    if part is None:
        raise RefusedError(
            416, "range_not_satisfiable", f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"}
        )
    try:
        there = await context.store.size(file["sha256"])
    except StoreDownError as error:
        raise store_down(error) from error
    if there != size:
        _log.error("file lost", job_id=str(job_id), name=name, sha256=file["sha256"])
        raise RefusedError(500, "file_lost", f"the store no longer has {name!r}; tandem audit tells more")
    response = web.StreamResponse(status=200 if part == _Part(0, size) else 206, headers=headers)
    if response.status == 206:  # noqa: PLR2004
        response.headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{size}"
    response.content_type = file["media_type"]
    response.content_length = part.length
    await response.prepare(request)
    if request.method != "HEAD":
        await _send(context, request, response, file["sha256"], part)
    await response.write_eof()
    return response


async def _send(
    context: WebContext, request: web.Request, response: web.StreamResponse, sha256: str, part: _Part
) -> None:
    """Send the bytes; if they can't be read to the end the connection is cut, for the answer has begun."""
    sent = 0
    try:
        async for chunk in context.store.read(sha256, part.start, part.length):
            await response.write(chunk)
            sent += len(chunk)
    finally:
        if sent != part.length and request.transport is not None:
            request.transport.abort()


def _part(headers: Mapping[str, str], tag: str, size: int) -> _Part | None:
    """Return what is asked for: all of it, or one run of bytes; None if that run lies outside."""
    whole = _Part(0, size)
    asked = _RANGE.fullmatch(headers.get("Range", ""))
    if asked is None or headers.get("If-Range", tag) != tag or asked[1] == asked[2] == "":
        return whole  # no range, or one that may be ignored (RFC 9110, 14.2)
    if asked[1] == "":
        length = min(int(asked[2]), size)
        return _Part(size - length, length) if length else None
    start = int(asked[1])
    end = min(int(asked[2]) if asked[2] else size - 1, size - 1)
    if asked[2] and int(asked[2]) < start:
        return whole
    return _Part(start, end - start + 1) if start < size else None


def _names(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in if_none_match.split(","))


def _disposition(name: str) -> str:
    """Return `attachment` with the name twice: in ASCII for all, in full for who reads RFC 6266."""
    plain = re.sub(r"[^ !#-\[\]-~]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
