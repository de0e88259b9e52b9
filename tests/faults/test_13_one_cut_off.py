"""Fault 13: one of two coordinators is cut off from Postgres alone: it answers nobody, the other serves everybody."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from coordinator.service import Coordinator, running
from tests.support.proxy import Proxy
from tests.support.servers import eventually
from tests.support.world import World

pytestmark = pytest.mark.fault(13)


@asynccontextmanager
async def second(world: World, folder: Path) -> AsyncIterator[tuple[Coordinator, Proxy]]:
    """Run another coordinator, whose way to Postgres can be cut."""
    where = urlsplit(world.dsn)
    assert where.hostname is not None
    assert where.port is not None
    async with Proxy(where.hostname, where.port) as proxy:
        dsn = world.dsn.replace(f":{where.port}/", f":{proxy.port}/")
        changed = {"postgres": SecretStr(dsn), "reaper_s": 0.1, "secrets": folder / "secrets"}
        async with running(world.settings.model_copy(update=changed)) as other:
            await eventually(lambda: not other.unready())
            yield other, proxy


async def test_who_can_t_reach_the_ledger_leaves_the_group_and_comes_back(world: World, tmp_path: Path) -> None:
    mini = await world.puppet("mini")
    async with second(world, tmp_path) as (other, proxy):
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: not other.doors.are_open)
        assert "not everything looked at since NATS is connected" in other.unready()
        for _ in range(20):  # each would have been the cut-off one's in half of the cases, and gone unanswered
            await world.submit()
            held = await mini.take()
            await held.beat()
            assert (await held.ask())["lease"] == "held"
            await held.report()
            await held.verdict("accepted")
        assert other.heartbeats.taken == 0
        proxy.refuse(refusing=False)
        await eventually(lambda: other.doors.are_open and not other.unready())


async def test_all_doors_closed_still_loses_no_lease(world: World) -> None:
    """With nobody else there, heartbeats go unheard as before; the grace makes up for it."""
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    world.coordinator.reaper.reaches_ledger = False
    await eventually(lambda: not world.coordinator.doors.are_open)
    await world.move_clock(200)
    world.coordinator.reaper._seen = 0
    await world.coordinator.reaper.once()
    await eventually(lambda: world.coordinator.doors.are_open)
    assert (await held.ask())["lease"] == "held"
    assert (await world.job(job["id"]))["epoch"] == 1
