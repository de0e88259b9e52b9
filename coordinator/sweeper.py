"""The sweeper: removes files that no result can need, and their contents from the store.

A round forgets the files of epochs that are over and that no accepted report named; looks through one shard of the
store for contents that are no file at all (their upload lost its lease, or its coordinator died); and removes what
interrupted uploads left. All of it only once it is older than the grace. Nothing waits for it: its statements are
short, hold no job, and pass over rows that others hold. Several coordinators may sweep at once.

A content is removed so that no upload can come to rely on it meanwhile. The sweeper announces the removal in the
ledger, then looks whether the content is a file of any job, then removes it, then takes the announcement back. An
upload stores the content, then records its file, then looks for an announcement, then whether the store has the
content; else it is answered 503 and sent again. Each writes before it looks, so whichever is later sees the other.
An announcement whose sweeper died is void after VOID_S, much longer than a removal is let run.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from coordinator.artifacts import SHARDS, ArtifactStore
from coordinator.ledger.queries import Queries

_log = structlog.get_logger()

BATCH: Final = 100
"""How many files are forgotten, or contents announced, in one statement."""

VOID_S: Final = 900.0
"""An announcement this old is of a sweeper that is gone."""

_MOST_BATCHES: Final = 20  # of files a round; the rest waits for the next one
_REMOVING_S: Final = 60.0  # after this no further content of a batch is removed; the shards' turn finds the rest


@dataclass(slots=True)
class Sweeper:
    """Each round: dead files, one shard's strangers, unfinished uploads."""

    queries: Queries
    store: ArtifactStore
    grace_s: float
    shards: int = 1  # looked through in a round
    files: int = 0  # forgotten
    contents: int = 0  # removed
    unfinished: int = 0  # uploads cleared away
    _owner: str = field(default_factory=lambda: f"sweeper-{secrets.token_hex(8)}")
    _shard: int = field(default_factory=lambda: secrets.randbelow(SHARDS))  # a restart does not begin at the first

    async def once(self) -> None:
        """Sweep. What a round leaves for want of time, or because it is cut off, a later one finds."""
        before = self.files, self.contents, self.unfinished
        await self.queries.spare_old(VOID_S)
        await self._dead_files()
        for _ in range(self.shards):
            shard, self._shard = self._shard, (self._shard + 1) % SHARDS  # one that fails does not stop the others
            await self._strangers(await self.store.listed(shard, older_than_s=self.grace_s))
        self.unfinished += await self.store.tidy(older_than_s=self.grace_s)
        if before != (self.files, self.contents, self.unfinished):
            files, contents, unfinished = before
            _log.info(
                "swept",
                files=self.files - files,
                contents=self.contents - contents,
                unfinished=self.unfinished - unfinished,
            )

    async def _dead_files(self) -> None:
        for _ in range(_MOST_BATCHES):
            swept = await self.queries.sweep_artifacts(self.grace_s, BATCH)
            self.files += len(swept)
            await self._strangers(sorted(set(swept)))
            if len(swept) < BATCH:
                return

    async def _strangers(self, sha256s: Sequence[str]) -> None:
        """Remove those contents that are no file of any job."""
        for start in range(0, len(sha256s), BATCH):
            doomed = await self.queries.doom(sha256s[start : start + BATCH], self._owner)
            if not doomed:
                continue
            try:
                await self._remove(doomed)
            finally:
                await self.queries.spare(doomed, self._owner)

    async def _remove(self, doomed: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _REMOVING_S
        for sha256 in await self.queries.unheld(doomed):
            if loop.time() > until:
                return
            self.contents += await self.store.delete(sha256, older_than_s=self.grace_s)
