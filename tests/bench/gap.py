"""How long the generator stands still between two jobs while work waits, its results going up a slow home line."""

import itertools
import json
import sys

from tests.bench.findings import Finding, percentile
from tests.bench.link import Link
from tests.bench.rig import Rig, free_port

BYTES_PER_S = 10_000_000 / 8
ROUND_TRIP_S = 0.05
JOBS = 8
RESULT_BYTES = 5_000_000
GENERATION_S = 1.0
"""An upload takes four: results pile up behind the line while the generator goes on."""


async def measure(rig: Rig) -> list[Finding]:
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.agent", str(GENERATION_S), str(RESULT_BYTES)]
    async with Link(bytes_per_s=BYTES_PER_S, delay_s=ROUND_TRIP_S / 2) as link:
        nats = await link.open("127.0.0.1", rig.nats.port)
        http = await link.open("127.0.0.1", port)
        async with rig.coordinator(port=port, public_url=f"http://127.0.0.1:{http}"):
            await rig.publish(count=JOBS, in_flight=JOBS, prefix="gap")
            async with rig.agent(slots=1, command=command, nats=f"nats://127.0.0.1:{nats}"):
                await rig.results(JOBS, within_s=90)
            rows = await rig.sql(
                "SELECT result, extract(epoch FROM finished_at)::float8 AS accepted FROM job"
                " WHERE source = 'bench' AND state = 'completed'"
            )
    await rig.clear()
    runs = sorted((r["began"], r["ended"]) for r in (json.loads(row["result"]) for row in rows))
    gaps = [(after[0] - before[1]) * 1000 for before, after in itertools.pairwise(runs)]
    trip_ms = ROUND_TRIP_S * 1000
    upload_s = (max(row["accepted"] for row in rows) - runs[0][1]) / len(rows)
    note = f"{len(runs)} jobs of {GENERATION_S:.0f} s; {upload_s:.1f} s a result on the line; {{:.1f}} round trips"
    return [
        Finding("gap", f"between jobs, {name}", round(ms), "ms", f"<= {4 * trip_ms:.0f}", note.format(ms / trip_ms))
        for name, ms in (("median", percentile(gaps, 0.5)), ("longest", max(gaps)))
    ]
