"""What drives every periodic duty: it starves nobody, waits out outages, and ends on faults of our own."""

import asyncio
from contextlib import suppress

import pytest

from shared.errors import LedgerDownError
from shared.loops import Loop


async def test_a_round_that_awaits_nothing_and_wakes_itself_starves_nobody() -> None:
    async def once() -> None:
        loop.wake()

    loop = Loop("restless", once, every_s=60)
    driven = asyncio.create_task(loop.run())
    while loop.rounds < 3:  # noqa: ASYNC110 - the point is that others get their turn
        await asyncio.sleep(0)  # would never come back
    driven.cancel()
    with suppress(asyncio.CancelledError):
        await driven


async def test_a_fault_of_our_own_ends_the_program_at_the_limit() -> None:
    async def once() -> None:
        raise KeyError("ours")

    loop = Loop("broken", once, every_s=0.001, max_failures=1)
    with pytest.raises(KeyError):
        await loop.run()


async def test_a_server_that_is_away_is_waited_for() -> None:
    seen = asyncio.Event()

    async def once() -> None:
        if loop.failures:
            seen.set()
        raise LedgerDownError("away")

    loop = Loop("patient", once, every_s=0.001, max_failures=1)
    driven = asyncio.create_task(loop.run())
    async with asyncio.timeout(30):
        await seen.wait()
    assert not driven.done()
    driven.cancel()
    with suppress(asyncio.CancelledError):
        await driven
