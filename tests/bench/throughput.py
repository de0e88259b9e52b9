"""Jobs a second, from the first submission to the last accepted result: no-op jobs, one coordinator, one agent process.

Publisher, coordinator, agent, NATS and Postgres share the machine. The end is the ledger's own `finished_at`; when the
last result lay in RESULTS is told beside it, and what each process had of the machine.
"""

from tests.bench.findings import Finding
from tests.bench.rig import Rig

SLOTS = 256
IN_FLIGHT = 512
WITHIN_S = 180.0
WARM_UP = 1000


async def measure(rig: Rig) -> list[Finding]:
    async with rig.coordinator() as coordinator, rig.agent(slots=SLOTS) as agent:
        await rig.publish(count=WARM_UP, in_flight=IN_FLIGHT, prefix="warm")
        await rig.results(WARM_UP, within_s=WITHIN_S)
        before = rig.cpu_s(coordinator=coordinator, agent=agent)
        said = await rig.publish(count=rig.jobs, in_flight=IN_FLIGHT, prefix="run")
        await rig.results(WARM_UP + rig.jobs, within_s=WITHIN_S)
        spent = rig.cpu_s(coordinator=coordinator, agent=agent)
        used = {name: spent[name] - before[name] for name in spent} | {"publisher": said["cpu_s"]}
        (row,) = await rig.sql(
            "SELECT count(*) AS jobs, extract(epoch FROM max(finished_at))::float8 AS ended,"
            " count(*) FILTER (WHERE state = 'completed') AS completed"
            " FROM job WHERE source = 'bench' AND key LIKE 'run-%'"
        )
    await rig.clear()
    wall_s = row["ended"] - said["first"]
    note = ", ".join(f"{name} {cpu_s / rig.jobs * 1e6:.0f}" for name, cpu_s in used.items())
    if row["completed"] != rig.jobs:
        note = f"ONLY {row['completed']} COMPLETED; {note}"
    return [
        Finding("throughput", "submission to accepted result", round(rig.jobs / wall_s), "jobs/s",
                "3,300; 1,650 with always", f"µs of CPU a job: {note}"),
        Finding("throughput", "submission alone", round(rig.jobs / (said["last"] - said["first"])), "jobs/s"),
    ]  # fmt: skip
