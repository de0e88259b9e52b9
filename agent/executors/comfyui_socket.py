"""What a running prompt says through the websocket: a hint, never the truth.

Nothing missed is replayed, events stop for reasons of the server's own, and a client that does not read holds up all
the others: so it is always read, opened anew when it closed or fell silent, and nobody waits for what it says without
asking the history as well. Called by `comfyui_prompt`.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Self

import aiohttp

from agent.executors.comfyui_client import Client

_AGAIN_S = 1.0
_CLOSE_S = 2.0
_FIRST_S = 5.0
_MOST_BYTES = 256 * 1024**2
"""One `executed` may be large; aiohttp's own limit of 4 MiB would close the socket."""

Event = Callable[[str, dict[str, Any]], None]


class Listener:
    """Listens for one prompt while its block runs; the prompt's id is the client id, as it was posted."""

    def __init__(self, client: Client, prompt_id: str, quiet_s: float, on_event: Event) -> None:
        """`on_event` gets the type and data of each message, and ("binary", {}) for previews."""
        self._client, self._id, self._quiet_s, self._on_event = client, prompt_id, quiet_s, on_event
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Listen, if possible before anything is posted; a socket that can't be opened is no reason to wait long."""
        self._task = asyncio.create_task(self._run(), name=f"listen:{self._id}")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_S):
                    await self._connected.wait()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close, with a handshake: without one the server takes the next socket of this id for the old one."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                await self._listen()
            await asyncio.sleep(_AGAIN_S)

    async def _listen(self) -> None:
        timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE_S)
        url = f"{self._client.url}/ws"
        connecting = self._client.session().ws_connect(
            url, params={"clientId": self._id}, max_msg_size=_MOST_BYTES, timeout=timeout
        )
        async with connecting as socket:
            self._connected.set()
            while True:
                message = await socket.receive(timeout=self._quiet_s)
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._take(message.data)
                elif message.type is aiohttp.WSMsgType.BINARY:
                    self._on_event("binary", {})
                else:
                    return

    def _take(self, text: str) -> None:
        try:
            message = json.loads(text)
        except ValueError:
            return
        if isinstance(message, dict) and isinstance(message.get("data"), dict):
            self._on_event(str(message.get("type")), message["data"])
