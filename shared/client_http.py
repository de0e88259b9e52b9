"""The client's requests: one server, one token, and what an answer means. Used by `client.py` alone."""

import ssl
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import aiohttp
import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from shared.client_answers import RefusedRequestError
from shared.errors import ConfigurationError, TandemError, UnreachableError
from shared.wire import Fault

_Model = TypeVar("_Model", bound=BaseModel)
_CHUNK_BYTES = 256 * 1024
_SILENCE_S = 45.0
"""A stream of events that says nothing for so long is dead: a coordinator sends a comment every 15 s."""

_UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})
"""OpenSSL's numbers of a certificate whose signer is not among those that this machine trusts."""


class Http:
    """Requests to one server; opened and closed by the client that has it."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        """`url` without a path; `timeout_s` bounds each request, of a file or of events each silence.

        ConfigurationError for a token that no header can carry.
        """
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token):
            msg = "the token must be printable ASCII, without spaces or line breaks around it"
            raise ConfigurationError(msg)
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._file_timeout = aiohttp.ClientTimeout(total=None, connect=timeout_s, sock_read=timeout_s)
        self._stream_timeout = aiohttp.ClientTimeout(total=None, connect=timeout_s, sock_read=_SILENCE_S)
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make a session; nothing is sent yet."""
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, query: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """Return the decoded answer to a GET."""
        _, answer = await self.ask("GET", path, query=query)
        return answer

    async def ask(
        self, method: str, path: str, *, query: Sequence[tuple[str, str]] = (), body: bytes | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return status and decoded answer. RefusedRequestError: it says no; UnreachableError: none came."""
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            async with self._opened().request(
                method, self.url + path, params=list(query), data=body, headers=headers, allow_redirects=False
            ) as answer:
                status, raw = answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        if not 200 <= status < 300:  # noqa: PLR2004
            raise _refused(status, raw)
        try:
            decoded = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise _no_tandem(self.url) from None
        if not isinstance(decoded, dict):
            raise _no_tandem(self.url)
        return status, decoded

    async def content(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an answer."""
        try:
            async with self._opened().get(self.url + path, timeout=self._file_timeout, allow_redirects=False) as answer:
                if answer.status != 200:  # noqa: PLR2004
                    raise _refused(answer.status, await answer.read())
                async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    async def lines(self, path: str, query: Sequence[tuple[str, str]] = ()) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a stream of server-sent events as they come, comments included, until it ends."""
        try:
            async with self._opened().get(
                self.url + path, params=list(query), timeout=self._stream_timeout, allow_redirects=False
            ) as answer:
                if answer.status != 200:  # noqa: PLR2004
                    raise _refused(answer.status, await answer.read())
                async for line in answer.content:
                    yield line.rstrip(b"\r\n")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            msg = "the client is not open: async with Client(...)"
            raise RuntimeError(msg)
        return self._session

    def _unreachable(self, error: Exception) -> UnreachableError:
        if isinstance(error, TimeoutError):
            return UnreachableError(f"no answer from {self.url} within {self._timeout_s:g} s")
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return UnreachableError(f"can't reach {self.url}: {_distrust(error.certificate_error)}")
        if isinstance(error, aiohttp.ClientConnectorError):
            error = error.os_error
        why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        return UnreachableError(f"can't reach {self.url}: {why}")


def _distrust(error: Exception) -> str:
    """Say what is wrong with a server's certificate, and what to do if this machine does not know its authority."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return str(error)
    said = f"its certificate: {error.verify_message}"
    if error.verify_code not in _UNKNOWN_AUTHORITY:
        return said
    return f"{said}; if it is by Tandem's own authority, set SSL_CERT_FILE to its tls/ca.crt"


def read(model: type[_Model], answer: Any) -> _Model:
    """Read an answer; TandemError when it is not a Tandem coordinator's."""
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        raise _no_tandem("the answer has unexpected fields: the server") from error


def read_list(model: type[_Model], answer: dict[str, Any], name: str) -> list[_Model]:
    """Read the list that an answer has under a name."""
    try:
        return TypeAdapter(list[model]).validate_python(answer[name])  # type: ignore[valid-type]
    except (ValidationError, KeyError) as error:
        raise _no_tandem("the answer has unexpected fields: the server") from error


def _refused(status: int, raw: bytes) -> RefusedRequestError:
    """Read the one form that refusals have; anything else is some other server's."""
    try:
        error = orjson.loads(raw)["error"]
        faults = [Fault.model_validate(fault) for fault in error.get("faults", [])]
        return RefusedRequestError(status, str(error["code"]), str(error["message"]), faults)
    except (ValueError, KeyError, TypeError, AttributeError):
        return RefusedRequestError(status, "http", f"HTTP {status}", [])


def _no_tandem(what: str) -> TandemError:
    return TandemError(f"{what} does not answer as a Tandem coordinator does")
