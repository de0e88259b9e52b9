"""A TCP proxy that cuts a connection at one certain answer: what was done is done, and who asked never learns it.

async with AnswerCutter(port) as cutter:
    cutter.cut_before(b'"type":"verdict"')   # once: the answer is lost, the connection with it
    ...
    await cutter.cut.wait()
"""

import asyncio
from types import TracebackType
from typing import Self

_CHUNK = 64 * 1024


class AnswerCutter:
    """Forwards to a port on this machine. `accepted` counts connections."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.accepted = 0
        self.cut = asyncio.Event()
        self._target = port
        self._needle = b""
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    def cut_before(self, needle: bytes) -> None:
        """Cut the connection on which these bytes are next answered, before any of that read is passed on."""
        self._needle = needle
        self.cut.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._pass(reader, writer)
        except OSError:
            pass  # either side went away
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _pass(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far, far_out = await asyncio.open_connection("127.0.0.1", self._target)
        asking = asyncio.create_task(_carry(near, far_out), name="cutter")
        try:
            while data := await far.read(_CHUNK):
                if self._needle and self._needle in data:
                    self._needle = b""
                    self.cut.set()
                    return
                near_out.write(data)
                await near_out.drain()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            far_out.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()
