"""How attempts ended lately, in buckets of time: what a bucket held is counted once, when its time is over.

Read by the page's charts. After a start all buckets of a day are counted, one statement each, so that none keeps
Postgres busy for long; then the last one only, and each other never again.
"""

from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from coordinator.ledger.database import fetch

Row = dict[str, Any]

FINAL_AFTER_S: Final = 60.0
"""What ends in a bucket is committed by then. A lease that lapsed in it and is taken up again later still counts."""


class Ended:
    """What is known of the buckets that are over, for one coordinator."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[tuple[float, int], list[Row]] = {}  # by the bucket's length, and its number since 1970

    async def throughput(self, pool: asyncpg.Pool, within_s: float, bucket_s: float) -> list[Row]:
        """Return how many attempts `completed`, `failed` and `lapsed`, by `bucket` and `kind`, and `median_s`, `p90_s`.

        Buckets begin at multiples of `bucket_s` since 1970; 0 is the oldest, the last one holds this moment. Durations
        are None if none completed. Raises LedgerDownError; what was counted until then is kept.
        """
        now_s = (await fetch(pool, "now"))[0]["now"].timestamp()
        last = int(now_s // bucket_s)
        first = last + 1 - int(within_s // bucket_s)
        self._known = {key: rows for key, rows in self._known.items() if key[0] != bucket_s or first <= key[1] <= last}
        found: list[Row] = []
        for number in range(first, last + 1):
            rows = self._known.get((bucket_s, number))
            if rows is None:
                rows = await _counted(pool, number * bucket_s, (number + 1) * bucket_s)
                if now_s >= (number + 1) * bucket_s + FINAL_AFTER_S:
                    self._known[bucket_s, number] = rows
            found += [{"bucket": number - first, **row} for row in rows]
        return found


async def _counted(pool: asyncpg.Pool, from_s: float, until_s: float) -> list[Row]:
    ends = (datetime.fromtimestamp(at_s, UTC) for at_s in (from_s, until_s))
    return [dict(row) for row in await fetch(pool, "view_throughput", *ends)]
