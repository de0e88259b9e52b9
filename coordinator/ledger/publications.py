"""What the publisher reads and writes of the ledger: publications, and the sites where they have to wait.

A publication begins in the statement that marks its result as published (`sql/mark_published.sql`). No locks, no
decisions. Every method is one statement, and raises LedgerDownError when Postgres is away.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from coordinator.ledger.database import fetch


@dataclass(frozen=True, slots=True)
class PublicationRow:
    """A publication that is to be tried now."""

    job_id: UUID
    epoch: int
    source: str
    kind: str
    post: str | None  # as the job's label wordpress_post names it
    attempts: int  # this one included
    steps: dict[str, dict[str, Any]]  # done by earlier tries: {"media:<sha256>": {"id", "url", ...}}
    age_s: float  # since the first try
    superseded: bool  # the job was begun anew, or a newer one's result is for the same place
    result: dict[str, Any] | None
    artifacts: list[dict[str, Any]]  # name, media_type, size, sha256


class Publications:
    """The publications of all sources."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def take(self, most: int, sources: Collection[str], for_s: float) -> list[PublicationRow]:
        """Take what is due, one of a source at most, so that nobody else takes it `for_s`."""
        return [PublicationRow(**row) for row in await self._all("publication_take", most, list(sources), for_s)]

    async def step(self, row: PublicationRow, step: str, found: Mapping[str, Any]) -> bool:
        """Keep that a step is done; False if this try is not the one that counts any more."""
        return bool(await self._all("publication_step", row.job_id, row.epoch, row.attempts, {step: found}))

    async def steps_of(self, job_id: UUID) -> list[dict[str, dict[str, Any]]]:
        """Return what was done of all of a job's publications, oldest first."""
        return [row["steps"] for row in await self._all("view_publications", job_id)]

    async def end(self, row: PublicationRow, error: str | None, again_s: float | None) -> None:
        """Note how a try ended: no `error` = published, else it is tried again in `again_s`, None = never."""
        await self._all("publication_end", row.job_id, row.epoch, row.attempts, _storable(error), again_s)

    async def again(self, job_id: UUID, *, actor: str) -> bool:
        """Have a job's last result published again; False if it never was to be, or is being tried."""
        return bool(await self._all("publication_again", job_id, actor))

    async def pause(self, source: str, reason: str, check_s: float) -> bool:
        """Publish nothing of a source until a check, the next one in `check_s`; say if that, or the reason, is new."""
        return bool(await self._all("site_pause", source, _storable(reason), check_s))

    async def resume(self, source: str) -> bool:
        """Go on with a source; False if it was not paused."""
        return bool(await self._all("site_resume", source))

    async def paused(self) -> dict[str, str]:
        """Return the paused sources, with the reason."""
        return {row["source"]: row["reason"] for row in await self._all("view_paused_sites", None)}

    async def keep_sites(self, sources: Collection[str]) -> None:
        """Have only these sources paused; the others have no site any more that could be checked."""
        await self._all("site_keep", list(sources))

    async def take_checks(self, sources: Collection[str], for_s: float) -> list[str]:
        """Take the paused sources whose sites are to be checked, so that nobody else does `for_s`."""
        return [row["source"] for row in await self._all("site_take", list(sources), for_s)]

    async def check_now(self, source: str) -> bool:
        """Have a paused source's site checked; False if it is not paused."""
        return bool(await self._all("site_check", source))

    async def _all(self, name: str, *arguments: object) -> list[asyncpg.Record]:
        return await fetch(self._pool, name, *arguments)


def _storable(said: str | None) -> str | None:
    """Return what a site said without NUL, which Postgres takes in no text."""
    return said and said.replace("\x00", "\ufffd")
