"""The transport of the HTTP executors: small questions, streams, and what can go wrong with either.

A connection serves one request: llama.cpp closes idle ones after 5 s, and dropping a connection is how a generation
is cancelled.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import orjson
from yarl import URL

from agent.executors.base import BackendDown

MOST_ANSWER_BYTES = 64 * 1024 * 1024
_MOST_ERROR_BYTES = 64 * 1024
_MOST_AMOUNT = 1e15
_MOST_RETRY_AFTER_S = 600.0
"""A server that says nonsense must not keep its agent away for years."""
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Answer:
    """A small answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON; BackendDown when it is none, for then something else listens there."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise BackendDown("no_json", f"answered {self.status} without JSON") from None


class Refused(Exception):  # noqa: N818 - what the backend did
    """The backend answered with an error, by its status or inside a stream."""

    def __init__(self, status: int | None, text: str, retry_after_s: float | None = None) -> None:
        """`text` is what the backend says; a status of None or 200 is that of a stream that had begun."""
        super().__init__(f"{status}: {text[:200]}")
        self.status, self.text, self.retry_after_s = status, text, retry_after_s


class CutOff(Exception):  # noqa: N818
    """The connection ended before the answer did."""


class Transport:
    """Requests to one server."""

    def __init__(self, url: str, *, api_key: str | None, connect_s: float, answer_s: float) -> None:
        """Nothing is opened; `answer_s` is how long a small question may take."""
        self._base = URL(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connect_s, self._answer_s = connect_s, answer_s
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """Return the session, opened when first asked for."""
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
                headers=self._headers,
            )
        return self._session

    async def close(self) -> None:
        """Drop everything."""
        if self._session is not None:
            await self._session.close()

    def address(self, path: str, **query: str) -> URL:
        """Return the URL of a route below the server's."""
        url = self._base.joinpath(path.lstrip("/"), encoded=False)
        return url.with_query(query) if query else url

    async def ask(self, method: str, path: str, body: Any = None, *, wait_s: float | None = None) -> Answer:
        """Ask something small; BackendDown (`unreachable`, `no_answer`) if no answer comes."""
        wait_s = wait_s or self._answer_s
        try:
            async with (
                asyncio.timeout(wait_s),
                self.session().request(method, self.address(path), json=body) as response,
            ):
                content = await _read(response.content, MOST_ANSWER_BYTES)
                return Answer(response.status, response.headers, content)
        except TimeoutError:
            raise BackendDown("no_answer", f"{method} {path}: no answer in {wait_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise BackendDown("unreachable", str(error)) from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise BackendDown("no_answer", f"{method} {path}: {type(error).__name__}: {error}") from None

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Post something and read the answer as it comes; leaving the block drops the connection.

        Raises BackendDown if nobody listens, Refused for a status over 299, CutOff when the connection breaks, all
        of them also from within the block.
        """
        try:
            response = await self.session().post(self.address(path), json=body)
            try:
                if response.status >= 300:  # noqa: PLR2004
                    text = (await _read(response.content, _MOST_ERROR_BYTES)).decode("utf-8", "replace")
                    raise Refused(response.status, error_text(text), _retry_after_s(response.headers))
                yield response
            finally:
                response.close()
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise BackendDown("unreachable", str(error)) from None
        except (aiohttp.ClientError, ConnectionError) as error:
            msg = f"{type(error).__name__}: {error}"
            raise CutOff(msg) from None


def error_text(body: str) -> str:
    """Return the words of an error in any of the shapes that the servers use."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    return words_of(found.get("error", found)) if isinstance(found, dict) else body


def words_of(error: Any) -> str:
    """Return the words of an `error` field: a text, or an object with `type`, `code` and `message`."""
    if not isinstance(error, dict):
        return str(error)
    return " ".join(str(error[name]) for name in ("type", "code", "message") if error.get(name)) or str(error)


async def lines(content: aiohttp.StreamReader, most_bytes: int = MOST_ANSWER_BYTES) -> AsyncIterator[bytes]:
    """Split a stream into lines, without their ends; what is left at the end counts as a line.

    Not by aiohttp's `readline`, which refuses lines over 64 KiB: the last line of /api/generate holds the context.
    """
    rest = bytearray()
    async for chunk in content.iter_any():
        *whole, last = chunk.split(b"\n")
        for part in whole:
            yield bytes(rest + part).rstrip(b"\r")
            rest.clear()
        rest += last
        if len(rest) > most_bytes:
            msg = f"a line of over {most_bytes} bytes"
            raise CutOff(msg)
    if rest:
        yield bytes(rest).rstrip(b"\r")


async def _read(content: aiohttp.StreamReader, most_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            del body[most_bytes:]
            break
    return bytes(body)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return Retry-After in seconds, at most ten minutes; a date counts as none: it would need the other's clock."""
    text = headers.get("Retry-After", "")
    return min(float(text), _MOST_RETRY_AFTER_S) if text.isdecimal() else None


def parsed(data: bytes) -> dict[str, Any]:
    """Return one object of a stream; CutOff if it is none."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        msg = "a part of the stream is no JSON object"
        raise CutOff(msg)
    return found


def part(value: Any, kind: type[_Kind]) -> _Kind:
    """Return a part of such an object, empty if it is absent or null; CutOff if it is of another kind."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        msg = f"a part of the stream is {type(value).__name__}, where {kind.__name__} belongs"
        raise CutOff(msg)
    return value


def amount(value: Any) -> float | None:
    """Return a number above zero; None for anything else: no answer is bad because a server counts oddly."""
    return value if isinstance(value, int | float) and value is not True and 0 < value < _MOST_AMOUNT else None


def count(value: Any) -> int | None:
    """Return a whole number above zero; None for anything else."""
    found = amount(value)
    return None if found is None else int(found)
