"""What a claim costs while settled jobs are trimmed beside it, and how fast that goes. Leaves fewer settled jobs."""

import asyncio
import time

from tests.bench.claims import claim_each, pull
from tests.bench.findings import Finding, percentile
from tests.bench.rig import Rig
from tests.support.puppet import Puppet

CLAIMS = 2000
WARM_UP = 300
FOR_EVER_S = 0
EIGHT_DAYS_S = 691_200


async def measure(rig: Rig) -> list[Finding]:
    alone, _, _ = await _claims(rig, FOR_EVER_S)
    beside, trimmed, took_s = await _claims(rig, EIGHT_DAYS_S)
    if not trimmed:
        return []  # an empty ledger: there was nothing to trim
    return [
        Finding("retention", "claim, p50, nothing trimmed", round(percentile(alone, 0.5) * 1000, 2), "ms"),
        Finding("retention", "claim, p50, while jobs are trimmed", round(percentile(beside, 0.5) * 1000, 2), "ms"),
        Finding("retention", "claim, p99, nothing trimmed", round(percentile(alone, 0.99) * 1000, 2), "ms"),
        Finding("retention", "claim, p99, while jobs are trimmed", round(percentile(beside, 0.99) * 1000, 2), "ms"),
        Finding("retention", "trimmed beside them", round(trimmed / took_s), "jobs/s"),
    ]


async def _claims(rig: Rig, keep_jobs_s: int) -> tuple[list[float], int, float]:
    """Return how long each claim took, how many jobs were trimmed meanwhile, and the seconds of it."""
    async with (
        rig.coordinator(keep_jobs_s=keep_jobs_s, retention_s=1, unclaimed_s=600) as _,
        rig.servers.open("agent:claimer") as bus,
    ):
        puppet = Puppet(bus, "claimer")
        await puppet.announce(kinds=("noop",), slots=CLAIMS + WARM_UP + 100)
        await rig.publish(count=CLAIMS + WARM_UP, in_flight=256, prefix=f"retention-{keep_jobs_s}")
        offers = await pull(bus, CLAIMS + WARM_UP)
        await claim_each(bus, offers[:WARM_UP])
        before = await _settled(rig)
        began = time.perf_counter()
        times = []
        for offer in offers[WARM_UP:]:
            times += await claim_each(bus, [offer])
            await asyncio.sleep(0.005)  # agents don't claim back to back: more of the trimming is met
        took_s = time.perf_counter() - began
        trimmed = before - await _settled(rig)
    await rig.clear()
    return times, trimmed, took_s


async def _settled(rig: Rig) -> int:
    (row,) = await rig.sql("SELECT count(*) AS jobs FROM job WHERE finished_at IS NOT NULL")
    count: int = row["jobs"]
    return count
