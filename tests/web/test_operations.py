"""Workers, lanes, refusals, status and the page."""

import asyncio
import re
from typing import Any

import pytest

from coordinator.ledger.model import Heartbeat
from coordinator.web.context import Sparing
from shared.client import Client
from shared.errors import LedgerDownError
from shared.states import Verdict
from shared.subjects import consumer_of, lane_of
from shared.wire import Presence
from tests.support.ledger import set_clock_offset
from tests.support.web import Web


async def _announce(site: Web, worker: str = "mini", **more: Any) -> None:
    said = {"instance": "i", "host": f"{worker}.local", "capabilities": [{"kind": "article"}], **more}
    await site.intake.queries.save_presence(worker, None, Presence.model_validate(said))


async def test_workers_are_shown_with_what_they_hold(site: Web) -> None:
    await _announce(site)
    await _announce(site, "book")
    await site.pool.execute("UPDATE worker SET seen_at = tandem_now() - interval '31 s' WHERE name = 'book'")
    job_id = await site.submit()
    await site.claim(job_id, "mini")
    failed = await site.submit()
    error = {"code": "x", "message": "", "class": "permanent"}
    await site.report(failed, await site.claim(failed, "mini"), outcome="failed", error=error)
    book, mini = (await site.call("GET", "/v1/workers"))["workers"]
    assert (book["name"], book["present"], book["holds"], book["last_hour"]) == ("book", False, [], {})
    assert book["seen_age_s"] >= 31
    assert (mini["name"], mini["present"], mini["wanted"]) == ("mini", True, "ready")
    assert mini["presence"]["host"] == "mini.local"
    assert [(h["job_id"], h["epoch"]) for h in mini["holds"]] == [(str(job_id), 1)]
    assert mini["last_hour"] == {"failed": 1}


async def test_lanes_are_shown_with_what_is_in_them(site: Web) -> None:
    for _ in range(3):
        await site.submit(model="llama3.1:8b")
    await site.submit(model="llama3.1:8b", run_after="2999-01-01T00:00:00Z")
    await site.claim(await site.submit())
    await site.intake.queries.set_lane_paused("article.any", paused=True, actor="boss")
    any_model, llama = (await site.call("GET", "/v1/lanes"))["lanes"]
    assert (any_model["name"], any_model["paused"], any_model["processing"]) == ("article.any", True, 1)
    assert (llama["name"], llama["paused"]) == ("article.llama3-1-8b", False)
    assert (llama["waiting"], llama["offered"]) == (2, 2)  # a window of two was offered at once
    assert llama["waits_s"] >= 0


async def test_a_job_that_is_offered_and_that_nobody_takes_waits_too(site: Web) -> None:
    await site.submit(model="llama9")
    await set_clock_offset(site.pool, 600)
    (lane,) = (await site.call("GET", "/v1/lanes"))["lanes"]
    assert (lane["waiting"], lane["offered"]) == (0, 1)
    assert lane["waits_s"] >= 600


async def test_the_page_names_every_kind_that_a_worker_makes_with_any_model(site: Web) -> None:
    await _announce(site, capabilities=[{"kind": "article", "models": ["*"]}, {"kind": "image", "models": ["*"]}])
    async with site.client.get("/workers") as answer:
        page = await answer.text()
    assert "article: any" in page
    assert "image: any" in page


@pytest.mark.parametrize("order", ["drain", "pause", "resume"])
async def test_an_order_reaches_the_worker(guarded: Web, order: str) -> None:
    await _announce(guarded)
    answer = await guarded.call("POST", f"/v1/workers/mini/{order}", token="admin")
    assert answer == {"worker": "mini", "order": order}
    assert guarded.orders == [("mini", order, "boss")]


async def test_an_order_to_nobody_is_not_found(site: Web) -> None:
    await site.call("POST", "/v1/workers/nobody/drain", expect=404)
    assert site.orders == []


@pytest.mark.parametrize(("order", "paused"), [("pause", True), ("resume", False)])
async def test_a_lane_is_paused_and_resumed(guarded: Web, order: str, *, paused: bool) -> None:
    await guarded.call("POST", "/v1/lanes/article.any/pause", token="admin", expect=404)
    await guarded.call("POST", "/v1/jobs", token="admin", json={"kind": "article", "spec": {"prompt": "x"}}, expect=201)
    answer = await guarded.call("POST", f"/v1/lanes/article.any/{order}", token="admin")
    assert answer == {"lane": "article.any", "paused": paused}
    assert guarded.orders == [("article.any", paused, "boss")]


async def test_refusals_are_shown_with_their_reasons(site: Web) -> None:
    job_id = await site.submit()
    await site.report(job_id, await site.claim(job_id))
    assert await site.report(job_id, 7, "book") is Verdict.REJECTED
    fault = {"field": "kind", "message": "missing"}
    await site.intake.queries.record_rejected_submission("blog", "invalid", "kind: missing", [fault], b'{"x": 1}')
    refused = await site.call("GET", "/v1/rejected")
    (result,), (submission,) = refused["results"], refused["submissions"]
    assert (result["job_id"], result["epoch"], result["worker"]) == (str(job_id), 7, "book")
    assert (result["verdict"], result["current_epoch"], result["outcome"]) == ("rejected", 1, "completed")
    assert result["reason"] == "epoch 7 was never granted"
    assert (submission["source"], submission["code"], submission["faults"]) == ("blog", "invalid", [fault])
    assert (submission["body"], submission["size"]) == ('{"x": 1}', 8)


async def test_the_client_reads_the_refusal_of_a_report_that_nobody_could_read(site: Web) -> None:
    await site.intake.queries.record_rejected_report("book", "no-uuid", "not JSON", b"{")
    async with Client(site.runner.url) as client:
        (result,) = (await client.rejected()).results
    assert (result.job_id, result.epoch, result.worker, result.reason) == (None, None, "book", "not JSON")


async def test_status_tells_how_everything_is(site: Web) -> None:
    await _announce(site)
    job_id = await site.submit()
    await site.claim(job_id)
    status = await site.call("GET", "/status")
    assert status["jobs"] == {
        **dict.fromkeys(("pending", "completed", "failed", "canceled", "awaiting_review"), 0),
        "processing": 1,
    }
    assert status["ready"] is True
    assert status["health"]["bus"] == {"connected": True}
    assert status["ledger"]["up"] is True
    assert [w["name"] for w in status["workers"]] == ["mini"]
    assert [lane["name"] for lane in status["lanes"]] == ["article.any"]
    assert [row["id"] for row in status["running"]] == [str(job_id)]
    assert set(status["versions"]) == {"tandem", "protocol", "python", "aiohttp", "postgres", "schema"}
    assert status["versions"]["postgres"].startswith("18")


async def test_status_and_page_answer_while_the_ledger_is_away(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    async def down(*_: Any) -> Any:
        msg = "Postgres is away"
        raise LedgerDownError(msg)

    monkeypatch.setattr("coordinator.ledger.views.fetch", down)
    site.not_ready.append("the ledger is away")
    status = await site.call("GET", "/status")
    assert (status["ready"], status["not_ready_because"]) == (False, ["the ledger is away"])
    assert status["ledger"]["up"] is False
    page = await site.call("GET", "/", expect=503, headers={"Accept": "text/html"})
    assert "the ledger does not answer" in page
    assert "not ready: the ledger is away" in page
    assert 'http-equiv="refresh"' in page
    assert (await site.call("GET", "/v1/lanes", expect=503))["error"]["code"] == "ledger_down"


async def test_views_answer_again_after_postgres_cut_every_connection(site: Web) -> None:
    await site.submit()
    await site.pool.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    answers = await asyncio.gather(*(site.call("GET", "/v1/jobs", expect=None) for _ in range(12)))
    assert all("jobs" in a or a["error"]["code"] == "ledger_down" for a in answers)
    assert len((await site.call("GET", "/v1/jobs"))["jobs"]) == 1


EVIL = '<script>alert("x")</script>'


async def test_the_page_shows_what_runs_and_nothing_of_it_is_markup(site: Web) -> None:
    await _announce(site, state="unhealthy")
    await site.intake.queries.record_rejected_submission(EVIL, "invalid", EVIL, [], b"{}")
    running = await site.submit(model=EVIL)
    await site.claim(running, lane=consumer_of(lane_of("article", EVIL)))
    await site.ledger.do(Heartbeat(job_id=running, worker="mini", epoch=1, stage=EVIL, elapsed_s=1, progress=0.5))
    failed = await site.submit()
    error = {"code": "x", "message": EVIL, "class": "permanent"}
    await site.report(failed, await site.claim(failed), outcome="failed", error=error)
    async with site.client.get("/") as answer:
        page = await answer.text()
        assert answer.content_type == "text/html"
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert re.findall("<script.*?>", page) == re.findall('<script src="/static/tandem.js.*?" defer>', page)
    assert page.count("&lt;script&gt;") == 4  # model and stage of what runs, its stage at its Mac, the error
    assert "&lt;script&gt;" in await site.call("GET", "/refused")
    assert str(running) in page
    assert "50 %" in page
    assert "unhealthy" in page
    assert 'http-equiv="refresh"' in page


@pytest.mark.parametrize("path", ["/", "/workers", "/refused", "/jobs", "/review", "/submit", "/nothing-here"])
async def test_nothing_on_a_page_is_inline(site: Web, path: str) -> None:
    await site.claim(await site.submit())
    async with site.client.get(path, headers={"Accept": "text/html"}) as answer:
        page, policy = await answer.text(), answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; ")
    assert " style=" not in page
    assert "<style" not in page
    assert not re.search(r"<[^>]+ on[a-z]+=|<script(?! src=)", page)


async def test_links_on_the_page_lead_to_jobs(site: Web) -> None:
    job_id = await site.submit()
    await site.claim(job_id)
    assert f'href="/jobs/{job_id}"' in await site.call("GET", "/")
    assert str(job_id) in await site.call("GET", f"/jobs/{job_id}")


async def test_a_slow_question_is_asked_for_a_tenth_of_the_time_at_most() -> None:
    now, asked = 0.0, 0

    async def question() -> int:
        nonlocal now, asked
        now, asked = now + 2.0, asked + 1
        return asked

    sparing = Sparing(lambda: now)
    together = await asyncio.gather(*(sparing.ask("jobs", question) for _ in range(5)))
    assert (together, asked) == ([1] * 5, 1)
    now = 2.0 + 19.9
    assert await sparing.ask("jobs", question) == 1
    assert await sparing.ask("other", question) == 2
    now = 2.0 + 20.0
    assert await sparing.ask("jobs", question) == 3


async def test_a_question_that_failed_is_asked_again() -> None:
    async def down() -> int:
        raise LedgerDownError

    async def up() -> int:
        return 7

    sparing = Sparing(lambda: 0.0)
    with pytest.raises(LedgerDownError):
        await sparing.ask("jobs", down)
    assert await sparing.ask("jobs", up) == 7


async def test_without_a_token_no_metrics_are_told(guarded: Web) -> None:
    await guarded.call("GET", "/metrics", expect=401)
    await guarded.call("GET", "/metrics", token="publisher", expect=403)


async def test_no_more_answers_are_kept_than_the_newest() -> None:
    now, asked = 0.0, 0

    async def question() -> int:
        nonlocal asked
        asked += 1
        return asked

    sparing = Sparing(lambda: now)
    for number in (*range(300), 0):
        await sparing.ask(str(number), question, good_s=10.0)
    assert asked == 301, "the first is forgotten"
    assert await sparing.ask("299", question, good_s=10.0) == 300
