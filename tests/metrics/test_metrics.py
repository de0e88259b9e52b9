"""What is counted: each number follows something that the ledger committed, and no label can be made up outside."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import generate_latest
from pydantic import SecretStr

from coordinator.metrics import KINDS_MOST, OTHER, Metrics
from coordinator.metrics_state import LANES_MOST, Families, of_ledger
from tests.metrics.reading import Reading, scrape
from tests.support.servers import TandemServers, eventually, own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

TOKENS = {
    "publisher:blog": SecretStr("t-blog"),
    "viewer:wall": SecretStr("t-wall"),
    "admin:boss": SecretStr("t-boss"),
}


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(servers: TandemServers, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(servers, ledger_dsn, tmp_path, tokens=TOKENS) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def opened(servers: TandemServers, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(servers, ledger_dsn, tmp_path, tokens=TOKENS, metrics_open=True) as made:
        yield made


async def test_a_job_is_counted_from_its_submission_to_its_result(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit(key="one")
    await world.submit(key="one", expect=200)
    await world.submit(key="one", expect=409, priority="high")
    held = await mini.take()
    await held.beat()
    await eventually(lambda: world.coordinator.heartbeats.taken == 1)
    running = await scrape(world.http)
    assert running("tandem_jobs", state="processing", kind="article", lane="article.any") == 1
    await world.move_clock(20)
    await held.report()
    await held.verdict("accepted")

    seen = await scrape(world.http)

    for outcome in ("admitted", "same", "conflict"):
        assert seen("tandem_submissions_total", kind="article", outcome=outcome) == 1
    assert seen("tandem_claims_granted_total", kind="article") == 1
    assert seen("tandem_job_wait_seconds_count", kind="article") == 1
    assert seen("tandem_heartbeats_total") == 1
    assert seen("tandem_reports_total", verdict="accepted") == 1
    assert seen("tandem_attempts_total", kind="article", outcome="completed") == 1
    assert seen("tandem_jobs_settled_total", kind="article", state="completed") == 1
    for name in ("tandem_attempt_seconds", "tandem_job_seconds"):
        assert seen(f"{name}_count", kind="article") == 1
        assert seen(f"{name}_sum", kind="article") >= 20
    assert seen("tandem_jobs", state="completed", lane="article.any") == 1
    assert seen("tandem_jobs", state="processing") == 0
    assert seen("tandem_retries_total") == seen("tandem_lease_losses_total") == 0
    assert seen("tandem_ledger_commit_seconds_count") == seen("tandem_ledger_commit_commands_count") > 0
    assert seen("tandem_workers", state="ready") == 1
    assert seen("tandem_ready") == seen("tandem_ledger_up") == seen("tandem_bus_connected") == 1


async def test_a_lapse_a_stale_result_and_a_lost_heartbeat_are_counted(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    await world.submit()
    late = await macbook.take()
    await world.pass_time(91)
    held = await mini.take()
    await late.beat()
    await macbook.hears("revoke", job_id=late.job_id, epoch=1)
    await late.report(result={"text": "late"})
    await late.verdict("stale")
    await held.report()
    await held.verdict("accepted")
    await held.report()
    await held.verdict("duplicate")

    seen = await scrape(world.http)

    assert seen("tandem_lease_losses_total", kind="article", how="worker_lost") == 1
    assert seen("tandem_attempts_total", outcome="lease_expired") == 1
    assert seen("tandem_retries_total", **{"class": "lapsed"}) == 1
    assert seen("tandem_heartbeats_lost_total", reason="stale") == 1
    assert [seen("tandem_reports_total", verdict=v) for v in ("accepted", "stale", "duplicate")] == [1, 1, 1]
    assert seen("tandem_leases_resumed_total") == 0


async def test_a_lease_that_is_heard_of_in_time_is_no_second_end(world: World) -> None:
    mini = await world.puppet("mini")
    await world.submit()
    held = await mini.take()
    await world.pass_time(91)
    await held.beat()
    await eventually(lambda: world.coordinator.heartbeats.taken == 1)

    seen = await scrape(world.http)

    assert (seen("tandem_leases_resumed_total"), seen("tandem_lease_losses_total")) == (1, 1)
    assert (seen("tandem_claims_granted_total"), seen("tandem_attempts_total")) == (1, 1)


async def test_retries_are_counted_by_the_class_of_what_went_wrong(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit(max_attempts=2)
    await (await mini.take()).report("released")
    await (await mini.take()).fail("elsewhere")
    await (await macbook.take()).fail("transient")
    await world.pass_time(13)
    world.coordinator.dispatcher.wake()
    await (await macbook.take()).fail("permanent")
    await world.until(job["id"], "failed")
    await world.act(job["id"], "retry")

    seen = await scrape(world.http)

    for word in ("released", "elsewhere", "transient", "operator"):
        assert seen("tandem_retries_total", **{"class": word}) == 1, word
    assert seen("tandem_retries_total") == 4
    assert seen("tandem_attempts_total", outcome="failed") == 3
    assert seen("tandem_jobs_settled_total", state="failed") == 1


async def test_a_denied_claim_is_counted_with_its_reason(world: World) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    await world.submit()
    held = await mini.take()
    answer = await macbook.claim(held.offer)
    assert answer["reason"] == "leased"

    seen = await scrape(world.http)

    assert seen("tandem_claims_denied_total", reason="leased") == seen("tandem_claims_denied_total") == 1


async def test_the_queue_has_the_age_of_its_oldest_due_job_unless_its_lane_is_paused(world: World) -> None:
    await world.submit(run_after="2999-01-01T00:00:00Z", kind="image", spec={"prompt": "later"})
    await world.submit()
    await world.submit(model="llama3.1:8b")
    await world.move_clock(100)
    await _pause(world, "article.llama3-1-8b")

    seen = await scrape(world.http)

    assert seen("tandem_queue_age_seconds", kind="article", lane="article.any") >= 100
    assert seen.labels("tandem_queue_age_seconds", "lane") == {"article.any"}
    assert seen("tandem_lanes_paused") == 1
    assert seen("tandem_jobs", state="pending") == 3


async def test_a_worker_that_is_away_paused_or_unhealthy_is_told_apart_without_its_name(world: World) -> None:
    await world.puppet("mini")
    await world.puppet("macbook", state="unhealthy")
    await world.puppet("studio")
    await _order(world, "studio", "pause")

    seen = await scrape(world.http)

    states = {s: seen("tandem_workers", state=s) for s in seen.labels("tandem_workers", "state")}
    expected = {"ready": 1, "unhealthy": 1, "paused": 1, "draining": 0, "away": 0, "set_aside": 0}
    assert states == expected
    await world.move_clock(1000)
    await world.coordinator.directory.once()
    assert (await scrape(world.http))("tandem_workers", state="away") == 3
    assert not any("mini" in str(sample.labels.values()) for sample in seen.samples)


async def test_requests_are_counted_by_route_and_never_by_path(world: World) -> None:
    for number in range(3):
        async with world.http.get(f"/v1/jobs/01970000-0000-7000-8000-00000000000{number}") as answer:
            assert answer.status == 404
        async with world.http.get(f"/made-up-{number}") as answer:
            assert answer.status == 404
        async with world.http.request(("DELETE", "PATCH", "OPTIONS")[number], "/v1/jobs") as answer:
            assert answer.status == 405

    seen = await scrape(world.http)

    assert seen("tandem_http_requests_total", route="/v1/jobs/{job_id}", method="GET", status="404") == 3
    assert seen("tandem_http_requests_total", route="unmatched", status="404") == 3
    assert seen("tandem_http_requests_total", method="other", status="405") == 3
    assert seen("tandem_http_request_seconds_count", route="/v1/jobs/{job_id}") == 3


async def test_loops_and_the_reconciler_are_told(world: World) -> None:
    seen = await scrape(world.http)
    loops = {loop.name for loop in world.coordinator.loops}
    assert seen.labels("tandem_loop_failures_total", "loop") == loops
    assert seen("tandem_loop_rounds_total", loop="dispatcher") >= 1
    assert seen.labels("tandem_mended_total", "what") == {"missing", "unrecorded", "orphaned", "streams"}


def test_kinds_beyond_the_limit_are_one() -> None:
    metrics = Metrics()
    for number in range(KINDS_MOST + 20):
        metrics._denied.labels("leased").inc()
        metrics._granted.labels(metrics._kind(f"kind-{number}")).inc()
    seen = _read(metrics.registry.collect())
    assert len(seen.labels("tandem_claims_granted_total", "kind")) == KINDS_MOST + 1
    assert seen("tandem_claims_granted_total", kind=OTHER) == 20


def test_lanes_beyond_the_limit_are_one_and_no_job_is_left_out() -> None:
    rows: list[dict[str, Any]] = [
        {"lane": f"article.m{n}", "state": "pending", "jobs": 2, "paused": False, "age_s": float(n)}
        for n in range(LANES_MOST + 100)
    ]
    seen = _read(of_ledger(rows))
    assert len(seen.labels("tandem_jobs", "lane")) == LANES_MOST + 1
    assert seen("tandem_jobs", lane=OTHER, kind=OTHER) == 200
    assert seen("tandem_jobs") == 2 * len(rows)
    assert seen("tandem_queue_age_seconds", lane=OTHER) == LANES_MOST + 99


async def test_metrics_need_a_token_that_reads(guarded: World) -> None:
    for token, status in ((None, 401), ("t-nobody", 401), ("t-blog", 403), ("t-boss", 200), ("t-wall", 200)):
        assert await _status(guarded, "/metrics", token) == status, token


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
async def test_open_metrics_are_for_this_machine_and_not_for_what_a_proxy_passes_on(opened: World, header: str) -> None:
    assert await _status(opened, "/metrics") == 200
    assert await _status(opened, "/status") == 401
    assert await _status(opened, "/metrics", **{header: "203.0.113.7"}) == 401


async def test_metrics_are_there_while_postgres_is_away(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with open_world(servers, servers.postgres.dsn, tmp_path) as world:
            await world.submit()
            await servers.postgres.kill()

            async def away() -> bool:
                return (await scrape(world.http))("tandem_ledger_up") == 0

            await eventually_async(away)
            seen = await scrape(world.http)
            assert seen("tandem_submissions_total", outcome="admitted") == 1
            assert not seen.labels("tandem_jobs", "state")
            await servers.postgres.start()


async def _status(world: World, path: str, token: str | None = None, **headers: str) -> int:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with world.http.get(path, headers=headers) as answer:
        return answer.status


async def _pause(world: World, lane: str) -> None:
    async with world.http.post(f"/v1/lanes/{lane}/pause") as answer:
        assert answer.status == 200, await answer.text()


async def _order(world: World, worker: str, what: str) -> None:
    async with world.http.post(f"/v1/workers/{worker}/{what}") as answer:
        assert answer.status == 200, await answer.text()


def _read(families: Any) -> Reading:
    return Reading(generate_latest(Families(families)).decode())
