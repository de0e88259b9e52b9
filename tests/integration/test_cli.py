"""The command line against a running coordinator: what it prints, and how it ends."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.support.processes import UpProcess, tandem, tandem_up

NEVER = "01970000-0000-7000-8000-000000000000"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def up() -> AsyncIterator[UpProcess]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    async with tandem_up(folder / "data", "--agents", "1", TANDEM_PRESENCE_S="1") as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


async def run(up: UpProcess, *arguments: str, expect: int = 0, **options: Any) -> str:
    status, out, error = await tandem(*arguments, TANDEM_DATA=str(up.data), **options)
    assert status == expect, error
    assert "Traceback" not in error
    return out


async def test_submit_prints_the_id_and_show_the_job(up: UpProcess) -> None:
    job_id = (await run(up, "submit", "article", "--prompt", "A walk", "--label", "post=812")).strip()

    shown = json.loads(await run(up, "show", job_id, "--json"))

    assert shown["id"] == job_id
    assert (shown["source"], shown["labels"]) == ("local", {"post": "812"})


async def test_models_are_given_in_order_of_preference(up: UpProcess) -> None:
    both = json.loads(await run(up, "submit", "article", "--prompt", "A", "--model", "one", "--model", "two", "--json"))
    assert (both["models"], both["model"]) == (["one", "two"], "one")
    single = json.loads(await run(up, "submit", "article", "--prompt", "A", "--model", "one", "--json"))
    assert (single["models"], single["model"]) == (None, "one")


async def test_submit_waits_and_shows_the_files(up: UpProcess) -> None:
    arguments = ("--prompt", "A boat", "--width", "128", "--height", "64", "--n", "2", "--seed", "7", "--wait")

    shown = await run(up, "submit", "image", *arguments)

    assert "completed" in shown
    assert "agent-1, epoch 1" in shown
    assert "image-1.png" in shown
    assert "image-2.png" in shown


async def test_a_seed_goes_where_the_kind_has_it(up: UpProcess) -> None:
    article = json.loads(await run(up, "submit", "article", "--prompt", "A", "--seed", "7", "--wait", "--json"))
    image = json.loads(await run(up, "submit", "image", "--prompt", "A", "--seed", "7", "--wait", "--json"))

    assert article["spec"]["options"] == {"seed": 7}
    assert image["spec"]["seed"] == 7


async def test_the_same_key_is_the_same_job_and_other_content_a_conflict(up: UpProcess) -> None:
    first = await run(up, "submit", "article", "--prompt", "A", "--key", "k1")

    assert await run(up, "submit", "article", "--prompt", "A", "--key", "k1") == first
    await run(up, "submit", "article", "--prompt", "B", "--key", "k1", expect=1)


async def test_a_spec_comes_from_stdin_or_a_file_with_options_on_top(up: UpProcess, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"prompt": "file", "width": 64}')

    await run(up, "submit", "image", "--spec", f"@{path}", "--height", "64", "--key", "from-file")
    await run(up, "submit", "image", "--spec", "-", "--key", "from-stdin", stdin='{"prompt": "stdin"}')

    listed = {job["key"]: job["id"] for job in json.loads(await run(up, "jobs", "--json"))}
    shown = json.loads(await run(up, "show", listed["from-file"], "--json"))
    assert shown["spec"] == {"prompt": "file", "width": 64, "height": 64}


async def test_jobs_are_filtered(up: UpProcess) -> None:
    job_id = (await run(up, "submit", "article", "--prompt", "A", "--label", "batch=b7")).strip()

    found = json.loads(await run(up, "jobs", "--label", "batch=b7", "--json"))

    assert [job["id"] for job in found] == [job_id]
    assert json.loads(await run(up, "jobs", "--label", "batch=b7", "--kind", "image", "--json")) == []
    assert job_id in await run(up, "jobs", "--limit", "1")


async def test_a_job_is_cancelled_and_tried_again(up: UpProcess) -> None:
    spec = '{"prompt": "A long one", "simulate": {"seconds": 600}}'
    job_id = (await run(up, "submit", "article", "--spec", spec)).strip()

    assert await run(up, "cancel", job_id) == f"{job_id} canceled\n"
    await run(up, "cancel", job_id, expect=1)
    assert await run(up, "retry", job_id) == f"{job_id} pending\n"
    canceled = json.loads(await run(up, "cancel", job_id, "--json"))
    assert canceled["state"] == "canceled"
    assert [(one["actor"], one["action"]) for one in canceled["actions"]] == [
        ("admin", "cancel"),
        ("admin", "retry"),
        ("admin", "cancel"),
    ]
    assert "what people did" in await run(up, "show", job_id)


async def test_workers_and_lanes_are_listed(up: UpProcess) -> None:
    await run(up, "submit", "article", "--prompt", "A", "--wait")

    assert "agent-1" in await run(up, "workers")
    assert [w["name"] for w in json.loads(await run(up, "workers", "--json"))] == ["agent-1"]
    assert "article.any" in await run(up, "lanes")
    assert "article.any" in [lane["name"] for lane in json.loads(await run(up, "lanes", "--json"))]


async def test_the_audit_finds_no_breach(up: UpProcess) -> None:
    await run(up, "submit", "article", "--prompt", "A", "--wait")

    assert json.loads(await run(up, "audit", "--json")) == []


async def test_a_failed_job_that_was_waited_for_ends_with_1(up: UpProcess) -> None:
    spec = '{"prompt": "A", "simulate": {"fail": "permanent"}}'

    shown = await run(up, "submit", "article", "--spec", spec, "--wait", expect=1)

    assert "simulated" in shown


async def test_refusals_are_one_line_and_end_with_1(up: UpProcess) -> None:
    status, _, error = await tandem("show", NEVER, TANDEM_DATA=str(up.data))

    assert status == 1
    assert error == f"tandem: no job {NEVER}\n"


async def test_a_wrong_token_is_refused(up: UpProcess) -> None:
    status, _, error = await tandem("jobs", TANDEM_URL=up.connection["http"], TANDEM_TOKEN="wrong")

    assert (status, error) == (1, "tandem: unknown token\n")


async def test_the_publishers_token_is_enough_for_its_own_jobs(up: UpProcess) -> None:
    where = {"TANDEM_URL": up.connection["http"], "TANDEM_TOKEN": up.connection["tokens"]["publisher"]}

    status, out, _ = await tandem("submit", "article", "--prompt", "A", **where)
    assert status == 0
    status, _, _ = await tandem("show", out.strip(), **where)
    assert status == 0


async def test_a_folder_named_data_is_found_without_being_named(up: UpProcess) -> None:
    status, out, _ = await tandem("workers", cwd=up.data.parent)

    assert status == 0
    assert "agent-1" in out


async def test_a_server_that_is_not_there_ends_with_3(tmp_path: Path) -> None:
    gone = ("--url", "http://127.0.0.1:1", "--token", "t")
    commands = [("jobs", *gone), ("submit", "article", "--prompt", "A", *gone), ("audit", "--data", str(tmp_path))]

    ends = await asyncio.gather(*(tandem(*command) for command in commands))

    assert [status for status, _, _ in ends] == [3, 3, 3]
    assert all(error.startswith("tandem: ") and error.count("\n") == 1 for _, _, error in ends)


async def test_usage_is_refused_with_2(tmp_path: Path) -> None:
    commands = [
        ("submit", "article", "--prompt", "A", "--width", "64"),
        ("submit", "image", "--prompt", "A", "--width", "5001", "--url", "http://127.0.0.1:1"),
        ("show", "not-an-id"),
        ("jobs",),
        ("up", "--data", str(tmp_path / "e"), "--worker", "Not A Name", "--http", "127.0.0.1:0"),
        ("migrate",),
    ]

    ends = await asyncio.gather(*(tandem(*command, cwd=tmp_path) for command in commands))

    assert [status for status, _, _ in ends] == [2] * len(commands)
    assert not any("Traceback" in error for _, _, error in ends)
