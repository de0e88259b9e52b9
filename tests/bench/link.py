"""A home uplink: everything that passes shares one rate, and takes its time.

    async with Link(bytes_per_s=1_250_000, delay_s=0.025) as link:
        port = await link.open("127.0.0.1", 4222)

Each direction is one wire with a rate; connections take turns on it, packet by packet, as with a fair queue. It
starts nothing and touches only its own sockets. (tests/support/proxy.py is for breaking them.)
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Self

PACKET_BYTES = 1448
PACKETS_IN_FLIGHT = 256


class _Wire:
    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def carry(self, size: int) -> None:
        """Return when these bytes have left."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            self._free_at = max(self._free_at, loop.time()) + size / self._bytes_per_s
            await asyncio.sleep(max(0.0, self._free_at - loop.time()))


class Link:
    def __init__(self, *, bytes_per_s: float, delay_s: float) -> None:
        self.delay_s = delay_s
        self._up, self._down = _Wire(bytes_per_s), _Wire(bytes_per_s)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def open(self, host: str, port: int) -> int:
        """Listen on a free port for connections to host:port."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            far: asyncio.StreamWriter | None = None
            try:
                far_reader, far = await asyncio.open_connection(host, port)
                await _first_of(self._carry(reader, far, self._up), self._carry(far_reader, writer, self._down))
            except OSError:
                pass
            finally:
                self._tasks.discard(task)
                for one in (writer, far):
                    if one is not None:
                        one.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=4 * PACKET_BYTES)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: _Wire) -> None:
        flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PACKETS_IN_FLIGHT)
        await _first_of(self._depart(reader, flight, wire), self._arrive(writer, flight))

    async def _depart(
        self, reader: asyncio.StreamReader, flight: asyncio.Queue[tuple[float, bytes]], wire: _Wire
    ) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(PACKET_BYTES):
            await wire.carry(len(data))
            await flight.put((loop.time() + self.delay_s, data))
        await flight.put((loop.time() + self.delay_s, b""))
        await asyncio.Event().wait()

    async def _arrive(self, writer: asyncio.StreamWriter, flight: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await flight.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                return
            writer.write(data)
            await writer.drain()


async def _first_of(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run both until one ends, then end the other."""
    tasks = [asyncio.create_task(coroutine, name="link") for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
