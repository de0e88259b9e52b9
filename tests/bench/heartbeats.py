"""Heartbeats a second that one coordinator takes into its ledger: many leases, each beating in turn."""

import asyncio
import time

import asyncpg
import orjson

from agent.heartbeat import BODY
from shared import subjects
from shared.bus import Bus, NoResponders
from tests.bench.findings import Finding
from tests.bench.rig import Rig

LEASES = 5000
RUN_S = 6.0
AHEAD = 4000
"""Beats on their way at most: enough to keep the coordinator busy, too few for it to drop any."""

_HOLD = """
WITH made AS (
    INSERT INTO job (id, source, key, kind, lane, priority, state, content_sha256, spec, labels, max_attempts,
        timeout_s, review, run_after, created_at, epoch, offered_seq, spent_seq, worker, lease_expires_at)
    SELECT md5('beat-' || n)::uuid, 'bench', 'beat-' || n, 'noop', 'noop.any', 1, 'processing', '\\x00', '{}', '{}', 5,
        1800, false, now(), now(), 1, 0, 0, 'beater', now() + interval '10 minutes'
    FROM generate_series(1, $1::int) AS n
    RETURNING id
), attempts AS (
    INSERT INTO attempt (job_id, epoch, number, worker, delivery, claimed_at, deadline_at)
    SELECT id, 1, 1, 'beater', '$JS.ACK.WORK.noop--any.1.1.1.1.0', now(), now() + interval '1 hour' FROM made
)
SELECT id FROM made
"""


_NEWEST = "SELECT coalesce(max(id), 0) AS id FROM heartbeat"
"""Each beat that is taken leaves a row."""


class Beater:
    """Beats as many agents do, lease by lease, never more than AHEAD before what is `taken`."""

    def __init__(self, bus: Bus, jobs: list[str]) -> None:
        self.taken = 0
        self._bus = bus
        self._jobs = jobs

    async def run(self) -> None:
        sent = 0
        while True:
            while sent - self.taken > AHEAD:  # noqa: ASYNC110 - Postgres announces nothing
                await asyncio.sleep(0.002)
            for _ in range(100):
                headers = {
                    "Tandem-Job": self._jobs[sent % LEASES],
                    "Tandem-Epoch": "1",
                    "Tandem-Worker": "beater",
                    "Tandem-Stage": "generating_text",
                    "Tandem-Elapsed": f"{sent / LEASES:.1f}",
                }
                sent += 1
                await self._bus.publish(f"$JS.ACK.WORK.noop--any.1.{sent}.1.1.0", BODY, headers=headers)
            await asyncio.sleep(0)


async def measure(rig: Rig) -> list[Finding]:
    jobs = [str(row["id"]) for row in await rig.sql(_HOLD, LEASES)]
    began_with = (await rig.sql(_NEWEST))[0]["id"]
    async with rig.coordinator(), rig.servers.open("agent:beater") as bus:
        await _introduce(bus, jobs[0])
        beater = Beater(bus, jobs)
        beating = asyncio.create_task(beater.run(), name="beats")
        marks: list[tuple[float, int]] = []
        connection = await asyncpg.connect(rig.postgres.dsn)
        try:
            while not marks or marks[-1][0] - marks[0][0] < RUN_S:
                beater.taken = await connection.fetchval(_NEWEST) - began_with
                if beater.taken >= AHEAD:
                    marks.append((time.perf_counter(), beater.taken))
                await asyncio.sleep(0.02)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await connection.close()
    await rig.clear()
    rate = (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0])
    note = f"{LEASES:,} leases in turn; {rate * 30:,.0f} running jobs at one in 30 s"
    return [Finding("heartbeats", "taken", round(rate), "beats/s", note=note)]


async def _introduce(bus: Bus, job_id: str) -> None:
    """Ask about a lease: by that the coordinator learns whose connection this is."""
    question = orjson.dumps({"job_id": job_id, "epoch": 1})
    async with asyncio.timeout(10):
        while True:
            try:
                answer = orjson.loads((await bus.request(subjects.lease("beater"), question, timeout_s=5)).data)
            except NoResponders:  # it serves HTTP before it hears us
                await asyncio.sleep(0.02)
                continue
            assert answer["lease"] == "held", answer
            return
