"""Forgets what is old, a small batch at a time: one statement each. LedgerDownError when Postgres is away."""

import asyncpg

from coordinator.ledger.database import fetch


class KeptRows:
    """What is kept for a while only. Each method takes an age and how many at most, and returns how many it trimmed."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def jobs(self, older_than_s: float, most: int) -> int:
        """Forget settled jobs that have nothing left to be told, with all that belongs to them."""
        return await self._trim("jobs", older_than_s, most)

    async def artifacts(self, older_than_s: float, most: int) -> int:
        """Let go of the contents of settled jobs' files."""
        return await self._trim("artifacts", older_than_s, most)

    async def heartbeats(self, older_than_s: float, most: int) -> int:
        """Forget heartbeats."""
        return await self._trim("heartbeats", older_than_s, most)

    async def rejected_results(self, older_than_s: float, most: int) -> int:
        """Forget refused reports."""
        return await self._trim("rejected_results", older_than_s, most)

    async def rejected_submissions(self, older_than_s: float, most: int) -> int:
        """Forget refused submissions."""
        return await self._trim("rejected_submissions", older_than_s, most)

    async def callback_bodies(self, older_than_s: float, most: int) -> int:
        """Forget what ended callbacks said."""
        return await self._trim("callbacks", older_than_s, most)

    async def _trim(self, what: str, older_than_s: float, most: int) -> int:
        return len(await fetch(self._pool, f"retention_{what}", older_than_s, most))
