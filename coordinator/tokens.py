"""Tokens that are made and revoked while the coordinator runs; each coordinator reads them anew every two seconds.

A token is 256 random bits, shown once; the ledger has its SHA-256, which is enough for what nobody can guess. Those of
the settings stay beside them. Called by `web/tokens.py`, `cli_tokens.py` and a loop of `service.py`.
"""

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field

import structlog

from coordinator.ledger.access_tokens import AccessTokens, TokenRow
from coordinator.web.access import Access, IssuedToken, Role

_log = structlog.get_logger()

_BYTES = 32
_ID_BYTES = 4
_PREFIX = "tandem_"


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made; `token` is nowhere else."""

    id: str
    token: str


@dataclass(slots=True)
class Tokens:
    """Makes, lists and revokes; `once` is what has the others learn of it."""

    store: AccessTokens
    access: Access
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # else what was read before a revocation is learned after

    async def once(self) -> None:
        """Keep which tokens were used, and let in who has one that is good now."""
        async with self._turn:
            used = frozenset(self.access.used)
            if used:
                await self.store.used(used)
                self.access.used -= used
            rows, ever = await self.store.good()
            self.access.learn([IssuedToken(row.id, row.name, Role(row.role), row.digest) for row in rows], ever=ever)

    async def make(self, role: Role, name: str, *, actor: str) -> NewToken:
        """Make a token, good at once here, and at the other coordinators within two seconds."""
        made = await make_token(self.store, role, name, actor=actor)
        await self.once()
        _log.info("token made", token=made.id, role=role.value, name=name, actor=actor)
        return made

    async def good(self) -> list[TokenRow]:
        """Return those that are good, without the settings'."""
        rows, _ = await self.store.good()
        return rows

    async def revoke(self, token_id: str, *, actor: str) -> tuple[str, str] | None:
        """Revoke a token, and every session that began with it; None if there is no such token."""
        found = await self.store.revoke(token_id, actor=actor)
        await self.once()
        if found is not None:
            _log.info("token revoked", token=token_id, role=found[0], name=found[1], actor=actor)
        return found


async def make_token(store: AccessTokens, role: Role, name: str, *, actor: str) -> NewToken:
    """Make a token; whoever reads the ledger learns of it."""
    token, token_id = _PREFIX + secrets.token_urlsafe(_BYTES), secrets.token_hex(_ID_BYTES)
    await store.make(token_id, role.value, name, hashlib.sha256(token.encode()).digest(), actor=actor)
    return NewToken(token_id, token)
