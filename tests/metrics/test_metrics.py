"""GET /metrics: what happened is counted once, what is there is told, and nobody outside makes new labels at will."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coordinator import metrics
from coordinator.ledger import views
from coordinator.ledger.model import Attempt, Job
from coordinator.metrics import MOST_KINDS, MOST_LANES, Metrics, Reading
from shared.states import AttemptOutcome, JobState
from tests.support.servers import own_servers
from tests.support.world import World
from tests.support.world import world as open_world

DEPLOY = Path(__file__).parents[2] / "deploy" / "grafana"
NOW = datetime(2026, 11, 30, tzinfo=UTC)
_PUBLISHED = ("published", "failed", "given_up")
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


def read(text: str) -> Values:
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"told twice: {key}"
            found[key] = sample.value
    return found


async def scrape(world: World) -> Values:
    async with world.http.get("/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return read(await answer.text())


def value(found: Values, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


async def test_a_jobs_life_is_counted(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    await (await mini.take()).fail("transient")
    await world.move_clock(15)
    await mini.announce()
    world.coordinator.dispatcher.wake()
    held = await mini.take()
    await held.report()
    await held.verdict("accepted")
    called_off = await world.submit()
    late = await mini.take()
    await world.act(called_off["id"], "cancel")
    await late.report()
    await late.verdict("rejected")
    await world.submit(expect=422, kind="nothing")
    await world.submit()
    found = await scrape(world)

    assert value(found, "tandem_jobs_admitted_total", kind="article") == 3
    assert value(found, "tandem_jobs_settled_total", kind="article", state="completed") == 1
    assert value(found, "tandem_attempts_ended_total", kind="article", outcome="failed") == 1
    assert value(found, "tandem_attempts_ended_total", kind="article", outcome="completed") == 1
    assert value(found, "tandem_attempt_errors_total", kind="article", error_class="transient") == 1
    assert value(found, "tandem_attempt_seconds_count", kind="article") == 1
    assert value(found, "tandem_wait_seconds_count", kind="article") == 2
    assert value(found, "tandem_claims_granted_total") == 3
    assert value(found, "tandem_reports_total", verdict="accepted") == 2
    assert value(found, "tandem_reports_total", verdict="rejected") == 1
    assert value(found, "tandem_submissions_refused_total") == 1
    assert value(found, "tandem_jobs", state="completed") == 1
    assert value(found, "tandem_jobs", state="pending") == 1
    assert value(found, "tandem_lane_jobs", lane="article.any", state="offered") == 1
    assert value(found, "tandem_workers", state="ready") == 1
    assert value(found, "tandem_ready") == value(found, "tandem_ledger_up") == 1
    assert value(found, "tandem_loop_failures", loop="reaper") == 0
    assert value(found, "tandem_commit_seconds_count") > 0
    assert value(found, "tandem_http_seconds_count", method="POST", route="/v1/jobs", status="201") == 3
    assert value(found, "tandem_http_seconds_count", method="POST", route="/v1/jobs", status="422") == 1


async def test_a_lapse_and_its_resumption_are_counted(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    await held.beat()
    await world.move_clock(200)
    await world.coordinator.reaper.once()
    assert (await held.ask())["lease"] == "held"
    found = await scrape(world)
    assert value(found, "tandem_lease_losses_total", code="worker_silent") == 1
    assert value(found, "tandem_leases_resumed_total") == 1


async def test_paths_and_methods_of_strangers_are_no_labels(world: World) -> None:
    for number in range(5):
        async with world.http.get(f"/nothing/{number}") as answer:
            assert answer.status == 404
        async with world.http.request("PROPFIND", "/v1/jobs") as answer:
            assert answer.status == 405
        async with world.http.get(f"/v1/jobs/00000000-0000-0000-0000-00000000000{number}") as answer:
            assert answer.status == 404
    asked = {labels for name, labels in await scrape(world) if name == "tandem_http_seconds_count"}
    assert {dict(labels)["route"] for labels in asked} >= {"none", "/v1/jobs/{job_id}"}
    assert not any("nothing" in dict(labels)["route"] or dict(labels)["method"] == "PROPFIND" for labels in asked)


# ---- without servers


def job(**fields: Any) -> Job:
    given: dict[str, Any] = {
        "id": None,
        "source": "cms",
        "kind": "article",
        "model": None,
        "lane": "article.any",
        "state": JobState.PENDING,
        "content_sha256": b"",
        "max_attempts": 5,
        "timeout_s": 60,
        "review": False,
        "run_after": NOW,
        "created_at": NOW,
    }
    return Job(**{**given, **fields})


def attempt(epoch: int = 1, **fields: Any) -> Attempt:
    given = {"number": 1, "worker": "mini", "instance": None, "delivery": "d", "deadline_at": NOW}
    return Attempt(epoch=epoch, claimed_at=NOW + timedelta(seconds=7), **{**given, **fields})


def told(made: Metrics, **more: Any) -> Values:
    status = {
        "bus": {"connected": True, "connections": 1},
        "ledger": {"connected": True, "waiting": 0, "outages": 0},
        "loops": {},
        "counts": {
            **{key: 0 for key, _ in metrics._COUNTED.values()},
            "granted": 0,
            "denied": {},
            "verdicts": {},
            "callbacks_failed": {},
            "set_aside": 0,
        },
        "hooks": {"blog": {"taken": 3, "refused": 1}},
        "publishing": {"blog": {"published": 5, "failed": 2, "given_up": 1}, "shop": dict.fromkeys(_PUBLISHED, 0)},
    }
    return read(made.exposition(Reading(status=status, ready=True, **more)).decode())


def test_only_the_first_claim_is_a_wait_and_only_a_result_a_duration() -> None:
    made = Metrics()
    waiting = job()
    first = job(state=JobState.PROCESSING, epoch=1, last=attempt())
    made.changed(waiting, first)
    ended = {"outcome": AttemptOutcome.RELEASED, "ended_at": NOW + timedelta(seconds=20)}
    released = job(epoch=1, last=attempt(**ended))
    made.changed(first, released)
    second = job(state=JobState.PROCESSING, epoch=2, last=attempt(2))
    made.changed(released, second)
    ended["outcome"] = AttemptOutcome.COMPLETED
    made.changed(second, job(state=JobState.COMPLETED, epoch=2, finished_at=NOW, last=attempt(2, **ended)))
    found = told(made)
    assert value(found, "tandem_wait_seconds_sum", kind="article") == 7
    assert value(found, "tandem_wait_seconds_count", kind="article") == 1
    assert value(found, "tandem_attempt_seconds_sum", kind="article") == 13
    assert value(found, "tandem_attempts_ended_total", kind="article", outcome="released") == 1


def test_many_lanes_become_one() -> None:
    lanes = [
        {"name": f"article.m{n}", "paused": False, "waiting": n, "offered": 0, "processing": 0, "waits_s": None}
        for n in range(MOST_LANES + 50)
    ]
    found = told(Metrics(), counts={"pending": 1}, lanes=lanes)
    shown = {dict(labels)["lane"] for name, labels in found if name == "tandem_lane_jobs"}
    assert len(shown) == MOST_LANES + 1
    assert value(found, "tandem_lane_jobs", lane="other", state="waiting") == sum(range(50))


def test_live_jobs_are_told_by_kind_and_many_kinds_become_one() -> None:
    live = {"paused": False, "offered": 0, "processing": 0, "waits_s": None}
    lanes = [{**live, "name": f"{kind}.{model}", "waiting": 100} for kind in ("article", "image") for model in "ab"]
    lanes += [{**live, "name": f"kind{n}.any", "waiting": 1, "processing": 2} for n in range(MOST_KINDS)]
    found = told(Metrics(), counts={"pending": 1}, lanes=lanes)
    assert value(found, "tandem_kind_jobs", kind="article", state="waiting") == 200
    assert value(found, "tandem_kind_jobs", kind="kind0", state="processing") == 2
    assert value(found, "tandem_kind_jobs", kind="other", state="processing") == 4
    assert len([name for name, _ in found if name == "tandem_kind_jobs"]) == 3 * (MOST_KINDS + 1)


def test_what_a_cms_sends_and_what_goes_back_is_told_by_source() -> None:
    undone = [{"source": "blog", "waiting": 4, "failed": 1, "paused": True}]
    found = told(Metrics(), counts={}, publications=undone)
    assert value(found, "tandem_hook_events_total", source="blog", end="taken") == 3
    assert value(found, "tandem_hook_events_total", source="blog", end="refused") == 1
    assert value(found, "tandem_publications_done_total", source="blog") == 5
    assert value(found, "tandem_publications_failed_total", source="blog") == 2
    assert value(found, "tandem_publications_given_up_total", source="blog") == 1
    assert value(found, "tandem_publications_given_up_total", source="shop") == 0
    assert value(found, "tandem_publications_undone", source="blog", state="waiting") == 4
    assert value(found, "tandem_publications_undone", source="blog", state="failed") == 1
    assert value(found, "tandem_site_paused", source="blog") == 1


async def test_the_ledger_knows_what_is_not_published(ledger_pool: asyncpg.Pool) -> None:
    ends = {"next_at": 2, "failed_at": 1, "published_at": 5}
    for end, jobs in ends.items():
        await ledger_pool.execute(
            f"INSERT INTO publication (job_id, epoch, source, kind, asked_at, since, {end})"
            " SELECT gen_random_uuid(), 1, 'blog', 'article', now(), now(), now() FROM generate_series(1, $1)",
            jobs,
        )
    await ledger_pool.execute(
        "INSERT INTO paused_site (source, reason, since, check_at) VALUES ('shop', 'wrong password', now(), now())"
    )
    assert await views.metrics_publications(ledger_pool) == [
        {"source": "blog", "waiting": 2, "failed": 1, "paused": False},
        {"source": "shop", "waiting": 0, "failed": 0, "paused": True},
    ]


def test_while_the_ledger_is_away_the_machinery_is_told() -> None:
    found = told(Metrics())
    assert value(found, "tandem_ledger_up") == 0
    assert not any(name == "tandem_jobs" for name, _ in found)


# ---- what is made of it


def names_in(query: str) -> set[str]:
    return set(re.findall(r"tandem_[a-z_]+", query))


def exported() -> set[str]:
    names = set()
    lanes = [{"name": "l", "paused": False, "waiting": 1, "offered": 0, "processing": 0, "waits_s": 1.0}]
    text = Metrics()
    first = job(state=JobState.PROCESSING, epoch=1, last=attempt())
    lapsed = {"outcome": AttemptOutcome.LEASE_EXPIRED, "ended_at": NOW, "error": {"code": "worker_lost"}}
    text.changed(None, first)
    text.changed(first, job(epoch=1, last=attempt(**lapsed)))
    text.answered("GET", "/", 200, 0.1)
    for family in text.registry.collect():
        names |= {f"{family.name}{end}" for end in ("", "_total", "_bucket", "_sum", "_count")}
    undone = [{"source": "blog", "waiting": 4, "failed": 1, "paused": True}]
    found = told(text, counts={"pending": 1}, lanes=lanes, publications=undone)
    return (
        names
        | {name for name, _ in found}
        | {"tandem_claims_denied_total", "tandem_reports_total"}
        | {
            "tandem_callbacks_failed_total",
            "tandem_loop_failures",
            "tandem_loop_rounds_total",
        }
    )


def test_every_query_of_the_dashboard_and_the_alerts_names_what_is_exported() -> None:
    board = json.loads((DEPLOY / "tandem.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert {"summary", "description"} <= set(alerts[0]["annotations"])
    known = exported()
    for query in [*queries, *(alert["expr"] for alert in alerts)]:
        assert names_in(query), query
        assert names_in(query) <= known, query
        assert query.count("(") == query.count(")"), query


def test_the_docs_name_every_metric_and_every_alert() -> None:
    text = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["alert"] in text
    made = Metrics()
    families = {family.name for family in made.registry.collect()}
    read_too = ("tandem_ready", "tandem_jobs", "tandem_kind_jobs", "tandem_hook_events")
    families |= {*read_too, "tandem_publications_undone", "tandem_site_paused"}
    assert all(family in text for family in families | set(metrics._COUNTED) | set(metrics._PUBLISHING))


def test_the_docs_give_a_metric_of_publications_the_labels_that_it_has() -> None:
    text = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    undone = [{"source": "blog", "waiting": 4, "failed": 1, "paused": True}]
    found = told(Metrics(), counts={}, publications=undone)
    rows = [row.split("|")[1:3] for row in text.splitlines() if re.match(r"\| `tandem_(publications|site)_", row)]
    said = {name: set(re.findall(r"`(\w+)`", labels)) for names, labels in rows for name in names_in(names)}
    assert said == {
        name.removesuffix("_total"): {label for label, _ in labels}
        for name, labels in found
        if name.startswith(("tandem_publications_", "tandem_site_"))
    }


@pytest.mark.parametrize("answer", ["401", "200"])
def test_an_answer_is_timed_by_its_status(answer: str) -> None:
    made = Metrics()
    made.answered("GET", "/status", int(answer), 0.3)
    assert value(told(made), "tandem_http_seconds_sum", method="GET", route="/status", status=answer) == 0.3
