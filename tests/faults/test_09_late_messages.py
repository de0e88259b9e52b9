"""Fault 9: heartbeats, reports, uploads and questions that come after a takeover. Each is refused; no row changes.

A hundred of each kind, from the worker whose lease went to another, while the new holder works on.
"""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.support.puppet import Held
from tests.support.servers import eventually
from tests.support.world import World

LATE = 100
TABLES = ("job", "attempt", "artifact", "heartbeat", "rejected_submission", "operator_action", "lane")
"""All that may not change; a late report is put on record in `rejected_result`, and nowhere else."""

pytestmark = pytest.mark.fault(9)


async def test_a_hundred_late_messages_of_each_kind_change_no_row(world: World, tmp_path: Path) -> None:
    late, new = await _taken_over(world)
    file = await new.upload("article.md", b"# The new holder's")
    await new.beat("uploading")
    await eventually(lambda: world.coordinator.heartbeats.taken == 1)
    before, files = await _rows(world.pool), _files(tmp_path / "artifacts")

    for number in range(LATE):
        await late.beat(f"stage_{number}")
        await late.report(**_report(number))
    answers = await asyncio.gather(*(late.ask() for _ in range(LATE)))
    statuses = [await _upload(late, f"late-{number}.md") for number in range(LATE)]
    await eventually(lambda: world.coordinator.heartbeats.lost == LATE)
    await eventually(lambda: world.coordinator.reports.judged == LATE)

    assert await _rows(world.pool) == before
    assert _files(tmp_path / "artifacts") == files
    assert answers == [{"lease": "lost", "reason": "stale"}] * LATE
    assert statuses == [409] * LATE
    await _refusals_are_on_record(world, late)
    assert (await new.ask())["lease"] == "held"
    await new.report(artifacts=[file])
    await new.verdict("accepted")
    seen = await world.until(new.job_id, "completed")
    assert (seen["epoch"], seen["result_epoch"], seen["worker"]) == (2, 2, "macbook")
    assert [a["name"] for a in seen["artifacts"]] == ["article.md"]


async def test_late_messages_change_nothing_after_the_new_holder_is_done_either(world: World) -> None:
    late, new = await _taken_over(world)
    await new.report()
    await new.verdict("accepted")
    await eventually(lambda: world.coordinator.results.published == 1)
    before = await _rows(world.pool)

    for number in range(LATE):
        await late.beat()
        await late.report(**_report(number))
    assert await _upload(late, "late.md") == 409
    await eventually(lambda: world.coordinator.heartbeats.lost == LATE)
    await eventually(lambda: world.coordinator.reports.judged == LATE + 1)
    await world.coordinator.results.once()

    assert await _rows(world.pool) == before
    assert world.coordinator.results.published == 1


async def _taken_over(world: World) -> tuple[Held, Held]:
    """Return what the one who fell silent thinks it holds, and what the next one holds."""
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    await world.submit()
    late = await mini.take()
    await world.pass_time(91)
    new = await macbook.take()
    assert (late.epoch, new.epoch) == (1, 2)
    await eventually(lambda: world.coordinator.effects.idle)
    return late, new


def _report(number: int) -> dict[str, Any]:
    """A report of each outcome, no two alike."""
    broken = {"code": "broken", "message": f"{number}", "class": ("transient", "permanent", "elsewhere")[number % 3]}
    match number % 5:
        case 0 | 1:
            return {"result": {"text": f"# Late {number}"}}
        case 2 | 3:
            return {"outcome": "failed", "error": broken}
        case _:
            return {"outcome": "released", "error": broken}


async def _upload(held: Held, name: str) -> int:
    """Return the status that an upload with this grant's token gets."""
    url, token = f"{held.grant['upload']['url']}/{name}", held.grant["upload"]["token"]
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "text/markdown",
        "Digest": "sha-256=n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
    }
    async with aiohttp.ClientSession() as session, session.put(url, data=b"test", headers=headers) as answer:
        return answer.status


async def _rows(pool: asyncpg.Pool) -> dict[str, list[Any]]:
    """Return all that stands in the tables, and which transaction wrote each row last."""
    return {
        table: [tuple(row) for row in await pool.fetch(f"SELECT xmin::text, t.* FROM {table} AS t ORDER BY t::text")]
        for table in TABLES
    }


def _files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


async def _refusals_are_on_record(world: World, late: Held) -> None:
    rows = await world.pool.fetch("SELECT job_id, epoch, worker, verdict, current_epoch FROM rejected_result")
    assert {tuple(map(str, row)) for row in rows} == {(late.job_id, "1", "mini", "stale", "2")}
    assert len(rows) == LATE
