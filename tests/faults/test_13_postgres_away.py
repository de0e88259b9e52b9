"""Fault 13: Postgres goes away under load, until the quickest loop has failed twelve times: about a minute.

Each process logs fewer than twenty lines about it, its return included. HTTP takes submissions (202) or refuses
honestly (503); what got a 202, and what was reported meanwhile, counts when it is back.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.embedded import EmbeddedPostgres
from tests.support.coordinator_process import CoordinatorProcess, coordinator_process, json_lines
from tests.support.puppet import Held, Puppet, puppet
from tests.support.servers import TandemServers, eventually, own_servers
from tests.support.world import eventually_async

LINES_MOST = 20
ROUNDS = 12
READS = ("/v1/jobs", "/v1/workers", "/v1/lanes", "/v1/rejected", "/", "/readyz")
HELD = 3

pytestmark = [pytest.mark.fault(13), pytest.mark.timeout(300)]


async def test_a_minute_without_postgres_costs_few_lines_and_loses_nothing(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        postgres = servers.postgres
        assert postgres is not None
        async with (
            coordinator_process(servers, postgres.dsn, tmp_path / "one", TANDEM_KINDS='["clip"]') as one,
            coordinator_process(servers, postgres.dsn, tmp_path / "two", TANDEM_KINDS='["clip"]') as two,
            aiohttp.ClientSession(one.url) as http,
            _agent_process(servers, tmp_path / "mini") as agent_log,
            puppet(servers, "macbook") as macbook,
        ):
            await macbook.announce(kinds=("clip",), slots=HELD)
            held = await _held(http, macbook)
            await eventually_async(lambda: _is_ready(http))

            queued, lines = await _without(postgres, http, (one, two), agent_log, held)

            assert all(found.total() < LINES_MOST for found in lines.values()), lines
            for job_id in [*queued, *(lease.job_id for lease in held)]:
                await eventually_async(lambda job=job_id: _is_completed(http, job), within_s=90)
            for lease in held:
                seen = await _job(http, lease.job_id)
                assert (seen["state"], seen["epoch"], seen["lease_losses"], seen["silences"]) == ("completed", 1, 0, 0)
            await eventually_async(lambda: _is_ready(http))


async def _without(
    postgres: EmbeddedPostgres,
    http: aiohttp.ClientSession,
    coordinators: tuple[CoordinatorProcess, CoordinatorProcess],
    agent_log: Path,
    held: list[Held],
) -> tuple[list[str], dict[str, Counter[str]]]:
    """Stop Postgres until the reaper has failed often enough, with traffic at each failure; then start it.

    Return the jobs that HTTP took meanwhile, and how often each process logged what until it was well again; a job's
    own story is not counted.
    """
    logs = {"one": coordinators[0].log, "two": coordinators[1].log, "agent": agent_log}
    before = {name: len(json_lines(log)) for name, log in logs.items()}
    await postgres.kill()
    queued = []
    for failures in range(1, ROUNDS):
        await eventually_async(lambda least=failures: _has_failed(http, least))
        queued.append(await _submitted(http))
        for path in READS:
            await _refuses_honestly(http, path)
        for lease in held:
            await lease.beat()
    await eventually_async(lambda: _has_failed(http, ROUNDS))
    for lease in held:
        await lease.report()
    assert all(coordinator.process.returncode is None for coordinator in coordinators)

    await postgres.start()
    for coordinator in coordinators:
        async with aiohttp.ClientSession(coordinator.url) as other:
            await eventually_async(lambda session=other: _is_ready(session), within_s=60)
    new = {name: json_lines(log)[before[name] :] for name, log in logs.items()}
    return queued, {name: Counter(_what(line) for line in lines if "job_id" not in line) for name, lines in new.items()}


def _what(line: dict[str, Any]) -> str:
    return f"{line.get('event', line)} {line.get('loop', '')}".strip()


async def _held(http: aiohttp.ClientSession, macbook: Puppet) -> list[Held]:
    for _ in range(HELD):
        await _submitted(http, kind="clip", expect=201)
    return [await macbook.take("clip.any") for _ in range(HELD)]


async def _submitted(http: aiohttp.ClientSession, *, kind: str = "article", expect: int = 202) -> str:
    async with http.post("/v1/jobs", json={"kind": kind, "spec": {"prompt": "A story"}}) as answer:
        assert answer.status == expect, await answer.text()
        return str((await answer.json())["id"])


async def _refuses_honestly(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as answer:
        assert answer.status == 503, (path, answer.status, await answer.text())


async def _has_failed(http: aiohttp.ClientSession, times: int) -> bool:
    """Say whether the reaper has failed so often in a row."""
    async with http.get("/status") as answer:
        assert answer.status == 200
        return bool((await answer.json())["health"]["loops"]["reaper"]["failures"] >= times)


async def _is_ready(http: aiohttp.ClientSession) -> bool:
    async with http.get("/readyz") as answer:
        return answer.status == 200


async def _job(http: aiohttp.ClientSession, job_id: str) -> dict[str, Any]:
    async with http.get(f"/v1/jobs/{job_id}") as answer:
        body: dict[str, Any] = await answer.json()
        return body


async def _is_completed(http: aiohttp.ClientSession, job_id: str) -> bool:
    return (await _job(http, job_id)).get("state") == "completed"


@asynccontextmanager
async def _agent_process(servers: TandemServers, folder: Path) -> AsyncIterator[Path]:
    """Run an agent as it is by default, drawing articles; yields its log once it knows its lanes."""
    await asyncio.to_thread(folder.mkdir)
    async with servers.open("agent:mini"):
        pass  # makes its identity
    given = {"NATS": servers.nats.url, "SEED": servers.nats.identities.add_agent("mini"), "DATA": str(folder / "data")}
    log = folder / "agent.log"
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from agent.cli import main; main()",
            *("run", "--worker", "mini", "--executor", "sketch", "--json-log"),
            env={"PATH": os.environ["PATH"], **{f"TANDEM_AGENT_{name}": str(value) for name, value in given.items()}},
            stderr=out,
        )
    try:
        await eventually(lambda: any(line.get("event") == "lanes" for line in json_lines(log)), within_s=60)
        yield log
        assert process.returncode is None, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
