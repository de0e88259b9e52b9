"""From a publisher's submission to the generator's start, one job at a time on an idle system."""

import sys

from tests.bench.findings import Finding, percentile
from tests.bench.rig import Rig

JOBS = 400
WARM_UP = 50
PAUSE_S = 0.03


async def measure(rig: Rig) -> list[Finding]:
    command = [sys.executable, "-m", "tests.bench.agent", "0", "0"]
    async with rig.coordinator(), rig.agent(slots=4, command=command):
        said = await rig.publish(count=JOBS + WARM_UP, pause_s=PAUSE_S, prefix="lat")
        await rig.results(JOBS + WARM_UP, within_s=30)
        rows = await rig.sql(
            "SELECT j.key, (j.result ->> 'began')::float8 AS began, extract(epoch FROM a.claimed_at)::float8 AS claimed"
            " FROM job AS j JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.result_epoch WHERE j.source = 'bench'"
        )
    await rig.clear()
    sent = dict(list(said["sent"].items())[WARM_UP:])
    starts = [(row["began"] - sent[row["key"]]) * 1000 for row in rows if row["key"] in sent]
    claimed = [(row["claimed"] - sent[row["key"]]) * 1000 for row in rows if row["key"] in sent]
    note = f"{len(starts)} jobs; the claim's transaction began at {percentile(claimed, 0.5):.1f} (p50)"
    return [
        Finding("latency", "submission to start, p50", round(percentile(starts, 0.5), 1), "ms", "< 6", note),
        Finding("latency", "submission to start, p99", round(percentile(starts, 0.99), 1), "ms", "< 20"),
    ]
