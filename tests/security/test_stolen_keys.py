"""What a stolen agent key can't do to jobs that other Macs hold, and what it can (docs/security.md)."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest_asyncio

from tests.support.puppet import Held, Puppet
from tests.support.servers import eventually, own_servers
from tests.support.world import World
from tests.support.world import world as open_world


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


async def held_by_mini(world: World) -> tuple[Held, Puppet]:
    """A job that mini holds, and a thief with the key of book."""
    mini = await world.puppet("mini")
    await world.submit()
    return await mini.take(), await world.puppet("book")


async def test_it_cannot_report_on_what_another_mac_holds(world: World) -> None:
    held, thief = await held_by_mini(world)
    await thief.report(held.job_id, held.epoch, result={"text": "forged"})
    told = await thief.hears("verdict", job_id=held.job_id)
    assert told["verdict"] in ("stale", "rejected")
    assert (await world.job(held.job_id))["state"] == "processing"
    await held.report(result={"text": "honest"})
    await held.verdict("accepted")
    assert (await world.job(held.job_id))["result"]["text"] == "honest"


async def test_it_cannot_keep_or_end_a_lease_of_another_mac(world: World) -> None:
    held, thief = await held_by_mini(world)
    before = (await world.job(held.job_id))["lease_expires_at"]
    foreign = world.coordinator.directory.foreign
    for name in ("mini", "book"):
        headers = {"Tandem-Job": held.job_id, "Tandem-Epoch": str(held.epoch), "Tandem-Worker": name}
        headers |= {"Tandem-Stage": "x", "Tandem-Elapsed": "1"}
        await thief.bus.publish(held.offer.reply, b"+WPI", headers=headers)
    await thief.bus.flush()
    await eventually(lambda: world.coordinator.directory.foreign > foreign)
    assert (await thief.ask(held.job_id, held.epoch))["lease"] == "lost"
    assert (await held.ask())["lease"] == "held"
    assert (await world.job(held.job_id))["worker"] == "mini"
    assert (await world.job(held.job_id))["lease_expires_at"] >= before


async def test_it_cannot_claim_through_another_macs_delivery(world: World) -> None:
    held, thief = await held_by_mini(world)
    denied = await thief.ask_claim({"job_id": held.job_id, "delivery": held.offer.reply})
    assert denied["verdict"] == "denied"
    assert (await held.ask())["lease"] == "held"


async def test_it_cannot_upload_without_a_grant(world: World) -> None:
    held, _ = await held_by_mini(world)
    async with aiohttp.ClientSession() as session:
        for token in ("", "Bearer x", f"Bearer tu1.book.{held.grant['upload']['token'].rpartition('.')[2]}"):
            url, headers = f"{held.grant['upload']['url']}/a.png", {"Authorization": token}
            async with session.put(url, data=b"x", headers=headers) as answer:
                assert answer.status == 401


async def test_it_can_delete_an_offer_and_the_reconciler_puts_it_back(world: World) -> None:
    thief = await world.puppet("book")
    made = await world.submit()
    await eventually(lambda: world.coordinator.dispatcher.offered > 0)
    seq = await world.offered_after(f"tandem.work.article.any.{made['id']}", 0)
    await thief.bus.publish(f"$JS.ACK.WORK.article--any.1.{seq}.1.1.0", b"+ACK")
    await thief.bus.flush()
    await world.coordinator.reconciler.once()
    assert await world.offered_after(f"tandem.work.article.any.{made['id']}", seq) > seq


async def test_it_reads_only_what_it_is_granted_and_each_grant_is_on_record(world: World) -> None:
    """It takes work, and so reads prompts: of the jobs that were granted to it, each with its name on it."""
    thief = await world.puppet("book")
    made = await world.submit(spec={"prompt": "A secret"})
    held = await thief.take()
    assert held.grant["job"]["spec"]["prompt"] == "A secret"
    rows = await world.pool.fetch("SELECT worker FROM attempt WHERE job_id = $1", held.job_id)
    assert [row["worker"] for row in rows] == ["book"]
    assert held.job_id == made["id"]
