"""What a restore asks and tells the ledger. LedgerDownError when Postgres is away."""

from datetime import datetime
from typing import Any

from coordinator.ledger.database import fetch, open_pool


async def is_empty(dsn: str) -> bool:
    """Say whether the database has no table yet."""
    return bool((await _one(dsn, "schema_is_empty"))["empty"])


async def mark_restored(dsn: str, made_at: datetime) -> int:
    """Note that this ledger came from a backup of that time; return the first epoch that is granted from now on."""
    floor: int = (await _one(dsn, "restored_mark", made_at))["epoch_floor"]
    return floor


async def counts(dsn: str) -> tuple[int, int]:
    """Return how many jobs there are, and how many of them wait or run."""
    row = await _one(dsn, "restored_counts")
    return row["jobs"], row["live"]


async def server_version(dsn: str) -> int:
    """Return the major version of the server."""
    version: int = (await _one(dsn, "server_version"))["major"]
    return version


async def _one(dsn: str, name: str, *arguments: object) -> Any:
    async with await open_pool(dsn, max_size=1) as pool:
        return (await fetch(pool, name, *arguments))[0]
