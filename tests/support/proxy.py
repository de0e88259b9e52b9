"""A TCP proxy that can be as bad as a home network: cut, half-open, slow, narrow.

    async with Proxy("127.0.0.1", 4222) as proxy:
        Bus(f"nats://127.0.0.1:{proxy.port}", ...)
        proxy.black_hole()   # nothing passes any more, and nobody is told
    proxy.cut_after(10_000)  # the next connection that sends so many more bytes is reset in the middle of it
        proxy.heal()         # new connections work; those that fell into the hole stay there

It starts nothing and touches nothing but its own sockets.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self

from yarl import URL

_CHUNK = 64 * 1024
_IN_FLIGHT = 256


@asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[tuple["Proxy", str]]:
    """Run a proxy before what a URL names; yields it, and the URL through it."""
    url = URL(dsn)
    assert url.host is not None
    assert url.port is not None
    async with Proxy(url.host, url.port) as proxy:
        yield proxy, str(url.with_host("127.0.0.1").with_port(proxy.port))


class Proxy:
    def __init__(
        self, host: str, port: int, *, delay_s: float = 0.0, bytes_per_s: float | None = None, listen: int = 0
    ) -> None:
        """Forward to host:port; `delay_s` each way, `bytes_per_s` each way and connection. Both may be set any time.

        It listens on port `listen`; 0 = any free one.
        """
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self.port = listen
        self.accepted = 0
        self._target = (host, port)
        self._refusing = False
        self._swallowing = True
        self._connections: set[_Connection] = set()
        self._in_hole: set[_Connection] = set()
        self._hole = False
        self._cut_after: int | None = None
        self.cuts = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._refusing = True
        open_now = list(self._connections)
        self.cut()
        await asyncio.gather(*(connection.done.wait() for connection in open_now))
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        """How many pass through now, those in the hole included."""
        return len(self._connections)

    def cut(self) -> None:
        """Reset every connection, as a router that restarts does."""
        for connection in list(self._connections):
            connection.abort()

    def refuse(self, *, refusing: bool = True) -> None:
        """Reset new connections as soon as they come."""
        self._refusing = refusing

    def cut_after(self, size: int | None) -> None:
        """Reset the first connection that sends `size` bytes from now on, right after them; None: none any more.

        Only what comes from the side that connected counts. `cuts` says how often that happened.
        """
        self._cut_after = size
        for connection in self._connections:
            connection.sent = 0

    def black_hole(self, *, swallow: bool = True) -> None:
        """Let nothing pass, on present and new connections, without FIN or RST.

        `swallow`: take the bytes and drop them; otherwise leave them unread, so that the senders' buffers fill up.
        """
        self._hole = True
        self._swallowing = swallow
        self._in_hole |= self._connections

    def heal(self) -> None:
        """Let new connections pass; what is in the hole stays there."""
        self._hole = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        connection = _Connection(self, writer)
        self._connections.add(connection)
        if self._hole:
            self._in_hole.add(connection)
        try:
            await connection.run(reader, self._target)
        finally:
            self._connections.discard(connection)
            self._in_hole.discard(connection)
            connection.done.set()

    def allowance(self, connection: "_Connection", size: int) -> int:
        """Return how many of `size` bytes a connection may still send; fewer than asked for: it is to be cut."""
        connection.sent += size
        if self._cut_after is None or connection.sent < self._cut_after:
            return size
        left = max(0, size - 1 - (connection.sent - self._cut_after))
        self._cut_after = None
        self.cuts += 1
        return left

    def lets_pass(self, connection: "_Connection") -> bool:
        return connection not in self._in_hole

    @property
    def swallowing(self) -> bool:
        return self._swallowing


class _Connection:
    def __init__(self, proxy: Proxy, near: asyncio.StreamWriter) -> None:
        self.done = asyncio.Event()
        self.sent = 0
        self._proxy = proxy
        self._near = near
        self._far: asyncio.StreamWriter | None = None
        self._aborted = asyncio.Event()

    def abort(self) -> None:
        self._aborted.set()

    async def run(self, near_reader: asyncio.StreamReader, target: tuple[str, int]) -> None:
        try:
            far_reader, self._far = await asyncio.open_connection(*target)
        except OSError:
            self._near.transport.abort()
            return
        await _first_of(
            self._carry(near_reader, self._far, counted=True),
            self._carry(far_reader, self._near),
            self._aborted.wait(),
        )
        for writer in (self._near, self._far):
            writer.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        """Carry one direction: read here, deliver `delay_s` later there, in order."""
        flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)
        await _first_of(self._depart(reader, flight), self._arrive(writer, flight, counted=counted))

    async def _depart(self, reader: asyncio.StreamReader, flight: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            if not self._proxy.lets_pass(self) and not self._proxy.swallowing:
                break
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            if self._proxy.lets_pass(self):
                await flight.put((loop.time() + self._proxy.delay_s, data))
        await self._aborted.wait()

    async def _arrive(
        self, writer: asyncio.StreamWriter, flight: asyncio.Queue[tuple[float, bytes]], *, counted: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await flight.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if self._proxy.bytes_per_s:
                await asyncio.sleep(len(data) / self._proxy.bytes_per_s)
            if not self._proxy.lets_pass(self):
                continue
            if not data:
                return
            passes = self._proxy.allowance(self, len(data)) if counted else len(data)
            try:
                writer.write(data[:passes])
                await writer.drain()
            except OSError:
                return
            if passes < len(data):
                self.abort()
                return


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends, then end the others."""
    tasks = [asyncio.create_task(coroutine, name="proxy") for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
