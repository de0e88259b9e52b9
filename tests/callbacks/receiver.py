"""A receiver of callbacks: a real server that answers as it is told to, and checks each signature as the docs say."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
from aiohttp import web
from standardwebhooks import Webhook

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Receiver:
    secret: str = ""
    port: int = 0
    answers: list[Answer] = field(default_factory=list)  # for the first ones; then 204
    heard: list[tuple[str, dict[str, object]]] = field(default_factory=list)  # webhook-id and body, signature checked

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/told"

    async def take(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        Webhook(self.secret).verify(raw, dict(request.headers))
        self.heard.append((request.headers["webhook-id"], orjson.loads(raw)))
        if self.answers:
            return await self.answers.pop(0)(request)
        return web.Response(status=204)

    @property
    def ids(self) -> list[str]:
        return [webhook_id for webhook_id, _ in self.heard]


def status(code: int, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return answer


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[Receiver]:
    made = Receiver(port=port)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/told", made.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()
