"""Submissions, all the time, at a bounded rate: over HTTP by both coordinators and over NATS, as publishers send them.

Every acknowledgement is written to the journal (JSON lines), which is what the verdict holds the ledger against. A
publisher repeats what got no answer under the same key. An acknowledgement by SUBMIT alone (NATS, or HTTP's 202) lives
on NATS's disk until the ledger has it: when that is wiped, `republish` sends again what was acknowledged only there.
"""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import orjson

from shared import subjects
from shared.bus import Bus, BusError
from shared.ids import job_id_of
from tests.crash.chaos.orders import BadOrder, Order, bad_order, conflicting, order
from tests.crash.chaos.rig import ADMIN_TOKEN, PUBLISHER_TOKEN, SOURCE, Rig

MOST_ALIVE = 24
"""No more is submitted while so many jobs are under way: a takeover is not to wait behind a backlog."""

SUBMIT_ONLY_S = 90.0
"""After so long the ledger has what SUBMIT had: two of its redeliveries, and an outage."""

_AT_ONCE = 32
_KNOWN_MOST = 1000
_AGAIN_S = 0.3
_TIMEOUT = aiohttp.ClientTimeout(total=6)
_ALIVE = "SELECT count(*) AS alive FROM job WHERE state IN ('pending', 'processing')"


class Journal:
    """What was asked for and what was answered, one JSON line each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def write(self, event: str, **facts: Any) -> None:
        self._file.write(orjson.dumps({"event": event, "at": time.time(), **facts}, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Load:
    def __init__(self, rig: Rig, bus: Bus, seed: int, *, per_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self._rig = rig
        self._bus = bus
        self._chance = random.Random(f"{seed}:load")
        self._actions = random.Random(f"{seed}:actions")
        self._per_s = per_s
        self._journal = Journal(rig.folder / "journal.jsonl")
        self._known: list[Order] = []
        self._admitted: set[str] = set()
        self._submit_only: list[tuple[float, Order | BadOrder]] = []
        self._alive = 0
        self._number = 0
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._http: aiohttp.ClientSession

    async def run(self) -> None:
        """Submit until `finish`; what is under way then goes on until it is answered."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as self._http:
            counting = asyncio.create_task(self._count_alive(), name="count alive")
            try:
                while not await self._stopped_within(self._chance.expovariate(self._per_s)):
                    if self._alive < MOST_ALIVE and not self._free.locked():
                        self._begin()
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
            finally:
                if self._tasks:
                    self._journal.write("unanswered", count=len(self._tasks))
                for task in (counting, *self._tasks):
                    task.cancel()
                await asyncio.gather(counting, *self._tasks, return_exceptions=True)
                self._journal.close()

    def finish(self) -> None:
        """Begin nothing more."""
        self._stop.set()

    def republish(self) -> None:
        """NATS lost its disk: send again what only SUBMIT had acknowledged, as the ledger may not have it yet."""
        since = time.monotonic() - SUBMIT_ONLY_S
        again, self._submit_only = [o for at, o in self._submit_only if at > since], []
        for one in again:
            self._spawn(self._by_nats(one) if isinstance(one, Order) else self._bad_by_nats(one))

    def _begin(self) -> None:
        """Draw what comes next, and begin it; one seed gives one sequence of orders."""
        chance, actions = self._chance, self._actions
        self._number += 1
        dice = chance.random()
        if dice < 0.04:
            bad = bad_order(chance, self._number)
            self._spawn(self._bad_by_http(bad) if chance.random() < 0.5 else self._bad_by_nats(bad))
        elif dice < 0.86:
            new = order(chance, self._number)
            self._spawn(self._by_nats(new) if chance.random() < 0.3 else self._by_http(new))
        elif self._known:
            action = actions.choices(("again", "conflict", "cancel", "approve", "retry"), (5, 1, 3, 4, 1))[0]
            self._spawn(self._act(action, actions.choice(self._known), actions.choice(list(self._rig.http))))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work, name="submission")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- good ones

    async def _by_http(self, one: Order) -> None:
        """Submit until it is acknowledged, each time to the other coordinator."""
        async with self._free:
            self._tried(one)
            for turn in range(1_000_000):
                status = await self._post(turn, "/v1/jobs", one.body)
                if status in (200, 201, 202):
                    self._acknowledged(one, f"http {status}")
                    return
                if status is not None and 400 <= status < 500 and status != 429:
                    self._journal.write("refused_good", job_id=_id(one), status=status)
                    return
                await asyncio.sleep(_AGAIN_S)

    async def _by_nats(self, one: Order) -> None:
        async with self._free:
            self._tried(one)
            await self._publish(one.body, one.key)
            self._acknowledged(one, "nats")

    async def _publish(self, body: bytes, key: str) -> None:
        while True:
            try:
                await self._bus.js_publish(subjects.submit(SOURCE), body, msg_id=f"{SOURCE}:{key}", timeout_s=3.0)
            except BusError:
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    def _tried(self, one: Order) -> None:
        self._journal.write("tried", job_id=_id(one), key=one.key)

    def _acknowledged(self, one: Order, how: str) -> None:
        self.counts[how] += 1
        self._journal.write("acknowledged", job_id=_id(one), how=how, kind=one.kind)
        self._known.append(one)
        del self._known[:-_KNOWN_MOST]
        if how in ("nats", "http 202"):
            self._lives_on_nats(one)
        else:
            self._admitted.add(_id(one))

    def _lives_on_nats(self, one: Order | BadOrder) -> None:
        self._submit_only.append((time.monotonic(), one))
        del self._submit_only[:-_KNOWN_MOST]

    # ---- others

    async def _act(self, action: str, known: Order, coordinator: str) -> None:
        """Submit again, submit something else under the same key, or do what an operator may."""
        if action == "again":
            await self._by_http(known)
            return
        async with self._free:
            turn = list(self._rig.http).index(coordinator)
            if action == "conflict":
                is_first = _id(known) in self._admitted  # else it may lie in SUBMIT still, and the other comes first
                status = await self._post(turn, "/v1/jobs", conflicting(known))
                self.counts["conflicts"] += status == 409
                if is_first and status in (200, 201):
                    self._journal.write("accepted_bad", job_id=_id(known), status=status)
                return
            status = await self._post(turn, f"/v1/jobs/{_id(known)}/{action}", b"", ADMIN_TOKEN)
            self.counts[action] += status == 200
            self._journal.write("action", job_id=_id(known), action=action, status=status)

    async def _bad_by_http(self, bad: BadOrder) -> None:
        async with self._free:
            status = None
            while status is None or status >= 500:
                status = await self._post(self._actions.randrange(2), "/v1/jobs", bad.body)
                await asyncio.sleep(_AGAIN_S)
            self.counts["refused"] += status in (400, 422)
            if status not in (400, 422):
                self._journal.write("accepted_bad", mark=bad.mark, status=status)

    async def _bad_by_nats(self, bad: BadOrder) -> None:
        async with self._free:
            await self._publish(bad.body, bad.mark)
            self.counts["refused"] += 1
            self._journal.write("bad", mark=bad.mark)
            self._lives_on_nats(bad)

    async def _post(self, turn: int, path: str, body: bytes, token: str = PUBLISHER_TOKEN) -> int | None:
        """Return the status of the answer, None if there was none."""
        urls = list(self._rig.http.values())
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            async with self._http.post(urls[turn % len(urls)] + path, data=body, headers=headers) as answer:
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _count_alive(self) -> None:
        """Know roughly how much is under way; while the ledger is away, what was known before."""
        while not await self._stopped_within(1.0):
            try:
                self._alive = (await self._rig.sql(_ALIVE, timeout_s=2.0))[0]["alive"]
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                continue

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True


def _id(one: Order) -> str:
    return str(job_id_of(SOURCE, one.key))
