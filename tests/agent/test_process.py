"""An agent as a process and over its life: restarts, drains, orders, sleeps."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent.host import SleepWatch
from agent.runner import How
from agent.spool import SET_ASIDE
from shared.errors import ConfigurationError
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import QUICK, WAIT_S, ManualClock, agent, settings_for
from tests.support.servers import eventually


@asynccontextmanager
async def _process(servers: Any, data: Path, **more: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an agent as a process; it does not outlive the test."""
    settings = {
        **QUICK,
        "nats": servers.nats.url,
        "seed": servers.nats.identities.add_agent("mini"),
        "data": data,
        **more,
    }
    env = {f"TANDEM_AGENT_{name.upper()}": _text(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from agent.cli import main; main()",
        *("run", "--worker", "mini", "--executor", "sketch", "--json-log"),
        env={"PATH": os.environ["PATH"], **env},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _text(value: Any) -> str:
    return orjson.dumps(value).decode() if isinstance(value, tuple) else str(value)


async def test_a_spooled_result_survives_sigkill_and_is_sent_by_the_next_process(servers, far, tmp_path):
    far.uploads_go.clear()
    async with _process(servers, tmp_path) as process:
        job_id = await far.offer(prompt="A tale")
        async with asyncio.timeout(WAIT_S):
            await far.upload_started.wait()
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [f"{job_id}.1"]
    assert (tmp_path / "spool" / f"{job_id}.1" / "result.json").stat().st_mode & 0o777 == 0o600
    far.uploads_go.set()
    far.presences.clear()
    async with _process(servers, tmp_path) as again:
        report = await far.report()
        assert (report["job_id"], report["epoch"], report["outcome"]) == (job_id, 1, "completed")
        assert far.uploads["article.md"].startswith(b"# A tale")
        assert far.presences[0]["busy"] == [{"job_id": job_id, "epoch": 1, "stage": "finalizing"}]
        assert len(far.claims) == 1
        await eventually(lambda: not list((tmp_path / "spool").iterdir()))
        again.terminate()
        assert await again.wait() == 0


async def test_sigterm_drains_and_a_job_that_goes_on_is_released(servers, far, tmp_path):
    async with _process(servers, tmp_path) as process:
        job_id = await far.offer(prompt="A tale", simulate={"seconds": 600})
        await eventually(lambda: far.beats_of(job_id))
        process.terminate()
        report = await far.report()
        assert (report["job_id"], report["outcome"], report["error"]["code"]) == (job_id, "released", "drain")
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0
    assert far.presences[-1]["state"] == "draining"
    assert list((tmp_path / "work").iterdir()) == []


async def test_a_second_signal_does_not_wait_for_the_drain_limit(servers, far, tmp_path):
    async with _process(servers, tmp_path, drain_limit_s=600) as process:
        job_id = await far.offer(prompt="A tale", simulate={"seconds": 600})
        await eventually(lambda: far.beats_of(job_id))
        process.terminate()
        await eventually(lambda: far.presences[-1]["state"] == "draining")
        process.send_signal(signal.SIGINT)
        assert (await far.report())["outcome"] == "released"
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0


async def test_a_drain_lets_a_running_job_finish(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path, drain_limit_s=60), strings) as mini:
        await far.offer()
        generation = await strings.next()
        mini.stop.set()
        await eventually(lambda: far.presences[-1]["state"] == "draining")
        await far.offer()
        generation.finish()
        assert (await mini.end()).how is How.COMPLETED
        await mini.stopped()
    assert strings.started == 1


async def test_a_drain_by_control_releases_after_the_limit_and_resume_takes_it_back(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        generation = await strings.next()
        await far.say(type="drain")
        assert (await far.report())["error"]["code"] == "drain"
        assert generation.cancelled.is_set()
        assert (await mini.end()).how is How.RELEASED
        assert not mini.task.done()
        await far.say(type="resume")
        await far.offer()
        (await strings.next()).finish()
        assert (await mini.end()).how is How.COMPLETED


@pytest.mark.parametrize("by", ["control", "presence"])
async def test_a_paused_agent_takes_nothing_until_it_is_resumed(servers, far, tmp_path, by):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path, linger_s=0.1), strings) as mini:
        if by == "control":
            await far.say(type="pause")
        else:
            far.state = "paused"
        await eventually(lambda: far.presences[-1]["state"] == "paused")
        rounds = len(far.presences)
        job_id = await far.offer()
        await eventually(lambda: len(far.presences) > rounds + 1)  # pulls that were open are over
        assert strings.started == 0
        far.state = "ready"
        if by == "control":
            await far.say(type="resume")
        generation = await strings.next()
        assert generation.job.id == job_id
        generation.finish()
        await mini.end()


async def test_a_job_that_comes_after_the_pause_goes_straight_back(servers, far, tmp_path):
    strings = StringExecutor()
    granted = asyncio.Event()

    def pause_first(claim):
        granted.set()
        return far.grant(claim) if far.presences[-1]["state"] == "paused" else None

    far.answer_claim = pause_first
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        await granted.wait()
        await far.say(type="pause")
        report = await far.report()
        assert (report["outcome"], report["error"]["code"]) == ("released", "paused")
        assert (await mini.end()).how is How.RELEASED
    assert strings.started == 0


async def test_nothing_is_pulled_while_no_coordinator_answers(servers, far, tmp_path):
    strings = StringExecutor()
    far.answer_presence = False
    settings = settings_for(servers, "mini", tmp_path, presence_timeout_s=0.1)
    async with agent(settings, strings, wait_ready=False) as mini:
        await far.offer()
        await eventually(lambda: len(far.presences) >= 3)
        assert far.claims == []
        far.answer_presence = True
        (await strings.next()).finish()
        await mini.end()


async def test_after_a_sleep_the_lease_is_asked_about_and_a_lost_one_is_dropped(servers, far, tmp_path, monkeypatch):
    monkeypatch.setattr("agent.service.WATCH_S", 0.02)
    monkeypatch.setattr("agent.host.WATCH_S", 0.02)
    strings, clock = StringExecutor(), ManualClock()
    far.deadline_s = 3600
    async with agent(settings_for(servers, "mini", tmp_path, wake_grace_s=60), strings, clock=clock) as mini:
        await far.offer()
        generation = await strings.next()
        far.answer_lease = lambda _: {"lease": "lost", "reason": "stale"}
        clock.moved_s += 300
        clock.asleep_s += 300
        await generation.cancelled.wait()
        assert (await mini.end()).how is How.LOST
        await far.offer()
        await eventually(lambda: far.presences[-1]["facts"]["not_pulling"] == "just_woken")
        assert strings.started == 1
        clock.moved_s += 9
        clock.moved_s += 51  # the grace is over
        (await strings.next()).finish()
        await mini.end()
        assert far.all_reports[0]["job_id"] != generation.job.id


async def test_a_process_that_was_stopped_has_no_grace_but_asks():
    clock = ManualClock()
    watch = SleepWatch(clock, grace_s=60)
    asked = []
    watch.on_gap.append(lambda: asked.append(1))
    await watch.once()
    assert asked == []
    clock.moved_s += 20
    await watch.once()
    assert (asked, watch.in_grace) == ([1], False)
    clock.moved_s += 20
    clock.asleep_s += 20
    await watch.once()
    assert (asked, watch.in_grace) == ([1, 1], True)


async def test_a_corrupt_spool_entry_is_set_aside_and_stops_nobody(servers, far, tmp_path):
    strings = StringExecutor()
    far.answer_report = lambda _: None
    far.answer_lease = lambda _: {"lease": "held"}
    async with agent(settings_for(servers, "mini", tmp_path), strings):
        job_id = await far.offer()
        (await strings.next()).finish()
        await far.report()
    spool = tmp_path / "spool"
    (spool / "00000000-0000-0000-0000-000000000000.1.json").write_text('{"report": 1}')
    (spool / "not-even-that.json").write_bytes(b"\xff\xfe")
    (spool / "11111111-1111-1111-1111-111111111111.2").mkdir()
    (spool / ".half-written").write_text("x")
    far.answer_report = lambda _: "accepted"
    far.answer_lease = lambda _: {"lease": "lost", "reason": "settled"}
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await eventually(lambda: mini.spool == [SET_ASIDE])
        assert job_id in {question["job_id"] for question in far.questions}
    assert len(list((spool / SET_ASIDE).glob("*.reason"))) == 3
    assert not (spool / ".half-written").exists()


async def test_two_agents_on_one_folder_are_refused(servers, far, tmp_path):
    strings = StringExecutor()
    settings = settings_for(servers, "mini", tmp_path)
    async with agent(settings, strings):
        with pytest.raises(ConfigurationError, match=f"pid {os.getpid()}"):
            async with agent(settings, strings):
                pass


async def test_heartbeats_carry_the_stage_and_come_at_once_at_a_new_one(servers, far, tmp_path):
    strings = StringExecutor()
    far.heartbeat_s = 100.0
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        job_id = await far.offer()
        generation = await strings.next()
        await eventually(lambda: len(far.beats_of(job_id)) == 1)
        generation.progress.detail("two\nlines")
        generation.progress.progress(0.5)
        generation.progress.stage("finalizing")  # what was said of the stage before is over
        await eventually(lambda: len(far.beats_of(job_id)) == 2)
        generation.progress.stage("upscaling")
        generation.progress.detail("two\nlines")
        generation.progress.progress(0.25)
        await eventually(lambda: len(far.beats_of(job_id)) == 3)
        first, bare, second = (beat.headers for beat in far.beats_of(job_id))
        assert (first["Tandem-Stage"], first["Tandem-Epoch"], first["Tandem-Worker"]) == (
            "generating_text",
            "1",
            "mini",
        )
        assert (second["Tandem-Stage"], second["Tandem-Progress"]) == ("upscaling", "0.250")
        assert second["Tandem-Detail"] == "two lines"
        assert bare["Tandem-Stage"] == "finalizing"
        assert not {"Tandem-Detail", "Tandem-Progress"} & bare.keys()
        assert far.beats_of(job_id)[0].data == b"+WPI"
        generation.finish()
        await mini.end()


async def test_several_lanes_and_slots_are_all_served(servers, far, tmp_path):
    far.kinds = ("article", "image", "noop")
    strings = StringExecutor(far.kinds)
    async with agent(settings_for(servers, "mini", tmp_path, slots=8), strings) as mini:
        offered = {await far.offer(kind=kind) for kind in far.kinds for _ in range(4)}
        done = set()
        for _ in range(len(offered)):
            generation = await strings.next()
            done.add(generation.job.id)
            generation.finish()
        for _ in range(len(offered)):
            assert (await mini.end()).how is How.COMPLETED
        assert done == offered
