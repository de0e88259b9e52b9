"""Attempts that an agent's next process takes up: what is kept, for whom, and for how long."""

import asyncio
import stat
from uuid import UUID

import pytest

from agent.executors.base import RunnableJob
from agent.journal import MOST_TRIES, Journal
from agent.leases import Attempt
from shared.wire import Failure, Upload

JOB = UUID("018f3f5e-7d1a-7cc0-a3c2-0123456789ab")
NAME = f"{JOB}.3"


class Forgetful:
    name = "forgetful"


class Adopting:
    name = "adopting"

    async def abandon(self, *_):
        raise AssertionError


class Wall:
    def __init__(self):
        self.s = 1_000_000.0

    def __call__(self):
        return self.s


def attempt():
    loop = asyncio.get_running_loop()
    return Attempt(
        job_id=JOB,
        epoch=3,
        delivery="$JS.ACK.x",
        kind="image",
        model="sdxl",
        heartbeat_s=30,
        upload=Upload(url="http://127.0.0.1:1/up", token="token"),
        started_at=0.0,
        deadline_at=600.0,
        now=lambda: 100.0,
        stopped=loop.create_future(),
        lost=loop.create_future(),
    )


def job(tmp_path):
    return RunnableJob(
        id=str(JOB),
        epoch=3,
        attempt=2,
        kind="image",
        model="sdxl",
        spec={"prompt": "a harbour"},
        labels={"post": "812"},
        open_workspace=lambda: tmp_path,
        no_progress_s=70.0,
        failures=[Failure(code="bad_answer", verdict="retry_then_fail")],
    )


@pytest.fixture
def wall():
    return Wall()


async def kept(tmp_path, wall, executor):
    journal = Journal(tmp_path / "journal", wall)
    assert journal.load() == []
    await journal.keep(attempt(), job(tmp_path), executor)
    return journal


def names(tmp_path):
    return [path.name for path in (tmp_path / "journal").iterdir()]


async def test_the_next_process_gets_the_grant_as_it_was(tmp_path, wall):
    await kept(tmp_path, wall, Adopting())
    wall.s += 60
    later = Journal(tmp_path / "journal", wall)
    (claimed,) = later.load()
    assert (claimed.name, claimed.executor, claimed.delivery, claimed.tries) == (NAME, "adopting", "$JS.ACK.x", 1)
    assert claimed.granted.job.model_dump() == {
        "id": JOB,
        "kind": "image",
        "model": "sdxl",
        "spec": {"prompt": "a harbour"},
        "labels": {"post": "812"},
        "priority": "normal",
    }
    assert (claimed.granted.epoch, claimed.granted.attempt, claimed.granted.upload.token) == (3, 2, "token")
    assert claimed.granted.no_progress_s == 70.0
    assert claimed.granted.failures == job(tmp_path).failures
    assert later.left_s(claimed) == 440


async def test_what_it_keeps_is_the_owner_s_alone(tmp_path, wall):
    await kept(tmp_path, wall, Adopting())
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "journal" / f"{NAME}.json").stat().st_mode) == 0o600


async def test_an_executor_that_can_t_take_up_its_work_is_not_kept(tmp_path, wall):
    await kept(tmp_path, wall, Forgetful())
    assert names(tmp_path) == []


async def test_what_is_done_is_forgotten(tmp_path, wall):
    journal = await kept(tmp_path, wall, Adopting())
    await journal.forget(str(JOB), 2)
    assert names(tmp_path) == [f"{NAME}.json"]
    await journal.forget(str(JOB), 3)
    await journal.forget(str(JOB), 3)
    assert names(tmp_path) == []


async def test_an_attempt_is_taken_up_only_so_often(tmp_path, wall):
    await kept(tmp_path, wall, Adopting())
    tries = [[claimed.tries for claimed in Journal(tmp_path / "journal", wall).load()] for _ in range(MOST_TRIES + 1)]
    assert tries == [[1], [2], [3], []]
    assert names(tmp_path) == []


async def test_taking_it_up_does_not_write_it_anew(tmp_path, wall):
    await kept(tmp_path, wall, Adopting())
    journal = Journal(tmp_path / "journal", wall)
    journal.load()
    await journal.keep(attempt(), job(tmp_path), Adopting())
    (claimed,) = Journal(tmp_path / "journal", wall).load()
    assert claimed.tries == 2


async def test_an_attempt_past_its_deadline_is_forgotten(tmp_path, wall):
    await kept(tmp_path, wall, Adopting())
    wall.s += 500
    journal = Journal(tmp_path / "journal", wall)
    assert journal.load() == []
    assert [claimed.name for claimed in journal.dropped] == [NAME], "so that its executor stops what goes on of it"
    assert names(tmp_path) == []


async def test_a_clock_that_was_set_back_gives_no_more_time(tmp_path, wall):
    await kept(tmp_path, wall, Adopting())
    wall.s -= 5000
    journal = Journal(tmp_path / "journal", wall)
    (claimed,) = journal.load()
    assert journal.left_s(claimed) == 500


async def test_what_can_t_be_read_disturbs_nobody(tmp_path, wall):
    await kept(tmp_path, wall, Adopting())
    for name, content in (("half.json", b'{"granted"'), (".draft", b""), ("other.txt", b"{}")):
        (tmp_path / "journal" / name).write_bytes(content)
    (tmp_path / "journal" / "folder").mkdir()
    assert [claimed.name for claimed in Journal(tmp_path / "journal", wall).load()] == [NAME]
    assert sorted(names(tmp_path)) == [f"{NAME}.json", "folder"]
