"""Reads the body of a request, within bounds of size and time."""

import asyncio
from typing import Final

from aiohttp import web

from coordinator.web.errors import RefusedError
from shared.wire import BadMessageError, Fault

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
