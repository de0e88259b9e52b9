"""Where the files of results lie: content-addressed, each content once, behind one interface.

A store knows contents by their SHA-256 and nothing of jobs; which job has which file stands in the ledger. The HTTP
side, the sweeper and the audit call it. Here are the interface and the store in a local folder; `artifact_s3.py` has
the other one, `artifact_stores.py` chooses. Nothing blocks the event loop: files are hashed, written and read by a few
threads of the folder's own.
"""

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

from coordinator.artifact_files import (
    Content,
    Incoming,
    WrongContentError,
    delete,
    digest,
    is_sha256,
    listed,
    remove_unless_locked,
)
from shared.errors import ConfigurationError, TandemError, UnreachableError

__all__ = [
    "ArtifactStore",
    "FolderStore",
    "MissingContentError",
    "NoRoomError",
    "StoreDownError",
    "Stored",
    "WrongContentError",
    "artifact_url",
]

CHUNK_BYTES = 256 * 1024
"""What is hashed, written or read at a time, and so the memory that one transfer takes (a few of these)."""

SHARDS = 256
"""A store can be listed in so many parts: by the first byte of the SHA-256."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_T = TypeVar("_T")


class NoRoomError(TandemError):
    """The store is full: nothing was stored; a person must make room."""


class MissingContentError(TandemError):
    """The store has no such content."""


class StoreDownError(UnreachableError):
    """The store does not answer, or not as it should: try later."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A content that the store has; `new` is false when it had it before."""

    sha256: str
    size: int
    new: bool


class ArtifactStore(Protocol):
    """Keeps contents by their SHA-256 (64 lower-case hex digits). Every method may raise StoreDownError."""

    async def prepare(self) -> None:
        """Make ready what the coordinator needs to put; ConfigurationError if that can't ever work."""

    def close(self) -> None:
        """Let go of what it holds; transfers under way fail."""

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
        """Remove a content unless it was put (again) less than `older_than_s` ago; False if nothing was removed.

        A put at the same moment may be removed or not: who calls this sees to it that nobody relies on that one.
        """

    async def listed(self, shard: int, *, older_than_s: float = 0.0) -> list[str]:
        """Return the contents of one shard (0 to SHARDS - 1), by SHA-256, without those put less than so long ago."""

    async def tidy(self, *, older_than_s: float) -> int:
        """Remove what interrupted uploads left, and nothing that may still be arriving; return how many there were.

        `older_than_s` counts only where a store can't see whether an upload's process is alive.
        """


class FolderStore:
    """An ArtifactStore in a local folder: `<root>/sha256/ab/cd…`, unfinished files in `<root>/incoming`.

    Several coordinators on one machine may share it: an unfinished file is locked (flock) by whoever writes it, so
    that `tidy` removes only what a dead process left.
    """

    def __init__(self, root: Path, threads: int = 4) -> None:
        self._root = root
        self._incoming = root / "incoming"
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="artifacts")

    @classmethod
    async def open(cls, root: Path) -> Self:
        """Make the folders, remove what interrupted uploads left, and return the store."""
        store = cls(root)
        await store.prepare()
        return store

    async def prepare(self) -> None:
        """See ArtifactStore.prepare; removes what interrupted uploads left, too."""
        try:
            await self._run(self._make_folders)
            await self.tidy(older_than_s=0.0)
        except (OSError, StoreDownError) as error:
            msg = f"artifacts: {self._root} can't be used: {error}"
            raise ConfigurationError(msg) from error

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
            if isinstance(error, FileNotFoundError):  # not a file: the folder, such as a disk that is not mounted
                raise _down(error) from error
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
        return await self._run(partial(delete, self._path(sha256), older_than_s))

    async def listed(self, shard: int, *, older_than_s: float = 0.0) -> list[str]:
        """See ArtifactStore.listed."""
        return await self._run(partial(listed, self._root / "sha256" / f"{shard:02x}", older_than_s))

    async def tidy(self, *, older_than_s: float) -> int:  # noqa: ARG002 - locks tell who is alive
        """See ArtifactStore.tidy."""
        try:
            return await self._run(self._tidy)
        except FileNotFoundError as error:
            raise _down(error) from error

    def _path(self, sha256: str) -> Path:
        return self._root / content_path(sha256)

    async def _run(self, function: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno in _FULL:
                raise  # the caller knows what these mean
            raise _down(error) from error

    def _make_folders(self) -> None:
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._root / "sha256").mkdir(exist_ok=True, mode=0o700)

    def _tidy(self) -> int:
        return sum(remove_unless_locked(path) for path in self._incoming.iterdir())


def _down(error: OSError) -> StoreDownError:
    return StoreDownError(f"the artifact folder can't be used: {error.strerror or error}")


def content_path(sha256: str) -> str:
    """Return where a store keeps a content, below its root; ValueError for what is no SHA-256."""
    if not is_sha256(sha256):
        msg = f"not a SHA-256: {sha256[:80]!r}"
        raise ValueError(msg)
    return f"sha256/{sha256[:2]}/{sha256[2:]}"


def artifact_url(base_url: str, job_id: UUID, name: str) -> str:
    """Return where readers get a file of a job's accepted result; `base_url` is the HTTP side's, without a slash."""
    return f"{base_url}/v1/jobs/{job_id}/artifacts/{quote(name, safe='')}"
