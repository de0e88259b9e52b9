"""The sweeper: what no result can need goes, all else stays, and no upload relies on what is being removed."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_asyncio

from coordinator import sweeper as sweeping
from coordinator.artifacts import SHARDS, FolderStore
from coordinator.embedded import EmbeddedNats
from coordinator.ledger.database import sql
from coordinator.ledger.model import Cancel, Expire, Retry
from coordinator.ledger.queries import Queries
from coordinator.sweeper import VOID_S, Sweeper
from shared.states import Verdict
from tests.support.ledger import seeded, set_clock_offset, waits_for_a_lock
from tests.support.servers import TandemServers
from tests.support.web import Web, artifact, web

GRACE_S = 3600.0
ANNOUNCE = (
    "INSERT INTO artifact (job_id, epoch, name, worker, media_type, size, sha256, stored_at)"
    " VALUES ('00000000-0000-0000-0000-000000000000', 0, $1, 'first', '', 0, $1, tandem_now())"
)


@pytest_asyncio.fixture(loop_scope="session")
async def site(nats_server: EmbeddedNats, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[Web]:
    async with TandemServers(nats_server).open("coordinator") as bus, web(bus, ledger_dsn, tmp_path) as made:
        yield made


class GatedStore(FolderStore):
    """A folder whose removals wait, once each is about to be done."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

    async def delete(self, sha256: str, *, older_than_s: float = 0.0) -> bool:
        self.reached.set()
        await self.goes_on.wait()
        return await super().delete(sha256, older_than_s=older_than_s)


def sweeper_of(site: Web, *, grace_s: float = GRACE_S, store: FolderStore | None = None) -> Sweeper:
    """One that looks through the whole store in a round."""
    return Sweeper(site.context.queries, store or site.store, grace_s, shards=SHARDS)


async def age(site: Web, by_s: float = GRACE_S + 60) -> None:
    """Let all files and contents be older."""
    await site.pool.execute("UPDATE artifact SET stored_at = stored_at - make_interval(secs => $1)", by_s)
    for sha256 in site.stored():
        path = site.root / "sha256" / sha256[:2] / sha256[2:]
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - by_s))


async def held(site: Web) -> tuple[UUID, int]:
    job_id = await site.submit(kind="image")
    return job_id, await site.claim(job_id, lane="image--any")


async def lapse(site: Web, job_id: UUID) -> None:
    await site.pool.execute("UPDATE job SET lease_expires_at = tandem_now() - interval '1 s' WHERE id = $1", job_id)
    await site.ledger.do(Expire(job_id=job_id))


def sha_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def names(site: Web) -> list[str]:
    return [row["name"] for row in await site.pool.fetch("SELECT name FROM artifact ORDER BY name")]


def contents(*of: bytes) -> list[str]:
    return sorted(sha_of(content) for content in of)


# ----------------------------------------------------------------------------------------------------- what goes


async def test_files_of_a_stale_epoch_go_and_the_results_own_stay(site: Web) -> None:
    job_id, first = await held(site)
    await site.upload(job_id, first, "old.png", b"old")
    await lapse(site, job_id)
    second = await site.claim(job_id, "book", lane="image--any")
    await site.upload(job_id, second, "new.png", b"new", worker="book")
    await site.report(job_id, second, "book", artifacts=[artifact("new.png", b"new")])
    await age(site)
    sweeper = sweeper_of(site)
    await sweeper.once()
    assert await names(site) == ["new.png"]
    assert site.stored() == contents(b"new")
    assert (sweeper.files, sweeper.contents) == (1, 1)


async def test_a_content_that_another_row_has_stays(site: Web) -> None:
    kept, epoch = await held(site)
    await site.upload(kept, epoch, "a.png", b"shared")
    await site.report(kept, epoch, artifacts=[artifact("a.png", b"shared")])
    stale, first = await held(site)
    await site.upload(stale, first, "b.png", b"shared")
    await site.ledger.do(Cancel(job_id=stale, actor="test"))
    await age(site)
    await sweeper_of(site).once()
    assert await names(site) == ["a.png"]
    assert site.stored() == contents(b"shared")


async def test_what_the_accepted_report_did_not_name_goes(site: Web) -> None:
    job_id, epoch = await held(site)
    await site.upload(job_id, epoch, "named.png", b"named")
    await site.upload(job_id, epoch, "spare.png", b"spare")
    await site.report(job_id, epoch, artifacts=[artifact("named.png", b"named")])
    await age(site)
    await sweeper_of(site).once()
    assert await names(site) == ["named.png"]
    assert site.stored() == contents(b"named")


@pytest.mark.parametrize("ending", ["canceled", "failed", "to be tried again", "released"])
async def test_what_was_uploaded_for_an_epoch_without_a_result_goes(site: Web, ending: str) -> None:
    job_id, epoch = await held(site)
    await site.upload(job_id, epoch, "a.png", b"for nothing")
    error = {"code": "broken", "message": "It broke.", "class": "transient"}
    match ending:
        case "canceled":
            await site.ledger.do(Cancel(job_id=job_id, actor="test"))
        case "failed":
            await site.report(job_id, epoch, outcome="failed", result=None, error={**error, "class": "permanent"})
        case "to be tried again":
            await site.report(job_id, epoch, outcome="failed", result=None, error=error)
        case _:
            await site.report(job_id, epoch, outcome="released", result=None)
    await age(site)
    await sweeper_of(site).once()
    assert await names(site) == []
    assert site.stored() == []


async def test_the_files_of_a_result_go_when_the_job_is_run_again(site: Web) -> None:
    job_id, epoch = await held(site)
    await site.upload(job_id, epoch, "a.png", b"first")
    await site.report(job_id, epoch, artifacts=[artifact("a.png", b"first")])
    await site.ledger.do(Retry(job_id=job_id, actor="test"))
    await age(site)
    await sweeper_of(site).once()
    assert await names(site) == []
    assert site.stored() == []


async def test_what_was_replaced_under_its_name_goes(site: Web) -> None:
    job_id, epoch = await held(site)
    await site.upload(job_id, epoch, "a.png", b"first")
    await site.upload(job_id, epoch, "a.png", b"second")
    await age(site)
    await sweeper_of(site).once()
    assert await names(site) == ["a.png"]
    assert site.stored() == contents(b"second")


async def test_a_content_that_never_became_a_file_goes(site: Web) -> None:
    await _put(site, b"orphan")
    await age(site)
    await _put(site, b"young orphan")
    sweeper = sweeper_of(site)
    await sweeper.once()
    assert site.stored() == contents(b"young orphan")
    assert (sweeper.files, sweeper.contents) == (0, 1)


async def test_a_round_looks_through_one_shard_and_the_rounds_through_all(site: Web) -> None:
    orphans = [b"%d" % number for number in range(20)]
    for content in orphans:
        await _put(site, content)
    await age(site)
    sweeper = Sweeper(site.context.queries, site.store, GRACE_S)
    left = [20]
    for _ in range(SHARDS):
        await sweeper.once()
        left.append(len(site.stored()))
    assert left[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(left)) < 20


async def test_what_a_dead_upload_left_goes(site: Web) -> None:
    (site.root / "incoming" / "dead").write_bytes(b"half")
    sweeper = sweeper_of(site)
    await sweeper.once()
    assert site.arriving() == []
    assert sweeper.unfinished == 1


# ---------------------------------------------------------------------------------------------------- what stays


async def test_files_of_an_epoch_that_may_still_bring_its_result_stay_however_old(site: Web) -> None:
    running, epoch = await held(site)
    await site.upload(running, epoch, "running.png", b"running")
    lapsed, first = await held(site)
    await site.upload(lapsed, first, "lapsed.png", b"lapsed")
    await lapse(site, lapsed)
    await age(site, 30 * 86400)
    await sweeper_of(site).once()
    assert site.stored() == contents(b"running", b"lapsed")
    for job_id, name, content in ((running, "running.png", b"running"), (lapsed, "lapsed.png", b"lapsed")):
        assert await site.report(job_id, 1, artifacts=[artifact(name, content)]) is Verdict.ACCEPTED


async def test_what_is_younger_than_the_grace_stays(site: Web) -> None:
    job_id, epoch = await held(site)
    await site.upload(job_id, epoch, "a.png", b"young")
    await site.ledger.do(Cancel(job_id=job_id, actor="test"))
    await age(site, GRACE_S - 60)
    sweeper = sweeper_of(site)
    await sweeper.once()
    assert await names(site) == ["a.png"]
    assert site.stored() == contents(b"young")
    await age(site, 120)
    await sweeper.once()
    assert await names(site) == []
    assert site.stored() == []


async def test_a_row_that_a_reports_writer_holds_is_passed_over(site: Web) -> None:
    job_id, epoch = await held(site)
    for name in ("a.png", "b.png"):
        await site.upload(job_id, epoch, name, name.encode())
    await site.ledger.do(Cancel(job_id=job_id, actor="test"))
    await age(site)
    async with site.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM artifact WHERE name = 'a.png' FOR UPDATE")
        async with asyncio.timeout(5):
            await sweeper_of(site).once()
        assert await names(site) == ["a.png"]
        assert site.stored() == contents(b"a.png")
    await sweeper_of(site).once()
    assert await names(site) == []


async def test_two_sweepers_at_once_remove_each_content_once(site: Web) -> None:
    for number in range(30):
        job_id, epoch = await held(site)
        await site.upload(job_id, epoch, "a.png", b"%d" % number)
        await site.ledger.do(Cancel(job_id=job_id, actor="test"))
    await age(site)
    one, other = sweeper_of(site), sweeper_of(site)
    await asyncio.gather(one.once(), other.once())
    assert one.files + other.files == 30
    assert one.contents + other.contents == 30
    assert site.stored() == await names(site) == []


async def test_a_large_sweep_is_done_in_small_statements(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 7)
    for number in range(20):
        job_id, epoch = await held(site)
        await site.upload(job_id, epoch, "a.png", b"%d" % number)
        await site.ledger.do(Cancel(job_id=job_id, actor="test"))
    await age(site)
    sweeper = sweeper_of(site)
    await sweeper.once()
    assert (sweeper.files, sweeper.contents) == (20, 20)


async def test_a_round_reads_no_file_of_a_result(site: Web) -> None:
    """20,000 files of results beside three that are swept, and two live ones that are old."""
    for number in range(5):
        job_id, epoch = await held(site)
        await site.upload(job_id, epoch, "a.png", b"%d" % number)
        if number < 3:
            await site.ledger.do(Cancel(job_id=job_id, actor="test"))
    await age(site)
    await site.pool.execute(
        "INSERT INTO artifact SELECT gen_random_uuid(), 1, 'a', 'mini', 'x/y', 1, md5(i::text) || md5(i::text),"
        " tandem_now() - interval '9 days', true FROM generate_series(1, 20000) AS i"
    )
    await site.pool.execute("VACUUM ANALYZE artifact")
    shas = [*contents(b"1", b"2"), "0" * 64]
    for name, args in {
        "artifact_sweep": (GRACE_S, 100),
        "artifact_doom": (shas, "one"),
        "artifact_unheld": (shas,),
        "artifact_is_doomed": (shas[0],),
        "artifact_spare": (shas, "one"),
        "artifact_spare_old": (VOID_S,),
    }.items():
        (plan,) = orjson.loads(await site.pool.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql(name)}", *args))
        scans = [node for node in _nodes(plan["Plan"]) if node.get("Relation Name") == "artifact"]
        assert not [node for node in scans if node["Node Type"] == "Seq Scan"], name
        read = sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in scans)
        assert read <= 30, f"{name} read {read} rows"


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _nodes(child))]


# ---------------------------------------------------------------------- an upload of what is being swept


async def test_an_upload_that_comes_while_its_content_is_being_removed_is_sent_again(site: Web) -> None:
    await _put(site, b"same")
    await age(site)
    gated = GatedStore(site.root)
    sweep = asyncio.create_task(sweeper_of(site, grace_s=0, store=gated).once())
    await gated.reached.wait()  # it has looked: no file has this content
    job_id, epoch = await held(site)
    answer = await site.upload(job_id, epoch, "a.png", b"same", expect=503)
    assert answer["error"]["code"] == "swept"
    assert await site.report(job_id, epoch, artifacts=[]) is Verdict.ACCEPTED  # no row was left to be named
    assert await names(site) == [sha_of(b"same")]  # only the announcement
    gated.goes_on.set()
    await sweep
    gated.close()
    assert site.stored() == await names(site) == []
    again, epoch = await held(site)
    await site.upload(again, epoch, "a.png", b"same")
    assert await site.report(again, epoch, artifacts=[artifact("a.png", b"same")]) is Verdict.ACCEPTED
    await _downloads(site, again, "a.png", b"same")


async def test_a_repeat_of_a_file_whose_content_is_being_removed_is_not_said_to_be_there(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _put(site, b"same")
    await age(site)
    gated = GatedStore(site.root)
    sweep = asyncio.create_task(sweeper_of(site, grace_s=0, store=gated).once())
    await gated.reached.wait()
    job_id, epoch = await held(site)

    async def kept(*_: object) -> None:
        """The coordinator died before it took the row back."""

    monkeypatch.setattr(Queries, "forget_artifact", kept)
    await site.upload(job_id, epoch, "a.png", b"same", expect=503)
    await site.upload(job_id, epoch, "a.png", b"same", expect=503)
    gated.goes_on.set()
    await sweep
    gated.close()
    await site.upload(job_id, epoch, "a.png", b"same")
    await site.report(job_id, epoch, artifacts=[artifact("a.png", b"same")])
    await _downloads(site, job_id, "a.png", b"same")


async def test_a_file_that_is_recorded_before_the_sweeper_looks_keeps_its_content(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _put(site, b"same")
    await age(site)
    job_id, epoch = await held(site)
    reached, goes_on = asyncio.Event(), asyncio.Event()
    ask = Queries.is_doomed

    async def gated(self: Queries, sha256: str) -> bool:
        reached.set()
        await goes_on.wait()
        return await ask(self, sha256)

    monkeypatch.setattr(Queries, "is_doomed", gated)
    upload = asyncio.create_task(site.upload(job_id, epoch, "a.png", b"same"))
    await reached.wait()
    await sweeper_of(site, grace_s=0).once()
    goes_on.set()
    await upload
    await site.report(job_id, epoch, artifacts=[artifact("a.png", b"same")])
    await _downloads(site, job_id, "a.png", b"same")


async def test_a_file_that_is_recorded_while_its_removal_is_being_announced_keeps_its_content(site: Web) -> None:
    await _put(site, b"same")
    await age(site)
    job_id, epoch = await held(site)
    async with site.pool.acquire() as connection:
        undone = connection.transaction()
        await undone.start()
        await connection.execute(ANNOUNCE, sha_of(b"same"))
        sweep = asyncio.create_task(sweeper_of(site, grace_s=0).once())  # sees no file, and waits for the other's row
        await waits_for_a_lock(site.pool)
        await site.upload(job_id, epoch, "a.png", b"same")
        await undone.rollback()
    await sweep
    await site.report(job_id, epoch, artifacts=[artifact("a.png", b"same")])
    await _downloads(site, job_id, "a.png", b"same")


async def test_a_content_that_is_removed_before_its_file_is_recorded_is_sent_again(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, epoch = await held(site)
    reached, goes_on = asyncio.Event(), asyncio.Event()
    record = Queries.record_artifact

    async def gated(self: Queries, *what: Any, **more: Any) -> bool:
        reached.set()
        await goes_on.wait()
        return await record(self, *what, **more)

    monkeypatch.setattr(Queries, "record_artifact", gated)
    upload = asyncio.create_task(site.upload(job_id, epoch, "a.png", b"same", expect=503))
    await reached.wait()
    await sweeper_of(site, grace_s=0).once()
    assert site.stored() == []
    goes_on.set()
    await upload
    assert await names(site) == []
    await site.upload(job_id, epoch, "a.png", b"same")
    await site.report(job_id, epoch, artifacts=[artifact("a.png", b"same")])
    await _downloads(site, job_id, "a.png", b"same")


async def test_a_grace_keeps_uploads_from_ever_being_sent_again(site: Web) -> None:
    await _put(site, b"same")  # just now, and not recorded yet
    await sweeper_of(site).once()
    job_id, epoch = await held(site)
    await site.upload(job_id, epoch, "a.png", b"same")


async def test_whatever_comes_in_between_a_file_that_was_taken_has_its_content(site: Web) -> None:
    """Uploads, cancellations and sweeps without any grace, in any order, of the same few contents."""
    with seeded() as random:
        plans = [[random.randrange(3) for _ in range(12)] for _ in range(3)]
    done = asyncio.Event()

    async def upload_and(plan: list[int]) -> None:
        for number in plan:
            job_id, epoch = await held(site)
            content = b"content %d" % number
            headers = site.upload_headers(job_id, epoch, content)
            path = f"/v1/uploads/{job_id}/{epoch}/a.png"
            answer = await site.call("PUT", path, headers=headers, data=content, expect=None)
            if "error" in answer:
                assert answer["error"]["code"] == "swept"
                await site.ledger.do(Cancel(job_id=job_id, actor="test"))
            else:
                assert await site.report(job_id, epoch, artifacts=[artifact("a.png", content)]) is Verdict.ACCEPTED
                await _downloads(site, job_id, "a.png", content)
                await site.ledger.do(Retry(job_id=job_id, actor="test"))  # nobody needs it any more

    async def sweep() -> None:
        while not done.is_set():
            await sweeper_of(site, grace_s=0).once()

    sweeps = [asyncio.create_task(sweep()) for _ in range(2)]
    await asyncio.gather(*(upload_and(plan) for plan in plans))
    done.set()
    await asyncio.gather(*sweeps)
    await sweeper_of(site, grace_s=0).once()
    assert site.stored() == await names(site) == []


async def test_the_announcement_of_a_sweeper_that_died_is_void_after_a_while(site: Web) -> None:
    assert await site.context.queries.doom(contents(b"same"), "died") == contents(b"same")
    job_id, epoch = await held(site)
    await sweeper_of(site).once()
    await site.upload(job_id, epoch, "a.png", b"same", expect=503)
    await set_clock_offset(site.pool, VOID_S + 1)
    await sweeper_of(site).once()
    await site.upload(job_id, epoch, "a.png", b"same")


async def test_a_sweep_that_is_cut_off_takes_its_announcements_back(site: Web) -> None:
    await _put(site, b"same")
    await age(site)
    gated = GatedStore(site.root)
    sweep = asyncio.create_task(sweeper_of(site, store=gated).once())
    await gated.reached.wait()
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)
    gated.close()
    assert await names(site) == []
    job_id, epoch = await held(site)
    await site.upload(job_id, epoch, "a.png", b"same")


async def test_two_sweepers_never_announce_the_same_content(site: Web) -> None:
    shas = contents(b"1", b"2", b"3")
    queries = site.context.queries
    assert await queries.doom(shas[:2], "one") == shas[:2]
    assert await queries.doom(shas, "other") == shas[2:]
    await queries.spare(shas, "other")
    assert [await queries.is_doomed(sha) for sha in shas] == [True, True, False]
    assert await queries.unheld(shas) == shas


async def test_of_two_that_announce_at_the_same_moment_one_waits_and_has_nothing_to_do(site: Web) -> None:
    async with site.pool.acquire() as connection:
        first = connection.transaction()
        await first.start()
        await connection.execute(ANNOUNCE, sha_of(b"same"))
        second = asyncio.create_task(site.context.queries.doom(contents(b"same"), "second"))
        await waits_for_a_lock(site.pool)
        await first.commit()
    assert await second == []


async def test_an_announcement_is_no_file_of_a_job(site: Web) -> None:
    job_id = uuid4()
    await site.context.queries.doom(contents(b"x"), "one")
    await site.context.queries.forget_artifact(job_id, 1, "x", sha_of(b"x"))
    assert await site.context.queries.sweep_artifacts(0.0, 10) == []
    assert await site.context.queries.is_doomed(sha_of(b"x"))


async def _put(site: Web, content: bytes) -> None:
    """Store a content that no file has."""

    async def chunks() -> AsyncIterator[bytes]:
        yield content

    await site.store.put(chunks(), sha256=sha_of(content), size=len(content))


async def _downloads(site: Web, job_id: UUID, name: str, content: bytes) -> None:
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/{name}") as answer:
        assert (answer.status, await answer.read()) == (200, content)
