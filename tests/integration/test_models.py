"""A job may name several models: it goes to the first that somebody offers, and moves on when nobody takes it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator import cli_show
from coordinator.placement import Standing
from shared import subjects
from shared.client import JobView
from shared.errors import LedgerDownError
from tests.support.servers import own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

BIG, SMALL, OTHER = "llama3.1:70b", "llama3.1:8b", "phi4"
BOTH = [BIG, SMALL]
AWAY_S = 40.0


def lane(model: str) -> str:
    return subjects.lane_of("article", model)


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


async def moved(world: World, job: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the job once it has this model."""
    found: dict[str, Any] = {}

    async def look() -> bool:
        await world.coordinator.directory.once()
        found.update(await world.job(job["id"]))
        return found["model"] == model

    await eventually_async(look)
    return found


async def test_it_goes_to_the_first_model_that_somebody_ready_offers(world: World) -> None:
    await world.puppet("studio", models=(BIG,), state="unhealthy")
    mini = await world.puppet("mini", models=(SMALL,))

    job = await world.submit(models=[OTHER, BIG, SMALL])

    assert (job["model"], job["lane"], job["models"]) == (SMALL, lane(SMALL), [OTHER, BIG, SMALL])
    held = await mini.take(lane(SMALL))
    assert held.grant["job"]["model"] == SMALL
    await held.report(model=SMALL)
    assert (await world.until(job["id"], "completed"))["used_model"] == SMALL


async def test_the_first_in_order_wins_among_those_that_are_offered(world: World) -> None:
    await world.puppet("mini", models=(SMALL, BIG))
    assert (await world.submit(models=BOTH))["model"] == BIG
    assert (await world.submit(models=BOTH[::-1]))["model"] == SMALL


async def test_where_nobody_is_ready_it_waits_for_one_who_is_known_else_for_the_first(world: World) -> None:
    assert (await world.submit(models=BOTH))["model"] == BIG
    await world.puppet("mini", models=(SMALL,), state="draining")
    assert (await world.submit(models=BOTH))["model"] == SMALL


async def test_one_that_waits_for_a_worker_who_is_away_moves_to_one_who_is_there(world: World) -> None:
    await world.puppet("studio", models=(BIG,))
    job = await world.submit(models=BOTH)
    assert (job["model"], job["offered_at"] is not None) == (BIG, True)
    await world.move_clock(AWAY_S)

    mini = await world.puppet("mini", models=(SMALL,))

    held = await mini.take(lane(SMALL))
    assert (held.job_id, held.grant["job"]["model"]) == (job["id"], SMALL)
    async with world.http.get("/v1/lanes") as answer:
        assert [one["name"] for one in (await answer.json())["lanes"]] == [lane(BIG), lane(SMALL)]


async def test_after_the_coordinator_was_away_nobodys_silence_moves_a_job(world: World) -> None:
    """Who comes back first does not get what the others could not yet say that they are there for."""
    await world.puppet("studio", models=(BIG,))
    job = await world.submit(models=BOTH)
    await world.stop_coordinator()
    await world.move_clock(AWAY_S)
    await world.start_coordinator()
    await world.puppet("mini", models=(SMALL,))
    await world.coordinator.directory.once()
    await world.coordinator.placement.once()
    assert (await world.job(job["id"]))["model"] == BIG
    assert (await world.submit(models=BOTH))["model"] == BIG
    await world.move_clock(2 * AWAY_S)
    await world.puppet("book", models=(SMALL,))
    await moved(world, job, SMALL)


async def test_after_postgres_was_away_nobodys_silence_moves_a_job(tmp_path: Path) -> None:
    """No presence was written down meanwhile."""
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path) as world:
            directory = world.coordinator.directory
            await world.puppet("studio", models=(BIG,))
            job = await world.submit(models=BOTH)
            await world.move_clock(AWAY_S)
            await directory.once()
            assert directory.standing(lane(BIG)) is Standing.KNOWN
            await servers.postgres.kill()
            with pytest.raises(LedgerDownError):
                await directory.once()
            assert directory.standing(lane(BIG)) is Standing.PRESENT, "nobody is heard now"
            await servers.postgres.start()

            async def answers() -> bool:
                async with world.http.get(f"/v1/jobs/{job['id']}") as answer:
                    return answer.status == 200

            await eventually_async(answers)
            await world.puppet("mini", models=(SMALL,))
            await directory.once()
            await world.coordinator.placement.once()
            assert (await world.job(job["id"]))["model"] == BIG
            await world.move_clock(2 * AWAY_S)
            await world.puppet("book", models=(SMALL,))
            await moved(world, job, SMALL)


async def test_its_old_offer_is_gone_and_grants_nothing(world: World) -> None:
    studio = await world.puppet("studio", models=(BIG,))
    job = await world.submit(models=BOTH)
    swallowed = await studio.pull(lane(BIG))
    await world.move_clock(AWAY_S)
    await world.puppet("mini", models=(SMALL,))
    await moved(world, job, SMALL)

    answer = await studio.claim(swallowed)

    assert answer["verdict"] == "denied"
    assert await studio.try_pull(lane(BIG)) is None


@pytest.mark.parametrize("state", ["ready", "draining"])
async def test_one_that_can_expect_no_more_elsewhere_stays_where_it_is(world: World, state: str) -> None:
    await world.puppet("mini", models=(SMALL,), state=state)
    job = await world.submit(models=BOTH)
    await world.puppet("studio", models=(BIG,), state=state)
    await world.coordinator.dispatcher.once()
    await world.coordinator.placement.once()
    assert (await world.job(job["id"]))["model"] == SMALL
    assert world.coordinator.placement.moved == 0


async def test_what_a_worker_cant_do_it_is_asked_to_do_with_the_next_model(world: World) -> None:
    mini = await world.puppet("mini", models=(BIG, SMALL))
    job = await world.submit(models=BOTH)
    await (await mini.take(lane(BIG))).fail("elsewhere", "out_of_memory")

    held = await mini.take(lane(SMALL))

    assert (held.job_id, held.epoch, held.grant["attempt"]) == (job["id"], 2, 1)
    await held.fail("elsewhere", "out_of_memory")
    seen = await world.until(job["id"], "failed")
    assert seen["epoch"] == 2, "it does not go round in circles"


async def test_a_retry_after_a_failure_waits_with_the_same_model(world: World) -> None:
    mini = await world.puppet("mini", models=(SMALL, BIG))
    job = await world.submit(models=BOTH)
    await (await mini.take(lane(BIG))).fail("transient")
    await world.coordinator.placement.once()
    await world.pass_time(13)
    await mini.announce(models=(SMALL, BIG))
    world.coordinator.dispatcher.wake()
    assert (await mini.take(lane(BIG))).job_id == job["id"]


async def test_the_same_submission_is_the_same_job_wherever_it_went(world: World) -> None:
    first = await world.submit(key="one", models=BOTH)
    await world.puppet("mini", models=(SMALL,))
    again = await world.submit(key="one", models=BOTH, expect=200)
    assert again["id"] == first["id"]
    await world.submit(key="one", models=BOTH[::-1], expect=409)


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        ({"model": SMALL, "models": [BIG]}, "", "give either model or models"),
        ({"models": []}, "models", "at least 1"),
        ({"models": [f"m{n}" for n in range(9)]}, "models", "at most 8"),
        ({"models": ["Phi 4", "phi-4"]}, "models", "named twice"),
        ({"models": ["any"]}, "models.0", "the name of the lane for jobs without a model"),
    ],
)
async def test_what_is_wrong_with_a_choice_is_said(
    world: World, asked: dict[str, Any], field: str, message: str
) -> None:
    refused = await world.submit(**asked, expect=422)
    [fault] = refused["error"]["faults"]
    assert fault["field"] == field
    assert message in fault["message"]


async def test_many_that_wait_are_looked_at_in_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.placement._MOST_A_ROUND", 2)
    stay = await asyncio.gather(*(world.submit(models=[BIG, OTHER]) for _ in range(5)))
    go = await world.submit(models=BOTH)
    mini = await world.puppet("mini", models=(SMALL,))
    assert (await mini.take(lane(SMALL))).job_id == go["id"]
    assert {(await world.job(job["id"]))["model"] for job in stay} == {BIG}


async def test_a_round_asks_once_of_each_lane_however_many_jobs_wait(world: World) -> None:
    """With 500 jobs a round and 200 workers it held up the whole coordinator for twelve seconds."""
    for _ in range(5):
        await world.submit(models=[BIG, OTHER])
    placement, asked = world.coordinator.placement, Counter[tuple[Any, ...]]()
    standing = placement.standing

    def counted(*what: Any) -> Standing:
        asked[what] += 1
        return standing(*what)

    placement.standing = counted
    before = await world.coordinator.queries.movable([lane(BIG)], None, 100)
    await placement.once()
    assert len(before) == 5
    assert asked[lane(OTHER),] == 1
    assert max(asked.values()) <= 2, "once for all jobs, and once to know which lanes to look at"


async def test_show_says_why_a_job_went_where_it_went(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    mini = await world.puppet("mini", models=(BIG, SMALL))
    book = await world.puppet("book", models=(BIG,))
    job = await world.submit(models=BOTH)
    await (await mini.take(lane(BIG))).fail("elsewhere", "out_of_memory")
    ready = "offered by one who is ready"
    *why, waits = (await world.job(job["id"]))["why"]
    assert why == [
        f"model: {BIG}; by preference, as things stand: {BIG} ({ready}), {SMALL} ({ready})",
        "epoch 1: mini, failed (out_of_memory; it can't)",
        "excluded: mini (out_of_memory)",
    ]
    assert waits in ("offered; free for it: book", "about to be offered; free for it: book")

    held = await book.take(lane(BIG))
    assert (await world.job(job["id"]))["why"][2:] == ["epoch 2: book, at it now", "excluded: mini (out_of_memory)"]
    await held.report(model=BIG)
    seen = await world.until(job["id"], "completed")
    assert seen["why"][2] == f"epoch 2: book with {BIG}, completed"
    cli_show.job(JobView.model_validate(seen))
    assert f"why\n{seen['why'][0]}\n" in capsys.readouterr().out


async def test_show_says_what_a_job_waits_for(world: World) -> None:
    none = await world.submit(model=OTHER)
    assert none["why"] == [f"waits: no present worker serves {lane(OTHER)}; known: none"]
    later = await world.submit(model=OTHER, run_after="2099-01-01T00:00:00Z")
    assert later["why"][0].startswith("waits: due in ")

    mini = await world.puppet("mini", models=(SMALL,))
    await world.puppet("book", models=(SMALL,), state="unhealthy")
    first = await world.submit(model=SMALL)
    held = await mini.take(lane(SMALL))
    await mini.announce(models=(SMALL,), busy=[(first["id"], held.epoch)])
    second = await world.submit(model=SMALL)
    assert second["why"] == ["waits: who may take it is busy: mini"]

    await world.move_clock(2 * 3600)
    await world.coordinator.directory.once()
    assert (await world.job(second["id"]))["why"] == [
        f"waits: no present worker serves {lane(SMALL)}; known: book (away 2 h), mini (away 2 h)"
    ]
    async with world.http.post(f"/v1/lanes/{lane(SMALL)}/pause") as answer:
        assert answer.status == 200
    await world.coordinator.dispatcher.once()
    assert (await world.job(second["id"]))["why"] == [f"waits: {lane(SMALL)} is paused"]


async def test_a_worker_whose_backend_is_down_is_waited_for(world: World) -> None:
    """It will run the job when the backend is back: another that can't is no reason to give the job up."""
    down = [{"kind": "article", "models": [BIG], "executor": "ollama"}]
    studio = await world.puppet("studio", models=(SMALL,), down=down)
    mini = await world.puppet("mini", models=(BIG,))
    job = await world.submit(model=BIG)
    lanes = (await studio.announce(models=(SMALL,), down=down))["lanes"]
    assert lane(BIG) not in {f"{one['kind']}.{one['slug']}" for one in lanes}
    await (await mini.take(lane(BIG))).fail("elsewhere", "out_of_memory")

    waiting = await world.job(job["id"])
    assert waiting["state"] == "pending"
    assert waiting["why"][-1].endswith(f"serves {lane(BIG)}; known: studio (backend down)")
    assert world.coordinator.directory.standing(lane(BIG)) is Standing.PRESENT  # by mini
    assert world.coordinator.directory.standing(lane(BIG), frozenset({"mini"})) is Standing.KNOWN

    await studio.announce(models=(SMALL, BIG))
    await (await studio.take(lane(BIG))).report()
    await world.until(job["id"], "completed")


async def test_a_kind_is_known_while_the_backend_of_its_only_worker_is_down(world: World) -> None:
    await world.puppet("mini", down=[{"kind": "outline", "models": ["*"], "executor": "command"}])
    assert (await world.submit("outline", spec={"topic": "harbours"}))["state"] == "pending"
