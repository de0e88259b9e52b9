"""Postgres and NATS go away: an event is stored in SUBMIT, or its sender is told to send it again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hooks.senders import SOURCES, body_of, standard
from tests.support.proxy import Proxy, proxied
from tests.support.servers import TandemServers, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world


async def fire(world: World) -> tuple[int, Any, str]:
    body = body_of("standard")
    async with world.http.post("/hooks/standard", data=body, headers=standard(body)) as answer:
        return answer.status, await answer.json(), answer.headers.get("Retry-After", "")


async def taken(world: World) -> list[dict[str, Any]]:
    """Fire until it is taken, as a sender does that is told to come back: a slow machine may not answer in time."""
    jobs: list[dict[str, Any]] = []

    async def look() -> bool:
        status, told, _ = await fire(world)
        jobs[:] = told.get("jobs", [])
        assert status in (200, 202, 503)
        return bool(jobs)

    await eventually_async(look, within_s=60)
    return jobs


def sources_in(folder: Path) -> Path:
    file = folder / "sources.toml"
    file.write_text(next(text for text in SOURCES.split("\n\n") if "[sources.standard]" in text))
    return file


async def test_an_event_is_stored_while_the_ledger_is_away_and_becomes_the_same_jobs(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path, sources_file=sources_in(tmp_path)) as world:
            await servers.postgres.kill()
            stored, again = await taken(world), await taken(world)

            assert {job["result"] for job in stored} == {"queued"}
            ids = [job["id"] for job in stored]
            assert [job["id"] for job in again] == ids

            await servers.postgres.start()
            for job_id in ids:
                await eventually_async(lambda job_id=job_id: _pending(world, job_id))
            assert {job["result"] for job in await taken(world)} == {"same"}
            async with world.http.get("/status") as answer:
                counted = (await answer.json())["health"]["hooks"]["standard"]
            assert counted["taken"] >= 3  # one that was told to come back may be among them
            assert (counted["refused"], counted["unauthorized"]) == (0, 0)


async def test_an_event_is_taken_while_nats_is_away(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path, sources_file=sources_in(tmp_path)) as world:
            await servers.nats.kill()

            assert {job["result"] for job in await taken(world)} <= {"created", "same"}


async def test_without_ledger_and_nats_the_sender_is_told_to_come_back(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path, sources_file=sources_in(tmp_path)) as world:
            await servers.postgres.kill()
            await servers.nats.kill()

            status, told, retry_after = await fire(world)
            assert status == 503
            assert told["error"]["code"] in {"ledger_down", "busy"}
            assert int(retry_after) > 0

            await servers.postgres.start()
            await servers.nats.start()

            assert len(await taken(world)) == 2


@asynccontextmanager
async def behind_a_link(folder: Path) -> AsyncIterator[tuple[World, Proxy, TandemServers]]:
    """Run a world whose link to Postgres can be cut so that nobody is told."""
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with (
            proxied(servers.postgres.dsn) as (proxy, dsn),
            open_world(servers, dsn, folder, sources_file=sources_in(folder)) as world,
        ):
            yield world, proxy, servers


async def there(world: World) -> list[dict[str, Any]]:
    """Return the jobs once there are two: a statement without answer is given up after 10 s."""
    jobs: list[dict[str, Any]] = []

    async def look() -> bool:
        async with world.http.get("/v1/jobs") as answer:
            jobs[:] = (await answer.json())["jobs"] if answer.status == 200 else []
        return len(jobs) == 2

    await eventually_async(look, within_s=90)
    return jobs


async def test_an_event_is_stored_while_the_ledger_hangs(tmp_path: Path) -> None:
    async with behind_a_link(tmp_path) as (world, proxy, _):
        proxy.black_hole()
        status, told, _ = await fire(world)
        assert status == 202
        assert [job["result"] for job in told["jobs"]] == ["queued", "queued"]
        stored = await world.coordinator.bus.api("STREAM.INFO.SUBMIT")
        assert stored["state"]["messages"] == 2
        proxy.heal()

        assert {job["id"] for job in await there(world)} == {job["id"] for job in told["jobs"]}
        assert {job["result"] for job in await taken(world)} == {"same"}


async def test_an_event_whose_answer_was_due_before_the_ledger_answered_is_taken_all_the_same(tmp_path: Path) -> None:
    async with behind_a_link(tmp_path) as (world, proxy, servers):
        await servers.nats.kill()
        proxy.black_hole()
        status, told, _ = await fire(world)
        assert (status, told["error"]["code"]) == (503, "busy")
        proxy.heal()
        await servers.nats.start()

        assert {job["source"] for job in await there(world)} == {"standard"}


async def _pending(world: World, job_id: str) -> bool:
    async with world.http.get(f"/v1/jobs/{job_id}") as answer:
        return answer.status == 200 and (await answer.json())["state"] == "pending"
