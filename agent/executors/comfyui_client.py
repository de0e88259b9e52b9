"""ComfyUI's HTTP routes, as they really answer (recorded from 0.3.64 and 0.30.2).

It knows no jobs. A route that does not answer raises `NoAnswer`, which says nothing about the prompt: HTTP stands
still while a model is loaded, and a POST that was given up is carried out all the same. `Refused` says that nobody
listens. Called by the other `comfyui_` modules.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import aiohttp

from agent.executors.comfyui_templates import Nodes

_OK = 200
_NOT_FOUND = 404
_BLOCK_BYTES = 256 * 1024


class NoAnswer(Exception):  # noqa: N818 - it may be busy, it is no error yet
    """No answer, or one that says nothing; `status` if there was one."""

    def __init__(self, message: str, status: int | None = None, path: str = "") -> None:
        """`message` names the route; `path` is the route asked, of a small question."""
        super().__init__(message)
        self.status, self.path = status, path


class Refused(Exception):  # noqa: N818
    """Nobody listens there."""


class TooLarge(Exception):  # noqa: N818
    """The file is larger than what is taken."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The prompts that a server has in hand, by their ids; one id may be there twice."""

    running: tuple[str, ...]
    pending: tuple[str, ...]  # in the order in which they will run

    def __contains__(self, prompt_id: object) -> bool:
        return prompt_id in self.running or prompt_id in self.pending

    def __len__(self) -> int:
        return len(self.running) + len(self.pending)


@dataclass(frozen=True, slots=True)
class Posted:
    """The answer to a posted prompt, whatever it was."""

    status: int
    body: Mapping[str, Any]  # empty if it was no JSON
    text: str


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A file on the server."""

    filename: str
    subfolder: str
    type: str  # output, temp or input


class Client:
    """One server."""

    def __init__(self, session: Callable[[], aiohttp.ClientSession], url: str, answer_s: float) -> None:
        """`session` returns the open connections; `answer_s`: how long an answer may take."""
        self.session, self.url = session, url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=answer_s)

    async def stats(self) -> dict[str, Any]:
        """Return /system_stats: version, devices, memory."""
        return await self._get_object("/system_stats")

    async def queue(self) -> Queue:
        """Return what runs and waits."""
        body = await self._get_object("/queue")
        running, pending = body.get("queue_running"), body.get("queue_pending")
        if not _are_entries(running) or not _are_entries(pending):
            msg = "/queue: no lists of prompts"
            raise NoAnswer(msg)
        ordered = sorted(pending, key=lambda entry: (entry[0], entry[1]))  # it is sent in a heap's order
        return Queue(tuple(entry[1] for entry in running), tuple(entry[1] for entry in ordered))

    async def history(self, prompt_id: str) -> dict[str, Any] | None:
        """Return a prompt's entry; None while it is unknown, waits or runs."""
        entry = (await self._get_object(f"/history/{prompt_id}")).get(prompt_id)
        return entry if isinstance(entry, dict) else None

    async def newest(self) -> str | None:
        """Return the id of the prompt that ended last; None if there is none since the server was started."""
        return next(iter(await self._get_object("/history?max_items=1")), None)

    async def choices(self, class_type: str, field: str) -> list[str] | None:
        """Return what a node's input may be set to, such as a loader's files; None if the class is not there."""
        entry = (await self._get_object(f"/object_info/{class_type}")).get(class_type)
        if not isinstance(entry, dict):
            return None
        fields = {**entry.get("input", {}).get("optional", {}), **entry.get("input", {}).get("required", {})}
        match fields.get(field):
            case [list() as options, *_]:
                return [str(option) for option in options]
            case ["COMBO", {"options": list() as options}, *_]:
                return [str(option) for option in options]
        return []

    async def post(self, nodes: Nodes, prompt_id: str) -> Posted:
        """Post a prompt under its id, which is also its client id; never with a `number` (facts B.1.1)."""
        body = {"prompt": nodes, "prompt_id": prompt_id, "client_id": prompt_id}
        try:
            async with self.session().post(f"{self.url}/prompt", json=body, timeout=self._timeout) as response:
                text = await response.text(errors="replace")
                return Posted(response.status, _parsed(text) or {}, text)
        except aiohttp.ClientConnectorError as error:
            raise Refused(str(error)) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            msg = f"POST /prompt: {type(error).__name__}"
            raise NoAnswer(msg) from None

    async def delete(self, prompt_id: str) -> None:
        """Take one waiting prompt with this id out of the queue; one that runs is not touched."""
        await self._tell("/queue", {"delete": [prompt_id]})

    async def interrupt(self, prompt_id: str) -> None:
        """Stop this prompt if it runs; never another one."""
        await self._tell("/interrupt", {"prompt_id": prompt_id})

    async def forget(self, prompt_id: str) -> None:
        """Remove a prompt from the history."""
        await self._tell("/history", {"delete": [prompt_id]})

    async def free(self) -> None:
        """Have models and caches dropped; the server does it between prompts."""
        await self._tell("/free", {"unload_models": True, "free_memory": True})

    async def upload(self, name: str, data: bytes, media_type: str) -> str:
        """Upload an input image; return the name under which LoadImage finds it."""
        form = aiohttp.FormData()
        form.add_field("image", data, filename=name, content_type=media_type)
        form.add_field("type", "input")
        text = await self._send("POST", "/upload/image", data=form)
        stored = (_parsed(text) or {}).get("name")
        if not isinstance(stored, str):
            msg = "/upload/image: no name"
            raise NoAnswer(msg)
        return stored

    async def download(self, ref: ImageRef, path: Path, most_bytes: int) -> bool:
        """Fetch a file to `path`; False if the server has it no more, TooLarge past `most_bytes`."""
        params = {"filename": ref.filename, "subfolder": ref.subfolder, "type": ref.type}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=self._timeout.total)
        try:
            async with self.session().get(f"{self.url}/view", params=params, timeout=timeout) as response:
                if response.status == _NOT_FOUND:
                    return False
                if response.status != _OK:
                    msg = f"/view: status {response.status}"
                    raise NoAnswer(msg, response.status)
                size = 0
                with path.open("wb") as file:
                    async for block in response.content.iter_chunked(_BLOCK_BYTES):
                        size += len(block)
                        if size > most_bytes:
                            msg = f"{ref.filename} is larger than {most_bytes} bytes"
                            raise TooLarge(msg)
                        file.write(block)
                return True
        except aiohttp.ClientConnectorError as error:
            raise Refused(str(error)) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            msg = f"/view: {type(error).__name__}"
            raise NoAnswer(msg) from None

    async def _get_object(self, path: str) -> dict[str, Any]:
        body = _parsed(await self._send("GET", path))
        if body is None:
            msg = f"{path}: no JSON object"
            raise NoAnswer(msg, path=path)
        return body

    async def _tell(self, path: str, body: Mapping[str, Any]) -> None:
        await self._send("POST", path, json=body)

    async def _send(self, method: str, path: str, **content: Any) -> str:
        try:
            async with self.session().request(
                method, f"{self.url}{path}", timeout=self._timeout, **content
            ) as response:
                text = await response.text(errors="replace")
                if response.status != _OK:
                    msg = f"{path}: status {response.status}"
                    raise NoAnswer(msg, response.status, path)
                return text
        except aiohttp.ClientConnectorError as error:
            raise Refused(str(error)) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            msg = f"{path}: {type(error).__name__}"
            raise NoAnswer(msg, path=path) from None


def _are_entries(listed: Any) -> TypeGuard[list[tuple[float, str]]]:
    """Whether it is a list of prompts, of whose entries number and id come first."""
    return isinstance(listed, list) and all(
        isinstance(entry, list) and len(entry) > 1 and isinstance(entry[0], int | float) and isinstance(entry[1], str)
        for entry in listed
    )


def _parsed(text: str) -> dict[str, Any] | None:
    """Parse an answer; None if it is no JSON object. The standard library's parser: a bare NaN is possible."""
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
