"""Fault 8: the connection is cut after the ledger has committed and before the answer is there.

Who asked can't know, and sends again. The second sending is answered `duplicate`, or the question about the lease
`settled`; there is one result, one set of files, and one message for the publisher.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from agent.executors.base import ProductFile
from agent.runner import How
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import WAIT_S, RunningAgent, agent, settings_for
from tests.support.answer_cutter import AnswerCutter
from tests.support.puppet import puppet
from tests.support.world import World, eventually_async

VERDICT = b'"type":"verdict"'
STORED_IN_REPORTS = b'"stream":"REPORTS"'
GRANT = b'"verdict":"granted"'


@pytest_asyncio.fixture(loop_scope="session")
async def link(world: World) -> AsyncIterator[AnswerCutter]:
    """The agent's way to NATS."""
    async with AnswerCutter(world.servers.nats.port) as cutter:
        yield cutter


@pytest_asyncio.fixture(loop_scope="session")
async def upload_link(world: World) -> AsyncIterator[AnswerCutter]:
    """The agent's way to the HTTP side."""
    port = urlsplit(world.coordinator.url).port
    assert port is not None
    async with AnswerCutter(port) as cutter:
        world.coordinator.claims.upload_url = f"http://127.0.0.1:{cutter.port}"
        yield cutter


@pytest.mark.fault(8)
async def test_the_second_report_is_a_duplicate(world: World, link: AnswerCutter) -> None:
    async with puppet(world.servers, "mini", url=f"nats://127.0.0.1:{link.port}") as mini:
        await mini.announce()
        job = await world.submit()
        held = await mini.take()
        file = await held.upload("article.md", b"# Done")
        link.cut_before(VERDICT)
        await held.report(artifacts=[file])
        await asyncio.wait_for(link.cut.wait(), WAIT_S)
        await world.until(job["id"], "completed")

        await eventually_async(lambda: _is_back(mini))
        await held.report(artifacts=[file])
        await held.verdict("duplicate")

        assert await held.ask() == {"lease": "lost", "reason": "settled"}
    await _has_one_result(world, job["id"], "article.md")


@pytest.mark.fault(8)
@pytest.mark.parametrize("lost", [VERDICT, STORED_IN_REPORTS, GRANT], ids=["verdict", "pub-ack", "grant"])
async def test_an_agent_whose_answer_was_cut_off_delivers_once(
    world: World, tmp_path: Path, link: AnswerCutter, lost: bytes
) -> None:
    strings = StringExecutor()
    async with _agent(world, tmp_path, strings, nats=f"nats://127.0.0.1:{link.port}") as mini:
        if lost is GRANT:
            link.cut_before(lost)
        job = await world.submit()
        generation = await strings.next()
        if lost is not GRANT:
            link.cut_before(lost)
        _finish(generation)

        end = await mini.end()

        assert link.cut.is_set()
        assert (end.how, end.epoch) == (How.COMPLETED, 1)
        assert link.accepted > 1
        assert strings.started == 1
        await mini.spool_is_empty()
    await _has_one_result(world, job["id"], "a.txt")


@pytest.mark.fault(8)
async def test_a_file_whose_answer_was_cut_off_is_stored_once(
    world: World, tmp_path: Path, upload_link: AnswerCutter
) -> None:
    strings = StringExecutor()
    async with _agent(world, tmp_path, strings) as mini:
        job = await world.submit()
        generation = await strings.next()
        upload_link.cut_before(b"HTTP/1.1 201")
        _finish(generation)

        end = await mini.end()

        assert upload_link.cut.is_set()
        assert (end.how, end.epoch, upload_link.accepted) == (How.COMPLETED, 1, 2)
    await _has_one_result(world, job["id"], "a.txt")


@asynccontextmanager
async def _agent(world: World, folder: Path, strings: StringExecutor, **settings: Any) -> AsyncIterator[RunningAgent]:
    """Run a real agent; its verdicts may take their time, so that a cut and no impatience makes it send again."""
    async with world.servers.open("agent:mini"):
        pass  # the server knows the identity by now
    given = {"verdict_timeout_s": WAIT_S, "claim_timeout_s": WAIT_S, **settings}
    async with agent(settings_for(world.servers, "mini", folder, **given), strings) as made:
        yield made


def _finish(generation: Any) -> None:
    path = generation.job.workspace / "a.txt"
    path.write_text("words")
    generation.finish(files=[ProductFile(path=path, media_type="text/plain")])


async def _is_back(mini: Any) -> bool:
    return mini.bus.connections > 1 and mini.bus.connected


async def _has_one_result(world: World, job_id: str, file: str) -> None:
    seen = await world.until(job_id, "completed")
    assert [(a["epoch"], a["outcome"]) for a in seen["attempts"]] == [(1, "completed")]
    assert [artifact["name"] for artifact in seen["artifacts"]] == [file]
    assert await world.pool.fetchval("SELECT count(*) FROM artifact") == 1
    assert await world.pool.fetchval("SELECT count(*) FROM rejected_result") == 0
    await world.coordinator.results.once()
    info = await world.coordinator.bus.api("STREAM.INFO.RESULTS")
    assert info["state"]["messages"] == 1
