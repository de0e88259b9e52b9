"""`tandem backup` and `restore`: the ledger, the artifacts and the settings in one file; NATS is rebuilt.

A backup is one snapshot of the ledger (pg_dump, while everything goes on), then the artifacts: a content that the
snapshot names is in the store until its job is trimmed, and what came since is swept after a restore.

A restore is older than what agents hold and receivers were told. Whatever was granted between the two may have the
epochs that this ledger would grant next, so it grants none below a floor which no agent can know (`restored_mark.sql`):
what comes of those leases is refused as never granted, and the jobs are done again. A lease that was held at the
backup and is still held goes on.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import structlog

from coordinator import backup_files, pg_tools
from coordinator.backup_files import ARTIFACTS, DUMP, FORMAT, SETTINGS, BrokenBackupError, Manifest
from coordinator.embedded import EmbeddedPostgres
from coordinator.ledger.migrate import (
    create_database_if_missing,
    known_revisions,
    migrate,
    revision_of,
)
from coordinator.ledger.restored import counts, is_empty, mark_restored, server_version
from coordinator.settings import CoordinatorSettings
from coordinator.up_folder import only_one
from shared.errors import ConfigurationError

_log = structlog.get_logger()

_FOLDER_SETTINGS = ("identities", "secrets", "tls", "tokens.json", "sources.toml")
"""What of a `tandem up` folder is settings: without them no agent, token or session would be known again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the parts of a Tandem lie."""

    dsn: str
    artifacts: Path | None  # None: in a bucket, which is backed up by itself
    settings: dict[str, Path] = field(default_factory=dict)  # name in the backup -> file or folder


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back."""

    manifest: Manifest
    jobs: int
    live: int  # of them wait or run
    artifacts: int
    epoch_floor: int


async def back_up(place: Place, path: Path) -> Manifest:
    """Write a backup to a file that is not there yet, while everything goes on."""
    with backup_files.new_backup(path) as packer, _scratch(path.parent) as scratch:
        dumped = scratch / DUMP
        made_at = datetime.now(UTC)
        jobs, _ = await counts(place.dsn)
        await pg_tools.dump(place.dsn, dumped, server=await server_version(place.dsn))
        return await asyncio.to_thread(_pack, packer, place, dumped, made_at, jobs, await revision_of(place.dsn) or "")


def _pack(
    packer: backup_files.Packer, place: Place, dumped: Path, made_at: datetime, jobs: int, schema: str
) -> Manifest:
    settings = [
        member
        for name, source in place.settings.items()
        if source.exists()
        for member in backup_files.settings_in(name, source)
    ]
    contents = list(backup_files.contents_in(place.artifacts)) if place.artifacts else []
    manifest = Manifest(
        format=FORMAT,
        tandem=version("tandem"),
        schema=schema,
        made_at=made_at,
        jobs=jobs,
        artifacts=len(contents) if place.artifacts else None,
        sha256={name: backup_files.sha256_of(source) for name, source in [(DUMP, dumped), *settings]},
    )
    packer.manifest(manifest)
    for name, source in [(DUMP, dumped), *settings, *contents]:
        packer.file(name, source)
    return manifest


async def restore_folder(path: Path, data: Path) -> Restored:
    """Make the folder of a `tandem up` out of a backup; ConfigurationError unless it is empty or not there."""
    _refuse_used(data)
    with only_one(data), _gone_if_it_fails(data), _scratch(data.parent) as scratch:
        where: dict[str, Path | None] = {
            DUMP: scratch / DUMP,
            SETTINGS: data,
            ARTIFACTS: data / "artifacts" / "sha256",
        }
        manifest, contents = await asyncio.to_thread(_unpack, path, where)
        async with EmbeddedPostgres(data) as postgres:
            return await _fill(manifest, postgres.dsn, scratch / DUMP, contents)


async def restore_servers(path: Path, settings: CoordinatorSettings) -> Restored:
    """Fill an empty database and artifact folder as the settings name them, and the folder of secrets."""
    dsn = settings.postgres.get_secret_value()
    await create_database_if_missing(dsn)
    if not await is_empty(dsn):
        msg = "the database has tables already: restore into an empty one"
        raise ConfigurationError(msg)
    artifacts = None if settings.artifacts_url else settings.artifacts
    for folder in (artifacts and artifacts / "sha256", settings.secrets):
        _refuse_used(folder)
    parent = settings.secrets.absolute().parent
    with _scratch(parent) as scratch:
        where: dict[str, Path | None] = {
            DUMP: scratch / DUMP,
            SETTINGS: scratch / "settings",
            ARTIFACTS: artifacts and artifacts / "sha256",
        }
        manifest, contents = await asyncio.to_thread(_unpack, path, where)
        await asyncio.to_thread(_place_settings, scratch / "settings", settings)
        return await _fill(manifest, dsn, scratch / DUMP, contents)


def _refuse_used(folder: Path | None) -> None:
    if folder is not None and folder.exists() and any(folder.iterdir()):
        msg = f"{folder} is not empty: nothing is overwritten; move it away, or restore into a new one"
        raise ConfigurationError(msg)


def _place_settings(found: Path, settings: CoordinatorSettings) -> None:
    """Put secrets and identities where the settings say; identities that are there already stay."""
    targets = {"secrets": settings.secrets}
    if settings.nats_identities is not None and not (settings.nats_identities / "identities").exists():
        targets["identities"] = settings.nats_identities / "identities"
    for name, target in targets.items():
        if (found / name).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(found / name, target, dirs_exist_ok=True)


@contextmanager
def _gone_if_it_fails(folder: Path) -> Iterator[None]:
    """Remove a folder that was empty if what is made in it does not become whole."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _unpack(path: Path, where: dict[str, Path | None]) -> tuple[Manifest, list[str]]:
    with backup_files.opened(path) as unpacker:
        if unpacker.manifest.schema not in known_revisions():
            manifest = unpacker.manifest
            msg = f"its ledger has schema {manifest.schema}, of a later version: restore with tandem {manifest.tandem}"
            raise BrokenBackupError(msg)
        return unpacker.manifest, unpacker.unpack(where)


async def _fill(manifest: Manifest, dsn: str, dumped: Path, contents: list[str]) -> Restored:
    await pg_tools.restore(dsn, dumped, server=await server_version(dsn))
    await migrate(dsn)
    floor = await mark_restored(dsn, manifest.made_at)
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
    if not (data / "postgres" / "PG_VERSION").exists():
        msg = f"{data} is not the folder of a `tandem up`"
        raise ConfigurationError(msg)
    with only_one(data):
        async with EmbeddedPostgres(data) as postgres:
            yield Place(dsn=postgres.dsn, artifacts=data / "artifacts", settings=settings)


def place_of_settings(settings: CoordinatorSettings, config: Path | None) -> Place:
    """Return where the parts of a coordinator with servers of its own are."""
    found = {"secrets": settings.secrets}
    if config is not None:
        found["tandem.toml"] = config
    if settings.sources_file is not None:
        found["sources.toml"] = settings.sources_file
    if settings.nats_identities is not None:
        found["identities"] = settings.nats_identities / "identities"
    artifacts = None if settings.artifacts_url else settings.artifacts
    return Place(dsn=settings.postgres.get_secret_value(), artifacts=artifacts, settings=found)


@contextmanager
def _scratch(beside: Path) -> Iterator[Path]:
    """Yield a folder for the dump, on the same disk: it may be large, and /tmp small."""
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tandem-backup-", dir=beside) as folder:
        yield Path(folder)
