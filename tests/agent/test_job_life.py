"""A job's life in an agent, over a real NATS, against a foreign coordinator."""

import asyncio
from uuid import UUID

from agent.executors.base import BackendDown, Elsewhere, Permanent, ProductFile, Transient
from agent.runner import How
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import TTL_S, agent, settings_for
from tests.support.servers import eventually


async def test_a_job_is_claimed_run_uploaded_reported_and_forgotten(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        job_id = await far.offer(prompt="A tale")
        generation = await strings.next()
        assert generation.job.spec == {"prompt": "A tale"}
        (generation.job.workspace / "tale.md").write_text("# A tale")
        generation.finish(
            files=[ProductFile(generation.job.workspace / "tale.md", "text/markdown", "tale ü.md")],
            model="m1",
            settings={"seed": 1},
        )
        report = await far.report()
        end = await mini.end()
        assert (end.how, end.epoch, end.verdict) == (How.COMPLETED, 1, "accepted")
        assert report["outcome"] == "completed"
        assert report["result"] == {"text": "words"}
        assert report["model"] == "m1"
        assert [artifact["name"] for artifact in report["artifacts"]] == ["tale ü.md"]
        assert report["stages"][0]["stage"] == "generating_text"
        assert far.uploads == {"tale ü.md": b"# A tale"}
        assert far.upload_requests[0]["headers"]["Authorization"] == "Bearer token-1"
        assert far.upload_requests[0]["path"].endswith(f"/{job_id}/1/tale ü.md")
        assert far.alien_acks() == []
        await mini.spool_is_empty()
        assert mini.workspaces == []


async def test_a_slot_is_free_while_an_upload_is_stalled(servers, far, tmp_path):
    strings = StringExecutor()
    far.uploads_go.clear()
    async with agent(settings_for(servers, "mini", tmp_path, slots=1), strings) as mini:
        first_id = await far.offer()
        first = await strings.next()
        (first.job.workspace / "one.txt").write_text("1")
        first.finish(files=[ProductFile(first.job.workspace / "one.txt", "text/plain")])
        second_id = await far.offer()
        second = await strings.next()
        await far.upload_started.wait()
        assert second.job.id == second_id
        await eventually(lambda: far.presences[-1]["busy"] and len(far.presences[-1]["busy"]) == 2)
        stages = {busy["job_id"]: busy["stage"] for busy in far.presences[-1]["busy"]}
        assert stages == {first_id: "uploading", second_id: "generating_text"}
        beats = len(far.beats_of(first_id))
        await eventually(lambda: len(far.beats_of(first_id)) > beats)  # its lease goes on
        second.finish()
        assert (await mini.end()).job_id == UUID(second_id)
        far.uploads_go.set()
        assert (await mini.end()).job_id == UUID(first_id)


async def test_a_claim_without_answer_is_repeated_until_it_is_answered(servers, far, tmp_path):
    strings = StringExecutor()
    granted_first = []

    def lose_two(claim):
        grant = far.grant(claim)  # committed, but the answer is lost
        granted_first.append(grant["epoch"])
        return None if len(granted_first) <= 2 else grant

    far.answer_claim = lose_two
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        (await strings.next()).finish()
        assert (await mini.end()).epoch == 1
    assert len(far.claims) == 3
    assert all(claim == far.claims[0] for claim in far.claims)
    assert far.alien_acks() == []


async def test_a_claim_that_nobody_ever_answers_is_forgotten_and_not_nacked(servers, far, tmp_path):
    strings = StringExecutor()
    far.answer_claim = lambda _: None
    async with agent(settings_for(servers, "mini", tmp_path, slots=1), strings) as mini:
        await far.offer()
        end = await mini.end()
        assert end.how is How.UNANSWERED
        assert strings.started == 0
        assert far.alien_acks() == []
        far.answer_claim = far.grant
        again = await strings.next()  # redelivered after ack-wait: its slot was given back
        assert again.job.epoch == 1
        again.finish()
        assert (await mini.end()).how is How.COMPLETED
    assert len(far.claims) >= TTL_S / 2


async def test_a_denied_claim_is_forgotten(servers, far, tmp_path):
    strings = StringExecutor()
    far.answer_claim = lambda _: {"verdict": "denied", "reason": "leased", "retry_in_s": 5}
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        end = await mini.end()
    assert (end.how, end.reason) == (How.DENIED, "leased")
    assert strings.started == 0
    assert far.acks == []
    assert far.all_reports == []


async def test_a_revoked_lease_stops_the_generator_and_nothing_more_is_sent(servers, far, tmp_path):
    strings = StringExecutor(stubborn=True)
    async with agent(settings_for(servers, "mini", tmp_path, slots=1), strings) as mini:
        job_id = await far.offer()
        generation = await strings.next()
        (generation.job.workspace / "half.txt").write_text("half")
        await eventually(lambda: far.beats_of(job_id))
        await far.say(type="revoke", job_id=job_id, epoch=1, reason="stale")
        async with asyncio.timeout(1):
            await generation.cancelled.wait()
        beats = len(far.beats_of(job_id))
        other_id = await far.offer()
        await eventually(lambda: len(far.presences) and job_id in {b["job_id"] for b in far.presences[-1]["busy"]})
        assert strings.running.empty()  # the generator is not idle yet, so neither is the slot
        generation.may_stop.set()
        assert (await mini.end()).how is How.LOST
        other = await strings.next()
        assert other.job.id == other_id
        assert mini.workspaces == []
        other.finish()
        await mini.end()
        assert len(far.beats_of(job_id)) == beats
        assert [report["job_id"] for report in far.all_reports] == [other_id]


async def test_a_lease_question_that_fails_says_nothing_and_is_asked_again(servers, far, tmp_path):
    strings = StringExecutor()
    far.answer_lease = lambda _: None
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        generation = await strings.next()
        await servers.nats.restart()
        await eventually(lambda: len(far.questions) >= 2)  # after the reconnect, and again
        assert not generation.cancelled.is_set()
        far.answer_lease = lambda _: {"lease": "lost", "reason": "canceled"}
        await generation.cancelled.wait()
        end = await mini.end()
        assert (end.how, end.reason) == (How.LOST, "canceled")
        assert far.all_reports == []


async def test_errors_of_an_executor_become_reports(servers, far, tmp_path):
    strings = StringExecutor()
    cases = [
        (Transient("busy", "try later", {"x": 1}), "failed", "transient", "busy"),
        (Elsewhere("no_model", "not here"), "failed", "elsewhere", "no_model"),
        (Permanent("bad_spec", "no"), "failed", "permanent", "bad_spec"),
        (ValueError("boom"), "failed", "transient", "executor_crash"),
        (Transient("odd\ud800", "\ud800\x00", {"\ud800": object()}), "failed", "transient", "odd?"),
        (OSError(28, "No space left on device"), "released", "transient", "disk_full"),
    ]
    for error, outcome, error_class, code in cases:
        async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
            await far.offer()
            (await strings.next()).fail(error)
            report = await far.report()
            await mini.end()
        assert (report["outcome"], report["error"]["class"], report["error"]["code"]) == (outcome, error_class, code)
    assert "boom" in far.all_reports[3]["error"]["detail"]["traceback"]


async def test_a_crash_is_tried_once_more_on_another_worker_and_then_fails_the_job(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:

        async def crashed():
            await far.offer()
            (await strings.next()).fail(ValueError("boom"))
            report = await far.report()
            await mini.end()
            return report["error"]

        error = await crashed()
        assert (error["class"], error["detail"]["verdict"]) == ("transient", "unknown")
        far.failures = [{"code": error["code"], "verdict": "unknown", "here": False}]
        assert (await crashed())["class"] == "permanent"
        far.failures[0]["here"] = True
        await far.offer()
        report = await far.report()
        assert (report["error"]["code"], report["error"]["class"]) == ("executor_crash", "elsewhere")
        assert strings.started == 2


async def test_a_backend_that_is_down_gives_the_job_back_and_stops_the_pulling(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        (await strings.next()).fail(BackendDown("ollama_down", "connection refused"))
        report = await far.report()
        assert (report["outcome"], report["error"]["code"]) == ("released", "ollama_down")
        assert (await mini.end()).how is How.RELEASED
        await eventually(lambda: far.presences[-1]["state"] == "unhealthy")
        await far.offer()
        rounds = len(far.presences)
        await eventually(lambda: len(far.presences) > rounds + 1)
        assert strings.started == 1  # a job that an open pull still brought went back untouched
        assert {report["outcome"] for report in far.all_reports} == {"released"}
        assert far.presences[-1]["facts"]["not_pulling"] == "backend_down"


async def test_a_deadline_stops_the_generator_and_is_reported_as_transient(servers, far, tmp_path):
    strings = StringExecutor()
    far.deadline_s = 0.3
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        generation = await strings.next()
        report = await far.report()
        assert generation.cancelled.is_set()
        assert (report["outcome"], report["error"]["code"], report["error"]["class"]) == (
            "failed",
            "timeout",
            "transient",
        )
        assert (await mini.end()).how is How.FAILED
