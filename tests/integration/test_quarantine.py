"""A worker that fails again and again where others succeed is set aside in that lane, and comes back."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator import cli_show_operations
from coordinator.ledger.queries import Queries
from coordinator.workers import Directory
from shared.client import Client
from shared.subjects import lane_of
from tests.support.puppet import Puppet
from tests.support.servers import own_servers
from tests.support.world import World
from tests.support.world import world as open_world

LANE = "article.any"
FIRST_PAUSE_S = 60.0


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


async def succeed(world: World, puppet: Puppet) -> None:
    await world.submit()
    held = await puppet.take()
    await held.report()
    await held.verdict("accepted")


async def fail(world: World, puppet: Puppet, times: int, *, code: str = "broken", model: str | None = None) -> None:
    """Let a worker fail jobs, each of which is then called off, so that the queue is empty again."""
    for _ in range(times):
        job = await world.submit(model=model)
        await (await puppet.take(lane_of("article", model))).fail("transient", code)
        await world.act(job["id"], "cancel")
    await world.coordinator.directory.once()


async def aside(world: World, worker: str = "mini") -> list[dict[str, Any]]:
    """Return what /v1/workers says after the workers were looked at anew."""
    await world.coordinator.directory.once()
    async with world.http.get("/v1/workers") as answer:
        [shown] = [one for one in (await answer.json())["workers"] if one["name"] == worker]
    return shown["aside"]


async def broken_mini(world: World, **announcement: Any) -> tuple[Puppet, Puppet]:
    """Return mini, which has just failed three times, and book, which has succeeded."""
    mini, book = await world.puppet("mini", **announcement), await world.puppet("book")
    await succeed(world, book)
    await fail(world, mini, 3)
    return mini, book


async def test_a_worker_that_fails_where_others_succeed_gets_nothing_from_that_lane(world: World) -> None:
    mini, book = await broken_mini(world)
    await world.submit()

    answer = await mini.claim(await mini.pull())

    assert (answer["verdict"], answer["reason"], answer["retry_in_s"]) == ("denied", "elsewhere", 2.0)
    assert (await book.take()).epoch == 1
    assert world.coordinator.directory.free_slots(LANE) == 1, "mini's slot is not counted"
    assert world.coordinator.directory.capable(LANE) == {"mini", "book"}, (
        "it comes back: no job must fail for want of it"
    )


async def test_it_is_told_of_that_lane_no_more_and_of_others_still(world: World) -> None:
    mini, _ = await broken_mini(world)

    lanes = (await mini.announce(kinds=("article", "image")))["lanes"]

    assert [lane["consumer"] for lane in lanes] == ["image--any"]


async def test_who_is_set_aside_is_shown_with_the_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await broken_mini(world)

    [shown] = await aside(world)

    assert (shown["lane"], shown["failures"], shown["code"]) == (LANE, 3, "broken")
    assert "3 failures in a row in article.any, while others succeeded; last broken: it broke" in shown["reason"]
    assert 0 < shown["back_in_s"] <= FIRST_PAUSE_S
    async with world.http.get("/") as page:
        assert "3 failures in a row in article.any" in await page.text()
    async with Client(world.coordinator.url) as client:
        cli_show_operations.workers(await client.workers())
    printed = capsys.readouterr().out
    assert "blocked, set aside" in printed
    assert f"set aside: mini ({shown['reason'].partition(';')[0]}" in printed
    assert world.coordinator.status()["counts"]["set_aside"] == 1


async def test_nobody_is_set_aside_where_nobody_succeeds(world: World) -> None:
    mini = await world.puppet("mini")
    await world.puppet("book")
    await fail(world, mini, 4)
    assert await aside(world) == []


async def test_two_failures_are_not_enough(world: World) -> None:
    mini, book = await world.puppet("mini"), await world.puppet("book")
    await succeed(world, book)
    await fail(world, mini, 2)
    assert await aside(world) == []


async def test_answers_without_content_need_no_comparison(world: World) -> None:
    mini = await world.puppet("mini")
    await fail(world, mini, 3, code="empty")
    [shown] = await aside(world)
    assert "answers without content" in shown["reason"]


async def test_it_comes_back_after_a_pause_and_for_longer_with_each_failure(world: World) -> None:
    mini, book = await broken_mini(world)
    pauses = []
    for _ in range(3):
        [shown] = await aside(world)
        pauses.append(round(shown["back_in_s"] + shown["since_s"]))
        await world.move_clock(shown["back_in_s"] + 0.5)
        await book.announce()
        await mini.announce()
        assert await aside(world) == []
        await fail(world, mini, 1)
    assert pauses == [60, 120, 240]

    await world.move_clock(480)
    await mini.announce()
    await book.announce()
    await world.coordinator.directory.once()
    await succeed(world, mini)
    await fail(world, mini, 2)
    assert await aside(world) == [], "a success ended the row"


async def test_one_that_probes_comes_back_only_after_a_good_probe(world: World) -> None:
    old, never, good = ({"probes": {"puppet": seconds}} for seconds in (500.0, None, 3.0))
    mini, book = await broken_mini(world, facts=old)
    await world.move_clock(FIRST_PAUSE_S + 10)
    await book.announce()
    for facts in (old, never):
        await mini.announce(facts=facts)
        [shown] = await aside(world)
        assert (shown["back_in_s"], "waits for a good probe" in shown["reason"]) == (0, True)

    await mini.announce(facts=good)

    assert await aside(world) == []


async def test_a_good_probe_does_not_shorten_the_pause(world: World) -> None:
    mini, _ = await broken_mini(world)
    await mini.announce(facts={"probes": {"puppet": 0.0}})
    assert await aside(world)


async def test_the_only_one_that_can_comes_back_without_a_probe(world: World) -> None:
    mini, book = await broken_mini(world, facts={"probes": {"puppet": None}})
    await world.move_clock(FIRST_PAUSE_S + 10)
    await mini.announce(facts={"probes": {"puppet": None}})
    await book.announce()
    assert await aside(world), "book is there"

    await book.announce(state="unhealthy")

    assert await aside(world) == []
    await world.submit()
    assert (await mini.take()).epoch == 1


async def test_show_says_who_is_set_aside_from_the_lane_of_a_job_that_waits(world: World) -> None:
    mini, book = await broken_mini(world)
    await book.announce(state="paused")
    await mini.announce()
    why = (await world.submit())["why"]
    assert why[0].startswith("set aside: mini (3 failures in a row in article.any")
    assert why[1:] == ["waits: no present worker serves article.any; known: book (paused), mini (set aside)"]


async def test_an_operators_resume_lets_it_back_at_once(world: World) -> None:
    mini, _ = await broken_mini(world)
    async with world.http.post("/v1/workers/mini/resume") as answer:
        assert answer.status == 200
    await world.submit()
    assert (await mini.take()).epoch == 1
    assert await aside(world) == []


async def test_every_coordinator_says_the_same_and_a_restart_forgets_nothing(world: World) -> None:
    mini, _ = await broken_mini(world)
    other = Directory(Queries(world.pool), world.settings.presence_s, world.settings.quarantine())
    await other.once()
    assert other.is_aside("mini", LANE)
    assert not other.is_aside("book", LANE)

    await world.stop_coordinator()
    await world.start_coordinator()

    await world.reconnected(mini)
    await world.submit()
    assert (await mini.claim(await mini.pull()))["reason"] == "elsewhere"


async def test_a_job_with_a_choice_of_models_goes_round_who_is_set_aside(world: World) -> None:
    mini = await world.puppet("mini", models=("big",))
    await world.puppet("book", models=("small",))
    assert (await world.submit(models=["big", "small"], run_after="2099-01-01T00:00:00Z"))["model"] == "big"
    await fail(world, mini, 3, code="empty", model="big")
    assert (await world.submit(models=["big", "small"]))["model"] == "small"


async def test_a_lease_that_it_holds_already_is_not_touched(world: World) -> None:
    mini, book = await world.puppet("mini", slots=2), await world.puppet("book")
    await succeed(world, book)
    job = await world.submit()
    held = await mini.take()
    await fail(world, mini, 3)
    assert await aside(world)

    again = await mini.claim(held.offer)

    assert (again["verdict"], again["epoch"]) == ("granted", held.epoch), "the reply was lost; the grant stands"
    await held.report()
    await held.verdict("accepted")
    assert (await world.job(job["id"]))["state"] == "completed"
    assert await aside(world) == [], "and its result ends the row"
