"""When jobs will be done, from the ledger to the answers: what is read, how much of it, and a whole path."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from agent.executors.base import Transient
from agent.executors.ollama import OllamaExecutor
from coordinator.cli import app
from coordinator.forecast import ENOUGH, ENOUGH_FOR_PATIENCE, PATIENCE
from coordinator.ledger.database import sql
from coordinator.ledger.model import Offered
from shared.client import Client
from tests.support import comfyui_rig, fake_server, text_rig
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import agent, settings_for
from tests.support.fake_comfyui import FakeComfyUI, steps
from tests.support.fake_ollama import FakeOllama
from tests.support.ledger import Desk, admit, beat, completed, released
from tests.support.puppet import Held, Puppet
from tests.support.servers import eventually, own_servers
from tests.support.world import NEVER_S, World
from tests.support.world import world as open_world

TOOK_S = (400, 500, 600, 700, 800)
"""Median 600, nine of ten 800. Such long times, since a test takes some itself: see `left`."""


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, forecast_s=NEVER_S) as made:
        yield made


_DONE = """
WITH made AS (
    INSERT INTO job (
        id, source, kind, lane, priority, state, content_sha256, spec, labels, max_attempts, timeout_s, review,
        run_after, created_at, finished_at, epoch, attempt, offered_seq, spent_seq, result_epoch, result
    )
    SELECT
        gen_random_uuid(), 'cms', split_part($1, '.', 1), $1, 1, 'completed', '\\x00', '{}', '{}', 3, 1800, false,
        tandem_now(), tandem_now(), tandem_now() - took.number * interval '1 s', 1, 0, 0, 0, 1, '{}'
    FROM unnest($3::float8[]) WITH ORDINALITY AS took (took_s, number)
    RETURNING id, finished_at
)
INSERT INTO attempt (
    job_id, epoch, number, worker, delivery, claimed_at, deadline_at, outcome, ended_at, elapsed_s, stages
)
SELECT
    made.id, 1, 1, $2, '', made.finished_at - make_interval(secs => took.took_s), made.finished_at, 'completed',
    made.finished_at, took.took_s, jsonb_build_array(jsonb_build_object('stage', 'generating_text', 'at_s', 0))
FROM (SELECT id, finished_at, row_number() OVER (ORDER BY finished_at DESC) AS number FROM made) AS made
JOIN unnest($3::float8[]) WITH ORDINALITY AS took (took_s, number) ON took.number = made.number
"""


async def on_record(pool: asyncpg.Pool, *took_s: float, lane: str = "article.any", worker: str = "mini") -> None:
    """Put results on record, the newest first."""
    await pool.execute(_DONE, lane, worker, list(took_s))


def left(job: dict[str, Any], now: datetime) -> tuple[int, int, str] | None:
    """A predicted finish, in hundreds of seconds from now: a test may last some seconds."""
    found = job["predicted_finish"]
    if found is None:
        return None
    median, p90 = ((datetime.fromisoformat(found[name]) - now).total_seconds() for name in ("median", "p90"))
    return round(median / 100) * 100, round(p90 / 100) * 100, found["basis"]


async def now_of(world: World) -> datetime:
    return await world.coordinator.queries.now()


async def seen(world: World, job_id: str) -> tuple[int, int, str] | None:
    """What the API says now of a job's finish."""
    return left(await world.job(job_id), await now_of(world))


# ------------------------------------------------------------------------------------------------------- what is read


async def test_the_last_results_of_each_lane_are_read(desk: Desk) -> None:
    await on_record(desk.pool, 10, 20, 30)
    await on_record(desk.pool, 5, lane="image.sdxl", worker="book")
    await desk.held(seq=1)  # runs
    await desk.do(released(await desk.held(seq=2)))
    rows = await desk.queries.durations(10, 2)
    assert [(r.lane, r.worker, r.took_s, r.elapsed_s) for r in rows] == [
        ("article.any", "mini", 10, 10),
        ("article.any", "mini", 20, 20),
        ("image.sdxl", "book", 5, 5),
    ]
    assert rows[0].stages == [{"stage": "generating_text", "at_s": 0}]
    assert {r.lane for r in await desk.queries.durations(1, 2)} == {"article.any"}


async def test_a_report_puts_its_attempt_on_record(desk: Desk) -> None:
    marks = [{"stage": f"step {number}", "at_s": float(number)} for number in range(21)]
    await desk.do(completed(await desk.held(seq=1), elapsed_s=3.5, stages=marks[:2]))
    await desk.do(completed(await desk.held("book", seq=2, review=True), worker="book", elapsed_s=30, stages=marks))
    rows = {row.worker: row for row in await desk.queries.durations(10, 10)}
    assert rows["mini"].elapsed_s == 3.5
    assert rows["mini"].stages == marks[:2]
    assert rows["book"].stages is None  # too many to be worth it
    assert 0 <= rows["mini"].took_s < 60


async def test_a_result_from_before_the_clock_was_set_back_is_left_out(desk: Desk) -> None:
    await on_record(desk.pool, 10)
    await desk.pool.execute("UPDATE attempt SET claimed_at = ended_at + interval '1 s'")
    assert await desk.queries.durations(10, 10) == []


async def test_the_queue_is_in_the_order_in_which_jobs_are_taken(desk: Desk) -> None:
    later = await desk.queries.now() + timedelta(hours=1)
    low, normal, urgent, second = [await desk.admit(priority=priority) for priority in (0, 1, 3, 1)]
    offered = [await desk.admit(offer=True, priority=0) for _ in range(2)]
    for seq, job_id in zip((8, 7), offered, strict=True):
        await desk.do(Offered(job_id=job_id, seq=seq))
    on_its_way = await desk.admit(offer=True, priority=0)
    await desk.admit(run_after=later)
    await desk.held(seq=20)
    other = await desk.admit(lane="image.any", kind="image")
    queues = await desk.queries.queues(["article.any", "image.any", "video.any"], 10)
    assert queues == {
        "article.any": [offered[1], offered[0], on_its_way, urgent, normal, second, low],
        "image.any": [other],
        "video.any": [],
    }
    assert (await desk.queries.queues(["article.any"], 4))["article.any"] == [
        offered[1],
        offered[0],
        on_its_way,
        urgent,
    ]


async def test_what_workers_hold_is_told_with_how_far_it_is(desk: Desk) -> None:
    job_id = await desk.held("mini", seq=1)
    await desk.held("book", seq=2)
    await desk.do(beat(job_id, stage="generating_text", progress=0.25))
    (row,) = await desk.queries.held_by(["mini", "nobody"], 10)
    assert (row.worker, row.lane, row.stage, row.progress) == ("mini", "article.any", "generating_text", 0.25)
    assert len(await desk.queries.held_by(["mini", "book"], 1)) == 1


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _nodes(child))]


PLANS: dict[str, tuple[tuple[Any, ...], set[str], int]] = {
    "forecast_durations": ((50, 100), {"job_done", "attempt_pkey"}, 500),
    "forecast_queue": ((["article.any", "image.any"], 20), {"job_backlog", "job_offered"}, 200),
    "forecast_held": ((["mini"], 100), {"job_holder", "job_processing", "attempt_pkey"}, 100),
}
"""The statement, its arguments, the indexes that may serve it, and how many rows it may read of these tables."""


async def test_the_forecast_reads_few_rows_however_many_there_are(desk: Desk) -> None:
    for lane in ("article.any", "image.any"):
        await on_record(desk.pool, *range(1, 5001), lane=lane)
    await desk.ledger.do_many([admit() for _ in range(1000)])
    for seq in range(1, 6):
        await desk.held(seq=seq)
    await desk.pool.execute("VACUUM ANALYZE job")
    await desk.pool.execute("VACUUM ANALYZE attempt")
    for name, (args, indexes, most) in PLANS.items():
        async with desk.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            (explained,) = orjson.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql(name)}", *args))
        scans = [node for node in _nodes(explained["Plan"]) if "Scan" in node["Node Type"] and "Index" in str(node)]
        tables = [node for node in _nodes(explained["Plan"]) if node.get("Relation Name") in ("job", "attempt")]
        assert {node["Index Name"] for node in scans if "Index Name" in node} <= indexes, name
        assert all(node["Node Type"] != "Seq Scan" for node in tables), name
        read = sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in tables)
        assert 0 < read <= most, f"{name} read {read} rows"


# ------------------------------------------------------------------------------------------------------- what is told


async def test_nothing_on_record_nothing_predicted(world: World) -> None:
    mini = await world.puppet("mini")
    waits = await world.submit()
    assert (await world.job(waits["id"]))["predicted_finish"] is None
    held = await mini.take()
    assert "predicted_finish" in await world.job(held.job_id)
    assert (await world.job(held.job_id))["predicted_finish"] is None
    assert held.grant["no_progress_s"] is None


async def test_a_running_job_is_predicted_by_those_that_took_longer(world: World) -> None:
    await on_record(world.pool, *TOOK_S)
    await world.coordinator.outlook.once()
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    assert await seen(world, held.job_id) == (600, 800, "mini, 5 jobs")
    await world.move_clock(520)
    assert await seen(world, held.job_id) == (200, 300, "mini, 5 jobs")  # of 600, 700, 800
    await world.move_clock(600)
    assert await seen(world, held.job_id) is None  # none ever took so long
    await held.report()
    await world.until(held.job_id, "completed")
    assert (await world.job(held.job_id))["predicted_finish"] is None


async def test_its_progress_ends_it_sooner(world: World) -> None:
    await on_record(world.pool, *[1000] * ENOUGH)
    await world.coordinator.outlook.once()
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    assert await seen(world, held.job_id) == (1000, 1000, "mini, 5 jobs")
    await held.beat(**{"Tandem-Progress": "0.7"})
    await _progress_known(world, held)
    assert await seen(world, held.job_id) == (300, 300, "mini, 5 jobs")


async def _progress_known(world: World, held: Held) -> None:
    async with asyncio.timeout(20):
        while (await world.job(held.job_id))["progress"] is None:  # noqa: ASYNC110 - announced by no event
            await asyncio.sleep(0.01)


async def test_waiting_jobs_are_done_one_after_another(world: World) -> None:
    await on_record(world.pool, *[1000] * ENOUGH)
    await world.coordinator.outlook.once()
    mini = await world.puppet("mini")
    for _ in range(5):
        await world.submit()
    held = await mini.take()
    await mini.announce(busy=[(held.job_id, held.epoch)])
    urgent = (await world.submit(priority="urgent"))["id"]
    await world.coordinator.dispatcher.once()  # now as many are offered as ever will be
    found = await _listed(world)
    assert sorted(median for median, _, _ in found.values()) == [1000, 2000, 3000, 4000, 5000, 6000]
    assert found[held.job_id][0] == 1000
    offered = await world.pool.fetchval("SELECT count(*) FROM job WHERE offered_at IS NOT NULL AND state = 'pending'")
    assert found[urgent] == (1000 * (offered + 2), 1000 * (offered + 2), "mini, 5 jobs")  # behind what is offered
    await world.puppet("book", slots=3)
    found = await _listed(world)
    assert sorted(median for median, _, _ in found.values()) == [1000, 1000, 1000, 1000, 2000, 2000]
    bases = {job_id: basis for job_id, (median, _, basis) in found.items() if median == 1000}
    assert bases.pop(held.job_id) == "mini, 5 jobs"
    assert set(bases.values()) == {"article.any, 5 jobs"}  # book has no record of its own


async def _listed(world: World) -> dict[str, tuple[int, int, str]]:
    """What one list says of the jobs that run and wait."""
    now = await now_of(world)
    async with world.http.get("/v1/jobs") as answer:
        rows = {job["id"]: left(job, now) for job in (await answer.json())["jobs"] if job["state"] != "completed"}
    return {job_id: found for job_id, found in rows.items() if found is not None}


async def test_a_job_waits_for_its_time_and_for_somebody_to_do_it(world: World) -> None:
    await on_record(world.pool, *TOOK_S)
    await world.coordinator.outlook.once()
    nobody = (await world.submit())["id"]
    assert await seen(world, nobody) is None
    mini = await world.puppet("mini")
    assert await seen(world, nobody) == (600, 800, "mini, 5 jobs")
    run_after = (await now_of(world) + timedelta(seconds=3000)).isoformat()
    later = (await world.submit(run_after=run_after))["id"]
    found = await seen(world, later)
    assert found is not None
    assert found[0] == 3600
    run_after = (await now_of(world) + timedelta(seconds=100)).isoformat()
    soon = (await world.submit(run_after=run_after))["id"]
    found = await seen(world, soon)
    assert found is not None
    assert found[0] == 1200  # the one that is due goes first
    await world.coordinator.queries.set_lane_paused("article.any", paused=True, actor="test")
    await world.coordinator.dispatcher.once()
    assert await seen(world, nobody) is None
    await world.coordinator.queries.set_lane_paused("article.any", paused=False, actor="test")
    await world.coordinator.dispatcher.once()
    assert await seen(world, nobody) is not None
    await mini.announce(state="paused")
    assert await seen(world, nobody) is None


async def test_lists_status_page_and_command_line_tell_it(world: World) -> None:
    await on_record(world.pool, *TOOK_S)
    await world.coordinator.outlook.once()
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    waits = await world.submit()
    before = await now_of(world)
    async with world.http.get("/v1/jobs") as answer:
        listed = {job["id"]: job for job in (await answer.json())["jobs"]}
    async with world.http.get("/status") as answer:
        (runs,) = (await answer.json())["running"]
    async with world.http.get("/") as answer:
        page = await answer.text()
    assert left(listed[held.job_id], before) == left(runs, before) == (600, 800, "mini, 5 jobs")
    assert left(listed[waits["id"]], before)[0] == 1200
    assert all(job["predicted_finish"] is None for job in listed.values() if job["state"] == "completed")
    assert page.count("mini, 5 jobs") == 1  # of what runs
    async with Client(world.coordinator.url) as client:
        view = await client.job(held.job_id)
    assert view.predicted_finish.basis == "mini, 5 jobs"
    assert view.predicted_finish.median.tzinfo is not None
    shown = await asyncio.to_thread(_tandem, world, "show", held.job_id)
    likely = view.predicted_finish.median.astimezone().strftime("%Y-%m-%d %H:%M")
    assert f"likely done {likely}" in " ".join(shown.split())
    assert "(mini, 5 jobs)" in shown
    assert likely in await asyncio.to_thread(_tandem, world, "jobs")


def _tandem(world: World, *args: str) -> str:
    result = CliRunner().invoke(app, [*args, "--url", world.coordinator.url])
    assert result.exit_code == 0, result.output
    return result.output


# ----------------------------------------------------------------------------------------------------------- silence


async def test_a_whole_path_teaches_it(world: World) -> None:
    """Jobs are done, each in its time; the next grant says how long a generator may be silent, a repeated one not."""
    mini = await world.puppet("mini")
    for number in range(ENOUGH_FOR_PATIENCE):
        await world.submit()
        held = await _done(world, mini, took_s=300 + 10 * number)
        assert held.grant["no_progress_s"] is None
        await world.coordinator.outlook.once()
    await world.submit()
    held = await mini.take()
    longest_s = 300 + 10 * (ENOUGH_FOR_PATIENCE - 1)
    assert held.grant["no_progress_s"] == PATIENCE * longest_s
    assert await seen(world, held.job_id) == (400, 500, "mini, 20 jobs")
    await held.fail("transient", "no_progress")
    await world.move_clock(3600)
    await mini.announce()
    again = await mini.take()
    assert (again.job_id, again.grant["attempt"]) == (held.job_id, 2)
    assert again.grant["no_progress_s"] is None
    await again.report()
    await again.verdict("accepted")

    only = await world.submit(max_attempts=1)
    held = await mini.take()
    assert (str(held.job_id), held.grant["attempt"]) == (only["id"], 1)
    assert held.grant["no_progress_s"] is None, "it has no second try"


async def _done(world: World, puppet: Puppet, took_s: float) -> Held:
    held = await puppet.take()
    await world.move_clock(took_s)
    marks = [{"stage": "generating_text", "at_s": 0.0}]
    await held.report(elapsed_s=took_s, stages=marks)
    await held.verdict("accepted")
    await puppet.announce()
    return held


async def test_the_executor_hears_it(world: World, tmp_path: Path) -> None:
    await on_record(world.pool, *[50] * ENOUGH_FOR_PATIENCE)
    await world.coordinator.outlook.once()
    strings = StringExecutor()
    async with world.servers.open("agent:mini"):
        pass  # the server knows the identity by now
    async with agent(settings_for(world.servers, "mini", tmp_path / "mini"), strings) as mini:
        job = await world.submit()
        generation = await strings.next()
        assert generation.job.no_progress_s == 50 * PATIENCE
        generation.finish()
        assert (await mini.end()).job_id == UUID(job["id"])


async def test_a_text_that_stalls_is_stopped_by_what_was_learned(tmp_path: Path) -> None:
    async with fake_server.running(FakeOllama()) as server:
        settings = {"url": server.url, **text_rig.QUICK, "idle_s": 9000, "least_idle_s": 60, "total_s": 99_000}
        async with text_rig.started(OllamaExecutor.from_settings(settings), tmp_path) as rig:
            for learned_s, stopped in ((90, True), (None, False)):
                server.scripts.append(fake_server.Script(hang_after=3))
                rig.told.details.clear()
                job = replace(rig.job("tiny"), no_progress_s=learned_s)
                work = asyncio.create_task(rig.executor.run(job, rig.told))
                await eventually(lambda: rig.told.details)
                rig.clock.moved_s += 95
                await rig.clock.looked_at(5)
                if stopped:
                    with pytest.raises(Transient, match=r"stalled.*over 90 s"):
                        await asyncio.wait_for(work, 10)
                    await rig.up()
                else:
                    assert not work.done()
                    server.resume.set()
                    assert (await asyncio.wait_for(work, 10)).result


async def test_a_picture_that_stalls_is_stopped_by_what_was_learned(tmp_path: Path) -> None:
    now = comfyui_rig.Time()
    async with (
        FakeComfyUI(tmp_path / "comfy") as comfy,
        comfyui_rig.running(comfy, now, idle_s=600, least_idle_s=3) as executor,
    ):
        comfy.before["KSampler"] = steps(4, asyncio.Event(), at=2)
        learned = replace(comfyui_rig.job(tmp_path / "work"), no_progress_s=5)
        async with comfyui_rig.doing(executor, learned) as task:
            await eventually(lambda: comfyui_rig.sampling(comfy))
            while not task.done():
                now.s += 2
                await asyncio.wait({task}, timeout=0.15)
            with pytest.raises(Transient, match=r"no_progress.*over 5 s"):
                await task
