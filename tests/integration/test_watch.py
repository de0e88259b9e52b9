"""`tandem watch` on a terminal, against a running `tandem up`: what an admin sees of a job's life, and of an outage."""

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.processes import UpProcess, tandem, tandem_up
from tests.support.terminal import CURSOR, FIRST_PAGE, OTHER_PAGE, terminal

QUICK = {"TANDEM_PRESENCE_S": "1", "TANDEM_HEARTBEAT_S": "0.5", "TANDEM_LEASE_TTL_S": "20"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def up(folder: Path) -> AsyncIterator[UpProcess]:
    async with tandem_up(folder / "data", "--agents", "1", **QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def submit(up: UpProcess, *more: str, **spec: object) -> str:
    words = ("submit", "article", "--spec", json.dumps({"prompt": "A walk", **spec}), *more)
    status, out, error = await tandem(*words, TANDEM_DATA=str(up.data))
    assert status == 0, error
    return out.strip()


async def test_a_job_is_seen_to_pass_its_stages(up: UpProcess) -> None:
    async with terminal("watch", TANDEM_DATA=str(up.data)) as screen:
        await screen.shows("nothing runs", "agent-1", "ready")
        await submit(up, "--key", "post-812", simulate={"seconds": 8})
        held = await submit(up, "--key", "post-813")
        loading = await screen.shows("1 running", "post-812", "loading model")
        await screen.shows("generating text", "all busy: agent-1")
        await screen.shows("2 completed", "nothing runs", "nothing waits")
        assert "agent-1" in loading
        assert "busy" in loading
        assert all(len(line) <= 80 for picture in screen.pictures for line in picture.splitlines())
        assert await screen.ended() == 0
        assert held not in screen.raw

    assert screen.raw.index(OTHER_PAGE) < screen.raw.index(FIRST_PAGE)
    assert CURSOR in screen.raw.rpartition(OTHER_PAGE)[2]
    assert "Traceback" not in screen.raw
    assert "Aborted" not in screen.raw


async def test_it_follows_the_size_of_the_terminal(up: UpProcess) -> None:
    async with terminal("watch", columns=80, lines=30, TANDEM_DATA=str(up.data)) as screen:
        narrow = await screen.shows("MODELS")
        assert "POWER, MEMORY" in narrow
        screen.resize(160, 24)
        wide = await screen.shows("POWER      MEMORY", after=len(screen.pictures))
        assert any(len(line) > 100 for line in wide.splitlines())
        assert await screen.ended(signal.SIGTERM) == 0


async def test_once_prints_one_picture_and_so_does_a_pipe(up: UpProcess) -> None:
    await submit(up, "--key", "bad-1", simulate={"fail": "permanent"})
    async with terminal("watch", "--once", TANDEM_DATA=str(up.data)) as screen:
        await asyncio.to_thread(screen.process.wait, 30)
        assert screen.process.returncode == 0
        assert OTHER_PAGE not in screen.raw

    status, out, error = await tandem("watch", TANDEM_DATA=str(up.data))
    assert (status, error) == (0, "")
    assert "\x1b" not in out
    assert "bad-1 article" in out
    assert "simulated" in out
    status, out, error = await tandem("watch", "--json", TANDEM_DATA=str(up.data))
    assert (status, error) == (0, "")
    seen = json.loads(out)
    assert [job["key"] for job in seen["failed"]] == ["bad-1"]
    assert {"jobs", "lanes", "workers", "running", "rejected"} <= seen.keys()


async def test_who_may_not_look_and_nobody_there_end_as_other_commands_do(up: UpProcess) -> None:
    url, tokens = up.connection["http"], up.connection["tokens"]
    for token, said in (("wrong", "unknown token"), (tokens["publisher"], "role publisher does not allow this")):
        status, _, error = await tandem("watch", TANDEM_URL=url, TANDEM_TOKEN=token)
        assert status == 1
        assert said in error
    async with terminal("watch", TANDEM_URL="http://127.0.0.1:1", TANDEM_TOKEN="t") as screen:
        await asyncio.to_thread(screen.process.wait, 30)
        assert screen.process.returncode == 3
        assert OTHER_PAGE not in screen.raw
    status, _, _ = await tandem("watch", TANDEM_URL=url, TANDEM_TOKEN=tokens["viewer"])
    assert status == 0


@pytest.mark.timeout(180)
async def test_an_outage_is_said_and_it_goes_on_by_itself(folder: Path) -> None:
    data = folder / "other"
    async with tandem_up(data, **QUICK) as first, terminal("watch", TANDEM_DATA=str(data)) as screen:
        await screen.shows("nothing runs", "no worker was ever heard of")
        assert await first.stop() == 0
        away = await screen.shows("coordinator away since", "what is shown is from before")
        assert "no worker was ever heard of" in away
        async with tandem_up(data, **QUICK) as second:  # on other ports
            seen = len(screen.pictures)
            await submit(second, "--key", "post-814")
            back = await screen.shows("1 waiting", "article.any", "no capable worker is there", after=seen)
            assert "away since" not in back
            assert await screen.ended() == 0
