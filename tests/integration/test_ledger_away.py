"""Postgres goes away under a running coordinator: HTTP says so honestly, leases survive, everything goes on after."""

from pathlib import Path

import orjson
import pytest

from shared.errors import LedgerDownError
from tests.support.servers import own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world


async def test_submissions_are_queued_and_leases_kept_while_postgres_is_away(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path) as world:
            mini = await world.puppet("mini")
            running = await world.submit()
            held = await mini.take()
            await servers.postgres.kill()

            body = {"kind": "article", "spec": {"prompt": "while away"}, "key": "away"}
            async with world.http.post("/v1/jobs", json=body) as answer:
                assert answer.status == 202, await answer.text()
                queued = await answer.json()
            await eventually_async(lambda: _readiness(world, 503))
            await held.report()

            await servers.postgres.start()
            await held.verdict("accepted")
            await eventually_async(lambda: _readiness(world, 200))
            again = await mini.take()

            assert (await world.job(running["id"]))["state"] == "completed"
            assert again.job_id == queued["id"]


async def test_leases_get_grace_after_the_ledger_was_away(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path) as world:
            mini = await world.puppet("mini")
            job = await world.submit()
            await mini.take()
            await servers.postgres.kill()
            with pytest.raises(LedgerDownError):
                await world.coordinator.reaper.once()
            await servers.postgres.start()
            await eventually_async(lambda: _answers(world, job["id"]))

            await world.move_clock(91)  # as long as nobody could write a beat
            await world.coordinator.reaper.once()

            assert (await world.job(job["id"]))["state"] == "processing"


async def _answers(world: World, job_id: str) -> bool:
    async with world.http.get(f"/v1/jobs/{job_id}") as answer:
        return answer.status == 200


async def _readiness(world: World, status: int) -> bool:
    async with world.http.get("/readyz") as answer:
        return answer.status == status


async def test_nothing_is_taken_when_neither_postgres_nor_nats_is_there(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path) as world:
            await servers.postgres.kill()
            await servers.nats.kill()

            async with world.http.post(
                "/v1/jobs", data=orjson.dumps({"kind": "article", "spec": {"prompt": "x"}})
            ) as a:
                assert a.status == 503
                assert (await a.json())["error"]["message"]
