"""From the spool to the verdict: what is lost on the way is sent again, what is answered is forgotten."""

import resource

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.executors.base import ProductFile
from agent.runner import How
from agent.uploads import Sent, Uploads, digest
from shared.wire import Artifact, Upload
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import agent, coordinator, settings_for
from tests.support.servers import eventually, own_servers


async def _one_with_file(far, strings, text="text"):
    job_id = await far.offer()
    generation = await strings.next()
    (generation.job.workspace / "a.txt").write_text(text)
    generation.finish(files=[ProductFile(generation.job.workspace / "a.txt", "text/plain")])
    return job_id


async def test_a_report_is_sent_again_until_there_is_a_verdict(servers, far, tmp_path):
    strings = StringExecutor()
    silent = 2
    far.answer_report = lambda _: None if len(far.all_reports) <= silent else "accepted"
    far.answer_lease = lambda _: {"lease": "held"}
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        (await strings.next()).finish()
        await far.report()
        # JetStream swallows the repeats (same message id); the agent keeps asking, and keeps the entry
        await eventually(lambda: len(far.questions) >= 2)
        assert len(mini.spool) == 1
        report = far.all_reports[0]
        await far.say(type="verdict", job_id=report["job_id"], epoch=1, verdict="accepted")
        assert (await mini.end()).verdict == "accepted"
        await mini.spool_is_empty()


async def test_a_lost_verdict_is_made_up_for_by_the_lease_question(servers, far, tmp_path):
    strings = StringExecutor()
    far.answer_report = lambda _: None
    far.answer_lease = lambda _: {"lease": "lost", "reason": "settled"} if far.all_reports else {"lease": "held"}
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        (await strings.next()).finish()
        end = await mini.end()
        assert (end.how, end.reason) == (How.COMPLETED, "settled")
        await mini.spool_is_empty()


async def test_a_deadline_that_passed_does_not_take_a_finished_result(servers, far, tmp_path):
    strings = StringExecutor()
    far.answer_report = lambda _: None
    far.answer_lease = lambda _: {"lease": "lost", "reason": "deadline"}
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        (await strings.next()).finish()
        report = await far.report()
        await eventually(lambda: len(far.questions) >= 2)
        assert len(mini.spool) == 1
        await far.say(type="verdict", job_id=report["job_id"], epoch=1, verdict="duplicate")
        assert (await mini.end()).verdict == "duplicate"


async def test_a_report_survives_the_loss_of_the_servers_disk(tmp_path):
    strings = StringExecutor()
    async with own_servers() as servers:
        await servers.reset_streams()
        async with coordinator(servers) as far:
            far.answer_report = lambda _: None  # the ledger never gets the first one
            far.answer_lease = lambda _: {"lease": "held"}
            async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
                job_id = await far.offer()
                (await strings.next()).finish()
                await far.report()
                far.answer_report = lambda _: "accepted"
                await servers.nats.wipe()
                await servers.reset_streams()
                again = await far.report()
                assert (again["job_id"], again["epoch"]) == (job_id, 1)
                assert (await mini.end()).verdict == "accepted"


@pytest.mark.parametrize("statuses", [[500], [503, 502], [422]])
async def test_an_upload_that_fails_is_tried_again(servers, far, tmp_path, statuses):
    strings = StringExecutor()
    far.upload_statuses = list(statuses)
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await _one_with_file(far, strings)
        report = await far.report()
        assert report["outcome"] == "completed"
        assert (await mini.end()).how is How.COMPLETED
    assert far.uploads == {"a.txt": b"text"}
    assert len(far.upload_requests) == len(statuses) + 1


def a_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    return path, Artifact(name="a.txt", size=4, sha256=digest(path))


async def test_no_file_and_no_token_goes_over_a_network_in_the_clear(tmp_path):
    async with Uploads(connect_s=1, stall_s=5) as uploads:
        sent, said = await uploads.send(Upload(url="http://vps.example.org/up", token="t"), *a_text(tmp_path))
    assert (sent, said.startswith("http://vps.example.org is not encrypted")) == (Sent.REFUSED, True)


async def test_an_upload_is_not_led_elsewhere(tmp_path):
    asked = []

    async def elsewhere(request):
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    app = web.Application()
    app.router.add_put("/{path:.*}", elsewhere)
    async with TestServer(app) as server, Uploads(connect_s=5, stall_s=5) as uploads:
        sent, _ = await uploads.send(Upload(url=str(server.make_url("/up")), token="t"), *a_text(tmp_path))
    assert (sent, asked) == (Sent.REFUSED, ["/up/a.txt"])


async def test_an_upload_refused_as_stale_ends_the_attempt_silently(servers, far, tmp_path):
    strings = StringExecutor()
    far.upload_statuses = [409]
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await _one_with_file(far, strings)
        end = await mini.end()
        assert (end.how, end.reason) == (How.LOST, "stale")
        await mini.spool_is_empty()
        assert far.all_reports == []


@pytest.mark.parametrize(
    ("statuses", "code", "error_class"),
    [
        ([413], "artifact_too_large", "permanent"),
        ([422] * 3, "upload_corrupt", "transient"),
        ([403] * 3, "upload_refused", "transient"),
    ],
)
async def test_an_upload_that_will_never_work_becomes_a_failed_report(
    servers, far, tmp_path, statuses, code, error_class
):
    strings = StringExecutor()
    far.upload_statuses = list(statuses)
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await _one_with_file(far, strings)
        report = await far.report()
        assert (report["outcome"], report["error"]["code"], report["error"]["class"]) == ("failed", code, error_class)
        assert report["artifacts"] == []
        assert (await mini.end()).how is How.FAILED
        await mini.spool_is_empty()


async def test_a_result_too_large_for_a_message_is_reported_as_such(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        (await strings.next()).finish("x" * 3_000_000)
        report = await far.report()
        assert (report["outcome"], report["error"]["code"]) == ("failed", "result_too_large")
        await mini.end()


@pytest.mark.parametrize("bad", ["symlink", "outside", "missing", "twice"])
async def test_a_product_with_bad_files_is_an_error_of_the_executor(servers, far, tmp_path, bad):
    strings = StringExecutor()
    (tmp_path / "secret.txt").write_text("secret")
    async with agent(settings_for(servers, "mini", tmp_path / "data"), strings) as mini:
        await far.offer()
        generation = await strings.next()
        home = generation.job.workspace
        (home / "a.txt").write_text("a")
        if bad == "symlink":
            (home / "b.txt").symlink_to(tmp_path / "secret.txt")
        path = {
            "symlink": home / "b.txt",
            "outside": tmp_path / "secret.txt",
            "missing": home / "c",
            "twice": home / "a.txt",
        }[bad]
        generation.finish(files=[ProductFile(home / "a.txt", "text/plain"), ProductFile(path, "text/plain")])
        report = await far.report()
        assert (report["outcome"], report["error"]["code"]) == ("failed", "bad_product")
        await mini.end()
    assert far.uploads == {}
    assert (tmp_path / "secret.txt").read_text() == "secret"


async def test_text_that_postgres_or_utf8_cannot_hold_does_no_harm(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        (await strings.next()).finish("a\x00b")
        assert (await far.report())["result"] == {"text": "ab"}
        await mini.end()
        await far.offer()
        (await strings.next()).finish("\ud800")
        assert (await far.report())["error"]["code"] == "bad_product"
        await mini.end()


async def test_a_full_disk_gives_the_job_back(servers, far, tmp_path):
    strings = StringExecutor()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        generation = await strings.next()
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # the disk takes small files only
        try:
            generation.finish("x" * 100_000)
            report = await far.report()
            await mini.end()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (report["outcome"], report["error"]["code"]) == ("released", "disk_full")
        await eventually(lambda: far.presences[-1]["facts"]["not_pulling"] == "disk_full")


async def test_a_spool_that_takes_nothing_still_lets_the_agent_give_the_job_back(servers, far, tmp_path):
    strings = StringExecutor()
    async with agent(settings_for(servers, "mini", tmp_path), strings) as mini:
        await far.offer()
        generation = await strings.next()
        (tmp_path / "spool").rmdir()
        generation.finish()
        report = await far.report()
        assert (report["outcome"], report["error"]["code"]) == ("released", "spool_failed")
        assert (await mini.end()).how is How.RELEASED
        (tmp_path / "spool").mkdir()
