"""Fault 5: an agent is restarted under the same worker id while it holds a lease.

What its spool has, the next process adopts: the same epoch, nothing generated again. What was only being generated is
gone, so the lease ends with the next process's first word and the job is taken again. Exactly one of the two. And a
process that was replaced, should it still live, can extend nothing.
"""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import pytest_asyncio

from agent.runner import How
from tests.support.agent_executor import StringExecutor
from tests.support.agent_processes import AgentProcess, agent_process
from tests.support.agent_program import KIND
from tests.support.agent_world import agent, settings_for
from tests.support.proxy import Proxy
from tests.support.puppet import Held, puppet
from tests.support.servers import eventually
from tests.support.world import World

LEASE = "SELECT state, epoch, worker, lease_expires_at, attempt, lease_losses, silences FROM job"


@pytest_asyncio.fixture(loop_scope="session")
async def uplink(world: World) -> AsyncIterator[Proxy]:
    """The agents' way to the HTTP side."""
    port = urlsplit(world.coordinator.url).port
    assert port is not None
    async with Proxy("127.0.0.1", port) as proxy:
        world.coordinator.claims.upload_url = f"http://127.0.0.1:{proxy.port}"
        yield proxy


@pytest.mark.fault(5)
async def test_a_job_that_died_with_its_process_is_taken_again_at_once(world: World, tmp_path: Path) -> None:
    done = tmp_path / "done"
    async with agent_process(world, "macbook", tmp_path) as macbook:
        job = await world.submit(KIND, spec={"do": "wait", "until": str(done)})
        await macbook.began(job["id"])

        await macbook.killed()
        await macbook.restarted(world)
        await eventually(lambda: len(macbook.starts) == 2)
        done.touch()

        seen = await world.until(job["id"], "completed")
        assert [start.epoch for start in macbook.starts] == [1, 2]
    assert [attempt["outcome"] for attempt in seen["attempts"]] == ["lease_expired", "completed"]
    assert (seen["attempt"], seen["lease_losses"], seen["result_epoch"]) == (0, 1, 2)


@pytest.mark.fault(5)
async def test_a_result_that_was_spooled_is_adopted_and_nothing_runs_again(
    world: World, tmp_path: Path, uplink: Proxy
) -> None:
    uplink.refuse()
    async with agent_process(world, "macbook", tmp_path) as macbook:
        job = await _spooled(world, macbook)
        await macbook.killed()
        await macbook.restarted(world)
        assert (await world.job(job))["state"] == "processing"

        uplink.refuse(refusing=False)

        seen = await world.until(job, "completed")
        await eventually(lambda: not macbook.spooled)
        assert [start.epoch for start in macbook.starts] == [1]
    await _has_one_attempt(world, job)
    assert (seen["attempt"], seen["lease_losses"]) == (0, 0)


@pytest.mark.fault(5)
async def test_a_replaced_process_that_wakes_up_delivers_nothing(world: World, tmp_path: Path) -> None:
    done = tmp_path / "done"
    async with agent_process(world, "macbook", tmp_path / "old") as old:
        job = await world.submit(KIND, spec={"do": "wait", "until": str(done)})
        await old.began(job["id"])
        await old.frozen()
        async with agent_process(world, "macbook", tmp_path / "new") as new:
            await new.began(job["id"])
            lease_end = await _lease_end(world, job["id"])

            old.thaw()
            await eventually(lambda: '"how": "lost"' in old.log.read_text() or '"how":"lost"' in old.log.read_text())

            assert await _lease_end(world, job["id"]) == lease_end
            done.touch()
            seen = await world.until(job["id"], "completed")
            assert ([s.epoch for s in old.starts], [s.epoch for s in new.starts]) == ([1], [2])
    assert (seen["result_epoch"], seen["result"]) == (2, {"text": f"by {new.starts[0].pid}"})
    assert await world.pool.fetchval("SELECT count(*) FROM rejected_result") == 0  # it did not even try


@pytest.mark.fault(5)
async def test_two_processes_with_one_spooled_result_deliver_it_once(
    world: World, tmp_path: Path, uplink: Proxy
) -> None:
    uplink.refuse()
    async with agent_process(world, "macbook", tmp_path / "old") as old:
        job = await _spooled(world, old)
        await old.frozen()
        (tmp_path / "new").mkdir()
        shutil.copytree(old.data, tmp_path / "new" / "macbook")
        async with agent_process(world, "macbook", tmp_path / "new") as new:
            old.thaw()
            uplink.refuse(refusing=False)
            await world.until(job, "completed")
            await eventually(lambda: not new.spooled and not old.spooled)
            assert (len(old.starts), new.starts) == (1, [])
    await _has_one_attempt(world, job)


@pytest.mark.fault(5)
@pytest.mark.parametrize("adopted", [True, False], ids=["adopted", "given-up"])
async def test_the_old_process_can_extend_nothing(world: World, *, adopted: bool) -> None:
    async with puppet(world.servers, "macbook") as old, puppet(world.servers, "macbook") as new:
        await old.announce()
        job = await world.submit()
        held = await old.take()
        await _beat(held, old.instance)
        await eventually(lambda: world.coordinator.heartbeats.taken == 1)
        await new.announce(busy=[(job["id"], 1)] if adopted else [])
        await world.move_clock(20)
        before = await world.pool.fetchrow(LEASE)

        for times in range(1, 4):
            await _beat(held, old.instance)
            await eventually(lambda times=times: world.coordinator.heartbeats.lost == times)
        question = {"job_id": job["id"], "epoch": 1, "instance": old.instance}
        assert await old._ask("tandem.lease.macbook", question) == {"lease": "lost", "reason": "stale"}
        assert (await old.announce(busy=[(job["id"], 1)]))["error"]["code"] == "replaced"
        assert (await old.claim(held.offer, instance=old.instance))["verdict"] == "denied"

        assert await world.pool.fetchrow(LEASE) == before
        if adopted:
            assert (await new.ask(job["id"], 1))["lease"] == "held"
            await new.report(job["id"], 1)
        else:
            again = await new.take()
            assert again.epoch == 2
            await again.report()
    assert (await world.until(job["id"], "completed"))["result_epoch"] == (1 if adopted else 2)


@pytest.mark.fault(5)
async def test_what_the_old_process_is_told_does_not_stop_the_new_one(world: World, tmp_path: Path) -> None:
    strings = StringExecutor()
    async with (
        puppet(world.servers, "macbook") as old,  # it has the agent's identity, and hears the same
        agent(settings_for(world.servers, "macbook", tmp_path), strings) as new,
    ):
        job = await world.submit()
        generation = await strings.next()
        delivery = await world.pool.fetchval("SELECT delivery FROM attempt")
        headers = {"Tandem-Job": job["id"], "Tandem-Epoch": "1", "Tandem-Worker": "macbook"}
        await old.bus.publish(delivery, b"+WPI", headers={**headers, "Tandem-Instance": old.instance})
        await old.hears("revoke", job_id=job["id"], epoch=1, instance=old.instance)

        generation.finish()

        assert (await new.end()).how is How.COMPLETED
        assert not generation.cancelled.is_set()


async def _spooled(world: World, agent: AgentProcess) -> str:
    """Have it make a result that it can't deliver; return the job."""
    job = await world.submit(KIND, spec={"do": "finish", "file": True})
    await eventually(lambda: agent.spooled == [f"{job['id']}.1"])
    return str(job["id"])


async def _beat(held: Held, instance: str) -> None:
    await held.beat(**{"Tandem-Instance": instance})


async def _lease_end(world: World, job_id: str) -> object:
    return await world.pool.fetchval("SELECT lease_expires_at FROM job WHERE id = $1", UUID(job_id))


async def _has_one_attempt(world: World, job_id: str) -> None:
    seen = await world.job(job_id)
    assert [(a["epoch"], a["outcome"]) for a in seen["attempts"]] == [(1, "completed")]
    assert [artifact["name"] for artifact in seen["artifacts"]] == ["a.txt"]
    assert await world.pool.fetchval("SELECT count(*) FROM artifact") == 1
