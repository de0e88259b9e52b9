"""The tokens in the ledger: digests, never the tokens. Each method is one statement; LedgerDownError if it is away."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from coordinator.ledger.database import fetch


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token that is good."""

    id: str
    role: str
    name: str
    digest: bytes
    made_by: str
    made_at: datetime
    last_used_at: datetime | None  # to the minute


class AccessTokens:
    """What is written and read of them."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def make(self, token_id: str, role: str, name: str, digest: bytes, *, actor: str) -> None:
        """Keep a new token, and that `actor` made it."""
        await fetch(self._pool, "token_make", token_id, role, name, digest, actor)

    async def good(self) -> tuple[list[TokenRow], bool]:
        """Return every token that is good, and whether there ever was one."""
        rows = await fetch(self._pool, "tokens_good")
        found = [{name: value for name, value in row.items() if name != "ever"} for row in rows]
        return [TokenRow(**row) for row in found if row["id"] is not None], rows[0]["ever"]

    async def revoke(self, token_id: str, *, actor: str) -> tuple[str, str] | None:
        """Make a token good no more; return its role and name, None if there is no such token that is good."""
        rows = await fetch(self._pool, "token_revoke", token_id, actor)
        return (rows[0]["role"], rows[0]["name"]) if rows else None

    async def used(self, token_ids: Collection[str]) -> None:
        """Keep that these were used now."""
        await fetch(self._pool, "tokens_used", list(token_ids))
