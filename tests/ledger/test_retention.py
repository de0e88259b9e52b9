"""What is old is forgotten, whole, and nothing else; nobody waits for it, and the audit finds nothing amiss."""

import asyncio
import hashlib
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from coordinator.audit import audit
from coordinator.ledger.database import sql
from coordinator.ledger.kept import KeptRows
from coordinator.ledger.model import Admitted, Cancel, Grant
from coordinator.retention import BATCH, Ages, Retention
from coordinator.settings import CoordinatorSettings
from coordinator.sweeper import Sweeper
from tests.bench.filling import fill
from tests.support.ledger import Desk, admit, artifact, beat, claim, completed, set_clock_offset
from tests.support.web import Web
from tests.web.conftest import guarded, web_database, web_dsn

__all__ = ["guarded", "web_database", "web_dsn"]

DAY_S = 86400.0
SHA256 = hashlib.sha256(b"picture").hexdigest()
AGES = Ages(jobs_s=10 * DAY_S, artifacts_s=0, heartbeats_s=0, rejected_s=0, callback_bodies_s=0)
BELONGS = ("attempt", "heartbeat", "artifact", "rejected_result", "callback")


async def no_pause(_: float) -> None:
    await asyncio.sleep(0)


def trimming(desk: Desk, **ages: float) -> Retention:
    return Retention(KeptRows(desk.pool), replace(AGES, **ages), pause=no_pause)


async def settled(desk: Desk, seq: int = 1, *, published: bool = True, **fields: object) -> asyncpg.Record:
    """A completed job with a heartbeat, a refused report and maybe a callback; and its row."""
    job_id = await desk.held(seq=seq, **fields)
    await desk.do(beat(job_id))
    await desk.do(completed(job_id))
    await desk.do(completed(job_id, worker="book"))
    if published:
        host, body = ("cms.example.org", b"{}") if fields.get("callback_url") else ("", b"")
        await desk.queries.mark_published([(job_id, 1, "completed", host, body)])
    return await desk.row(job_id)


async def submitted(web: Web) -> UUID:
    body = {"kind": "article", "spec": {"prompt": "A story"}}
    return UUID((await web.call("POST", "/v1/jobs", json=body, token="publisher", expect=201))["id"])


async def left(desk: Desk) -> set[object]:
    return {row["id"] for row in await desk.pool.fetch("SELECT id FROM job")}


async def test_a_settled_job_is_forgotten_with_all_that_belongs_to_it(desk: Desk) -> None:
    old = (await settled(desk))["id"]
    await set_clock_offset(desk.pool, 9 * DAY_S)
    young = (await settled(desk, 2))["id"]
    await set_clock_offset(desk.pool, 11 * DAY_S)
    retention = trimming(desk)

    await retention.once()

    assert await left(desk) == {young}
    assert retention.trimmed["jobs"] == 1
    for table in BELONGS:
        assert await desk.rows(table, old) == []
    assert await desk.rows("attempt", young)
    assert await audit(desk.pool, None, None) == []


async def test_what_is_not_over_stays_however_old(desk: Desk) -> None:
    waiting = await desk.admit()
    held = await desk.held(seq=2)
    review = await desk.held(seq=3, review=True)
    await desk.do(completed(review))
    unpublished = (await settled(desk, 4, published=False))["id"]
    untold = (await settled(desk, 5, callback_url="https://cms.example.org/done"))["id"]
    await set_clock_offset(desk.pool, 100 * DAY_S)

    await trimming(desk).once()

    assert await left(desk) == {waiting, held, review, unpublished, untold}

    (row,) = await desk.queries.take_callbacks(1, 1, [], 60)
    await desk.queries.end_callback(row, 200, None, None)
    await trimming(desk).once()
    assert await left(desk) == {waiting, held, review, unpublished}


async def test_zero_keeps_for_ever(desk: Desk) -> None:
    job_id = (await settled(desk))["id"]
    await set_clock_offset(desk.pool, 10_000 * DAY_S)

    await trimming(desk, jobs_s=0).once()

    assert await left(desk) == {job_id}


async def test_a_key_means_a_new_job_once_its_job_is_forgotten(desk: Desk) -> None:
    command = admit(key="post-812")
    await desk.do(command)
    await desk.do(Cancel(job_id=command.job_id, actor="ann"))
    await desk.queries.mark_published([(command.job_id, 0, "canceled", "", b"")])
    await set_clock_offset(desk.pool, 11 * DAY_S)
    await trimming(desk).once()

    assert isinstance(await desk.do(replace(command, content_sha256=b"other")), Admitted)
    assert (await desk.row(command.job_id))["epoch"] == 0
    assert await audit(desk.pool, None, None) == []


async def test_rows_that_somebody_holds_are_passed_over(desk: Desk) -> None:
    first, second = [(await settled(desk, seq))["id"] for seq in (1, 2)]
    await set_clock_offset(desk.pool, 11 * DAY_S)
    async with desk.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", first)
        await trimming(desk).once()
        assert await left(desk) == {first}
    await trimming(desk).once()
    assert await left(desk) == set()
    assert second != first


async def test_nobody_waits_for_a_batch_that_takes_long(desk: Desk) -> None:
    """While a batch is not committed, claims, reports and admissions go through; a second trimmer does nothing."""
    await settled(desk)
    offered = await desk.offered(seq=2)
    await set_clock_offset(desk.pool, 11 * DAY_S)
    async with desk.pool.acquire() as slow, slow.transaction():
        assert len(await slow.fetch(sql("retention_jobs"), 10 * DAY_S, 100)) == 1
        assert isinstance(await desk.do(claim(offered, seq=2)), Grant)
        await desk.do(completed(offered))
        await desk.admit()
        assert await KeptRows(desk.pool).jobs(10 * DAY_S, 100) == 0


async def test_a_round_goes_in_batches_and_rests_between_them(desk: Desk, ledger_dsn: str) -> None:
    await fill(ledger_dsn, settled=2 * BATCH + BATCH // 2, pending=3)
    await set_clock_offset(desk.pool, 10 * DAY_S)
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    stays = await desk.pool.fetchval("SELECT count(*) FROM job WHERE state IN ('pending', 'awaiting_review')")
    retention = Retention(KeptRows(desk.pool), AGES, pause=rest)
    await retention.once()

    assert 3 <= stays < 10
    assert (len(await left(desk)), retention.trimmed["jobs"]) == (stays, 3 + 2 * BATCH + BATCH // 2 - stays)
    assert len(rests) == 2
    assert all(seconds > 0 for seconds in rests)


async def test_what_is_trimmed_is_found_by_an_index(desk: Desk, ledger_dsn: str) -> None:
    await fill(ledger_dsn, settled=20_000, pending=10)
    plan = await desk.pool.fetchval(
        f"EXPLAIN (FORMAT JSON) {sql('retention_jobs')}".replace("$1", "864000").replace("$2", "100")
    )
    assert "job_settled" in plan


async def test_heartbeats_and_refusals_have_ages_of_their_own(desk: Desk) -> None:
    old = (await settled(desk))["id"]
    await desk.queries.record_rejected_submission("cms", "invalid", "no kind", [], b"{}")
    await set_clock_offset(desk.pool, 3 * DAY_S)
    young = (await settled(desk, 2))["id"]
    await set_clock_offset(desk.pool, 5 * DAY_S)

    await trimming(desk, heartbeats_s=4 * DAY_S, rejected_s=4 * DAY_S).once()

    for table in ("heartbeat", "rejected_result"):
        assert (len(await desk.rows(table, old)), len(await desk.rows(table, young))) == (0, 1)
    assert await desk.pool.fetchval("SELECT count(*) FROM rejected_submission") == 0
    assert await left(desk) == {old, young}
    assert await audit(desk.pool, None, None) == []


async def test_what_a_callback_said_is_forgotten_and_not_sent_again(desk: Desk) -> None:
    job_id = (await settled(desk, callback_url="https://cms.example.org/done"))["id"]
    (row,) = await desk.queries.take_callbacks(1, 1, [], 60)
    await desk.queries.end_callback(row, 200, None, None)
    await set_clock_offset(desk.pool, 5 * DAY_S)

    await trimming(desk, callback_bodies_s=4 * DAY_S).once()

    (kept,) = await desk.rows("callback", job_id)
    assert (kept["body"], kept["status"]) == (b"", 200)
    assert not await desk.queries.callback_again(job_id, actor="ann")


async def test_files_are_let_go_and_stay_on_record(guarded: Web) -> None:
    job_id = await submitted(guarded)
    epoch = await guarded.claim(job_id)
    await guarded.upload(job_id, epoch, "a.png", b"picture")
    await guarded.report(job_id, epoch, artifacts=[artifact("a.png", 7, SHA256)])
    await guarded.pool.execute("UPDATE job SET unpublished = false, published_epoch = epoch")
    await set_clock_offset(guarded.pool, 31 * DAY_S)
    try:
        await Retention(KeptRows(guarded.pool), replace(AGES, jobs_s=0, artifacts_s=30 * DAY_S)).once()
        await Sweeper(guarded.context.queries, guarded.store, grace_s=1e-9, shards=256).once()

        assert guarded.stored() == []
        answer = await guarded.call("GET", f"/v1/jobs/{job_id}/artifacts/a.png", token="admin", expect=410)
        assert answer["error"]["code"] == "trimmed"
        (file,) = (await guarded.call("GET", f"/v1/jobs/{job_id}", token="admin"))["artifacts"]
        assert (file["name"], file["trimmed_at"] is None) == ("a.png", False)
        page = await guarded.call("GET", f"/jobs/{job_id}", token="admin")
        assert "a.png" in page
        assert "kept until" in page
        assert f"/v1/jobs/{job_id}/artifacts/a.png" not in page  # neither a link nor an image that is gone
        assert await audit(guarded.pool, None, guarded.store) == []
    finally:
        await set_clock_offset(guarded.pool, 0)


async def test_the_same_content_of_a_younger_job_stays(guarded: Web) -> None:
    jobs = []
    for offset in (0, 20 * DAY_S):
        await set_clock_offset(guarded.pool, offset)
        job_id = await submitted(guarded)
        epoch = await guarded.claim(job_id)
        await guarded.upload(job_id, epoch, "a.png", b"picture")
        await guarded.report(job_id, epoch, artifacts=[artifact("a.png", 7, SHA256)])
        jobs.append(job_id)
    await guarded.pool.execute("UPDATE job SET unpublished = false, published_epoch = epoch")
    await set_clock_offset(guarded.pool, 31 * DAY_S)
    try:
        await Retention(KeptRows(guarded.pool), replace(AGES, jobs_s=0, artifacts_s=30 * DAY_S)).once()
        await Sweeper(guarded.context.queries, guarded.store, grace_s=1e-9, shards=256).once()
        assert guarded.stored() == [SHA256]
        assert await guarded.call("GET", f"/v1/jobs/{jobs[1]}/artifacts/a.png", token="admin") == "picture"
    finally:
        await set_clock_offset(guarded.pool, 0)


@pytest.mark.parametrize(
    ("name", "least"), [("keep_jobs_s", 691200), ("keep_artifacts_s", 691200), ("keep_callback_bodies_s", 172800)]
)
def test_ages_that_would_contradict_what_is_out_are_refused(name: str, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 0 .* or at least {least}"):
        CoordinatorSettings(**{name: 3600})
    CoordinatorSettings(**{name: 0})
    CoordinatorSettings(**{name: least})
