"""What a browser keeps between its pages: who is logged in, and that a form came from a page of ours.

Nothing of it is kept here: the cookie is signed (`Access`), so every coordinator with the same key takes it.
"""

import asyncio
import hmac
import secrets
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web
from multidict import MultiDictProxy

from coordinator.web.access import SESSION_S, Access
from coordinator.web.errors import RefusedError
from shared.errors import ConfigurationError
from shared.private_file import load_or_create

ACCESS: Final = web.AppKey("access", Access)

_COOKIE: Final = "tandem_session"
_KEY_BYTES: Final = 32
_FORM_S: Final = 30.0
"""How long a form may take to arrive."""


def session_key(path: Path) -> bytes:
    """Return the key in this file, made (0600) if there is none; ConfigurationError for one that others may read."""
    try:
        key = bytes.fromhex(load_or_create(path, lambda: secrets.token_hex(_KEY_BYTES)))
    except ValueError:
        key = b""
    if len(key) < _KEY_BYTES:
        msg = f"{path} does not hold {_KEY_BYTES} bytes in hex"
        raise ConfigurationError(msg)
    return key


def session_of(request: web.Request) -> str | None:
    """Return the session that the browser shows, for whatever may be done with one.

    That is every reading, and the forms of pages; programs that change something over `/v1/` bring their token.
    """
    may = request.method in ("GET", "HEAD") or not request.path.startswith("/v1/")
    return request.cookies.get(_COOKIE) if may else None


def keep_session(request: web.Request, response: web.Response, session: str, base_url: str | None) -> None:
    """Have the browser keep a session; over https never to be sent without it."""
    outside = urlsplit(base_url or "")
    is_secure = request.secure or (outside.scheme == "https" and outside.netloc == request.host)
    response.set_cookie(_COOKIE, session, max_age=int(SESSION_S), httponly=True, samesite="Strict", secure=is_secure)


def end_session(request: web.Request, response: web.Response) -> None:
    """End it, here and in the browser."""
    request.app[ACCESS].log_out(request.cookies.get(_COOKIE, ""))
    response.del_cookie(_COOKIE, httponly=True, samesite="Strict")


def csrf_token(request: web.Request) -> str:
    """Return what the forms of this page carry in the field `csrf`."""
    return request.app[ACCESS].form_token(request.cookies.get(_COOKIE))


async def form_of(request: web.Request) -> MultiDictProxy[Any]:
    """Return the fields of a form of ours; RefusedError (403) for one that a page of this session did not make."""
    try:
        async with asyncio.timeout(_FORM_S):
            form = await request.post()
    except TimeoutError:
        raise RefusedError(408, "request_timeout", "the form did not arrive in time") from None
    except (ValueError, LookupError):  # LookupError: a charset that nobody knows
        raise RefusedError(400, "bad_request", "the form can't be read") from None
    shown = form.get("csrf")
    if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), csrf_token(request).encode()):
        message = "this form is of another session, or none of ours: go back, load the page again and repeat"
        raise RefusedError(403, "foreign_form", message)
    return form
