"""A job's life in the log: one line for each change, kept in files for their owner alone, and found again."""

import io
import json
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest_asyncio
from pydantic import SecretStr

from tests.support.processes import UpProcess, tandem, tandem_up
from tests.support.servers import TandemServers, eventually
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

TOKENS = {
    "publisher:blog": SecretStr("t-blog-secret"),
    "publisher:shop": SecretStr("t-shop-secret"),
    "admin:boss": SecretStr("t-boss-secret"),
}
_NOT_CHANGES = {"report judged", "claim denied", "lease lost", "submission repeated"}


def changes(said: io.StringIO, job_id: str) -> list[dict[str, Any]]:
    """Return the lines about a job's changes; all of them must be info."""
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    found = [line for line in lines if line.get("job_id") == job_id and line["event"] not in _NOT_CHANGES]
    assert {line["level"] for line in found} <= {"info"}, found
    return found


def told(lines: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(line.get(name) for name in names) for line in lines]


async def test_each_change_of_a_job_is_one_line_with_what_the_ledger_keeps(world: World, said: io.StringIO) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit(priority="high")
    await (await mini.take()).fail("elsewhere", "no_memory")
    held = await macbook.take()
    await held.beat("loading_model")
    await held.beat("generating_text")
    await eventually(lambda: world.coordinator.heartbeats.taken == 2)
    await world.pass_time(91)
    await held.beat()
    await eventually(lambda: world.coordinator.heartbeats.taken == 3)
    await held.report(model="gemma3:270m")
    await held.verdict("accepted")
    await held.report(model="gemma3:270m")
    await held.verdict("duplicate")

    lines = changes(said, job["id"])

    assert told(lines, "event", "state", "epoch", "worker", "outcome", "error") == [
        ("job admitted", "pending", None, None, None, None),
        ("claim granted", "processing", 1, "mini", None, None),
        ("attempt ended", "pending", 1, "mini", "failed", "no_memory"),
        ("claim granted", "processing", 2, "macbook", None, None),
        ("attempt ended", "pending", 2, "macbook", "lease_expired", "worker_silent"),
        ("lease resumed", "processing", 2, "macbook", None, None),
        ("attempt ended", "completed", 2, "macbook", "completed", None),
    ]
    assert {line["kind"] for line in lines} == {"article"}
    assert {line["lane"] for line in lines} == {"article.any"}
    assert {line["source"] for line in lines} == {"local"}
    assert (lines[0]["priority"], lines[2]["class"], lines[-1]["model"]) == ("high", "elsewhere", "gemma3:270m")
    assert lines[-1]["ran_s"] >= 91


async def test_what_people_do_is_one_line_with_their_name(world: World, said: io.StringIO) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(review=True)
    await (await mini.take()).report()
    await world.until(job["id"], "awaiting_review")
    await world.act(job["id"], "approve")
    await world.act(job["id"], "retry")
    held = await mini.take()
    await world.act(job["id"], "cancel")
    await mini.hears("revoke", job_id=job["id"])

    lines = changes(said, job["id"])[2:]

    assert told(lines, "event", "state", "epoch", "outcome", "actor") == [
        ("attempt ended", "awaiting_review", 1, "completed", None),
        ("job approved", "completed", 1, None, "local"),
        ("job retried", "pending", 1, None, "local"),
        ("claim granted", "processing", 2, None, None),
        ("job canceled", "canceled", 2, "canceled", "local"),
    ]
    assert held.epoch == 2


async def test_a_lease_taken_over_before_the_reaper_came_is_one_line(world: World, said: io.StringIO) -> None:
    mini, macbook = await world.puppet("mini"), await world.puppet("macbook")
    job = await world.submit()
    held = await mini.take()
    await world.move_clock(91)
    await mini.bus.nak(held.offer, 0)
    assert (await macbook.take()).epoch == 2

    (taken,) = [line for line in changes(said, job["id"]) if line.get("epoch") == 2]

    assert (taken["event"], taken["worker"], taken["lapsed"]) == ("claim granted", "macbook", "mini")


async def test_a_ghost_lease_and_a_job_that_moves_have_their_line(world: World, said: io.StringIO) -> None:
    mini = await world.puppet("mini")
    job = await world.submit(models=["one", "two"])
    await eventually(lambda: bool(changes(said, job["id"])))
    nobody_has_it = (await world.job(job["id"]))["model"]
    lane = f"article.{nobody_has_it}"
    await mini.take(lane)
    await world.move_clock(60)
    await mini.announce()

    ghost = changes(said, job["id"])[-1]

    assert (ghost["event"], ghost["outcome"], ghost["error"]) == ("attempt ended", "released", "ghost_lease")


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(said: io.StringIO, servers: TandemServers, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    agents = tmp_path / "agents"
    options = {"log_file": tmp_path / "logs" / "coordinator.jsonl", "log_agents": agents, "tokens": TOKENS}
    async with open_world(servers, ledger_dsn, tmp_path, **options) as made:
        yield made


async def test_publishers_read_the_lines_of_their_own_jobs_only(guarded: World, tmp_path: Path) -> None:
    job_id = await _submit(guarded, "blog")
    agent = tmp_path / "agents" / "mini" / "logs" / "agent.jsonl"
    agent.parent.mkdir(parents=True)
    line = {"event": "run ended", "level": "info", "job_id": job_id, "timestamp": "2999-01-01T00:00:00Z"}
    agent.write_bytes(orjson.dumps(line) + b"\n")
    await eventually_async(lambda: _has(guarded, job_id, "boss", "job admitted"))

    assert [one["event"] for one in await _logs(guarded, job_id, "blog")] == ["job admitted"]
    both = await _logs(guarded, job_id, "boss")
    assert told(both, "event", "program") == [("job admitted", "coordinator"), ("run ended", "agent")]
    assert await _logs(guarded, job_id, "boss", limit=1) == both[1:]
    await _logs(guarded, job_id, "shop", expect=404)
    await _logs(guarded, "01970000-0000-7000-8000-000000000000", "boss", expect=404)
    await _logs(guarded, job_id, "boss", expect=400, limit=0)


async def test_the_file_is_its_owners_alone_and_holds_no_secret(guarded: World, tmp_path: Path) -> None:
    job_id = await _submit(guarded, "blog", callback_url="https://example.com/hook?token=t-callback-secret")
    async with guarded.http.get("/v1/jobs", headers={"Authorization": "Bearer t-wrong-secret"}) as answer:
        assert answer.status == 401
    await eventually_async(lambda: _has(guarded, job_id, "boss", "job admitted"))
    path = tmp_path / "logs" / "coordinator.jsonl"
    await eventually(lambda: "request refused" in path.read_text())

    text = path.read_text()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "-secret" not in text
    identities = guarded.servers.nats.identities
    assert not any(seed in text for seed in (identities.coordinator, identities.provisioner, identities.watcher))
    (refused,) = [one for one in map(json.loads, text.splitlines()) if one["event"] == "request refused"]
    assert (refused["level"], refused["status"], refused["path"]) == ("warning", 401, "/v1/jobs")


@pytest_asyncio.fixture(loop_scope="session")
async def up() -> AsyncIterator[UpProcess]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    async with tandem_up(folder / "data", "--agents", "1", TANDEM_PRESENCE_S="1") as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


async def test_tandem_logs_shows_a_job_as_coordinator_and_agent_saw_it(up: UpProcess) -> None:
    status, job_id, error = await tandem("submit", "article", "--prompt", "A walk", "--wait", TANDEM_DATA=str(up.data))
    assert status == 0, error
    (job_id,) = [word for word in job_id.split() if word.count("-") == 4][:1]

    status, shown, error = await tandem("logs", job_id, "--follow", "--json", TANDEM_DATA=str(up.data))

    assert status == 0, error
    lines = [json.loads(line) for line in shown.splitlines()]
    events = [(line["program"], line["event"]) for line in lines]
    assert ("coordinator", "job admitted") in events
    assert ("coordinator", "attempt ended") in events
    assert ("agent", "run ended") in events
    status, shown, error = await tandem("logs", job_id, "--limit", "2", TANDEM_DATA=str(up.data))
    assert (status, len(shown.splitlines())) == (0, 2), error
    status, shown, error = await tandem("logs", "01970000-0000-7000-8000-000000000000", TANDEM_DATA=str(up.data))
    assert (status, shown) == (1, ""), error
    for path in (up.data / "logs" / "coordinator.jsonl", up.data / "agents" / "agent-1" / "logs" / "agent.jsonl"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def _submit(world: World, who: str, **more: Any) -> str:
    body = {"kind": "article", "spec": {"prompt": "A story"}, **more}
    async with world.http.post("/v1/jobs", json=body, headers=_as(who)) as answer:
        assert answer.status == 201, await answer.text()
        return str((await answer.json())["id"])


async def _logs(world: World, job_id: str, who: str, *, expect: int = 200, **query: int) -> list[dict[str, Any]]:
    async with world.http.get(f"/v1/jobs/{job_id}/logs", params=query, headers=_as(who)) as answer:
        assert answer.status == expect, await answer.text()
        found: list[dict[str, Any]] = (await answer.json()).get("lines", [])
        return found


async def _has(world: World, job_id: str, who: str, event: str) -> bool:
    return any(line["event"] == event for line in await _logs(world, job_id, who))


def _as(who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer t-{who}-secret"}
