"""Each command that looks at or acts on a running coordinator: for people, as JSON, and where it does not apply."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from aiohttp import web

from tests.callbacks.publishing import made, publishing, until
from tests.metrics.conftest import said
from tests.support.processes import tandem
from tests.support.served import served
from tests.support.servers import own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

__all__ = ["said"]

NEVER = "01970000-0000-7000-8000-000000000000"


@pytest_asyncio.fixture(loop_scope="session")
async def world(said: io.StringIO, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    options = {"log_file": tmp_path / "logs" / "coordinator.jsonl", "callback_allow": frozenset({"127.0.0.0/8"})}
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, **options) as opened:
        yield opened


async def run(world: World, *arguments: str, expect: int = 0) -> str:
    status, out, error = await tandem(*arguments, TANDEM_URL=world.coordinator.url)
    assert status == expect, error or out
    assert "Traceback" not in error
    assert not expect or error.startswith("tandem: ")
    return out


async def read(world: World, *arguments: str) -> Any:
    return json.loads(await run(world, *arguments, "--json"))


async def test_status_says_how_the_coordinator_is(world: World) -> None:
    await world.puppet("mini")
    await world.submit("image")

    shown = await run(world, "status")
    assert shown.startswith("ready")
    assert "mini" in shown
    assert "1 pending" in shown
    assert "image.any" in shown
    assert (await read(world, "status"))["ready"] is True


async def test_a_late_result_is_listed_with_how_late_it_was(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await world.pass_time(91)
    macbook = await world.puppet("macbook")
    await macbook.take()
    await world.move_clock(41)
    await held.report()
    await held.verdict("stale")
    await world.submit(expect=422, nonsense=1)

    (late,) = (await read(world, "rejected"))["results"]
    shown = await run(world, "rejected")

    assert (late["job_id"], late["epoch"], late["current_epoch"], late["worker"]) == (job["id"], 1, 2, "mini")
    assert 41 <= late["late_s"] < 90
    assert job["id"] in shown
    assert "stale" in shown


async def test_each_filter_of_the_list_narrows_it(world: World) -> None:
    mini = await world.puppet("mini")
    done = await world.submit(key="harbour-1", labels={"post": "812"}, model="m1")
    await (await mini.take("article.m1")).report()
    await world.until(done["id"], "completed")
    other = await world.submit("image", key="boat-1")

    async def listed(*flags: str) -> list[str]:
        return [job["id"] for job in await read(world, "jobs", *flags)]

    assert await listed() == [other["id"], done["id"]]
    for flags in (
        *(("--state", "completed"), ("--kind", "article"), ("--model", "m1"), ("--worker", "mini")),
        *(("--label", "post=812"), ("--text", "harbour"), ("--text", done["id"][:9])),
    ):
        assert await listed(*flags) == [done["id"]], flags
    assert await listed("--limit", "1") == [other["id"]]
    assert done["id"] in await run(world, "jobs", "--state", "completed")
    for flags in (("--state", "done"), ("--limit", "0"), ("--label", "x")):
        status, _, error = await tandem("jobs", *flags, TANDEM_URL=world.coordinator.url)
        assert (status, "Traceback" in error) == (2, False)


async def test_results_are_approved_and_rejected(world: World) -> None:
    mini = await world.puppet("mini")
    jobs = [str((await world.submit(review=True))["id"]) for _ in range(3)]
    for _ in jobs:
        await (await mini.take()).report()
    for job_id in jobs:
        await world.until(job_id, "awaiting_review")

    assert await run(world, "approve", jobs[0], "--note", "good") == f"{jobs[0]} completed\n"
    assert (await read(world, "reject", jobs[1]))["state"] in ("canceled", "failed")
    assert await run(world, "reject", jobs[2], "--again") == f"{jobs[2]} pending\n"
    await run(world, "approve", jobs[0], expect=1)
    await run(world, "reject", NEVER, expect=1)
    assert [one["note"] for one in (await read(world, "show", jobs[0]))["actions"]] == ["good"]


async def test_priority_moves_what_waits(world: World) -> None:
    first, second = [str((await world.submit())["id"]) for _ in range(2)]
    assert (await read(world, "priority", second, "high"))["priority"] == "high"
    assert await run(world, "priority", first, "low") == f"{first} pending\n"
    await run(world, "cancel", first)
    await run(world, "priority", first, "low", expect=1)
    status, _, _ = await tandem("priority", first, "urgent-ish", TANDEM_URL=world.coordinator.url)
    assert status == 2


async def test_workers_are_told_and_say_why_they_get_nothing(world: World) -> None:
    mini = await world.puppet("mini")
    assert await run(world, "drain", "mini") == "mini: draining\n"
    assert (await mini.hears("drain"))["type"] == "drain"
    assert await read(world, "pause", "mini") == {"worker": "mini", "order": "pause"}
    await mini.announce(state="paused")
    shown = await run(world, "workers")
    assert "paused" in shown
    assert "gets nothing: mini (told to be paused)" in shown
    assert await run(world, "resume", "mini") == "mini: ready\n"
    for order in ("drain", "pause", "resume"):
        await run(world, order, "nobody", expect=1)


async def test_a_worker_that_takes_nothing_by_its_rules_is_blocked_as_on_the_pages(world: World) -> None:
    mini = await world.puppet("mini")
    assert " ready " in await run(world, "workers")
    await mini.announce(facts={"not_pulling": "it is mon 12:00", "forbidden": ["it is mon 12:00"]})
    shown = await run(world, "workers")
    assert " blocked " in shown
    assert " ready " not in shown


async def test_lanes_are_paused_and_resumed(world: World) -> None:
    await world.submit()
    assert await run(world, "lanes", "pause", "article.any") == "article.any: paused\n"
    assert [(lane["paused"], lane["why"]) for lane in await read(world, "lanes")] == [(True, "the lane is paused")]
    assert "paused" in await run(world, "lanes")
    assert await read(world, "lanes", "resume", "article.any") == {"lane": "article.any", "paused": False}
    await run(world, "lanes", "pause", "no.lane", expect=1)


async def test_logs_are_followed_until_the_job_is_settled(world: World) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    following = asyncio.create_task(run(world, "logs", job["id"], "--follow"))
    held = await mini.take()
    await held.report()
    shown = await asyncio.wait_for(following, 60)

    begun = [shown.index(event) for event in ("job admitted", "claim granted", "attempt ended")]
    assert begun == sorted(begun)
    assert shown.count("job admitted") == 1
    status, out, error = await tandem("logs", NEVER, TANDEM_URL=world.coordinator.url)
    assert (status, out, error) == (1, "", f"tandem: no job {NEVER}\n")


async def test_a_callback_that_was_given_up_is_sent_again(world: World) -> None:
    told: list[Any] = []

    async def gone(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.Response(status=410 if len(told) == 1 else 204)

    async with served(gone) as url:
        mini = await world.puppet("mini")
        job = await world.submit(callback_url=url + "/hook")
        await (await mini.take()).report()
        await eventually_async(lambda: read_undelivered(world))

        assert "410" in await run(world, "callbacks")
        assert [one["job_id"] for one in await read(world, "callbacks")] == [job["id"]]
        assert await run(world, "callbacks", "--again", job["id"]) == f"{job['id']} is told again\n"
        await eventually_async(lambda: is_delivered(world, job["id"]))
    assert await read(world, "callbacks") == []
    assert "delivered" in await run(world, "show", job["id"])
    silent = await world.submit()
    await run(world, "callbacks", "--again", silent["id"], expect=1)


async def read_undelivered(world: World) -> bool:
    async with world.http.get("/v1/callbacks") as answer:
        return bool((await answer.json())["undelivered"])


async def is_delivered(world: World, job_id: str) -> bool:
    return any(one["delivered_at"] for one in (await world.job(job_id))["callbacks"])


async def test_what_is_not_published_is_listed_and_done_again(ledger_dsn: str, tmp_path: Path) -> None:
    async with publishing(ledger_dsn, tmp_path) as (world, site):
        assert await run(world, "publications") == "everything is published\n"
        password = site.users["tandem"].password
        site.users["tandem"].password = "another"
        post = site.draft()
        job_id = await made(world, post)
        await eventually_async(lambda: is_paused(world))

        found = await read(world, "publications")
        assert [one["job_id"] for one in found["unpublished"]] == [job_id]
        assert [one["source"] for one in found["paused"]] == ["local"]
        shown = await run(world, "publications")
        assert job_id in shown
        assert "the site of local" in shown
        site.users["tandem"].password = password
        assert await read(world, "publications", "--check", "local") == {"source": "local", "order": "check"}
        await until(world, job_id)

        assert str(post) in await run(world, "show", job_id)
        assert await run(world, "publications", "--again", job_id) == f"{job_id} is published again\n"
        await run(world, "publications", "--check", "local", expect=1)
        await run(world, "publications", "--again", NEVER, expect=1)
        await run(world, "publications", "--again", job_id, "--check", "local", expect=2)


async def is_paused(world: World) -> bool:
    async with world.http.get("/v1/publications") as answer:
        return bool((await answer.json())["paused"])


async def test_a_worker_is_told_its_rules_one_by_one_and_takes_its_own_again(world: World) -> None:
    mini = await world.puppet("mini", facts={"rules": {"on_mains": True, "by": "settings"}})
    assert (await run(world, "workers", "rules", "mini")).splitlines() == [
        "told:    its own settings count",
        "follows: on mains only",
    ]
    changes = ("--set", "hours=mon-fri 22:00-07:00; sat,sun", "--set", "idle_s=600", "--set", "on_mains=")
    told = await read(world, "workers", "rules", "mini", *changes)
    assert told["rules"] == {"hours": ["mon-fri 22:00-07:00", "sat,sun"], "idle_s": 600.0}
    await run(world, "workers", "rules", "mini", "--set", "idle_s=", "--set", "stops=hours,idle_s")
    answer = await mini.announce(facts={"rules_fault": "rules.hours: unknown", "forbidden": ["it is mon 12:00"]})
    assert answer["rules"] == {"hours": ["mon-fri 22:00-07:00", "sat,sun"], "stops": ["hours", "idle_s"]}
    assert (await run(world, "workers", "rules", "mini")).splitlines() == [
        "told:    mon-fri 22:00-07:00; sat,sun; gives running jobs back: hours, idle_s",
        "follows: whenever it runs (not yet what it was told)",
        "can't follow what it was told: rules.hours: unknown",
        "takes nothing now: it is mon 12:00",
    ]
    for wrong in ("battery_above=many", "moon=full", "idle_s"):
        await run(world, "workers", "rules", "mini", "--set", wrong, expect=2)
    await run(world, "workers", "rules", "mini", "--set", "idle_s=1", "--clear", expect=2)
    await run(world, "workers", "rules", "nobody", "--clear", expect=1)
    assert (await read(world, "workers", "rules", "mini", "--clear"))["rules"] is None
    assert "rules" not in await mini.announce()
