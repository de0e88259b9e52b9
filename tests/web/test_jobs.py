"""What is shown of jobs, and what people do to them."""

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from coordinator.ledger import job_list
from coordinator.ledger.database import sql
from coordinator.ledger.model import Expire, Heartbeat
from shared.states import JobState, Verdict
from tests.support.web import Web, artifact


async def test_a_job_answers_what_an_operator_asks(site: Web) -> None:
    job_id = await site.submit(key="k", labels={"post": "1"}, max_attempts=3)
    epoch = await site.claim(job_id)
    await site.ledger.do(
        Heartbeat(job_id=job_id, worker="mini", epoch=epoch, stage="generating_text", elapsed_s=3.0, progress=0.25)
    )
    job = await site.call("GET", f"/v1/jobs/{job_id}")
    assert (job["state"], job["worker"], job["epoch"]) == ("processing", "mini", 1)
    assert (job["stage"], job["progress"], job["heartbeats"]) == ("generating_text", 0.25, 1)
    assert 80 < job["lease_left_s"] <= 90
    assert 0 <= job["heartbeat_age_s"] < 30
    assert 0 <= job["duration_s"] < 30
    assert job["started_at"] == job["claimed_at"]
    assert job["created_at"].endswith("Z")
    assert (job["attempt"], job["max_attempts"], job["lease_losses"]) == (0, 3, 0)
    (attempt,) = job["attempts"]
    assert (attempt["epoch"], attempt["worker"], attempt["outcome"]) == (1, "mini", None)
    (beat,) = (await site.call("GET", f"/v1/jobs/{job_id}/heartbeats"))["heartbeats"]
    assert (beat["stage"], beat["progress"], beat["elapsed_s"]) == ("generating_text", 0.25, 3.0)


async def test_a_failure_shows_its_class_and_text(site: Web) -> None:
    job_id = await site.submit()
    epoch = await site.claim(job_id)
    error = {"code": "no_model", "message": "llama is not here", "class": "permanent", "detail": {"a": [1]}}
    assert await site.report(job_id, epoch, outcome="failed", error=error) is Verdict.ACCEPTED
    job = await site.call("GET", f"/v1/jobs/{job_id}")
    assert (job["state"], job["error_class"], job["error_text"]) == ("failed", "permanent", "llama is not here")
    assert job["attempts"][0]["error"]["detail"] == {"a": [1]}
    assert job["finished_at"] is not None


async def test_a_result_shows_its_model_settings_files_and_bytes(site: Web) -> None:
    job_id = await site.submit()
    epoch = await site.claim(job_id)
    await site.upload(job_id, epoch, "image 1.png", b"picture")
    await site.report(job_id, epoch, settings={"seed": 42}, artifacts=[artifact("image 1.png", b"picture")])
    job = await site.call("GET", f"/v1/jobs/{job_id}")
    assert (job["state"], job["result"], job["result_epoch"]) == ("completed", {"text": "Once."}, 1)
    assert (job["used_model"], job["settings"], job["bytes"]) == ("m", {"seed": 42}, 7)
    (file,) = job["artifacts"]
    assert file["url"] == f"{site.runner.url}/v1/jobs/{job_id}/artifacts/image%201.png"
    async with site.client.get(file["url"]) as answer:
        assert await answer.read() == b"picture"


async def test_every_attempt_is_kept(site: Web) -> None:
    job_id = await site.submit()
    await site.claim(job_id, "mini")
    await _lapse(site, job_id)
    epoch = await site.claim(job_id, "book")
    await site.report(job_id, epoch, "book")
    attempts = (await site.call("GET", f"/v1/jobs/{job_id}/attempts"))["attempts"]
    assert [(a["epoch"], a["worker"], a["outcome"]) for a in attempts] == [
        (1, "mini", "lease_expired"),
        (2, "book", "completed"),
    ]
    assert (await site.call("GET", f"/v1/jobs/{job_id}"))["lease_losses"] == 1


@pytest.mark.parametrize("path", ["", "/attempts", "/heartbeats", "/artifacts/x"])
async def test_an_unknown_job_is_not_found(site: Web, path: str) -> None:
    assert (await site.call("GET", f"/v1/jobs/{uuid4()}{path}", expect=404))["error"]["code"] == "not_found"


async def test_the_list_filters_by_what_is_asked(site: Web) -> None:
    plain = await site.submit(labels={"post": "1", "lang": "de"})
    image = await site.submit(kind="image", labels={"post": "2", "lang": "de"})
    held = await site.submit()
    await site.claim(held, "mini")
    lapsed = await site.submit()
    await site.claim(lapsed, "mini")
    await _lapse(site, lapsed)
    modelled = await site.submit(model="llama3.1:8b")

    async def ids(query: str) -> set[UUID]:
        return {UUID(job["id"]) for job in (await site.call("GET", f"/v1/jobs?{query}"))["jobs"]}

    assert await ids("") == {plain, image, held, lapsed, modelled}
    assert await ids("kind=image") == {image}
    assert await ids("kind=video") == set()
    assert await ids("model=llama3.1:8b") == {modelled}
    assert await ids("model=llama3-1-8b") == set()  # the same lane, another model
    assert await ids("kind=article&model=llama3.1:8b&state=pending") == {modelled}
    assert await ids("kind=image&model=llama3.1:8b") == set()
    assert await ids("state=processing") == {held}
    assert await ids("worker=mini") == {held, lapsed}  # holds it, or has held it
    assert await ids("worker=mini&state=pending") == {lapsed}
    assert await ids("label=lang:de") == {plain, image}
    assert await ids("label=lang:de&label=post:2") == {image}
    assert await ids("label=post:3") == set()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=done", "state"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("limit=٣", "limit"),
        ("label=novalue", "label"),
        ("cursor=zzz", "cursor"),
        ("stat=pending", "stat"),
        ("kind=a%00b", ""),
    ],
)
async def test_a_query_that_means_nothing_is_refused(site: Web, query: str, field: str) -> None:
    error = (await site.call("GET", f"/v1/jobs?{query}", expect=400))["error"]
    assert [fault["field"] for fault in error["faults"]] == [field]


async def test_pages_show_every_job_once_newest_first(site: Web) -> None:
    await _insert_jobs(site, 250, instants=7)  # many share an instant
    seen: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await site.call("GET", f"/v1/jobs?limit=40{cursor}")
        seen += page["jobs"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert len(seen) == 250
    assert len({job["id"] for job in seen}) == 250
    assert [job["created_at"] for job in seen] == sorted((job["created_at"] for job in seen), reverse=True)


async def test_a_text_finds_ids_keys_label_values_and_words_of_errors(site: Web) -> None:
    keyed = await site.submit(key="post-812-rev-3")
    labelled = await site.submit(labels={"post": "812", "quoted": 'a "b" \\c'})
    failed = await site.submit()
    error = {"code": "no_model", "message": "Nobody has it: llama", "class": "permanent"}
    await site.report(failed, await site.claim(failed), outcome="failed", error=error)

    async def ids(text: str, **more: str) -> set[UUID]:
        answer = await site.call("GET", "/v1/jobs", params={"text": text, **more})
        return {UUID(job["id"]) for job in answer["jobs"]}

    assert await ids("post-812") == {keyed}
    assert await ids("812") >= {labelled}
    assert keyed not in await ids("812-rev")
    assert await ids('a "b" \\c') == {labelled}
    assert await ids("no_model") == await ids("LLAMA nobody") == {failed}
    assert await ids("llama", state="pending") == set()
    for start in (str(keyed), str(keyed).upper(), str(keyed)[:13], keyed.hex, keyed.hex[:9], keyed.hex[:20]):
        assert keyed in await ids(start)
    assert await ids("%_nothing'\\") == set()


@pytest.mark.parametrize(
    ("query", "count"),
    [("worker=mini", 90), ("label=lang:de", 90), ("text=lang-de", 90), ("state=completed&label=lang:de", 30)],
)
async def test_what_too_many_jobs_have_is_found_by_walking_the_list(
    site: Web, query: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is looked at a time, and however little time there is: the pages lead to every such job, once."""
    for bound in ("_GLANCE", "_FEW", "_CHUNK", "_READ"):
        monkeypatch.setattr(job_list, bound, 7)
    monkeypatch.setattr(job_list, "SEARCH_S", 0.0)
    await _insert_jobs(site, 250, instants=7)
    await site.pool.execute("""UPDATE job SET labels = '{"lang": "de", "like": "lang-de"}' WHERE id IN (
        SELECT id FROM job WHERE state = 'completed' LIMIT 30) OR id IN (
        SELECT id FROM job WHERE state = 'pending' LIMIT 60)""")
    await site.pool.execute("""INSERT INTO attempt (job_id, epoch, number, worker, delivery, claimed_at, deadline_at)
        SELECT id, 1, 1, 'mini', 'd', created_at, created_at FROM job WHERE labels <> '{}'""")
    seen: list[str] = []
    cursor, pages = "", 0
    while cursor is not None:
        page = await site.call("GET", f"/v1/jobs?{query}&limit=20{cursor}")
        seen += [job["id"] for job in page["jobs"]]
        cursor, pages = page["next"] and f"&cursor={page['next']}", pages + 1
    assert (len(seen), len(set(seen))) == (count, count)
    assert pages > count / 20


@pytest.mark.parametrize("query", ["", "state=pending&", "state=completed&", "kind=article&"])
async def test_a_page_reads_no_more_than_it_shows(site: Web, query: str) -> None:
    """Hold by the plan, not by the clock: deep in the list, a page touches a page's worth of rows."""
    await _insert_jobs(site, 20_000, instants=4_000)
    await site.pool.execute("ANALYZE job")
    at, job_id = await site.pool.fetchrow(
        "SELECT created_at, id FROM job ORDER BY created_at DESC, id OFFSET 15000 LIMIT 1"
    )
    state = query.removesuffix("&").partition("=")[2] if query.startswith("state") else None
    states = [state] if state else list(JobState)
    name, more = ("list_by_lane", [["article.any"], states]) if query else ("list_newest", [])
    async with site.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        plan = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql(name)}", at, job_id, 51, *more)
    (top,) = json.loads(plan) if isinstance(plan, str) else plan
    blocks = top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"]
    assert blocks < 600, json.dumps(top, indent=1)


async def test_cancel_retry_approve_reject_do_what_they_say(site: Web) -> None:
    job_id = await site.submit(review=True)
    assert (await site.call("POST", f"/v1/jobs/{job_id}/cancel"))["state"] == "canceled"
    assert (await site.call("POST", f"/v1/jobs/{job_id}/retry"))["state"] == "pending"
    await site.report(job_id, await site.claim(job_id))
    assert (await site.call("POST", f"/v1/jobs/{job_id}/reject", json={"again": True}))["state"] == "pending"
    await site.report(job_id, await site.claim(job_id))
    assert (await site.call("POST", f"/v1/jobs/{job_id}/approve"))["state"] == "completed"
    body = {"priority": "urgent", "note": "They wait for it."}
    await site.call("POST", f"/v1/jobs/{job_id}/priority", json=body, expect=409)
    actions = await site.pool.fetch("SELECT actor, action FROM operator_action ORDER BY id")
    assert [tuple(a) for a in actions] == [("local", a) for a in ("cancel", "retry", "reject", "approve")]


async def test_reject_without_again_calls_the_job_off(site: Web) -> None:
    job_id = await site.submit(review=True)
    await site.report(job_id, await site.claim(job_id))
    assert (await site.call("POST", f"/v1/jobs/{job_id}/reject"))["state"] == "canceled"


async def test_a_priority_can_be_changed_with_a_note(site: Web) -> None:
    job_id = await site.submit()
    body = {"priority": "urgent", "note": "They wait for it."}
    job = await site.call("POST", f"/v1/jobs/{job_id}/priority", json=body)
    assert job["priority"] == "urgent"
    (action,) = job["actions"]
    assert (action["actor"], action["action"], action["note"]) == ("local", "priority urgent", "They wait for it.")
    error = (await site.call("POST", f"/v1/jobs/{job_id}/priority", json=body, expect=409))["error"]
    assert error["message"] == "can't change its priority: its priority is urgent already"
    for bad, field in (({}, "priority"), ({"priority": "top"}, "priority"), ({**body, "note": "x" * 2001}, "note")):
        error = (await site.call("POST", f"/v1/jobs/{job_id}/priority", json=bad, expect=422))["error"]
        assert [fault["field"] for fault in error["faults"]] == [field]


@pytest.mark.parametrize("action", ["retry", "approve", "reject"])
async def test_what_does_not_apply_is_a_conflict_with_the_reason(site: Web, action: str) -> None:
    job_id = await site.submit()
    error = (await site.call("POST", f"/v1/jobs/{job_id}/{action}", expect=409))["error"]
    assert error["code"] == "does_not_apply"
    assert "the job is pending" in error["message"]


@pytest.mark.parametrize(("body", "field"), [(b'{"again": "yes"}', "again"), (b'{"agian": true}', "agian"), (b"{", "")])
async def test_a_bad_reject_body_changes_nothing(site: Web, body: bytes, field: str) -> None:
    job_id = await site.submit(review=True)
    await site.report(job_id, await site.claim(job_id))
    error = (await site.call("POST", f"/v1/jobs/{job_id}/reject", data=body, expect=422))["error"]
    assert [fault["field"] for fault in error["faults"]] == [field]
    assert (await site.call("GET", f"/v1/jobs/{job_id}"))["state"] == "awaiting_review"


async def test_acting_on_an_unknown_job_is_not_found(site: Web) -> None:
    await site.call("POST", f"/v1/jobs/{uuid4()}/cancel", expect=404)


async def test_two_cancels_at_once_are_one(site: Web) -> None:
    job_id = await site.submit()
    calls = (site.call("POST", f"/v1/jobs/{job_id}/cancel", expect=None) for _ in range(2))
    answers = await asyncio.gather(*calls)
    assert sorted("created_at" in answer for answer in answers) == [False, True]


async def _lapse(site: Web, job_id: UUID) -> None:
    await site.pool.execute("UPDATE job SET lease_expires_at = tandem_now() - interval '1 s' WHERE id = $1", job_id)
    await site.ledger.do(Expire(job_id=job_id))


async def _insert_jobs(site: Web, count: int, *, instants: int) -> None:
    await site.pool.execute("INSERT INTO lane (name) VALUES ('article.any')")
    await site.pool.execute(
        """
        INSERT INTO job (id, source, kind, lane, priority, state, content_sha256, spec, labels, max_attempts, timeout_s,
            review, run_after, created_at, finished_at, result_epoch, epoch)
        SELECT gen_random_uuid(), 'local', 'article', 'article.any', 1, s, '', '{}', '{}', 5, 1800, false, t, t,
            CASE WHEN s = 'completed' THEN t END, CASE WHEN s = 'completed' THEN 1 END,
            CASE WHEN s = 'completed' THEN 1 ELSE 0 END
        FROM (
            SELECT CASE WHEN n % 3 = 0 THEN 'completed' ELSE 'pending' END AS s,
                tandem_now() - make_interval(secs => n % $2) AS t
            FROM generate_series(1, $1) AS n
        ) AS made
        """,
        count,
        instants,
    )
