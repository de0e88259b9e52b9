"""Fault 13: eight claimers, reapers, reports, uploads, operators and the outbox of two coordinators on a few rows.

No deadlock is seen by any of them, and at the end the counts come out right: what was granted, accepted and published
is what the ledger says.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from coordinator.ledger.database import open_pool
from coordinator.ledger.model import Dispatch, Expire, Grace, Grant, Judged, Offered, Retry, RollCall, Withdraw
from shared.lease import Policy
from shared.states import Verdict
from tests.support.ledger import (
    Desk,
    admit,
    artifact,
    beat,
    claim,
    completed,
    failed,
    open_desk,
    released,
    seeded,
    store,
)

JOBS = 6
CLAIMERS = 8
TURNS = 60
POLICY = Policy(max_attempts=1000, max_lease_losses=1000, retry_base_s=0.001, retry_max_s=0.001)

pytestmark = [pytest.mark.fault(13), pytest.mark.timeout(300)]


class Bustle:
    """Everything that two coordinators do with a few jobs at once, and what they were told."""

    def __init__(self, desks: list[Desk], jobs: list[UUID], rng: random.Random) -> None:
        self.desks = desks
        self.jobs = jobs
        self.rng = rng
        self.seqs = count(1)
        self.granted: Counter[UUID] = Counter()
        self.accepted: Counter[UUID] = Counter()
        self.working = True

    def some(self) -> list[UUID]:
        """Return a few jobs in whatever order."""
        return self.rng.sample(self.jobs, self.rng.randint(2, JOBS))

    async def claimer(self, number: int) -> None:
        """Offer, claim, beat, upload, report or forget; two claimers of three share a coordinator's batches."""
        desk, worker = self.desks[number % 2], f"mac-{number}"
        for _ in range(TURNS):
            job_id, seq = self.rng.choice(self.jobs), next(self.seqs)
            await desk.ledger.do_many([Dispatch(job_id=job_id), Offered(job_id=job_id, seq=seq)])
            answer = await desk.do(claim(job_id, worker, seq))
            if isinstance(answer, Grant):
                self.granted[job_id] += 1
                await self._work(desk, job_id, worker, answer.epoch)

    async def _work(self, desk: Desk, job_id: UUID, worker: str, epoch: int) -> None:
        files = [artifact(f"image-{number}.png") for number in range(self.rng.randint(0, 3))]
        self.rng.shuffle(files)
        await desk.do(beat(job_id, epoch, worker))
        await store(desk.queries, job_id, *files, epoch=epoch, worker=worker)
        reports = (
            completed(job_id, epoch, worker, artifacts=files),
            completed(job_id, epoch, worker),
            failed(job_id, epoch, worker),
            released(job_id, epoch, worker),
            None,  # forgotten: it expires
        )
        report = self.rng.choice(reports)
        if report is not None:
            answer = await desk.do(report)
            assert isinstance(answer, Judged)
            self.accepted[job_id] += answer.verdict is Verdict.ACCEPTED

    async def reaper(self, desk: Desk) -> None:
        """Let leases run out, and end them."""
        for job_id in self.some():
            await desk.pool.execute(
                "UPDATE job SET lease_expires_at = tandem_now() WHERE id = $1 AND state = 'processing'", job_id
            )
        await desk.ledger.do_many(Expire(job_id=job_id) for job_id in self.some())

    async def others(self, desk: Desk) -> None:
        """Grace, roll calls, withdrawals, operators."""
        await desk.ledger.do_many(Grace(job_id=job_id) for job_id in self.some())
        await desk.ledger.do_many(Retry(job_id=job_id, actor="ann") for job_id in self.some())
        for offer in await desk.queries.offers(0.0):
            await desk.do(Withdraw(job_id=offer.job_id, offered_at=offer.offered_at, reason="unclaimed"))
        worker = f"mac-{self.rng.randrange(CLAIMERS)}"
        held = await desk.queries.processing_of(worker)
        await desk.ledger.do_many(
            RollCall(job_id=row[0], worker=worker, instance=f"{worker}-1", epoch=row[1]) for row in held
        )

    async def outbox(self, desk: Desk) -> None:
        """Mark what is settled as published, in whatever order, and have it published again."""
        rows = await desk.queries.unpublished(100)
        self.rng.shuffle(rows)
        await desk.queries.mark_published([(row.id, row.epoch, row.state, "", b"") for row in rows])
        await desk.queries.republish(3600.0)

    async def until_done(self, turn: Callable[[Desk], Awaitable[None]], desk: Desk) -> None:
        """Take turns as long as the claimers work."""
        while self.working:
            await turn(desk)


async def test_no_deadlock_surfaces_and_the_counts_come_out_right(ledger_dsn: str) -> None:
    with seeded() as rng:
        async with AsyncExitStack() as stack:
            pools = [await stack.enter_async_context(await open_pool(ledger_dsn)) for _ in range(2)]
            desks = [await stack.enter_async_context(open_desk(pool, POLICY)) for pool in pools]
            news = [admit() for _ in range(JOBS)]
            await desks[0].ledger.do_many(news)
            bustle = Bustle(desks, [new.job_id for new in news], rng)
            async with asyncio.TaskGroup() as tasks:
                claimers = [tasks.create_task(bustle.claimer(number)) for number in range(CLAIMERS)]
                for desk in desks:
                    for turn in (bustle.reaper, bustle.others, bustle.outbox):
                        tasks.create_task(bustle.until_done(turn, desk))
                await asyncio.wait(claimers)
                bustle.working = False

            await _counts_are_right(desks, bustle)


async def _counts_are_right(desks: list[Desk], bustle: Bustle) -> None:
    assert bustle.granted.total() > CLAIMERS, "nothing happened"
    for job_id in bustle.jobs:
        row, attempts = await desks[0].row(job_id), await desks[0].rows("attempt", job_id)
        assert row["epoch"] == bustle.granted[job_id] == len(attempts)
        assert [attempt["epoch"] for attempt in attempts] == list(range(1, row["epoch"] + 1))
        assert sum(attempt["result_sha256"] is not None for attempt in attempts) == bustle.accepted[job_id]
        opened = [attempt["epoch"] for attempt in attempts if attempt["outcome"] is None]
        assert opened == ([row["epoch"]] if row["state"] == "processing" else [])
        await _one_result(desks[0], job_id, row)
    for desk in desks:
        status = desk.ledger.status()
        assert (status["bad_commands"], status["outages"], status["callback_failures"]) == (0, 0, 0)


async def _one_result(desk: Desk, job_id: UUID, row: Any) -> None:
    """What is linked is of the one result that stands."""
    linked = {file["epoch"] for file in await desk.rows("artifact", job_id) if file["linked"]}
    assert linked <= {row["result_epoch"]}
    assert (row["state"] == "completed") == (row["result_epoch"] is not None)
