"""Reads the body of a request, within bounds of size and time, and into a model."""

import asyncio
from typing import Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from coordinator.web.errors import RefusedError
from shared.wire import BadMessageError, Fault, faults_of

_Model = TypeVar("_Model", bound=BaseModel)

BODY_S: Final = 30.0
"""How long a body may take to arrive."""


async def read_body(request: web.Request, most: int) -> bytes:
    """Read a body of at most `most` bytes, announced or chunked; too large = BadMessageError, too slow = 408."""
    if (request.content_length or 0) > most:
        raise BadMessageError("too_large", [Fault(field="", message=f"{request.content_length} bytes; at most {most}")])
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > most:
                    raise BadMessageError("too_large", [Fault(field="", message=f"at most {most} bytes")])
    except TimeoutError:
        raise RefusedError(408, "request_timeout", f"the body did not arrive within {BODY_S:g} s") from None
    return bytes(body)


def parsed(model: type[_Model], body: bytes, *, strict: bool | None = None) -> _Model:
    """Read a body as JSON; BadMessageError names every fault. `strict`: "60" is no number; None: as it says."""
    try:
        return model.model_validate_json(body, strict=strict)
    except ValidationError as error:
        code = "not_json" if any(one["type"] == "json_invalid" for one in error.errors()) else "invalid"
        raise BadMessageError(code, faults_of(error)) from None
