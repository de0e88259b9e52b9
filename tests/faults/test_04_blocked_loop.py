"""Fault 4: CPU work blocks an agent's event loop for twice the ttl, or for ever.

Executors run on the loop that beats, so a blocked loop beats no more. That is meant: an agent that can't hear a revoke
must not look alive. So the lease lapses, another agent takes the job over, and what the blocked one made is refused
when it wakes; if nobody took over meanwhile, it counts. A loop that never returns is ended by the watchdog, since
nothing else in that process can, and the job goes on elsewhere.
"""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent.executors.base import ProductFile
from agent.runner import How
from agent.watchdog import EXIT_HUNG
from tests.support.agent_executor import StringExecutor
from tests.support.agent_processes import LANE, agent_process
from tests.support.agent_program import KIND
from tests.support.agent_world import agent, settings_for
from tests.support.proxy import Proxy
from tests.support.servers import eventually
from tests.support.world import World

TWICE_THE_TTL_S = 180


@pytest.mark.fault(4)
async def test_another_takes_over_from_a_blocked_loop_and_its_result_is_refused(world: World, tmp_path: Path) -> None:
    free = tmp_path / "free"
    async with agent_process(world, "macbook", tmp_path) as macbook:
        job = await world.submit(KIND, spec={"do": "block", "until": str(free)})
        await macbook.began(job["id"])
        mini = await world.puppet("mini", kinds=(KIND,))
        await world.pass_time(TWICE_THE_TTL_S)
        held = await mini.take(LANE)
        assert (held.job_id, held.epoch) == (job["id"], 2)

        free.touch()
        later = await world.submit(KIND, spec={"do": "finish"})  # taken when the blocked one is done with the first
        await macbook.began(later["id"])
        await world.until(later["id"], "completed")

        assert (await held.ask())["lease"] == "held"
        await held.report(result={"text": "by the new holder"})
        await held.verdict("accepted")
        assert macbook.spooled == []
        assert [start.epoch for start in macbook.starts] == [1, 1]
    seen = await world.job(job["id"])
    assert (seen["state"], seen["result_epoch"], seen["result"]) == ("completed", 2, {"text": "by the new holder"})
    assert [attempt["outcome"] for attempt in seen["attempts"]] == ["lease_expired", "completed"]


@pytest.mark.fault(4)
async def test_a_result_counts_when_nobody_took_over_from_a_blocked_loop(world: World, tmp_path: Path) -> None:
    free = tmp_path / "free"
    async with agent_process(world, "macbook", tmp_path) as macbook:
        job = await world.submit(KIND, spec={"do": "block", "until": str(free)})
        await macbook.began(job["id"])
        await world.pass_time(TWICE_THE_TTL_S)
        assert (await world.job(job["id"]))["state"] == "pending"

        free.touch()

        seen = await world.until(job["id"], "completed")
    assert (seen["result_epoch"], seen["lease_losses"], len(seen["attempts"])) == (1, 0, 1)


@pytest.mark.fault(4)
async def test_an_agent_does_not_claim_anew_what_it_still_has(world: World, tmp_path: Path) -> None:
    """Its own lapsed job is offered to it as to anybody; a claim would throw its result away."""
    strings = StringExecutor()
    async with world.servers.open("agent:macbook"):
        pass  # the server knows the identity by now
    async with Proxy("127.0.0.1", port_of(world)) as uplink:
        world.coordinator.claims.upload_url = f"http://127.0.0.1:{uplink.port}"
        uplink.refuse()
        settings = settings_for(world.servers, "macbook", tmp_path, resend_s=(1.0,))
        async with agent(settings, strings) as macbook:
            job = await world.submit()
            generation = await strings.next()
            path = generation.job.workspace / "a.txt"
            path.write_text("words")
            generation.finish(files=[ProductFile(path=path, media_type="text/plain")])
            await eventually(lambda: uplink.accepted)
            await world.pass_time(TWICE_THE_TTL_S)

            assert (await macbook.end()).how is How.DENIED
            assert (await world.job(job["id"]))["state"] == "processing"
            uplink.refuse(refusing=False)

            end = await macbook.end()
            assert (end.how, end.epoch, strings.started) == (How.COMPLETED, 1, 1)


@pytest.mark.fault(4)
async def test_the_watchdog_ends_a_loop_that_never_returns_and_its_job_goes_on(world: World, tmp_path: Path) -> None:
    async with agent_process(world, "macbook", tmp_path, hang_s=10) as macbook:
        job = await world.submit(KIND, spec={"do": "block", "until": str(tmp_path / "never")})
        await macbook.began(job["id"])

        assert await macbook.ended() == EXIT_HUNG

        mini = await world.puppet("mini", kinds=(KIND,))
        await world.pass_time(TWICE_THE_TTL_S)
        held = await mini.take(LANE)
        assert (held.job_id, held.epoch) == (job["id"], 2)
        await held.report()
        await held.verdict("accepted")
    assert [start.epoch for start in macbook.starts] == [1]


def port_of(world: World) -> int:
    """Return where the coordinator's HTTP side listens."""
    port = urlsplit(world.coordinator.url).port
    assert port is not None
    return port
