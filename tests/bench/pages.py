"""What people wait for: each page of a coordinator whose ledger is full, and what fifty pages that stay open cost.

First those that have just started show `/`, nothing being known yet; then each address is asked for some times, and the
table has the slowest. The time is that of the whole answer, over loopback. On a machine that does other things beside,
the CPU time of an answer says more.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import combinations, count
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import orjson

from shared import subjects
from shared.bus import Bus
from tests.bench.findings import Finding, percentile
from tests.bench.rig import Process, Rig

FIRSTS: Final = 3
TIMES: Final = 7
SHOWN: Final = 10
SHORT: Final = 60  # characters; a cursor says nothing
PLAIN: Final = ("/", "/jobs", "/workers", "/refused", "/review", "/status", "/metrics")
OPEN: Final = 50
EVENTS_PER_S: Final = 100
LOOKED_AT_S: Final = 20.0
SETTLE_S: Final = 5.0
DEEP: Final = 20  # pages of 500
LIVE: Final = ("overview", "overview", "workers", "refused")
_AIM: Final = "< 300"

# Of each filter what very many jobs have, what few have, and what none has.
FILTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "state": ("completed", "failed", "awaiting_review", "processing"),
    "kind": ("article", "audio", "nothing"),
    "model": ("llama3.1:8b", "musicgen", "nothing:1b"),
    "worker": ("mac-1", "mac-seldom", "mac-gone", "nobody"),
    "label": ("site:main", "campaign:spring", "site:nowhere"),
    "text": ("post-77", "slow", "memory", "main", "spring", "no such word"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One address, some times."""

    address: str
    took_ms: list[float]
    cpu_ms: float  # of the coordinator and of Postgres, for one answer

    @property
    def median_ms(self) -> float:
        return percentile(self.took_ms, 0.5)

    @property
    def finding(self) -> Finding:
        note = f"longest of {TIMES}: {max(self.took_ms):.0f} ms; {self.cpu_ms:.0f} ms of CPU"
        shown = self.address if len(self.address) <= SHORT else f"{self.address[:SHORT]}…"
        return Finding("pages", shown, round(self.median_ms), "ms", _AIM, note)


async def measure(rig: Rig) -> list[Finding]:
    firsts = []
    for _ in range(FIRSTS):
        async with rig.coordinator() as coordinator, aiohttp.ClientSession(coordinator.url) as client:
            firsts.append(await _get(client, "/"))
    async with rig.coordinator() as coordinator, aiohttp.ClientSession(coordinator.url) as client:
        plain = [await _ask(rig, coordinator, client, address) for address in (*PLAIN, *await _job(client))]
        others = [*await _deep(client), *_filtered()]
        lists = [await _ask(rig, coordinator, client, address) for address in others]
        idle, looked_at = await _streams(rig, coordinator)
    lists.sort(key=lambda asked: -asked.median_ms)
    middle = percentile([asked.median_ms for asked in lists], 0.5)
    return [
        Finding("pages", "/ by a coordinator that has just started", round(percentile(firsts, 0.5)), "ms", _AIM,
                f"longest of {FIRSTS}: {max(firsts):.0f} ms"),
        *(asked.finding for asked in (*plain, *lists[:SHOWN])),
        Finding("pages", f"the median of all {len(lists)} lists", round(middle), "ms", _AIM),
        Finding("pages", f"{OPEN} open pages, {EVENTS_PER_S} events/s: CPU of the coordinator",
                round(looked_at * 100, 1), "% of a core", "< 20", f"{idle * 100:.1f} % without pages"),
    ]  # fmt: skip


async def _ask(rig: Rig, coordinator: Process, client: aiohttp.ClientSession, address: str) -> Asked:
    """Ask once for what is not counted, then TIMES."""
    await _get(client, address)
    before = rig.cpu_s(coordinator=coordinator)
    took = [await _get(client, address) for _ in range(TIMES)]
    after = rig.cpu_s(coordinator=coordinator)
    spent_s = sum(after[name] - before[name] for name in ("coordinator", "postgres"))
    return Asked(address, took, spent_s / TIMES * 1000)


def _filtered() -> Iterator[str]:
    """Yield each value alone, and with each value of each other filter."""
    alone = [(name, value) for name, values in FILTERS.items() for value in values]
    for pair in alone:
        yield f"/jobs?{urlencode([pair])}"
    for one, other in combinations(alone, 2):
        if one[0] != other[0]:
            yield f"/jobs?{urlencode([one, other])}"


async def _get(client: aiohttp.ClientSession, address: str) -> float:
    began = time.perf_counter()
    async with client.get(address, headers={"Accept": "text/html"}) as answer:
        body = await answer.read()
    took_ms = (time.perf_counter() - began) * 1000
    if answer.status != 200:
        msg = f"{address} was answered {answer.status}: {body[:300]!r}"
        raise RuntimeError(msg)
    return took_ms


async def _deep(client: aiohttp.ClientSession) -> list[str]:
    """Return the addresses of pages further down, the last 10,000 jobs down, of the list and of some filters."""
    found = []
    for query in ({}, {"state": "failed"}, {"kind": "image"}, {"label": "site:main"}, {"worker": "mac-1"}):
        cursor = None
        for number in range(DEEP):
            page = await _page(client, query, cursor)
            cursor = page["next"]
            if cursor is None:
                break
            if number in (0, DEEP - 1):
                found.append(f"/jobs?{urlencode({**query, 'cursor': cursor})}")
    return found


async def _page(client: aiohttp.ClientSession, query: Mapping[str, str], cursor: str | None) -> dict[str, Any]:
    asked = {**query, "limit": "500", **({"cursor": cursor} if cursor else {})}
    async with client.get("/v1/jobs", params=asked) as answer:
        page: dict[str, Any] = await answer.json()
    if answer.status != 200:
        msg = f"{asked} was answered {answer.status}: {page}"
        raise RuntimeError(msg)
    return page


async def _job(client: aiohttp.ClientSession) -> list[str]:
    page = await _page(client, {"state": "failed"}, None)
    return [f"/jobs/{job['id']}" for job in page["jobs"][:1]]


async def _streams(rig: Rig, coordinator: Process) -> tuple[float, float]:
    """Return which share of a core the coordinator takes with events alone, and with pages that show them."""
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        rig.servers.open("coordinator") as bus,
        _beside([_events(bus)]),
        aiohttp.ClientSession(coordinator.url, connector=connector, timeout=aiohttp.ClientTimeout()) as client,
    ):
        await asyncio.sleep(SETTLE_S)
        idle = await _share(coordinator)
        async with _beside(_read(client, f"/live/{LIVE[number % len(LIVE)]}") for number in range(OPEN)):
            await asyncio.sleep(SETTLE_S)
            looked_at = await _share(coordinator)
    return idle, looked_at


@asynccontextmanager
async def _beside(works: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Do these until the block is left; none of them may end by itself."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    if early := [end for end in ends if not isinstance(end, asyncio.CancelledError)]:
        msg = f"ended too early: {early}"
        raise RuntimeError(msg)


async def _events(bus: Bus) -> None:
    """Say what the coordinator says when a stage of a job begins, so many times a second."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in count():
        job_id = uuid.uuid4()
        body = {"job_id": str(job_id), "type": "stage", "source": "cms", "epoch": 1, "worker": "mac-1", "stage": "x"}
        await bus.publish(subjects.event(job_id, "stage"), orjson.dumps(body))
        await asyncio.sleep(began + (number + 1) / EVENTS_PER_S - loop.time())


async def _read(client: aiohttp.ClientSession, address: str) -> None:
    async with client.get(address) as answer:
        if answer.status != 200:
            msg = f"{address} was answered {answer.status}: {await answer.text()}"
            raise RuntimeError(msg)
        while await answer.content.readany():
            pass


async def _share(process: Process) -> float:
    before, began = process.cpu_s(), time.perf_counter()
    await asyncio.sleep(LOOKED_AT_S)
    return (process.cpu_s() - before) / (time.perf_counter() - began)
