"""Finished results on disk, from the moment the generator is done until the ledger has answered (rule 11).

    spool/<job>.<epoch>.json                a report without files: one file
    spool/<job>.<epoch>/result.json, 000 …  a report with files, under numbers (names are the publisher's business)
    spool/.<anything>                       half written or half removed: deleted at start
    spool/set-aside/                        entries that can't be read, each with its reason beside it

`put` returns when the entry would survive a power cut: contents are fsync'ed, then renamed into place, then the
directory is fsync'ed. Small entries that come together share the directory's fsync. Upload tokens lie here, so
everything is the owner's alone (0600, 0700).
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import Field

from shared.wire import ARTIFACT_NAME_PATTERN, Open, Report, Upload

SET_ASIDE = "set-aside"
_RESULT = "result.json"
_WRITERS = 4
_log = structlog.get_logger()


class StoredFile(Open):
    """A file of a result, as it lies in its entry."""

    stored: str = Field(pattern=r"^\d{3}$")
    name: str = Field(pattern=ARTIFACT_NAME_PATTERN)
    media_type: str
    size: int


class Parcel(Open):
    """What is spooled: the report, and all that is needed to deliver it, by this process or a later one."""

    report: Report  # its artifacts are filled in when the files are hashed
    delivery: str
    kind: str
    heartbeat_s: float
    upload: Upload
    files: list[StoredFile] = Field(default=[])

    @property
    def name(self) -> str:
        """What its entry is called."""
        return f"{self.report.job_id}.{self.report.epoch}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A parcel and where it lies; `path` is None for one that no disk would take."""

    parcel: Parcel
    path: Path | None

    def file(self, stored: StoredFile) -> Path:
        """Return where one of its files is."""
        if self.path is None:
            msg = "an entry that was not spooled has no files"
            raise ValueError(msg)
        return self.path / stored.stored


@dataclass(slots=True)
class Spool:
    """The folder. `put` and `discard` on the loop; `load` before anything else."""

    root: Path
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_WRITERS, "spool"))
    _waiting: list[tuple[Parcel, asyncio.Future[Entry]]] = field(default_factory=list)
    _gone: list[Path] = field(default_factory=list)
    _flusher: asyncio.Task[None] | None = None

    def load(self) -> list[Entry]:
        """Return what earlier processes left to deliver, setting aside what can't be read; blocking, at start."""
        self.root.mkdir(mode=0o700, exist_ok=True)
        found: dict[str, Entry] = {}
        for path in sorted(self.root.iterdir()):
            if path.name == SET_ASIDE:
                continue
            if path.name.startswith("."):
                _remove(path)
                continue
            try:
                entry = _read(path)
            except (OSError, ValueError) as error:
                self._set_aside(path, str(error))
                continue
            known = found.setdefault(entry.parcel.name, entry)
            if known is not entry:  # a report that replaced one with files, cut short before those went
                stale = known if path.suffix == ".json" else entry
                found[entry.parcel.name] = entry if stale is known else known
                _remove(stale.path or path)
        return list(found.values())

    async def put(self, parcel: Parcel, sources: Sequence[Path] = ()) -> Entry:
        """Store a parcel, moving its files in; OSError when the disk refuses, ValueError for text that is no UTF-8."""
        loop = asyncio.get_running_loop()
        if sources:
            return await loop.run_in_executor(self._pool, _write_folder, self.root, parcel, sources)
        done: asyncio.Future[Entry] = loop.create_future()
        self._waiting.append((parcel, done))
        self._wake()
        return await done

    def discard(self, entry: Entry) -> None:
        """Remove an entry, soon."""
        if entry.path is not None:
            self._gone.append(entry.path)
            self._wake()

    async def aclose(self) -> None:
        """Finish what was asked for."""
        if self._flusher is not None:
            await self._flusher
        self._pool.shutdown(wait=False)

    def _wake(self) -> None:
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(), name="spool")

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting or self._gone:
            batch, self._waiting = self._waiting, []
            gone, self._gone = self._gone, []
            parcels = [parcel for parcel, _ in batch]
            parts = [parcels[i::_WRITERS] for i in range(min(_WRITERS, len(parcels)))]
            written = await asyncio.gather(
                *(loop.run_in_executor(self._pool, _write_files, self.root, part) for part in parts)
            )
            results = {name: result for part in written for name, result in part}
            refused = await loop.run_in_executor(self._pool, _settle, self.root, bool(batch), gone)
            for parcel, done in batch:
                result = refused or results[parcel.name]
                if done.done():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(Entry(parcel, result))

    def _set_aside(self, path: Path, reason: str) -> None:
        _log.error("spool entry set aside", entry=path.name, reason=reason[:500])
        try:
            aside = self.root / SET_ASIDE
            aside.mkdir(mode=0o700, exist_ok=True)
            _remove(aside / path.name)
            path.rename(aside / path.name)
            (aside / f"{path.name}.reason").write_text(reason, encoding="utf-8")
        except OSError as error:
            _log.error("spool entry can't be set aside", entry=path.name, error=str(error))


def sync(descriptor: int) -> None:
    """Have the disk keep what was written; on macOS plain fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _read(path: Path) -> Entry:
    folder = path.is_dir()
    parcel = Parcel.model_validate_json(((path / _RESULT) if folder else path).read_bytes())
    if path.name.removesuffix(".json") != parcel.name or (parcel.files and not folder):
        msg = f"holds {parcel.name}, with {len(parcel.files)} files"
        raise ValueError(msg)
    for file in parcel.files:
        size = (path / file.stored).stat().st_size
        if size != file.size:
            msg = f"file {file.stored} ({file.name}) has {size} bytes, not {file.size}"
            raise ValueError(msg)
    return Entry(parcel, path)


def _write_files(root: Path, parcels: Sequence[Parcel]) -> list[tuple[str, Path | Exception]]:
    done: list[tuple[str, Path | Exception]] = []
    for parcel in parcels:
        path = root / f"{parcel.name}.json"
        try:
            temporary = root / f".{parcel.name}.json"
            try:
                _write(temporary, parcel)
                temporary.rename(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            done.append((parcel.name, path))
        except (OSError, ValueError) as error:
            done.append((parcel.name, error))
    return done


def _write_folder(root: Path, parcel: Parcel, sources: Sequence[Path]) -> Entry:
    path, temporary = root / parcel.name, root / f".{parcel.name}"
    try:
        _remove(temporary)
        temporary.mkdir(mode=0o700)
        for file, source in zip(parcel.files, sources, strict=True):
            source.rename(temporary / file.stored)
            _keep(temporary / file.stored)
        _write(temporary / _RESULT, parcel)
        _sync_folder(temporary)
        _remove(path)
        temporary.rename(path)
        _sync_folder(root)
    except OSError:
        _remove(temporary)
        raise
    return Entry(parcel, path)


def _settle(root: Path, wrote: bool, gone: Sequence[Path]) -> OSError | None:  # noqa: FBT001 - called by an executor
    """Make renames last, and remove what is answered; return what went wrong with the first."""
    for path in gone:
        with contextlib.suppress(OSError):
            _remove(path)
    if wrote:
        try:
            _sync_folder(root)
        except OSError as error:
            return error
    return None


def _write(path: Path, parcel: Parcel) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = memoryview(parcel.model_dump_json(by_alias=True).encode())
        while data:
            data = data[os.write(descriptor, data) :]
        sync(descriptor)
    finally:
        os.close(descriptor)


def _keep(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        sync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a file or folder; a folder is renamed first, so that what is cut short is no half entry."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith("."):
        path = path.rename(path.with_name(f".gone-{path.name}"))
    shutil.rmtree(path, ignore_errors=True)
