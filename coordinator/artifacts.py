"""Where the files of results lie: content-addressed, each content once, behind one interface.

A store knows contents by their SHA-256 and nothing of jobs; which job has which file stands in the ledger. The HTTP
layer calls it. Nothing here blocks the event loop: files are hashed, written and read by a few threads of its own.
"""

import asyncio
import errno
import os
import re
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

from coordinator.artifact_files import Content, Incoming, WrongContentError, digest, remove_unless_locked
from shared.errors import TandemError

__all__ = [
    "ArtifactStore",
    "FolderStore",
    "MissingContentError",
    "NoRoomError",
    "Stored",
    "WrongContentError",
    "artifact_url",
]

CHUNK_BYTES = 256 * 1024
"""What is hashed, written or read at a time, and so the memory that one transfer takes (a few of these)."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_T = TypeVar("_T")


class NoRoomError(TandemError):
    """The store is full: nothing was stored; a person must make room."""


class MissingContentError(TandemError):
    """The store has no such content."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A content that the store has; `new` is false when it had it before."""

    sha256: str
    size: int
    new: bool


class ArtifactStore(Protocol):
    """Keeps contents by their SHA-256 (64 lower-case hex digits)."""

    async def put(self, chunks: AsyncIterable[bytes], *, sha256: str, size: int) -> Stored:
        """Keep a content; it is durable when this returns. A failing or cancelled `chunks` leaves no trace.

        Raises WrongContentError if it is not `size` bytes with that digest, NoRoomError when the disk is full.
        """

    def read(self, sha256: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes from `start`; `length` None = to the end. Raises MissingContentError."""

    async def size(self, sha256: str) -> int | None:
        """Return the content's size in bytes; None if the store does not have it."""

    async def digest(self, sha256: str) -> str | None:
        """Return the SHA-256 of what really lies there, read anew; None if nothing does (for the audit)."""

    async def delete(self, sha256: str, *, older_than_s: float = 0.0) -> bool:
        """Remove a content unless it was put (again) less than `older_than_s` ago; False if nothing was removed."""


class FolderStore:
    """An ArtifactStore in a local folder: `<root>/sha256/ab/cd…`, unfinished files in `<root>/incoming`.

    Several coordinators on one machine may share it: an unfinished file is locked (flock) by whoever writes it, so
    that `open` removes only what a dead process left.
    """

    def __init__(self, root: Path, threads: int = 4) -> None:
        self._root = root
        self._incoming = root / "incoming"
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="artifacts")

    @classmethod
    async def open(cls, root: Path) -> Self:
        """Make the folders, remove what interrupted uploads left, and return the store."""
        store = cls(root)
        await store._run(store._prepare)
        return store

    def close(self) -> None:
        """Let the threads end; transfers under way finish their current chunk."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def put(self, chunks: AsyncIterable[bytes], *, sha256: str, size: int) -> Stored:
        """See ArtifactStore.put."""
        final = self._path(sha256)
        incoming = Incoming(self._incoming)
        waiting: list[bytes] = []
        waiting_bytes = 0
        try:
            async for chunk in chunks:
                if incoming.size + waiting_bytes + len(chunk) > size:
                    msg = f"longer than the {size} bytes that were announced"
                    raise WrongContentError(msg)
                waiting.append(chunk)
                waiting_bytes += len(chunk)
                if waiting_bytes >= CHUNK_BYTES:
                    await self._run(partial(incoming.write, waiting))
                    waiting, waiting_bytes = [], 0
            await self._run(partial(incoming.write, waiting))
            new = await self._run(partial(incoming.keep, final, sha256, size))
        except OSError as error:
            if error.errno in _FULL:
                msg = f"no room for {size} bytes"
                raise NoRoomError(msg) from error
            raise
        finally:
            await asyncio.shield(self._run(incoming.discard))  # a second cancellation does not stop it
        return Stored(sha256, size, new)

    async def read(self, sha256: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """See ArtifactStore.read."""
        content = Content(self._path(sha256))
        at, left = start, length
        try:
            while left is None or left > 0:
                chunk = await self._run(
                    partial(content.read, at, CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
                )
                if not chunk:
                    return
                at += len(chunk)
                left = None if left is None else left - len(chunk)
                yield chunk
        except FileNotFoundError:
            raise MissingContentError(sha256) from None
        finally:
            with suppress(RuntimeError):  # the store was closed: the process is going anyway
                self._threads.submit(content.close)

    async def size(self, sha256: str) -> int | None:
        """See ArtifactStore.size."""
        try:
            return (await self._run(self._path(sha256).stat)).st_size
        except FileNotFoundError:
            return None

    async def digest(self, sha256: str) -> str | None:
        """See ArtifactStore.digest."""
        return await self._run(partial(digest, self._path(sha256)))

    async def delete(self, sha256: str, *, older_than_s: float = 0.0) -> bool:
        """See ArtifactStore.delete."""
        return await self._run(partial(self._delete, self._path(sha256), older_than_s))

    def _path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            msg = f"not a SHA-256: {sha256[:80]!r}"
            raise ValueError(msg)
        return self._root / "sha256" / sha256[:2] / sha256[2:]

    async def _run(self, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def _prepare(self) -> None:
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._root / "sha256").mkdir(exist_ok=True, mode=0o700)
        for path in self._incoming.iterdir():
            remove_unless_locked(path)

    @staticmethod
    def _delete(path: Path, older_than_s: float) -> bool:
        try:
            if older_than_s and path.stat().st_mtime > _file_system_now(path.parent) - older_than_s:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True


def artifact_url(base_url: str, job_id: UUID, name: str) -> str:
    """Return where readers get a file of a job's accepted result; `base_url` is the HTTP side's, without a slash."""
    return f"{base_url}/v1/jobs/{job_id}/artifacts/{quote(name, safe='')}"


def _file_system_now(folder: Path) -> float:
    """Return the time as the files' own file system tells it, so that no other clock is compared with theirs."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
