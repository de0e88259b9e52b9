"""A backup comes back whole, while agents that know more than it reconnect; and what is no whole backup is refused."""

import asyncio
import fcntl
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from coordinator import backup_files
from coordinator.backup import Place, back_up
from coordinator.backup_files import BrokenBackupError, Packer, opened
from coordinator.cluster import binaries
from coordinator.embedded import EmbeddedPostgres
from coordinator.pg_tools import ToolError, _fit_for_every_server, dump, without_password
from shared.client import Client, RefusedRequestError
from shared.errors import ConfigurationError
from shared.states import JobState
from tests.bench.rig import free_port
from tests.support.processes import UpProcess, clean_environment, end_orphans, tandem, tandem_up
from tests.support.vps import AGENT as VPS_AGENT
from tests.support.vps import vps
from tests.support.world import eventually_async

AGENT = (sys.executable, "-c", "from agent.cli import main; main()", "run")
WITHIN_S = 90.0
QUICK = {"TANDEM_PRESENCE_S": "1", "TANDEM_LEASE_TTL_S": "20", "TANDEM_HEARTBEAT_S": "2"}
MANY = 28_000_000
"""An epoch after a restore; no agent had one before."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that Postgres's own user may pass through, should the tests run as root."""
    made = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def agents(up: UpProcess, folder: Path) -> AsyncIterator[None]:
    """Two agents that live on whatever becomes of the coordinator."""
    running = []
    for worker, known in up.connection["nkeys"]["agents"].items():
        environment = {
            "TANDEM_AGENT_WORKER": worker,
            "TANDEM_AGENT_NATS": up.connection["nats"],
            "TANDEM_AGENT_SEED": known["seed"],
            "TANDEM_AGENT_DATA": str(folder / worker),
            "TANDEM_AGENT_EXECUTORS": '{"sketch": {}}',
        }
        process = await asyncio.create_subprocess_exec(
            *AGENT,
            env=clean_environment() | environment,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        running.append(process)
    try:
        yield
    finally:
        for process in running:
            process.kill()
            await process.wait()


async def job_is(client: Client, job_id: Any, wanted: Callable[[Any], bool]) -> Any:
    found: list[Any] = []

    async def so() -> bool:
        found[:] = [await client.job(job_id)]
        return wanted(found[0])

    await eventually_async(so, within_s=WITHIN_S)
    return found[0]


def client_of(up: UpProcess) -> Client:
    return Client(up.connection["http"], up.connection["tokens"]["admin"])


def article(key: str, seconds: float = 0) -> dict[str, Any]:
    return {"key": key, "kind": "article", "spec": {"prompt": "A walk", "simulate": {"seconds": seconds}}}


@pytest.mark.timeout(300)  # a whole Tandem twice, and a job of 15 s
async def test_a_restored_ledger_takes_up_with_agents_that_know_more_than_it(folder: Path) -> None:
    ports = ("--http", f"127.0.0.1:{free_port()}", "--nats", f"127.0.0.1:{free_port()}")
    old, new, file = folder / "old", folder / "new", folder / "backup.tar"
    async with tandem_up(old, *ports, "--worker", "mini", "--worker", "book", **QUICK) as up, agents(up, folder):
        async with client_of(up) as client:
            done = [await client.submit(article(f"done-{n}")) for n in range(3)]
            for sent in done:
                await job_is(client, sent.id, lambda job: job.state is JobState.COMPLETED)
            before = {sent.id: await client.job(sent.id) for sent in done}
            name = before[done[0].id].artifacts[0].name
            content = b"".join([chunk async for chunk in client.artifact(done[0].id, name)])
            held = await client.submit(article("held", 15))
            stopped = await client.submit(article("stopped", 600))
            for sent in (held, stopped):
                await job_is(client, sent.id, lambda job: job.state is JobState.PROCESSING)
            waits = await client.submit(article("waits"))

            status, out, error = await tandem("backup", str(file), "--data", str(old))
            assert status == 0, error
            assert "6 jobs" in out

            await client.cancel(stopped.id)
            lost_to_come = await job_is(client, waits.id, lambda job: job.state is JobState.COMPLETED)
            assert lost_to_come.attempts[-1].epoch == 1
            unknown = await client.submit(article("unknown"))
            await job_is(client, unknown.id, lambda job: job.state is JobState.COMPLETED)
        assert await up.stop(signal.SIGKILL) == -signal.SIGKILL
        end_orphans(old)

        status, out, error = await tandem("restore", str(file), "--data", str(new))
        assert status == 0, error
        assert "6 jobs (3 wait or run)" in out
        async with tandem_up(new, *ports, **QUICK) as again, client_of(again) as client:
            assert again.connection["nkeys"] == up_keys(old)
            kept = await job_is(client, held.id, lambda job: job.state is JobState.COMPLETED)
            assert [one.epoch for one in kept.attempts] == [1]
            anew = await job_is(client, waits.id, lambda job: job.state is JobState.COMPLETED)
            assert [one.epoch > MANY for one in anew.attempts] == [True]
            running = await job_is(client, stopped.id, lambda job: job.attempts[-1].epoch > MANY)
            assert running.attempts[0].outcome == "released"
            await client.cancel(stopped.id)
            with pytest.raises(RefusedRequestError, match="no job"):
                await client.job(unknown.id)
            assert (await client.submit(article("unknown"))).id == unknown.id
            redone = await job_is(client, unknown.id, lambda job: job.state is JobState.COMPLETED)
            assert redone.attempts[-1].epoch > MANY
            for job_id, job in before.items():
                assert (await client.job(job_id)).attempts == job.attempts
            assert b"".join([chunk async for chunk in client.artifact(done[0].id, name)]) == content

            async def is_clean() -> bool:
                return (await tandem("audit", "--data", str(new)))[0] == 0

            await eventually_async(is_clean, within_s=WITHIN_S)


def up_keys(data: Path) -> dict[str, Any]:
    """The keys as connection.json had them, of a folder whose `tandem up` was killed."""
    found: dict[str, Any] = json.loads((data / "connection.json").read_text())["nkeys"]
    return found


async def test_a_folder_that_nobody_runs_is_backed_up_and_restored(folder: Path) -> None:
    old, new, file = folder / "old", folder / "new", folder / "backup.tar"
    async with tandem_up(old) as up, client_of(up) as client:
        sent = await client.submit(article("waits"))
        tokens = up.connection["tokens"]

    status, out, error = await tandem("backup", str(file), "--data", str(old))

    assert (status, "1 jobs, 0 artifacts" in out) == (0, True), error
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(name.startswith(".") for name in os.listdir(folder))  # noqa: PTH208 - from a coroutine
    assert (await tandem("backup", str(file), "--data", str(old)))[0] == 2
    assert (await tandem("restore", str(file), "--data", str(old)))[0] == 2
    assert (await tandem("restore", str(file)))[0] == 2
    assert (await tandem("restore", str(file), "--data", str(new)))[0] == 0
    for path in (new / "tokens.json", new / "identities" / "coordinator.seed"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with tandem_up(new) as up, client_of(up) as client:
        assert up.connection["tokens"] == tokens
        assert (await client.job(sent.id)).state is JobState.PENDING


async def test_a_backup_that_was_changed_or_cut_off_leaves_nothing(folder: Path) -> None:
    old, file = folder / "old", folder / "backup.tar"
    async with tandem_up(old) as up, client_of(up) as client:
        await client.submit(article("waits"))
        assert (await tandem("backup", str(file), "--data", str(old)))[0] == 0
    whole = file.read_bytes()
    middle = whole.index(b"PGDMP") + 1000
    for broken in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b"no tar" * 999):
        file.write_bytes(broken)

        status, _, error = await tandem("restore", str(file), "--data", str(folder / "new"))

        assert (status, "Traceback" in error) == (1, False), error
        assert not (folder / "new").exists()


def members(*found: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, body in found:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return made.getvalue()


def manifest(**changed: Any) -> tuple[str, bytes]:
    said = {
        "format": 2,
        "tandem": "0.1.0",
        "schema": "0009",
        "made_at": "2026-11-30T09:00:00Z",
        "jobs": 0,
        "sha256": {},
    }
    return "manifest.json", json.dumps(said | changed).encode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (members(("other", b"")), "does not begin with manifest"),
        (members(manifest(format=3, later=1)), "format 3 is not known"),
        (members(manifest(surprise=1)), "can't be read"),
        (members(manifest(), ("settings/../../etc/cron.d/x", b"")), "does not have"),
        (members(manifest(), ("/etc/passwd", b"")), "does not have"),
        (members(manifest(), ("settings/.ssh/authorized_keys", b"")), "does not have"),
        (members(manifest(), ("artifacts/sha256/ab/" + "c" * 62, b"x")), "not what was backed up"),
        (members(manifest(), ("settings/tokens.json", b"{}")), "not what was backed up"),
        (members(manifest()), "artifacts missing"),
        (members(manifest(), ("end.json", b'{"artifacts": 1}')), "artifacts missing"),
        (members(manifest(), ("end.json", b"[]")), "end.json can't be read"),
        (members(manifest(sha256={"ledger.dump": "0" * 64})), "ledger.dump missing"),
    ],
)
def test_what_is_no_backup_is_refused(tmp_path: Path, body: bytes, said: str) -> None:
    file, out = tmp_path / "backup.tar", tmp_path / "out"
    file.write_bytes(body)
    where = {"ledger.dump": out / "dump", "settings/": out / "settings", "artifacts/sha256/": out / "artifacts"}

    with pytest.raises(BrokenBackupError, match=said), opened(file) as unpacker:
        unpacker.unpack(where)

    assert {path.name for path in tmp_path.iterdir()} <= {"backup.tar", "out"}


def test_a_link_in_a_backup_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    with tarfile.open(file, "w") as tar:
        name, body = manifest()
        first, link = tarfile.TarInfo(name), tarfile.TarInfo("settings/tokens.json")
        first.size, link.type, link.linkname = len(body), tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(first, io.BytesIO(body))
        tar.addfile(link)

    with pytest.raises(BrokenBackupError, match="does not have"), opened(file) as unpacker:
        unpacker.unpack({"ledger.dump": None, "settings/": tmp_path / "x", "artifacts/sha256/": None})


def config(here: Path, dsn: str, **files: bytes) -> Path:
    """Settings of servers of one's own; and files, by path."""
    here.mkdir()
    for name, body in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(body)
    path = here / "tandem.toml"
    path.write_text(
        f'postgres = "{dsn}"\nsecrets = "{here / "secrets"}"\nartifacts = "{here / "artifacts"}"\n'
        f'nats_identities = "{here}"\nnats_reload = ["true"]\nsources_file = "{here / "sources.toml"}"\n'
    )
    return path


def content(body: bytes) -> dict[str, bytes]:
    """A file of an artifact folder."""
    digest = hashlib.sha256(body).hexdigest()
    return {f"artifacts/sha256/{digest[:2]}/{digest[2:]}": body}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FILES = {
    "secrets/session.key": b"s",
    "identities/agents/mini.pub": b"U",
    "sources.toml": b"# none\n",
    **content(b"one"),
    **content(b"two"),
}


async def test_servers_of_ones_own_are_backed_up_and_restored(
    postgres_server: EmbeddedPostgres, ledger_dsn: str, tmp_path: Path
) -> None:
    old, file = config(tmp_path / "old", ledger_dsn, **FILES), tmp_path / "backup.tar"
    connection = await asyncpg.connect(ledger_dsn)
    await connection.execute("INSERT INTO lane (name) VALUES ('article.any')")
    await connection.close()
    status, out, error = await tandem("backup", str(file), "--json", "--config", str(old))
    assert status == 0, error
    assert json.loads(out)["artifacts"] == 2
    with tarfile.open(file) as tar:
        names = set(tar.getnames())
    assert {"settings/tandem.toml", "settings/secrets/session.key", "settings/identities/agents/mini.pub"} <= names

    status, _, error = await tandem("restore", str(file), "--config", str(old))
    assert (status, "tables already" in error) == (2, True)
    new = config(tmp_path / "new", postgres_server.dsn_of("restored-1"))
    status, out, error = await tandem("restore", str(file), "--config", str(new))

    assert status == 0, error
    new.unlink()
    assert files_in(tmp_path / "new") == FILES
    connection = await asyncpg.connect(postgres_server.dsn_of("restored-1"))
    assert await connection.fetchval("SELECT name FROM lane") == "article.any"
    assert await connection.fetchval("SELECT count(*) FROM restored") == 1
    await connection.close()


async def test_a_restore_that_fails_leaves_nothing_and_the_next_one_works(
    postgres_server: EmbeddedPostgres, ledger_dsn: str, tmp_path: Path
) -> None:
    file, broken = tmp_path / "backup.tar", tmp_path / "broken.tar"
    assert (await tandem("backup", str(file), "--config", str(config(tmp_path / "old", ledger_dsn, **FILES))))[0] == 0
    new = config(tmp_path / "new", postgres_server.dsn_of("restored-2"), **{"secrets/session.key": b"s"})
    (tmp_path / "new" / "artifacts" / "sha256" / "ab").mkdir(parents=True)  # a doctor was here
    before = files_in(tmp_path / "new")
    with tarfile.open(file) as tar:
        found = [(one.name, tar.extractfile(one).read()) for one in tar.getmembers()]  # type: ignore[union-attr]
    said, dumped = json.loads(found[0][1]), b"PGDMP and nothing else"
    said["sha256"]["ledger.dump"] = hashlib.sha256(dumped).hexdigest()
    broken.write_bytes(members(("manifest.json", json.dumps(said).encode()), ("ledger.dump", dumped), *found[2:]))
    file_cut = tmp_path / "cut.tar"
    file_cut.write_bytes(file.read_bytes()[:-12000])
    for one, why in ((broken, "pg_restore failed"), (file_cut, "not a whole backup")):
        status, _, error = await tandem("restore", str(one), "--config", str(new))
        assert (status, why in error, "Traceback" in error) == (1, True, False), error
        assert files_in(tmp_path / "new") == before
    (tmp_path / "new" / "secrets" / "session.key").write_bytes(b"another")
    status, _, error = await tandem("restore", str(file), "--config", str(new))
    assert (status, "is another than the backup's" in error) == (2, True), error
    (tmp_path / "new" / "secrets" / "session.key").write_bytes(b"s")

    status, _, error = await tandem("restore", str(file), "--config", str(new))

    assert status == 0, error
    new.unlink()
    assert files_in(tmp_path / "new") == FILES
    status, _, error = await tandem("restore", str(file), "--settings", str(tmp_path / "new"))
    assert (status, "not empty" in error) == (2, True)


async def test_what_changes_or_goes_while_it_is_packed_does_not_break_a_backup(
    ledger_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, file = tmp_path / "here", tmp_path / "backup.tar"
    config(here, ledger_dsn, **FILES)
    pack = Packer.file

    def meanwhile(packer: Packer, name: str, path: Path) -> None:
        if name == "ledger.dump":
            (here / "identities" / "agents.conf").write_text("a worker joined")
            (here / "identities" / "agents" / "mini.pub").write_text("with another key")
            (here / "secrets" / "session.key").unlink()
            (here / next(iter(content(b"one")))).unlink()
        pack(packer, name, path)

    monkeypatch.setattr(Packer, "file", meanwhile)
    (here / "identities" / "agents.conf").write_text("before")
    listed = list(backup_files.contents_in(here / "artifacts"))
    monkeypatch.setattr(backup_files, "contents_in", lambda _: listed)
    settings = {"identities": here / "identities", "secrets": here / "secrets"}

    made = await back_up(Place(dsn=ledger_dsn, artifacts=here / "artifacts", settings=settings), file)

    assert made.artifacts == 1
    out = tmp_path / "out"
    with opened(file) as unpacker:
        where = {"ledger.dump": None, "settings/": out, "artifacts/sha256/": out / "artifacts" / "sha256"}
        unpacker.unpack(where)
    assert files_in(out) == {
        "identities/agents.conf": b"before",
        "identities/agents/mini.pub": b"U",
        "secrets/session.key": b"s",
        **content(b"two"),
    }


async def test_a_disk_without_room_is_not_filled(
    ledger_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(dsn=ledger_dsn, artifacts=tmp_path / "artifacts")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))

    with pytest.raises(ConfigurationError, match="5 MB are free"):
        await back_up(place, tmp_path / "backup.tar")

    assert os.listdir(tmp_path) == []  # noqa: PTH208 - from a coroutine


async def test_what_a_killed_backup_left_is_removed_by_the_next_and_a_living_ones_is_not(
    ledger_dsn: str, tmp_path: Path
) -> None:
    killed, living = tmp_path / ".tandem-backup-killed", tmp_path / ".tandem-backup-living"
    for folder in (killed, living):
        folder.mkdir()
        (folder / "part").write_bytes(b"half")
        os.utime(folder, (0, 0))
    held = os.open(living, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        await back_up(Place(dsn=ledger_dsn, artifacts=None), tmp_path / "backup.tar")
    finally:
        os.close(held)
    assert set(os.listdir(tmp_path)) == {"backup.tar", living.name}  # noqa: PTH208 - from a coroutine


async def test_a_script_is_made_fit_for_every_server(ledger_dsn: str, tmp_path: Path) -> None:
    """The wheel's pg_restore sets what came with Postgres 17; pg_dump may write what only newer minor versions know."""
    connection = await asyncpg.connect(ledger_dsn)
    await connection.execute("INSERT INTO lane (name) VALUES ('SET transaction_timeout = 0;')")
    await connection.close()
    await dump(ledger_dsn, tmp_path / "dump", server=18)
    script = tmp_path / "script"
    words = (binaries() / "pg_restore", f"--file={script}", tmp_path / "dump")
    assert await (await asyncio.create_subprocess_exec(*words)).wait() == 0
    told = "ALTER TABLE ONLY public.lane ALTER COLUMN name SET (pg_attver=26652280);"
    lines = script.read_text().replace("\nCOPY ", f"\n{told}\nCOPY ", 1).splitlines()
    script.write_text("\n".join([*lines, told]))
    assert "SET transaction_timeout = 0;" in lines

    _fit_for_every_server(script)

    changed = [(one, other) for one, other in zip(lines, script.read_text().splitlines(), strict=False) if one != other]
    assert changed == [("SET transaction_timeout = 0;", "--T transaction_timeout = 0;"), (told, f"--{told[2:]}")]
    assert script.read_text().endswith(told)


@pytest.mark.timeout(300)  # a VPS twice
async def test_a_lost_vps_is_made_again_and_its_macs_come_back_by_themselves(
    postgres_server: EmbeddedPostgres, folder: Path
) -> None:
    """As docs/operations.md says; the agent is neither told nor restarted."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text().split("### The VPS is lost")[1]
    recipe = next(block for block in re.findall(r"```sh system\n(.*?)```", page, re.DOTALL) if "--settings" in block)
    dsn, file = postgres_server.dsn_of("lost"), folder / "kept.tar"
    connection = await asyncpg.connect(postgres_server.dsn)
    await connection.execute("CREATE DATABASE lost")
    async with vps(folder, dsn) as this:
        environment = {"TANDEM_PUBLIC_URL": f"http://127.0.0.1:{this.http_port}"}
        toml = this.folder / "tandem.toml"
        toml.write_text(f'sources_file = "{this.folder / "sources.toml"}"\n{toml.read_text()}')
        (this.folder / "sources.toml").write_text("")
        servers = [await this.nats(), await this.coordinator(**environment)]
        mac, _ = await this.agent("mini")
        this.run("mini", [*VPS_AGENT, "run", "--config", str(mac / "agent.toml")])
        async with Client(environment["TANDEM_PUBLIC_URL"], this.token) as client:
            before = await client.submit(article("before"))
            await job_is(client, before.id, lambda job: job.state is JobState.COMPLETED)
        await this.tandem("backup", str(file), "--config", str(toml))
        for server in reversed(servers):
            server.kill()
            server.wait()
        keys = (".crt", ".key", ".seed", ".pub", ".password")
        kept = {name: body for name, body in files_in(this.folder).items() if name.endswith(keys)}
        assert len(kept) > len(keys)
        token = this.token
        shutil.rmtree(this.folder)
        await connection.execute("DROP DATABASE lost WITH (FORCE)")

        for line in recipe.strip().splitlines():
            places = {"/var/lib/tandem": str(this.folder), "/var/tmp/tandem.tar": str(folder / "readable.tar")}
            for place, here in places.items():
                line = line.replace(place, here)  # noqa: PLW2901 - as it stands in this test
            words = shlex.split(line)
            if words[0] == "install":  # nobody is called tandem here
                assert words[:-2] == ["install", "-o", "tandem", "-g", "tandem", "-m", "0600"]
                shutil.copy(file, words[-1])
                continue
            assert words[:4] == ["sudo", "-u", "tandem", "tandem"]
            status, _, error = await tandem(*words[4:])
            assert status == 0, error

        assert {name: body for name, body in files_in(this.folder).items() if name in kept} == kept
        assert (this.folder / "systemd" / "tandem-backup.timer").exists()
        assert (this.folder / "sources.toml").exists()
        assert this.token == token
        await this.nats()
        await this.coordinator(**environment)
        async with Client(environment["TANDEM_PUBLIC_URL"], token) as client:
            assert (await client.job(before.id)).state is JobState.COMPLETED
            after = await client.submit(article("after"))
            done = await job_is(client, after.id, lambda job: job.state is JobState.COMPLETED)
            assert done.worker == "mini"
    await connection.close()


async def test_a_dump_that_fails_says_why_and_shows_no_password(unused_tcp_port: int, tmp_path: Path) -> None:
    dsn = f"postgresql://tandem:s%40cret@127.0.0.1:{unused_tcp_port}/tandem"

    assert without_password(dsn) == (f"postgresql://tandem@127.0.0.1:{unused_tcp_port}/tandem", "s@cret")
    assert without_password("postgresql:///tandem?host=/run") == ("postgresql:///tandem?host=/run", None)
    with pytest.raises(ToolError, match="Connection refused") as failed:
        await dump(dsn, tmp_path / "dump", server=18)
    assert "cret" not in str(failed.value)


async def test_what_a_migration_would_do_is_told_and_not_done(postgres_server: EmbeddedPostgres) -> None:
    dsn = postgres_server.dsn_of("checked")
    connection = await asyncpg.connect(postgres_server.dsn)
    await connection.execute("CREATE DATABASE checked")
    await connection.close()

    status, out, error = await tandem("migrate", "--check", TANDEM_POSTGRES=dsn)
    assert (status, out.splitlines()[0].split()[0]) == (1, "0001"), error
    assert "to do: tandem migrate" in out
    assert (await tandem("migrate", "--check", TANDEM_POSTGRES=dsn))[0] == 1
    assert (await tandem("migrate", TANDEM_POSTGRES=dsn))[0] == 0
    status, out, _ = await tandem("migrate", "--check", TANDEM_POSTGRES=dsn)
    assert (status, "is up to date" in out) == (0, True)
    connection = await asyncpg.connect(dsn)
    await connection.execute("UPDATE alembic_version SET version_num = '9999'")
    await connection.close()
    status, out, _ = await tandem("migrate", "--check", TANDEM_POSTGRES=dsn)
    assert (status, "schema 9999 is of a later version" in out) == (1, True)
