"""How the artifact store is: an ArtifactStore that passes everything on, and remembers whether it was answered.

`service.py` puts it around the store that the settings ask for; /status shows what it remembers. The sweeper asks the
store something every round, so that this is never much older.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from coordinator.artifacts import ArtifactStore, NoRoomError, Stored, StoreDownError


class WatchedStore:
    """The ArtifactStore `store`, watched."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._reachable: bool | None = None  # None: nothing was asked yet
        self._failures = 0  # in a row
        self._last_error: str | None = None

    def status(self) -> dict[str, Any]:
        """Return what /status shows of the store; the last error stays when it is over."""
        return {"reachable": self._reachable, "failures": self._failures, "last_error": self._last_error}

    async def prepare(self) -> None:
        """See ArtifactStore.prepare."""
        await self._store.prepare()

    def close(self) -> None:
        """See ArtifactStore.close."""
        self._store.close()

    async def put(self, chunks: AsyncIterable[bytes], *, sha256: str, size: int) -> Stored:
        """See ArtifactStore.put."""
        with self._asked():
            return await self._store.put(chunks, sha256=sha256, size=size)

    async def read(self, sha256: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """See ArtifactStore.read."""
        with self._asked():
            async for chunk in self._store.read(sha256, start, length):
                yield chunk

    async def size(self, sha256: str) -> int | None:
        """See ArtifactStore.size."""
        with self._asked():
            return await self._store.size(sha256)

    async def digest(self, sha256: str) -> str | None:
        """See ArtifactStore.digest."""
        with self._asked():
            return await self._store.digest(sha256)

    async def delete(self, sha256: str, *, older_than_s: float = 0.0) -> bool:
        """See ArtifactStore.delete."""
        with self._asked():
            return await self._store.delete(sha256, older_than_s=older_than_s)

    async def listed(self, shard: int, *, older_than_s: float = 0.0) -> list[str]:
        """See ArtifactStore.listed."""
        with self._asked():
            return await self._store.listed(shard, older_than_s=older_than_s)

    async def tidy(self, *, older_than_s: float) -> int:
        """See ArtifactStore.tidy."""
        with self._asked():
            return await self._store.tidy(older_than_s=older_than_s)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Note how it went. Other errors are the file's or its sender's, and say nothing of the store."""
        try:
            yield
        except (StoreDownError, NoRoomError) as error:
            self._reachable = isinstance(error, NoRoomError)
            self._failures += 1
            self._last_error = str(error)
            raise
        self._reachable, self._failures = True, 0
