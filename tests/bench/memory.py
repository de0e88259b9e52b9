"""Resident memory of coordinator and agent that have nothing to do."""

import asyncio

from tests.bench.findings import Finding
from tests.bench.rig import Rig

SETTLE_S = 5.0


async def measure(rig: Rig) -> list[Finding]:
    async with rig.coordinator() as coordinator, rig.agent(slots=1) as agent:
        await asyncio.sleep(SETTLE_S)
        found = [("coordinator, idle", coordinator.resident_mib()), ("agent, idle", agent.resident_mib())]
    return [Finding("memory", what, mib, "MiB") for what, mib in found]
