"""A restore that is killed (SIGKILL) is never taken for a whole one, and no ledger is without its epoch floor."""

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from alembic import command
from sqlalchemy.ext.asyncio import create_async_engine

from coordinator.backup import Place, back_up, restore_folder, restore_settings
from coordinator.embedded import EmbeddedPostgres
from coordinator.ledger.migrate import config, migrate
from tests.support.processes import clean_environment, end_orphans, tandem

KILLED_AT = """
import importlib, os, signal, sys
from coordinator import backup
place, name = sys.argv.pop(1).split(":")
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
owner = importlib.import_module(place)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
setattr(owner, name.split(".")[-1], die)
from coordinator.cli import main
main()
"""
"""Runs `tandem`, and ends by SIGKILL where it would call the function that is named first."""

TANDEM = "from coordinator.cli import main; main()"
REFUSED = "a restore was broken off here: run it again, or remove the folder"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that Postgres's own user may pass through, should the tests run as root."""
    made = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield made
    for data in made.iterdir():
        if data.is_dir():
            end_orphans(data)
    shutil.rmtree(made, ignore_errors=True)


async def backup_of(dsn: str, folder: Path) -> Path:
    """A backup of a ledger with a lane, and one setting."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("INSERT INTO lane (name) VALUES ('article.any')")
    await connection.close()
    (folder / "tokens.json").write_text("{}")
    file = folder / "backup.tar"
    await back_up(Place(dsn=dsn, artifacts=None, settings={"tokens.json": folder / "tokens.json"}), file)
    return file


async def begun(code: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, env=clean_environment(), stdout=asyncio.subprocess.DEVNULL
    )


async def killed_at(place: str, *arguments: str) -> None:
    process = await begun(KILLED_AT, place, *arguments)
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL


async def is_refused(data: Path) -> bool:
    """Say whether neither `up` nor `backup` begins anything there."""
    for words in (("up", "--http", "127.0.0.1:0", "--nats", "127.0.0.1:0"), ("backup", str(data.parent / "no.tar"))):
        status, _, error = await tandem(*words, "--data", str(data))
        if (status, REFUSED in error) != (2, True):
            return False
    return True


async def is_whole(data: Path) -> bool:
    """Say whether a folder has the ledger with one floor, the setting, and nothing else that is begun."""
    async with EmbeddedPostgres(data) as postgres:
        connection = await asyncpg.connect(postgres.dsn)
        found = await connection.fetchrow("SELECT (SELECT count(*) FROM restored), (SELECT count(*) FROM lane)")
        await connection.close()
    left = {one.name for one in data.iterdir()} & {"restore.unfinished", "postgres.new"}  # noqa: ASYNC240
    return tuple(found) == (1, 1) and (data / "tokens.json").read_text() == "{}" and not left


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "place",
    [
        "coordinator.backup:_restore_folder",  # the mark is there | anything else
        "coordinator.backup_files:Unpacker._refuse_more",  # all is unpacked | Postgres begun
        "coordinator.backup:pg_tools.restore",  # Postgres runs, empty | filled
        "coordinator.backup:migrate",  # filled | brought up to date
        "coordinator.backup:counts",  # all is there | Postgres stopped
    ],
)
async def test_a_folder_whose_restore_was_killed_is_refused_until_it_is_restored_again(
    ledger_dsn: str, folder: Path, place: str
) -> None:
    file, data = await backup_of(ledger_dsn, folder), folder / "new"
    await killed_at(place, "restore", str(file), "--data", str(data))
    record = data / "postgres.pid"
    orphans = [one for one in psutil.process_iter(["cmdline"]) if str(data / "postgres") in (one.info["cmdline"] or ())]
    assert bool(orphans) == record.exists()

    assert await is_refused(data)
    status, _, error = await tandem("restore", str(file), "--data", str(data))

    assert status == 0, error
    assert [one for one in orphans if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert await is_whole(data)


@pytest.mark.timeout(300)
async def test_wherever_a_restore_is_killed_its_folder_is_nothing_refused_or_whole(
    ledger_dsn: str, folder: Path
) -> None:
    file = await backup_of(ledger_dsn, folder)
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - to run it again
    chance, loop = random.Random(seed), asyncio.get_running_loop()
    began = loop.time()
    assert (await tandem("restore", str(file), "--data", str(folder / "first")))[0] == 0
    took_s = loop.time() - began
    for n in range(4):
        data = folder / f"new-{n}"
        process = await begun(TANDEM, "restore", str(file), "--data", str(data))
        try:
            async with asyncio.timeout(chance.uniform(0.2, 1.0) * took_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        names = {one.name for one in data.iterdir()} if data.exists() else set()
        if names <= {"up.lock"}:
            continue
        if "restore.unfinished" in names:
            assert await is_refused(data)
            status, _, error = await tandem("restore", str(file), "--data", str(data))
            assert status == 0, error
        assert await is_whole(data)


async def test_a_folder_with_files_and_no_mark_is_left_alone(ledger_dsn: str, folder: Path) -> None:
    file, data = await backup_of(ledger_dsn, folder), folder / "used"
    data.mkdir()
    (data / "letter.txt").write_text("dear")

    status, _, error = await tandem("restore", str(file), "--data", str(data))

    assert (status, "is not empty" in error) == (2, True)
    assert {one.name for one in data.iterdir()} == {"letter.txt"}


async def test_a_restore_whose_postgres_does_not_start_says_so_and_leaves_nothing(
    ledger_dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        msg = "initdb failed"
        raise RuntimeError(msg)

    file = await backup_of(ledger_dsn, folder)
    monkeypatch.setattr("coordinator.embedded.prepare", fails)

    with pytest.raises(RuntimeError, match="initdb failed"):
        await restore_folder(file, folder / "new")

    assert not (folder / "new").exists()


async def at_schema(dsn: str, server: EmbeddedPostgres, revision: str) -> None:
    """Make a database with the schema of an older version."""
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f'CREATE DATABASE "{dsn.rpartition("/")[2]}"')
    await connection.close()
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    async with engine.connect() as link:
        await link.run_sync(lambda one: command.upgrade(config(one), revision))
        await link.commit()
    await engine.dispose()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("revision", ["0008", "head"])  # the table of restores came with 0009
async def test_a_ledger_on_a_server_of_ones_own_has_its_floor_from_its_first_moment(
    postgres_server: EmbeddedPostgres, tmp_path: Path, revision: str
) -> None:
    old, new = (postgres_server.dsn_of(f"killed-{which}-{revision}") for which in ("old", "new"))
    await at_schema(old, postgres_server, revision)
    file, settings = await backup_of(old, tmp_path), tmp_path / "tandem.toml"
    settings.write_text(f'postgres = "{new}"\nsecrets = "{tmp_path}/new/secrets"\nartifacts = "{tmp_path}/new/files"\n')

    await killed_at("coordinator.backup:migrate", "restore", str(file), "--config", str(settings))

    await migrate(new)  # as a coordinator does that starts on it
    connection = await asyncpg.connect(new)
    floors = [row["epoch_floor"] for row in await connection.fetch("SELECT epoch_floor FROM restored")]
    assert (len(floors), min(floors) > 28_000_000) == (1, True)
    assert await connection.fetchval("SELECT name FROM lane") == "article.any"
    await connection.close()


async def test_init_takes_no_folder_for_its_own_whose_settings_came_back_in_part(
    ledger_dsn: str, tmp_path: Path
) -> None:
    names, file = ("admin.env", "init.json", "tandem.toml"), tmp_path / "backup.tar"
    for name in names:
        (tmp_path / name).write_text("{}")
    await back_up(Place(dsn=ledger_dsn, artifacts=None, settings={name: tmp_path / name for name in names}), file)
    moved: list[str] = []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("coordinator.backup._move", lambda _, target: moved.append(target.name))
        restore_settings(file, tmp_path / "new")

    assert moved == ["admin.env", "tandem.toml", "init.json"]
