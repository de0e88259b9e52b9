"""The publisher: what a source's jobs completed goes to that source's site, until it is there (`steps.py` says how).

A try is taken for longer than it may last and the site needs to end what it left, so that nobody looks for an upload
that is under way. A site that refuses its user is paused, with the reason, and looked at again every CHECK_S; what
waits for it stays due.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import aiohttp
import structlog

from coordinator.artifacts import ArtifactStore, StoreDownError
from coordinator.callbacks import GIVEN_UP_S, pause_s
from coordinator.ledger.publications import PublicationRow, Publications
from coordinator.publishing.config import WordPressSite
from coordinator.publishing.steps import Steps
from coordinator.publishing.verdicts import FEW, UNSURE_S, AgainError, FailedError, PublishingError, SiteError
from coordinator.publishing.wordpress import WordPress
from shared.errors import LedgerDownError

_log = structlog.get_logger()

TRY_S: Final = 300.0
"""How long one try may take in all."""

TAKEN_S: Final = 600.0
"""How long a try belongs to the coordinator that took it; what TRY_S leaves is for the site to end an upload."""

CHECK_S: Final = 600.0
"""So often is a paused site looked at."""

AT_ONCE: Final = 8


@dataclass(slots=True)
class Publisher:
    """Each round begins what is due and there is room for, one of a source; the tries run beside it."""

    publications: Publications
    store: ArtifactStore
    sites: Mapping[str, WordPressSite]  # by source
    wake: Callable[[], None] = lambda: None  # there is room again; set by the composition
    published: Counter[str] = field(default_factory=Counter)  # by source
    failed: Counter[str] = field(default_factory=Counter)  # tries, by source
    given_up: Counter[str] = field(default_factory=Counter)  # by source
    paused: dict[str, str] = field(default_factory=dict)  # source -> why, as of the last round
    _running: dict[asyncio.Task[None], str] = field(default_factory=dict)  # -> source
    _unchecked: set[str] | None = None  # None: no round was made yet
    _known: dict[str, WordPress] = field(default_factory=dict)
    _session: aiohttp.ClientSession | None = None
    _shrinking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def once(self) -> None:
        """Begin what is due; raises LedgerDownError."""
        if self._unchecked is None:
            await self.publications.keep_sites(list(self.sites))
            self._unchecked = set(self.sites)  # each once at the start: a wrong password shows before the first job
        if not self.sites:
            return
        self._unchecked |= set(await self.publications.take_checks(list(self.sites), CHECK_S))
        self.paused = await self.publications.paused()
        idle = set(self.sites) - set(self._running.values())
        for source in sorted(self._unchecked & idle):
            self._unchecked.discard(source)
            self._begin(self._check(source), source, f"site:{source}")
            idle.discard(source)
        room = AT_ONCE - len(self._running)
        if room <= 0 or not idle:
            return
        for row in await self.publications.take(room, idle, TAKEN_S):
            self._begin(self._try(row), row.source, f"publication:{row.job_id}:{row.epoch}")

    def status(self) -> dict[str, dict[str, Any]]:
        """Return what /status shows: of each source, what came of its publications here, and whether its site waits."""
        return {
            source: {
                "published": self.published[source],
                "failed": self.failed[source],
                "given_up": self.given_up[source],
                "trying": source in self._running.values(),
                "paused": self.paused.get(source),
            }
            for source in sorted(self.sites)
        }

    async def again(self, job_id: UUID, actor: str) -> bool:
        """Publish a job's last result again; False if it never was to be, or is being tried."""
        armed = await self.publications.again(job_id, actor=actor)
        self.wake()
        return armed

    async def check_now(self, source: str) -> bool:
        """Look at a paused site now; False if it is not paused."""
        paused = await self.publications.check_now(source)
        self.wake()
        return paused

    async def close(self) -> None:
        """Stop what is being tried; it is tried again when its time is over."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _begin(self, work: Any, source: str, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._running[task] = source
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LedgerDownError):
            _log.info("site not noted", task=task.get_name(), error=str(error))
        elif error is not None:
            _log.error("publishing broke", task=task.get_name(), error=f"{type(error).__name__}: {error}")
        self.wake()

    async def _check(self, source: str) -> None:
        """Ask a site how it stands; pause it, or go on with it."""
        try:
            await self._site(source).check()
        except SiteError as error:
            await self._pause(source, str(error))
        except PublishingError as error:  # away: nothing is known
            _log.info("site not checked", source=source, why=str(error))
        else:
            if await self.publications.resume(source):
                _log.info("site goes on", source=source)

    async def _pause(self, source: str, reason: str) -> None:
        if await self.publications.pause(source, reason, CHECK_S):
            _log.error("site paused: nothing is published there", source=source, reason=reason)

    async def _try(self, row: PublicationRow) -> None:
        """Go as far as it goes, and note how that ended."""
        try:
            why, again_s = await self._outcome(row)
            await self.publications.end(row, why, again_s)
        except LedgerDownError as error:
            _log.info("publication not noted", job_id=str(row.job_id), epoch=row.epoch, error=str(error))
            return
        known = {"job_id": str(row.job_id), "epoch": row.epoch, "source": row.source, "post": row.post}
        if why is None:
            self.published[row.source] += 1
            _log.info("published", **known)
            return
        self.failed[row.source] += 1
        if again_s is None:
            self.given_up[row.source] += 1
            _log.warning("not published", why=why, **known)
        elif row.attempts & (row.attempts - 1) == 0:  # the 1st, 2nd, 4th, 8th
            _log.info("not published yet", why=why, again_s=round(again_s, 1), **known)

    async def _outcome(self, row: PublicationRow) -> tuple[str | None, float | None]:
        """Return why it is not published (None: it is), and after how long to try again (None: never)."""
        try:
            steps = Steps(self.publications, self.store, self._site(row.source), self._shrinking)
            async with asyncio.timeout(TRY_S):
                await steps.publish(row)
        except FailedError as error:
            return str(error), None
        except SiteError as error:
            await self._pause(row.source, str(error))
            return str(error), pause_s(1, 0.0)  # due again when the site goes on
        except AgainError as error:
            return str(error), await self._again_s(row, error)
        except (StoreDownError, TimeoutError) as error:
            why = str(error) or f"not done within {TRY_S:g} s"
            return why, await self._again_s(row, AgainError(why, after_s=UNSURE_S))
        except LedgerDownError:
            raise
        except Exception as error:  # noqa: BLE001 - it would be tried for ever, and the ledger would not say why
            why, said = f"broke: {type(error).__name__}", str(error)[:300]
            _log.error("publishing broke", job_id=str(row.job_id), epoch=row.epoch, why=why, error=said)
            return why, await self._again_s(row, AgainError(why, after_s=UNSURE_S))
        return None, None

    async def _again_s(self, row: PublicationRow, error: AgainError) -> float | None:
        if error.few:
            tries = row.steps.get("few", {}).get("tries", 0) + 1
            await self.publications.step(row, "few", {"tries": tries})
            if tries >= FEW:
                return None
        pause = max(pause_s(row.attempts, random.uniform(-1, 1)), error.after_s)  # noqa: S311 - spreads retries
        return pause if row.age_s + pause <= GIVEN_UP_S else None

    def _site(self, source: str) -> WordPress:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)  # one call at a time to each site
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._known.setdefault(source, WordPress(self.sites[source], self._session))
