"""Files of a result on their way in: `PUT /v1/uploads/{job}/{epoch}/{name}` (PROTOCOL, Take work, 5).

Whether the epoch may still bring files is asked before a byte is read, and decided by the ledger when the file is
recorded. A file is part of a result only once the accepted report links it.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator
from typing import Final, NamedTuple
from uuid import UUID

import structlog
from aiohttp import web

from coordinator.artifacts import NoRoomError, StoreDownError, WrongContentError
from coordinator.web.context import WebContext, job_id_of
from coordinator.web.errors import RefusedError, error_response, json_response
from shared.failpoints import Failpoint, reach
from shared.wire import ARTIFACT_NAME_PATTERN, Fault

_log = structlog.get_logger()

_STALL_S: Final = 60.0
"""An upload from which nothing has come for this long is given up."""

_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,99}/[a-z0-9][a-z0-9!#$&^_.+-]{0,99}")
_UNKNOWN_TYPE: Final = "application/octet-stream"
_SOON: Final = {"Retry-After": "5"}


class _Announced(NamedTuple):
    """What the head of an upload says."""

    job_id: UUID
    epoch: int
    name: str
    worker: str
    media_type: str
    size: int
    sha256: str


async def expect_later(request: web.Request) -> web.Response | None:
    """Let the endpoint answer `Expect: 100-continue`, so that a refused upload costs no bytes."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return error_response(417, "expectation_failed", "only 100-continue is understood")
    return None


async def upload(context: WebContext, request: web.Request) -> web.Response:
    """Store one file of one epoch: 201 stored, 200 it was there already, 409 the lease is gone, 503 send it again."""
    file = _announced(context, request)
    try:
        return await _take(context, request, file)
    except StoreDownError as error:
        raise store_down(error) from error


async def _take(context: WebContext, request: web.Request, file: _Announced) -> web.Response:
    if not await context.queries.upload_allowed(file.job_id, file.epoch, file.worker):
        raise _stale(file)
    if await _is_there(context, file):
        return _answer(file, 200)
    if "Expect" in request.headers:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # as aiohttp's own handler does: the answer is still to come
    await _store(context, request, file)
    reach(Failpoint.FILE_UNRECORDED)
    recorded = await context.queries.record_artifact(
        *(file.job_id, file.epoch, file.name, file.worker),
        media_type=file.media_type,
        size=file.size,
        sha256=file.sha256,
    )
    if not recorded:  # the lease was lost while the bytes came; what was stored is nobody's, and is swept
        raise _stale(file)
    if not await _is_kept(context, file):
        await context.queries.forget_artifact(file.job_id, file.epoch, file.name, file.sha256)
        raise RefusedError(503, "swept", "the content was being swept meanwhile: send it again", headers=_SOON)
    reach(Failpoint.FILE_UNANSWERED)
    return _answer(file, 201)


async def _is_there(context: WebContext, file: _Announced) -> bool:
    """Say whether this epoch has exactly this file already, on record and in the store."""
    for known in await context.queries.artifacts_of(file.job_id, file.epoch):
        if (known.name, known.size, known.sha256, known.media_type) == (
            file.name,
            file.size,
            file.sha256,
            file.media_type,
        ):
            return await _is_kept(context, file)
    return False


async def _is_kept(context: WebContext, file: _Announced) -> bool:
    """Say whether the content of a recorded file is in the store, to stay; in this order (see `sweeper.py`)."""
    if await context.queries.is_doomed(file.sha256):
        return False
    return await context.store.size(file.sha256) == file.size


def _announced(context: WebContext, request: web.Request) -> _Announced:
    """Check all that can be known before the body, the token first."""
    job_id, epoch, name = job_id_of(request), int(request.match_info["epoch"]), request.match_info["name"]
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    worker = context.tokens.verify(token.strip(), job_id, epoch) if scheme.lower() == "bearer" else None
    if worker is None:
        headers = {"WWW-Authenticate": 'Bearer realm="tandem upload"'}
        raise RefusedError(401, "unauthorized", "the upload token is not valid for this job and epoch", headers=headers)
    size = request.content_length
    if size is None:
        raise RefusedError(411, "length_required", "Content-Length is needed")
    if size > context.max_artifact_bytes:
        message = f"{size} bytes; at most {context.max_artifact_bytes}"
        raise RefusedError(413, "too_large", message, [Fault(field="Content-Length", message=message)])
    faults: list[Fault] = []
    if not re.fullmatch(ARTIFACT_NAME_PATTERN, name):
        faults.append(Fault(field="name", message="one path segment of 1 to 120 characters, no leading dot"))
    if "Content-Encoding" in request.headers:
        faults.append(Fault(field="Content-Encoding", message="files are sent as they are"))
    sha256 = _sha256_of(request.headers.get("Digest", ""))
    if sha256 is None:
        faults.append(Fault(field="Digest", message="sha-256=<base64 or hex> of the whole file is needed"))
    if faults or sha256 is None:
        raise RefusedError(422, "invalid", "; ".join(f"{f.field}: {f.message}" for f in faults), faults)
    media_type = request.content_type.lower()
    if not _MEDIA_TYPE.fullmatch(media_type):
        media_type = _UNKNOWN_TYPE
    return _Announced(job_id, epoch, name, worker, media_type, size, sha256)


async def _store(context: WebContext, request: web.Request, file: _Announced) -> None:
    try:
        await context.store.put(_chunks(request), sha256=file.sha256, size=file.size)
    except WrongContentError as error:
        fault = Fault(field="Digest" if "sha256" in str(error) else "Content-Length", message=str(error))
        raise RefusedError(422, "digest_mismatch", str(error), [fault]) from None
    except NoRoomError as error:
        raise RefusedError(507, "insufficient_storage", f"the store is full: {error}") from None
    except TimeoutError:
        raise RefusedError(408, "request_timeout", f"nothing came for {_STALL_S:g} s") from None


async def _chunks(request: web.Request) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(_STALL_S):
            chunk = await request.content.readany()
        if not chunk:
            return
        yield chunk
        reach(Failpoint.FILE_HALF_STORED)


def _sha256_of(header: str) -> str | None:
    """Read the SHA-256 out of a Digest header (RFC 3230: base64; hex is taken too), as hex."""
    for part in header.split(","):
        algorithm, _, value = part.strip().partition("=")
        if algorithm.lower() != "sha-256":
            continue
        if re.fullmatch(r"[0-9a-fA-F]{64}", value):
            return value.lower()
        try:
            digest = base64.b64decode(value, validate=True)
        except binascii.Error:
            return None
        return digest.hex() if len(digest) == 32 else None  # noqa: PLR2004
    return None


def _stale(file: _Announced) -> RefusedError:
    return RefusedError(409, "stale_lease", f"epoch {file.epoch} of job {file.job_id} may not bring files (any more)")


def store_down(error: StoreDownError) -> RefusedError:
    """Return the answer for when the artifact store is away."""
    _log.warning("artifact store is away", error=str(error))
    return RefusedError(503, "store_down", "the artifact store does not answer now: try again", headers=_SOON)


def _answer(file: _Announced, status: int) -> web.Response:
    return json_response({"name": file.name, "size": file.size, "sha256": file.sha256}, status)
