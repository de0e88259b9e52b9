"""The ground of the fake generators: a real HTTP server on a socket, which a test can tell how to misbehave.

A request to generate is answered by a `Script`: pieces of output with what happens between and after them. A script
is used once; when none is left, `usual` answers.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

WORDS = ("The", " harbour", " wakes", " at", " dawn", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one generation does, in this order."""

    status: int = 200
    error: Any = None  # the body of a status over 200
    headers: dict[str, str] = field(default_factory=dict)
    refuse: bool = False  # close the connection without an answer
    hang_first: bool = False  # take the request and never answer
    words: tuple[str, ...] = WORDS
    thoughts: tuple[str, ...] = ()
    hang_after: int | None = None  # stall after so many words, until `resume`
    die_after: int | None = None  # cut the connection after so many words
    error_after: int | None = None  # an error inside the stream after so many words
    error_text: str = "Context size has been exceeded."
    end: bool = True  # send the end marker
    finish: str = "stop"
    model: str | None = None  # another than was asked
    raw: bytes | None = None  # this instead of words and end
    more: dict[str, Any] = field(default_factory=dict)  # for the last event
    waiting: tuple[bytes, ...] = ()  # sent before the first word
    late: bytes = b""  # sent after these, when `ping` is set


@dataclass(slots=True)
class Request:
    """A request to generate, as it came."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # its generation has ended, however
    dropped: bool = False  # ... because the client went away


class FakeServer:
    """One server; `url` is where it listens. `stop` and `again` are a crash and a restart on the same port."""

    def __init__(self) -> None:
        self.scripts: deque[Script] = deque()
        self.usual = Script()
        self.requests: list[Request] = []
        self.arrived = asyncio.Event()  # some generation has been asked for
        self.asked: list[str] = []  # every other request, "GET /path"
        self.silent = False  # small questions hang
        self.stubborn = False  # goes on although the client has gone, until `let_go`
        self.let_go = asyncio.Event()
        self.resume = asyncio.Event()  # what stalls goes on
        self.ping = asyncio.Event()
        self.words_sent = 0  # of jobs, not of probes
        self.working = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def listening(self) -> bool:
        return self._runner is not None

    @property
    def last(self) -> dict[str, Any]:
        """The body of the last request to generate that was no probe."""
        return self.real[-1].body

    @property
    def real(self) -> list[Request]:
        return [request for request in self.requests if not self.is_probe(request.body)]

    @property
    def probes(self) -> list[Request]:
        return [request for request in self.requests if self.is_probe(request.body)]

    @staticmethod
    def is_probe(body: dict[str, Any]) -> bool:
        return "Count to three." in str(body.get("messages")) or body.get("prompt") == "1, 2, 3, 4,"

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_routes(self.routes())
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    def small(self, answer: Callable[[dict[str, Any]], Any]) -> Callable[[web.Request], Any]:
        """Return a handler for a small question; `answer` gets the body and returns JSON, or a Response."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self.asked.append(f"{request.method} {request.path}")
            if self.silent:
                await asyncio.Event().wait()
            body = await request.read()
            said = answer(orjson.loads(body) if body else {})
            return said if isinstance(said, web.StreamResponse) else self.json(said)

        return handle

    def json(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
        return web.Response(body=orjson.dumps(body), status=status, content_type="application/json", headers=headers)

    # ---- generating

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to generate, by the script whose turn it is."""
        body = orjson.loads(await request.read())
        noted = Request(request.path, body, dict(request.headers))
        self.requests.append(noted)
        probe = self.is_probe(body)
        script = self.scripts.popleft() if self.scripts and not probe else self.usual
        self.working += 1
        self.arrived.set()
        try:
            return await self._play(script, request, noted)
        except (asyncio.CancelledError, ConnectionError):
            noted.dropped = True
            if self.stubborn:
                await self._finish_for_nobody()
            raise
        finally:
            self.working -= 1
            noted.closed.set()

    async def _finish_for_nobody(self) -> None:
        waiting = asyncio.ensure_future(self.let_go.wait())
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(waiting)

    async def _play(self, script: Script, request: web.Request, noted: Request) -> web.StreamResponse:
        if script.refuse:
            request.transport.abort()
            return web.Response()
        if script.hang_first:
            await asyncio.Event().wait()
        if script.status != 200:
            return self.json(script.error, script.status, script.headers)
        response = self.stream_response()
        await response.prepare(request)
        for line in script.waiting:
            await response.write(line)
        if script.late:
            await self.ping.wait()
            await response.write(script.late)
        await self._say(script, request, response, noted)
        return response

    async def _say(self, script: Script, request: web.Request, response: web.StreamResponse, noted: Request) -> None:
        if script.raw is not None:
            await response.write(script.raw)
            return
        model = script.model or self.answers_as(str(noted.body.get("model")))
        for thought in script.thoughts:
            await response.write(self.word(noted.path, model, thought, thinking=True))
        for number, word in enumerate((*script.words, None)):
            if script.hang_after == number:
                await self.resume.wait()
            if script.die_after == number:
                self.die(request)
                return
            if script.error_after == number:
                await response.write(self.stream_error(script.error_text))
                return
            if number == 0:
                await response.write(self.opening(noted.path, model))
            if word is not None:
                await response.write(self.word(noted.path, model, word))
                self.words_sent += not self.is_probe(noted.body)
        if script.end:
            await response.write(self.ending(noted.path, model, script))

    def answers_as(self, model: str) -> str:
        """Return the model's name in the answer to a request for `model`."""
        return model

    def die(self, request: web.Request) -> None:
        """End a stream as the server's death would."""
        request.transport.abort()

    def stream_response(self) -> web.StreamResponse:
        raise NotImplementedError

    def opening(self, path: str, model: str) -> bytes:  # noqa: ARG002
        """Return what comes with the first word, and is none."""
        return b""

    def word(self, path: str, model: str, text: str, *, thinking: bool = False) -> bytes:
        raise NotImplementedError

    def ending(self, path: str, model: str, script: Script) -> bytes:
        raise NotImplementedError

    def stream_error(self, text: str) -> bytes:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def running(server: Any) -> AsyncIterator[Any]:
    """Run a fake until the block is left."""
    await server.start()
    try:
        yield server
    finally:
        server.let_go.set()
        await server.stop()
