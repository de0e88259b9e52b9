"""What a restore asks and tells the ledger. LedgerDownError when Postgres is away."""

from datetime import datetime
from typing import Any

from coordinator.ledger.database import fetch, open_pool, sql


async def is_empty(dsn: str) -> bool:
    """Say whether the database has no table yet."""
    return bool((await _one(dsn, "schema_is_empty"))["empty"])


def mark_of(made_at: datetime) -> str:
    """Return the statements which note that a ledger came from a backup of that time, of any schema.

    They belong into the transaction that fills it: no ledger is there that grants again what was granted since.
    """
    mark = sql("restored_mark").replace("$1", f"'{made_at.isoformat()}'::timestamptz")
    return f"SET search_path = public;\n{sql('restored_table')};\n{mark};\n"


async def epoch_floor(dsn: str) -> int:
    """Return the first epoch that a restored ledger grants."""
    floor: int = (await _one(dsn, "restored_floor"))["epoch_floor"]
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
