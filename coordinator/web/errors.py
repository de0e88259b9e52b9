"""Every error of the HTTP interface as one JSON body, and nothing of the inside in it.

`{"error": {"code", "message", "faults": [{"field", "message"}]}}`. Handlers raise RefusedError, or let the errors of
the layers below through; the middleware turns them into answers, and what nobody foresaw ends in `_Connection`.
"""

import http
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
import structlog
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_protocol import RequestHandler

from shared.errors import LedgerDownError, TandemError
from shared.wire import BadMessageError, Fault

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger()
_RETRY_AFTER_S: Final = "5"
_BAD_MESSAGE_STATUS: Final = {"not_json": 400, "too_large": 413, "invalid": 422}


class RefusedError(TandemError):
    """A request that is answered with an error; `code` is one word for programs, `message` a sentence for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        faults: list[Fault] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.faults, self.headers = status, code, faults or [], dict(headers or {})


class ErrorResponse(web.Response):
    """An error as programs get it; `error` is for those who show it otherwise."""

    error: Mapping[str, Any]


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON answer; instants in UTC with Z, anything else that JSON has no word for as text."""
    data = orjson.dumps(body, default=str, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)


def error_response(
    status: int,
    code: str,
    message: str,
    faults: list[Fault] | None = None,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """Return the one form that errors have."""
    error = {"code": code, "message": message, "faults": [f.model_dump() for f in faults or []]}
    response = ErrorResponse(body=orjson.dumps({"error": error}), status=status, headers=headers)
    response.content_type, response.error = "application/json", error
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every refusal and every expected failure of a handler."""
    try:
        response = await handler(request)
    except RefusedError as error:
        response = error_response(error.status, error.code, str(error), error.faults, error.headers)
    except BadMessageError as error:
        status = _BAD_MESSAGE_STATUS.get(error.code, 422)
        response = error_response(status, error.code, str(error)[:1000], error.faults)
    except LedgerDownError:
        message = "the ledger does not answer now; nothing was decided, try again"
        response = error_response(503, "ledger_down", message, headers={"Retry-After": _RETRY_AFTER_S})
    except HTTPException as error:
        kept = {name: error.headers[name] for name in ("Allow", "Location") if name in error.headers}
        response = error_response(error.status, _code_of(error.status), error.reason, headers=kept)
    except (web.RequestPayloadError, HttpProcessingError):
        response = error_response(400, "bad_request", "the request's body is broken")
    response.headers.setdefault("Server", "tandem")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("Referrer-Policy", "no-referrer")
    response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    return response


def _code_of(status: int) -> str:
    return http.HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")


class JsonServer(web.Server):
    """aiohttp's server, whose answers to what is not even HTTP are JSON like all others."""

    def __call__(self) -> RequestHandler:
        """Make the handler of one connection."""
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(RequestHandler):
    __slots__ = ("_content",)

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._content: StreamReader | None = None

    async def _handle_request(self, request: web.BaseRequest, *rest: Any) -> tuple[web.StreamResponse, bool]:
        self._content = request.content
        return await super()._handle_request(request, *rest)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop waiting for the rest of a refused body from a client that is gone (aiohttp 3.14 waits on)."""
        super().connection_lost(exc)
        content = self._content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.feed_eof()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what no handler foresaw, and what is not even HTTP; quotes nothing, and ends the connection."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone
        if status >= 500:  # noqa: PLR2004
            _log.error("request failed", method=request.method, path=request.path, exc_info=exc)
        else:
            _log.info("not HTTP", remote=request.remote, error=message)
        if request.writer.output_size > 0:
            msg = "an answer has begun; it can only be cut off"
            raise ConnectionError(msg)
        said = "internal error; the coordinator's log has it" if status >= 500 else "not a valid HTTP request"  # noqa: PLR2004
        response = error_response(status, _code_of(status), said)
        response.force_close()
        return response
