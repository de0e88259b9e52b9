"""What enrolment reads and writes of the ledger. Each method is one statement; LedgerDownError if Postgres is away."""

from datetime import datetime

import asyncpg

from coordinator.ledger.database import fetch


class Invitations:
    """The invitations of workers."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def make(self, worker: str, invitation_id: str, key: bytes, *, actor: str, good_s: float) -> datetime:
        """Invite a worker, in place of what was open for that name; return when that is over."""
        rows = await fetch(self._pool, "invitation_make", worker, invitation_id, key, actor, good_s)
        return rows[0]["expires_at"]  # type: ignore[no-any-return]

    async def find(self, invitation_id: str) -> tuple[str, bytes] | None:
        """Return worker and key of an invitation that is still good, used or not."""
        rows = await fetch(self._pool, "invitation_find", invitation_id)
        return (rows[0]["worker"], rows[0]["key"]) if rows else None

    async def use(self, invitation_id: str, public_key: str) -> bool:
        """Use it up for a public key; False if it is over, or another key has used it. The same key may repeat."""
        return bool(await fetch(self._pool, "invitation_use", invitation_id, public_key))

    async def void(self, worker: str) -> bool:
        """Make what the worker was invited with good for nothing, used or not; return whether it was not over yet."""
        return any(row["was_open"] for row in await fetch(self._pool, "invitation_void", worker))

    async def forget_worker(self, worker: str, *, actor: str) -> bool:
        """Forget the worker, and keep that `actor` said so; return whether it was known."""
        return bool(await fetch(self._pool, "worker_forget", worker, actor))
