"""`tandem backup` and `restore`: the ledger, the artifacts and the settings in one file; NATS is rebuilt.

A backup is one snapshot of the ledger (pg_dump, while everything goes on), then the settings, then the artifacts. A
content that the snapshot names is in the store until retention or a lost lease lets its file go; one that went before
it was packed is left out, and a restored ledger soon lets go of the same file. What came since is swept after it.

A restore is older than what agents hold and receivers were told. Whatever was granted between the two may have the
epochs that this ledger would grant next, so it grants none below a floor which no agent can know (`restored_mark.sql`):
what comes of those leases is refused as never granted, and the jobs are done again. A lease that was held at the
backup and is still held goes on. The floor comes with the ledger in one transaction: however a restore ends, no ledger
is without it. A folder that is not whole yet is marked (`up_folder.UNFINISHED`): nothing but a restore begins there.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog

from coordinator import backup_files, pg_tools
from coordinator.backup_files import ARTIFACTS, DUMP, FORMAT, SETTINGS, BrokenBackupError, Manifest
from coordinator.child import Child
from coordinator.embedded import EmbeddedPostgres
from coordinator.init import ANSWERS
from coordinator.ledger.migrate import (
    create_database_if_missing,
    known_revisions,
    migrate,
    revision_of,
)
from coordinator.ledger.restored import counts, epoch_floor, is_empty, mark_of, server_version
from coordinator.settings import CoordinatorSettings
from coordinator.up_folder import LOCK, UNFINISHED, only_one, refuse_unfinished
from shared.errors import ConfigurationError
from shared.private_file import sync_folder, write_synced

_log = structlog.get_logger()

_FOLDER_SETTINGS: Final = ("identities", "secrets", "tls", "tokens.json", "sources.toml")
"""What of a `tandem up` folder is settings: without them no agent, token or session would be known again."""

_INIT_SETTINGS: Final = (ANSWERS, "admin.env", "nats-server.conf", "nats.conf", "cluster.conf", "tls")
"""What of a `tandem init` folder is settings beside the coordinator's own; it makes the rest anew."""

_SETTINGS: Final = frozenset({*_FOLDER_SETTINGS, *_INIT_SETTINGS, "secrets", "tandem.toml"})

_SCRATCH: Final = ".tandem-backup-"
_BEGUN_S: Final = 60.0  # after that one which nobody holds was left by a killed process
_CLEARED_S: Final = 15.0  # the initdb of a killed restore ends by itself: its files are gone
_AHEAD: Final = timedelta(days=1)  # by so much the clock of whoever made a backup may be wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the parts of a Tandem lie."""

    dsn: str
    artifacts: Path | None  # None: in a bucket, which is backed up by itself
    settings: dict[str, Path] = field(default_factory=dict)  # name in the backup -> file or folder


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What is in a backup."""

    jobs: int
    artifacts: int | None  # None: they are in their bucket


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back."""

    manifest: Manifest
    jobs: int
    live: int  # of them wait or run
    artifacts: int
    epoch_floor: int


async def back_up(place: Place, path: Path) -> BackedUp:
    """Write a backup to a file that is not there yet, while everything goes on."""
    backup_files.refuse_old(path)
    with _scratch(path.parent) as scratch:
        await _refuse_without_room(place, scratch)
        dumped = scratch / DUMP
        made_at = datetime.now(UTC)
        jobs, _ = await counts(place.dsn)
        await pg_tools.dump(place.dsn, dumped, server=await server_version(place.dsn))
        schema = await revision_of(place.dsn) or ""
        with backup_files.new_backup(path, scratch / "part") as packer:
            artifacts = await asyncio.to_thread(_pack, packer, place, dumped, made_at, jobs, schema)
        return BackedUp(jobs, artifacts)


async def _refuse_without_room(place: Place, folder: Path) -> None:
    wanted = await pg_tools.size_of(place.dsn) + await asyncio.to_thread(_size_of_contents, place.artifacts)
    free = shutil.disk_usage(folder).free
    if free < wanted:
        msg = (
            f"{folder.parent}: {free / 1e6:.0f} MB are free, and this backup may take {wanted / 1e6:.0f} MB: make room"
        )
        raise ConfigurationError(msg)


def _size_of_contents(artifacts: Path | None) -> int:
    size = 0
    for _, source in backup_files.contents_in(artifacts) if artifacts else ():
        with suppress(FileNotFoundError):
            size += source.stat().st_size
    return size


def _pack(
    packer: backup_files.Packer, place: Place, dumped: Path, made_at: datetime, jobs: int, schema: str
) -> int | None:
    """Write all of it; return how many contents."""
    settings = dict(
        member for name, source in place.settings.items() for member in backup_files.settings_in(name, source)
    )
    digests = {name: hashlib.sha256(body).hexdigest() for name, body in settings.items()}
    packer.manifest(
        Manifest(
            format=FORMAT,
            tandem=version("tandem"),
            schema=schema,
            made_at=made_at,
            jobs=jobs,
            sha256={DUMP: backup_files.sha256_of(dumped), **digests},
        )
    )
    packer.file(DUMP, dumped)
    for name, body in settings.items():
        packer.body(name, body)
    contents = 0
    for name, source in backup_files.contents_in(place.artifacts) if place.artifacts else ():
        with suppress(FileNotFoundError):  # swept meanwhile
            packer.file(name, source)
            contents += 1
    packer.end(contents)
    return contents if place.artifacts else None


async def restore_folder(path: Path, data: Path) -> Restored:
    """Make the folder of a `tandem up` out of a backup; ConfigurationError unless it is empty or not there.

    What a killed restore left in it is nothing, and removed first.
    """
    _refuse_full(data)
    with only_one(data):
        _refuse_full(data)  # another restore may have come first
        async with _whole_or_gone(data):
            return await _restore_folder(path, data)


async def _restore_folder(path: Path, data: Path) -> Restored:
    with _scratch(data.parent) as scratch:
        where: dict[str, Path | None] = {
            DUMP: scratch / DUMP,
            SETTINGS: data,
            ARTIFACTS: data / "artifacts" / "sha256",
        }
        manifest, contents = await asyncio.to_thread(_unpack, path, where)
        async with EmbeddedPostgres(data) as postgres:
            return await _fill(manifest, postgres.dsn, scratch / DUMP, contents)


def restore_settings(path: Path, folder: Path) -> None:
    """Put the settings of a backup into an empty folder, or one that is not there; the whole backup is checked."""
    with _scratch(folder) as scratch:
        _refuse_used(folder)
        _unpack(path, {DUMP: None, SETTINGS: scratch / "settings", ARTIFACTS: None})
        # init.json last: `tandem init` takes no folder without it for its own, should this be killed before
        for found in sorted((scratch / "settings").iterdir(), key=lambda one: one.name == ANSWERS):
            _move(found, folder / found.name)


async def restore_servers(path: Path, settings: CoordinatorSettings) -> Restored:
    """Fill an empty database and artifact folder as the settings name them, and put secrets that are missing there.

    Everything is unpacked beside its place, then the database is filled, then all is moved: what fails leaves nothing.
    """
    dsn = settings.postgres.get_secret_value()
    await create_database_if_missing(dsn)
    if not await is_empty(dsn):
        msg = "the database has tables already: restore into an empty one"
        raise ConfigurationError(msg)
    artifacts = None if settings.artifacts_url else settings.artifacts
    with ExitStack() as stack:
        scratch = stack.enter_context(_scratch(settings.secrets.absolute().parent))
        store = stack.enter_context(_scratch(artifacts)) if artifacts else None
        if artifacts is not None:
            _refuse_used(artifacts / "sha256")
        where = {DUMP: scratch / DUMP, SETTINGS: scratch / "settings", ARTIFACTS: store and store / "sha256"}
        manifest, contents = await asyncio.to_thread(_unpack, path, where)
        moves = _missing(scratch / "settings", settings)
        if store is not None and artifacts is not None and contents:
            moves.append((store / "sha256", artifacts / "sha256"))
        restored = await _fill(manifest, dsn, scratch / DUMP, contents)
        for source, target in moves:
            await asyncio.to_thread(_move, source, target)
        return restored


def _refuse_used(folder: Path) -> None:
    """Refuse a folder with anything in it; folders without files are nothing."""
    if folder.exists() and (not folder.is_dir() or any(not one.is_dir() for one in folder.rglob("*"))):
        msg = f"{folder} is not empty: nothing is overwritten; move it away, or restore into a new one"
        raise ConfigurationError(msg)


def _missing(found: Path, settings: CoordinatorSettings) -> list[tuple[Path, Path]]:
    """Return which settings go where: those that are not there. A secret that is there must be the same."""
    moves = []
    for secret in sorted(one for one in (found / "secrets").rglob("*") if one.is_file()):
        target = settings.secrets / secret.relative_to(found / "secrets")
        if not target.exists():
            moves.append((secret, target))
        elif target.read_bytes() != secret.read_bytes():
            msg = f"{target} is another than the backup's: nothing is overwritten; move it away"
            raise ConfigurationError(msg)
    identities, sources = settings.nats_identities, settings.sources_file
    if identities is not None and not (identities / "identities").exists() and (found / "identities").exists():
        moves.append((found / "identities", identities / "identities"))
    if sources is not None and not sources.exists() and (found / "sources.toml").exists():
        moves.append((found / "sources.toml", sources))
    return moves


def _move(source: Path, target: Path) -> None:
    """Move a file, or a folder to where none is, or one without files."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in sorted((target, *target.rglob("*")), reverse=True) if target.is_dir() else ():
        folder.rmdir()
    shutil.move(source, target)


def _refuse_full(data: Path) -> None:
    """Refuse a folder with anything in it but the lock, unless a restore was broken off there."""
    if not (data / UNFINISHED).exists() and [one.name for one in data.glob("*")] != [LOCK]:
        _refuse_used(data)


@asynccontextmanager
async def _whole_or_gone(data: Path) -> AsyncIterator[None]:
    """Mark a folder as not whole while it is filled; what a killed process left in it goes first, what fails goes too.

    The mark is there before anything else, and goes after everything else.
    """
    if (data / UNFINISHED).exists():
        await _clear(data)
    write_synced(data / UNFINISHED, b"")
    sync_folder(data)
    try:
        yield
    except BaseException:
        await _clear(data)
        await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
        raise
    (data / UNFINISHED).unlink()
    sync_folder(data)


async def _clear(data: Path) -> None:
    """Remove all but the lock and the mark, after stopping the Postgres that a killed restore left running there."""
    await Child(data, "postgres").stop_orphan(signal.SIGINT, 10.0)
    deadline = asyncio.get_running_loop().time() + _CLEARED_S
    while not await asyncio.to_thread(_is_clear, data):
        if asyncio.get_running_loop().time() > deadline:
            msg = f"{data}: what a restore that was broken off left can't be removed: remove the folder"
            raise ConfigurationError(msg)
        await asyncio.sleep(0.1)


def _is_clear(data: Path) -> bool:
    """Remove what is there; False if there was something: somebody may still write there."""
    left = [one for one in data.iterdir() if one.name not in {LOCK, UNFINISHED}]
    for one in left:
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)
    return not left


def _unpack(path: Path, where: dict[str, Path | None]) -> tuple[Manifest, list[str]]:
    with backup_files.opened(path) as unpacker:
        if unpacker.manifest.schema not in known_revisions():
            manifest = unpacker.manifest
            msg = f"its ledger has schema {manifest.schema}, of a later version: restore with tandem {manifest.tandem}"
            raise BrokenBackupError(msg)
        if unpacker.manifest.made_at > datetime.now(UTC) + _AHEAD:
            msg = f"it says it is of {unpacker.manifest.made_at:%Y-%m-%d}: if it is, this machine's clock is behind"
            raise BrokenBackupError(msg)
        for name in unpacker.manifest.sha256:
            if name.startswith(SETTINGS) and name.removeprefix(SETTINGS).partition("/")[0] not in _SETTINGS:
                msg = f"a backup does not have {name!r} in it"
                raise BrokenBackupError(msg)
        return unpacker.manifest, unpacker.unpack(where)


async def _fill(manifest: Manifest, dsn: str, dumped: Path, contents: list[str]) -> Restored:
    await pg_tools.restore(dsn, dumped, mark_of(manifest.made_at))
    await migrate(dsn)
    floor = await epoch_floor(dsn)
    jobs, live = await counts(dsn)
    _log.info("restored", jobs=jobs, live=live, made_at=manifest.made_at.isoformat(), epoch_floor=floor)
    return Restored(manifest, jobs, live, len(contents), floor)


@asynccontextmanager
async def place_of_folder(data: Path, running_dsn: Callable[[], str | None]) -> AsyncIterator[Place]:
    """Yield where the parts of a `tandem up` folder are; its Postgres is started if nobody runs there."""
    settings = {name: data / name for name in _FOLDER_SETTINGS}
    dsn = running_dsn()
    if dsn is not None:
        yield Place(dsn=dsn, artifacts=data / "artifacts", settings=settings)
        return
    if not ((data / "postgres" / "PG_VERSION").exists() or (data / UNFINISHED).exists()):
        msg = f"{data} is not the folder of a `tandem up`; for a coordinator with servers of its own give --config"
        raise ConfigurationError(msg)
    with only_one(data):
        refuse_unfinished(data)
        async with EmbeddedPostgres(data) as postgres:
            yield Place(dsn=postgres.dsn, artifacts=data / "artifacts", settings=settings)


def place_of_settings(settings: CoordinatorSettings, config: Path | None) -> Place:
    """Return where the parts of a coordinator with servers of its own are."""
    found = {"secrets": settings.secrets}
    if config is not None:
        found["tandem.toml"] = config
    if settings.sources_file is not None:
        found["sources.toml"] = settings.sources_file
    folder = settings.nats_identities
    if folder is not None:
        found["identities"] = folder / "identities"
        if (folder / ANSWERS).exists():
            found |= {name: folder / name for name in _INIT_SETTINGS}
    artifacts = None if settings.artifacts_url else settings.artifacts
    return Place(dsn=settings.postgres.get_secret_value(), artifacts=artifacts, settings=found)


@contextmanager
def _scratch(beside: Path) -> Iterator[Path]:
    """Yield a folder for what is not whole yet, on the same disk: it may be large, and /tmp small.

    What killed processes left there is removed first: a living one holds its folder (flock).
    """
    try:
        beside.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left(beside)
        made = tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=beside)
    except OSError as error:
        msg = f"{beside}: {error.strerror}"
        raise ConfigurationError(msg) from None
    with made as folder:
        held = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(held)


def _remove_left(beside: Path) -> None:
    for left in beside.glob(f"{_SCRATCH}*"):
        with suppress(OSError):  # another's, or held, or gone by now
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_mtime < time.time() - _BEGUN_S:
                    shutil.rmtree(left)
            finally:
                os.close(descriptor)
