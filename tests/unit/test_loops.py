"""What drives every periodic duty: it starves nobody, waits out outages, and ends on faults of our own."""

import asyncio
from contextlib import suppress

import pytest
from structlog.testing import CapturingLogger

from shared.errors import LedgerDownError
from shared.loops import Loop
from tests.support.servers import eventually


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


async def test_an_outage_that_another_loop_speaks_of_costs_no_lines_and_a_fault_of_its_own_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = CapturingLogger()
    monkeypatch.setattr("shared.loops._log", said)
    errors: list[Exception | None] = [LedgerDownError("away"), LedgerDownError("away"), None, ValueError("ours"), None]

    async def once() -> None:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error

    loop = Loop("quiet", once, every_s=0.001, quiet_about=LedgerDownError)
    driven = asyncio.create_task(loop.run())
    await eventually(lambda: not errors and loop.rounds > 2)
    driven.cancel()
    with suppress(asyncio.CancelledError):
        await driven
    assert [(call.args[0], call.kwargs["failures"]) for call in said.calls] == [
        ("loop failed", 1),
        ("loop recovered", 1),
    ]


@pytest.mark.parametrize("ends", [TimeoutError("the statement's own"), None])
async def test_a_loop_ends_when_a_round_swallows_that_it_is_cancelled(ends: Exception | None) -> None:
    begun = asyncio.Event()

    async def once() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends is not None:
                raise ends from None

    running = asyncio.create_task(Loop("careless", once, every_s=0.01).run())
    await begun.wait()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
