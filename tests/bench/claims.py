"""What a claim costs with few and with many jobs in the ledger: claims alone, by a worker on strings."""

import asyncio
import time

import orjson

from shared import subjects
from shared.bus import Bus, Message
from tests.bench.findings import Finding, percentile
from tests.bench.rig import Rig
from tests.support.puppet import Puppet

ONE_BY_ONE = 500
AT_ONCE = 3000
WARM_UP = 300
CONCURRENT = 64


async def measure(rig: Rig) -> list[Finding]:
    jobs = WARM_UP + ONE_BY_ONE + AT_ONCE
    async with rig.coordinator() as coordinator, rig.servers.open("agent:claimer") as bus:
        puppet = Puppet(bus, "claimer")
        await puppet.announce(kinds=("noop",), slots=jobs + 100)
        await rig.publish(count=jobs, in_flight=256, prefix="claim")
        offers = await pull(bus, jobs)
        await claim_each(bus, offers[:WARM_UP])
        alone = await claim_each(bus, offers[WARM_UP : WARM_UP + ONE_BY_ONE])
        before = rig.cpu_s(coordinator=coordinator)
        began = time.perf_counter()
        share = offers[WARM_UP + ONE_BY_ONE :]
        await asyncio.gather(*(claim_each(bus, share[i::CONCURRENT]) for i in range(CONCURRENT)))
        rate = AT_ONCE / (time.perf_counter() - began)
        spent = {
            name: (cpu_s - before[name]) / AT_ONCE * 1e6 for name, cpu_s in rig.cpu_s(coordinator=coordinator).items()
        }
    await rig.clear()
    return [
        Finding("claims", "one at a time, p50", round(percentile(alone, 0.5) * 1000, 2), "ms"),
        Finding("claims", "one at a time, p99", round(percentile(alone, 0.99) * 1000, 2), "ms"),
        Finding("claims", f"{CONCURRENT} at a time", round(rate), "claims/s"),
        Finding("claims", "CPU of Postgres", round(spent["postgres"]), "µs a claim"),
        Finding("claims", "CPU of the coordinator", round(spent["coordinator"]), "µs a claim"),
    ]


async def pull(bus: Bus, count: int) -> list[Message]:
    """Take `count` offers off the lane, as an agent with that many slots does."""
    found: list[Message] = []
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            message = None
            while message is None:
                message = await bus.pull_one("WORK", "noop--any", expires_s=5.0, group="workers", priority=0)
            found.append(message)

    async with asyncio.timeout(60):
        await asyncio.gather(*(some() for _ in range(CONCURRENT)))
    return found


async def claim_each(bus: Bus, offers: list[Message]) -> list[float]:
    times = []
    for offer in offers:
        body = orjson.dumps({"job_id": offer.subject.rpartition(".")[2], "delivery": offer.reply})
        began = time.perf_counter()
        answer = orjson.loads((await bus.request(subjects.claim("claimer"), body, timeout_s=10)).data)
        times.append(time.perf_counter() - began)
        assert answer["verdict"] == "granted", answer
    return times
