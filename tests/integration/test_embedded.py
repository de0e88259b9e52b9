"""The servers that `tandem up` starts: ready when they say so, stopped by pid, and well after any accident."""

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from coordinator.embedded import EmbeddedNats, EmbeddedPostgres, Identities
from shared.bus import Bus
from shared.errors import ConfigurationError, UnreachableError
from shared.nkey import new_seed, public_key
from tests.support.servers import TEST_POSTGRES, own_servers


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that Postgres's user may reach when the tests run as root: pytest's own are closed to it."""
    path = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield path
    shutil.rmtree(path)


def postgres(folder: Path, **options) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, settings=TEST_POSTGRES, **options)


async def one(server: EmbeddedPostgres, query: str):
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def speaks(nats: EmbeddedNats) -> None:
    async with Bus(nats.url, name="test", seed=nats.identities.coordinator, inbox_prefix="_INBOX.coordinator") as bus:
        await bus.wait_connected(10)


# ---- identities


def test_secrets_are_private_and_stay_the_same(tmp_path: Path):
    first = Identities(tmp_path)
    seeds = (first.coordinator, first.provisioner, first.watcher, first.add_agent("mini"), first.add_publisher("cms"))
    assert len(set(seeds)) == 5
    second = Identities(tmp_path)
    assert seeds == (
        second.coordinator,
        second.provisioner,
        second.watcher,
        second.add_agent("mini"),
        second.add_publisher("cms"),
    )
    assert second.secret("postgres") == second.secret("postgres")
    assert stat.S_IMODE((tmp_path / "identities").stat().st_mode) == 0o700
    for path in (tmp_path / "identities").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_server_files_hold_no_secret(tmp_path: Path):
    identities = Identities(tmp_path)
    seeds = [identities.coordinator, identities.provisioner, identities.watcher, identities.add_agent("mini")]
    for path in (tmp_path / "identities").glob("*.conf"):
        text = path.read_text()
        assert not any(seed in text for seed in seeds if seed)
    assert public_key(seeds[3]) in (tmp_path / "identities" / "agents.conf").read_text()


@pytest.mark.parametrize("name", ["", "*", ">", "a.b", "A", "a b", "-a", "../x", 'a"', "a" * 64, "mini\n"])
def test_name_that_could_widen_a_right_is_refused(tmp_path: Path, name: str):
    identities = Identities(tmp_path)
    before = (identities.folder / "agents.conf").read_text()
    for add in (identities.add_agent, identities.add_publisher):
        with pytest.raises(ValueError, match="not a worker's or source's name"):
            add(name)
    assert (identities.folder / "agents.conf").read_text() == before


def test_key_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="not an nkey's public half"):
        Identities(tmp_path).add_agent("mini", 'U" } ] }')
    with pytest.raises(ValueError, match="not an nkey seed"):
        public_key("SUNONSENSE")


def test_every_seed_is_another():
    assert len({new_seed() for _ in range(100)}) == 100
    assert all(public_key(new_seed()).startswith("U") for _ in range(3))


# ---- NATS


async def test_nats_keeps_its_port_and_store_over_restarts(folder: Path):
    async with EmbeddedNats(folder, port=0) as nats:
        port, pid = nats.port, nats.pid
        assert port > 0
        await speaks(nats)
        await nats.restart()
        assert nats.port == port
        assert nats.pid != pid
        assert not psutil.pid_exists(pid)
        await speaks(nats)
        await nats.kill()
        await nats.start()
        await speaks(nats)
        pid = nats.pid
    assert not psutil.pid_exists(pid)


async def test_nats_on_a_port_that_another_has_says_so(folder: Path):
    async with own_servers() as other:
        nats = EmbeddedNats(folder, port=other.nats.port)
        with pytest.raises(UnreachableError, match="address already in use"):
            await nats.start()
        assert psutil.pid_exists(other.nats.pid)
        await nats.__aexit__(None, None, None)


async def test_nats_that_ends_by_itself_is_noticed(folder: Path):
    async with EmbeddedNats(folder, port=0) as nats:
        watching = asyncio.create_task(nats.died())
        os.kill(nats.pid, signal.SIGKILL)
        assert await asyncio.wait_for(watching, 10) == -signal.SIGKILL


async def test_children_are_in_a_session_of_their_own(folder: Path):
    async with EmbeddedNats(folder, port=0) as nats, postgres(folder) as database:
        for pid in (nats.pid, database.pid):
            assert os.getsid(pid) == pid
            assert os.getsid(pid) != os.getsid(0)


# ---- Postgres


async def test_postgres_is_ready_keeps_its_data_and_survives_a_kill(folder: Path):
    async with postgres(folder) as server:
        port = server.port
        await one(server, "CREATE TABLE kept AS SELECT 42 AS number")
        await server.restart()
        assert await one(server, "SELECT number FROM kept") == 42
        await server.kill()
        await server.start()
        assert await one(server, "SELECT number FROM kept") == 42
        assert server.port == port
        pid = server.pid
    assert not psutil.pid_exists(pid)
    async with postgres(folder) as server:
        assert await one(server, "SELECT number FROM kept") == 42


async def test_postgres_asks_for_its_password(folder: Path):
    async with postgres(folder) as server:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.dsn.replace("tandem:", "tandem:wrong"))
        assert await one(server, "SHOW listen_addresses") == "127.0.0.1"
        assert await one(server, "SHOW synchronous_commit") == "on"
        assert await one(server, "SELECT current_database()") == "tandem"


async def test_postgres_starts_over_a_stale_pid_file_even_if_that_pid_lives(folder: Path):
    async with postgres(folder) as server:
        await server.kill()
        path = folder / "postgres" / "postmaster.pid"
        lines = path.read_text().split("\n") if path.exists() else ["", str(folder / "postgres"), "0", "0", "", "", ""]
        bystander = await asyncio.create_subprocess_exec("sleep", "600")
        try:
            path.write_text("\n".join([str(bystander.pid), *lines[1:]]))
            await server.start()
            assert await one(server, "SELECT 1") == 1
            assert bystander.returncode is None
        finally:
            bystander.kill()
            await bystander.wait()


async def test_cut_short_making_of_the_database_begins_anew(folder: Path):
    (folder / "postgres.new").mkdir()
    (folder / "postgres.new" / "PG_VERSION").write_text("18")
    async with postgres(folder) as server:
        assert await one(server, "SELECT 1") == 1


# ---- two of us, and none


async def test_folder_in_use_is_left_alone(folder: Path):
    async with EmbeddedNats(folder, port=0) as nats, postgres(folder) as database:
        for other in (EmbeddedNats(folder, port=0), postgres(folder)):
            with pytest.raises(ConfigurationError, match="is in use"):
                await other.start()
        assert psutil.pid_exists(nats.pid)
        assert psutil.pid_exists(database.pid)


PARENT = """
    import asyncio, sys
    from pathlib import Path
    from coordinator.embedded import EmbeddedNats, EmbeddedPostgres

    async def main():
        folder = Path(sys.argv[1])
        async with EmbeddedNats(folder, port=0) as nats, EmbeddedPostgres(folder) as database:
            print("pids", nats.pid, database.pid, flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


async def test_orphans_of_a_killed_parent_are_stopped_at_the_next_start(folder: Path):
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(PARENT), str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    try:
        async with asyncio.timeout(60):
            words = [b""]
            while words[:1] != [b"pids"]:
                words = (await parent.stdout.readline()).split()
    finally:
        parent.kill()
        await parent.wait()
    orphans = [int(word) for word in words[1:]]
    assert all(psutil.pid_exists(pid) for pid in orphans)
    async with EmbeddedNats(folder, port=0) as nats, postgres(folder) as database:
        assert not any(psutil.pid_exists(pid) for pid in orphans)
        await speaks(nats)
        assert await one(database, "SELECT 1") == 1


async def test_process_that_only_has_the_recorded_pid_is_left_alone(folder: Path):
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        (folder / "nats.pid").write_text(json.dumps({"pid": bystander.pid, "birth": 1.0}))
        async with EmbeddedNats(folder, port=0) as nats:
            await speaks(nats)
        assert bystander.returncode is None
    finally:
        bystander.kill()
        await bystander.wait()
