"""`tandem up`: one folder, everything in it; stopped in order, found again, and never run twice."""

import json
import shutil
import signal
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from coordinator.up_folder import tokens_of
from shared.client import Client, RefusedRequestError
from shared.states import JobState
from tests.support.processes import PATIENCE_S, UpProcess, tandem, tandem_up
from tests.support.servers import eventually
from tests.support.world import eventually_async


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder that Postgres's own user may pass through, should the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="session")
async def up(data: Path) -> AsyncIterator[UpProcess]:
    async with tandem_up(data, "--agents", "1", TANDEM_PRESENCE_S="1") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared() -> AsyncIterator[UpProcess]:
    """One for the tests that leave it as it is."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    async with tandem_up(folder / "data", "--worker", "elsewhere") as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


def client_of(up: UpProcess, role: str = "admin") -> Client:
    return Client(up.connection["http"], up.connection["tokens"][role])


async def submit_one(up: UpProcess) -> str:
    async with client_of(up, "publisher") as client:
        sent = await client.submit({"kind": "article", "spec": {"prompt": "A walk"}, "key": "once"})
        job = await client.wait(sent.id)
    assert job.state is JobState.COMPLETED
    return str(job.id)


async def test_a_job_is_done_and_everything_is_found_again_after_a_clean_stop(up: UpProcess) -> None:
    before = up.connection
    job_id = await submit_one(up)
    children = up.children()

    assert await up.stop() == 0

    assert not (up.data / "connection.json").exists()
    assert [child for child in children if child.is_running()] == []
    async with tandem_up(up.data) as again:
        assert again.connection["tokens"] == before["tokens"]
        assert again.connection["nkeys"] == before["nkeys"]
        async with client_of(again) as client:
            job = await client.job(job_id)
            assert (job.state, job.source, job.attempts[0].worker) == (JobState.COMPLETED, "local", "agent-1")
            content = b"".join([chunk async for chunk in client.artifact(job_id, job.artifacts[0].name)])
            assert len(content) == job.artifacts[0].size


async def test_connection_json_tells_everything_and_only_the_owner(shared: UpProcess) -> None:
    connection = shared.connection

    assert set(connection) == {"http", "nats", "postgres", "tokens", "nkeys"}
    assert connection["tokens"] == tokens_of(shared.data)
    assert connection["nkeys"]["publisher"]["source"] == "local"
    assert set(connection["nkeys"]["agents"]) == {"elsewhere"}
    for name in ("connection.json", "audit.json", "tokens.json"):
        assert stat.S_IMODE((shared.data / name).stat().st_mode) == 0o600


async def test_each_token_allows_what_its_role_does(shared: UpProcess) -> None:
    async with client_of(shared, "viewer") as viewer:
        assert await viewer.status()
        with pytest.raises(RefusedRequestError, match="role"):
            await viewer.submit({"kind": "article", "spec": {"prompt": "no"}})


async def test_a_second_one_on_the_same_folder_is_refused(shared: UpProcess) -> None:
    status, out, error = await tandem(
        "up", "--data", str(shared.data), "--http", "127.0.0.1:0", "--nats", "127.0.0.1:0"
    )

    assert (status, out) == (2, "")
    assert f"runs there already (pid {shared.process.pid})" in error
    assert "Traceback" not in error
    assert shared.connection


@pytest.mark.parametrize(("flag", "part"), [("--http", "http"), ("--nats", "nats")])
async def test_a_port_in_use_is_named(shared: UpProcess, flag: str, part: str) -> None:
    taken = shared.connection[part].partition("//")[2]
    other = {"--http": "--nats", "--nats": "--http"}[flag]

    status, _, error = await tandem("up", "--data", f"{shared.data}-2", flag, taken, other, "127.0.0.1:0")

    assert status == 2
    assert f"{taken} is in use" in error
    assert f"{flag} HOST:PORT" in error


async def test_what_a_killed_one_left_running_is_stopped_by_the_next(up: UpProcess) -> None:
    job_id = await submit_one(up)
    orphans = up.children()
    assert await up.stop(signal.SIGKILL) == -signal.SIGKILL
    assert any(orphan.is_running() for orphan in orphans)

    async with tandem_up(up.data, "--agents", "1") as again:
        assert [orphan.pid for orphan in orphans if alive(orphan)] == []
        async with client_of(again) as client:
            assert (await client.job(job_id)).state is JobState.COMPLETED
        assert await submit_one(again) == job_id
        assert await again.stop() == 0


async def test_a_server_that_dies_ends_it_with_the_reason(up: UpProcess) -> None:
    nats = json.loads((up.data / "nats.pid").read_text())["pid"]

    psutil.Process(nats).kill()

    assert await up.ended() == 1
    assert "NATS ended by itself" in up.log.read_text()
    assert not (up.data / "connection.json").exists()


async def test_a_crashed_agent_is_started_again(up: UpProcess) -> None:
    record = up.data / "agents" / "agent-1.pid"
    first = json.loads(record.read_text())["pid"]

    psutil.Process(first).kill()

    await eventually(lambda: json.loads(record.read_text())["pid"] != first, within_s=PATIENCE_S)
    await submit_one(up)


async def test_a_stop_while_an_agent_works_gives_its_job_back_uncharged(up: UpProcess) -> None:
    async with client_of(up, "publisher") as client:
        spec = {"prompt": "A long one", "simulate": {"seconds": 600}}
        sent = await client.submit({"kind": "article", "spec": spec})

        async def works() -> bool:
            return (await client.job(sent.id)).state is JobState.PROCESSING

        await eventually_async(works, within_s=PATIENCE_S)

    assert await up.stop(signal.SIGTERM) == 0

    async with tandem_up(up.data) as again, client_of(again) as client:
        job = await client.job(sent.id)
        assert (job.state, job.attempt, job.lease_losses) == (JobState.PENDING, 0, 0)
        assert [attempt.outcome for attempt in job.attempts] == ["released"]


async def test_the_coordinators_settings_come_from_the_environment(data: Path) -> None:
    up = UpProcess(data, TANDEM_LEASE_TTL_S="3", TANDEM_HEARTBEAT_S="2")

    assert await up.ended() == 2
    assert "heartbeat_s must be below lease_ttl_s / 2" in up.log.read_text()


async def test_a_stop_before_it_is_ready_leaves_nothing_running(data: Path) -> None:
    up = UpProcess(data)
    lock = data / "up.lock"
    await eventually(lock.exists, within_s=PATIENCE_S)
    children = up.children()

    assert await up.stop() == 0

    assert not any(alive(child) for child in children)
    assert not (data / "connection.json").exists()
    assert pid_records(data) == []


def pid_records(data: Path) -> list[Path]:
    return list(data.glob("**/*.pid"))


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
