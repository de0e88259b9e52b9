"""One prompt's life on the server: look whether it is there, post it, follow it, read its end; stop it if need be.

The history is the truth. "Is it there" asks the queue first and the history second: a prompt that ends in between is
then in one of them. Whatever ends the block early, the prompt is stopped before `run` returns. Called by `comfyui`.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.executors import comfyui_outcome as outcomes
from agent.executors.clocks import Clocks
from agent.executors.comfyui_client import Client, NoAnswer, Posted, Refused
from agent.executors.comfyui_graph import Graph
from agent.executors.comfyui_outcome import Fault
from agent.executors.comfyui_progress import Follower
from agent.executors.comfyui_settings import ComfyUISettings
from agent.executors.comfyui_socket import Listener
from agent.executors.verdicts import Finding, Verdict

_STOP_LOOK_S = 0.1
_STOP_AGAIN_S = 1.0
_UNREADABLE = 3
_SERVER_ERROR = 500
_NOT_ALLOWED = frozenset({401, 403})
VANISHED = Finding(Verdict.RETRY, "vanished")
"""The server has forgotten the prompt, as it does when it is restarted."""
_log = structlog.get_logger()

Entry = dict[str, Any]


class Failed(Exception):  # noqa: N818
    """The prompt did not succeed."""

    def __init__(self, fault: Fault) -> None:
        """`fault` says why."""
        super().__init__(fault.text)
        self.fault = fault


class Away(Exception):  # noqa: N818
    """The server refuses connections, again and again."""


@dataclass(slots=True, kw_only=True)
class Prompt:
    """One id; `run` is called once."""

    client: Client
    settings: ComfyUISettings
    clocks: Clocks
    follower: Follower
    graph: Graph
    id: str
    adopted: bool = False
    """It was there already."""
    stuck: bool = False
    """It did not stop when it was told to: the server is broken."""
    _post: "asyncio.Task[Posted] | None" = None
    _refusals: int = 0
    _unreadable: int = 0
    _ended: Entry | None = field(default=None)

    async def run(self) -> Entry:
        """Return its entry of the history once it has ended, well or badly.

        Failed: it was refused or is gone. Away: nobody listens there any more. OutOfTime: a clock ran out.
        """
        try:
            async with self.clocks.running():
                return await self._follow()
        except BaseException:
            await to_the_end(self._stop())
            raise

    async def _follow(self) -> Entry:
        self.adopted = await self._is_there()
        async with Listener(self.client, self.id, self.settings.quiet_s, self.follower.take):
            if not self.adopted:
                await self._submit()
            while self._ended is None:
                self.follower.moved.clear()
                if not await self._is_there():
                    text = "vanished: it is neither in the queue nor in the history; the server was restarted?"
                    raise Failed(Fault(VANISHED, text))
                if self._ended is None:
                    await self._wait()
        self.follower.end()
        return self._ended

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.poll_s):
                await self.follower.moved.wait()

    async def _is_there(self) -> bool:
        """Look until the server has answered; its end is kept if it has ended."""
        while True:
            try:
                found = await self._look()
            except Refused as refused:
                await self._refused(refused)
            except NoAnswer as silence:  # busy
                _log.debug("comfyui gives no answer", prompt=self.id, error=str(silence))
                await self._unread(silence)
                await asyncio.sleep(self.settings.poll_s)
            else:
                self._refusals = 0
                return found

    async def _look(self) -> bool:
        queue = await self.client.queue()
        if self.id in queue.running:
            self.follower.started()
            return True
        if self.id in queue.pending:
            self.follower.waiting(len(queue.running) + queue.pending.index(self.id))
            return True
        self._ended = await self.client.history(self.id)
        return self._ended is not None

    async def _refused(self, refused: Refused) -> None:
        waits = self.settings.refused_s
        if self._refusals >= len(waits):
            raise Away(str(refused))
        await asyncio.sleep(waits[self._refusals])
        self._refusals += 1

    async def _unread(self, silence: NoAnswer) -> None:
        """Judge an answer that is none.

        An output that is no JSON makes the history unreadable (500) until its entry is deleted; what other routes
        answer says nothing about that.
        """
        if silence.status in _NOT_ALLOWED:
            raise Failed(outcomes.fault_of(f"refused: {silence}", silence.status))
        if not silence.path.startswith("/history/"):
            return
        self._unreadable = self._unreadable + 1 if silence.status == _SERVER_ERROR else 0
        if self._unreadable >= _UNREADABLE:
            await self.client.forget(self.id)
            text = "unreadable_history: an output of the workflow can't be written as JSON"
            raise Failed(outcomes.fault_of(text, _SERVER_ERROR))

    async def _submit(self) -> None:
        """Post it; after an answer that was lost, look before it is posted again."""
        for last in (False, True):
            try:
                self._post = asyncio.create_task(self.client.post(self.graph.nodes, self.id), name=f"post:{self.id}")
                posted = await asyncio.shield(self._post)
            except Refused as refused:
                raise Away(str(refused)) from None
            except NoAnswer as silence:
                posted = None
                _log.warning("comfyui did not answer a prompt", prompt=self.id, error=str(silence))
            if posted is not None and posted.status != _SERVER_ERROR:
                return self._accepted(posted)
            if await self._appeared():
                return None
            if posted is not None:
                raise Failed(outcomes.fault_of(f"refused: {posted.text}", posted.status))
            if last:
                raise Failed(Fault(Finding(Verdict.RETRY, "not_accepted"), "POST /prompt was not answered, twice"))
        return None

    def _accepted(self, posted: Posted) -> None:
        fault = outcomes.refusal(posted) or outcomes.dropped(posted, self.graph.outputs)
        if fault is not None:
            raise Failed(fault)

    async def _appeared(self) -> bool:
        """Say whether it was taken all the same; looked twice, since a stalled server answers in any order."""
        if await self._is_there():
            return True
        await asyncio.sleep(min(self.settings.poll_s, 1.0))
        return await self._is_there()

    async def _stop(self) -> None:
        """Take it out of the queue or interrupt it, and wait until the server is done with it, in bounded time."""
        # A task of its own: before Python 3.11.3 asyncio.timeout fails in a task that is being cancelled.
        stopping = asyncio.create_task(self._left(), name=f"stop:{self.id}")
        try:
            done, _ = await asyncio.wait({stopping}, timeout=self.settings.stop_s)
            if done:
                stopping.result()
            else:
                self.stuck = True
                _log.warning("comfyui does not stop a prompt", prompt=self.id, waited_s=self.settings.stop_s)
        finally:
            stopping.cancel()
            await asyncio.wait({stopping})
            if self._post is not None:
                self._post.cancel()
                await asyncio.wait({self._post})
                _ = self._post.cancelled() or self._post.exception()

    async def _left(self) -> None:
        if self._post is not None and not self._post.done():  # it may be carried out later
            await asyncio.wait({self._post})
        await stopped(self.client, self.id)


async def stopped(client: Client, prompt_id: str) -> None:
    """Take a prompt out of the queue or interrupt it, until the server is done with it; the caller's time bounds it."""
    pause_s = _STOP_LOOK_S
    while True:
        try:
            queue = await client.queue()
            if prompt_id in queue.pending:
                await client.delete(prompt_id)
            elif prompt_id in queue.running:
                await client.interrupt(prompt_id)
            else:
                return
        except Refused:
            return  # a server that is gone runs nothing
        except NoAnswer as silence:
            _log.debug("comfyui gives no answer", prompt=prompt_id, error=str(silence))
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _STOP_AGAIN_S)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run something bounded to its end, however often the caller is cancelled meanwhile; then be cancelled."""
    task = asyncio.create_task(work, name="stop prompt")
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
