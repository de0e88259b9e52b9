"""Finished results on disk, from the moment the generator is done until the ledger has answered (rule 11).

    spool/<job>.<epoch>.json                reports without files, one a line; named after the first
    spool/<job>.<epoch>/result.json, 000 …  a report with files, under numbers (names are the publisher's business)
    spool/.<anything>                       half written or half removed: deleted at start
    spool/set-aside/                        what can't be read, each with its reason beside it

`put` returns when the entry would survive a power cut: contents are fsync'ed, then renamed into place, then the
directory is fsync'ed. Reports without files that come together share one file and its syncs; the file goes when the
last of them is answered (after a crash, what was answered already is asked about once more, which is harmless).
Upload tokens lie here, so everything is the owner's alone (0600, 0700).
"""

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import Field

from shared.failpoints import Failpoint, reach
from shared.private_file import sync, sync_folder, write_synced
from shared.wire import ARTIFACT_NAME_PATTERN, Open, Report, Upload

SET_ASIDE = "set-aside"
_RESULT = "result.json"
_WRITERS = 4
_BATCH_MOST = 256
_FILES_MISSING = "a report with files, without its folder"
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
    _shares: dict[Path, int] = field(default_factory=dict)  # how many entries of a file are not answered yet
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
            elif path.is_dir():
                self._load_folder(path, found)
            else:
                self._load_file(path, found)
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
        if entry.path is None:
            return
        left = self._shares.get(entry.path, 1) - 1
        if left > 0:
            self._shares[entry.path] = left
            return
        self._shares.pop(entry.path, None)
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
            batch, self._waiting = self._waiting[:_BATCH_MOST], self._waiting[_BATCH_MOST:]
            gone, self._gone = self._gone, []
            parcels = [parcel for parcel, _ in batch]
            path, results = await loop.run_in_executor(self._pool, _write_file, self.root, parcels, gone)
            self._shares[path] = sum(error is None for error in results)
            for (parcel, done), error in zip(batch, results, strict=True):
                if done.done():
                    continue  # whoever asked is gone: the next process delivers it
                if error is None:
                    done.set_result(Entry(parcel, path))
                else:
                    done.set_exception(error)

    def _load_folder(self, path: Path, found: dict[str, Entry]) -> None:
        try:
            parcel = Parcel.model_validate_json((path / _RESULT).read_bytes())
            _check_folder(path, parcel)
        except (OSError, ValueError) as error:
            self._set_aside(path, str(error))
            return
        found.setdefault(parcel.name, Entry(parcel, path))

    def _load_file(self, path: Path, found: dict[str, Entry]) -> None:
        """Take a file's lines; a failure that replaced a result with files wins over what a crash left of that."""
        good = 0
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            self._set_aside(path, str(error))
            return
        for number, line in enumerate(lines):
            try:
                parcel = Parcel.model_validate_json(line)
                if parcel.files:
                    raise ValueError(_FILES_MISSING)  # noqa: TRY301 - one way out for all that is wrong with a line
            except ValueError as error:
                self._keep_aside(f"{path.name}.{number}", line, str(error))
                continue
            known = found.get(parcel.name)
            if known is not None and known.path is not None and known.path.is_dir():
                _remove(known.path)
            found[parcel.name] = Entry(parcel, path)
            good += 1
        self._shares[path] = good
        if not good:
            _remove(path)

    def _set_aside(self, path: Path, reason: str) -> None:
        _log.error("spool entry set aside", entry=path.name, reason=reason[:500])
        try:
            aside = self._aside()
            _remove(aside / path.name)
            path.rename(aside / path.name)
            (aside / f"{path.name}.reason").write_text(reason, encoding="utf-8")
        except OSError as error:
            _log.error("spool entry can't be set aside", entry=path.name, error=str(error))

    def _keep_aside(self, name: str, content: bytes, reason: str) -> None:
        _log.error("spool entry set aside", entry=name, reason=reason[:500])
        try:
            aside = self._aside()
            (aside / name).write_bytes(content)
            (aside / f"{name}.reason").write_text(reason, encoding="utf-8")
        except OSError as error:
            _log.error("spool entry can't be set aside", entry=name, error=str(error))

    def _aside(self) -> Path:
        aside = self.root / SET_ASIDE
        aside.mkdir(mode=0o700, exist_ok=True)
        return aside


def _check_folder(path: Path, parcel: Parcel) -> None:
    if path.name != parcel.name:
        msg = f"holds {parcel.name}"
        raise ValueError(msg)
    for file in parcel.files:
        size = (path / file.stored).stat().st_size
        if size != file.size:
            msg = f"file {file.stored} ({file.name}) has {size} bytes, not {file.size}"
            raise ValueError(msg)


def _write_file(root: Path, parcels: Sequence[Parcel], gone: Sequence[Path]) -> tuple[Path, list[Exception | None]]:
    """Write parcels into one file, and remove what is answered; return the file and what went wrong with each."""
    for answered in gone:
        with contextlib.suppress(OSError):
            _remove(answered)
    if not parcels:
        return root, []
    path = root / f"{parcels[0].name}.json"
    lines, results = _encoded(parcels)
    if not lines:
        return path, results
    temporary = path.with_name(f".{path.name}")
    try:
        write_synced(temporary, b"".join(lines))
        reach(Failpoint.LINE_WRITTEN)
        temporary.rename(path)
        sync_folder(root)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return path, [result or error for result in results]
    return path, results


def _encoded(parcels: Sequence[Parcel]) -> tuple[list[bytes], list[Exception | None]]:
    lines: list[bytes] = []
    results: list[Exception | None] = []
    for parcel in parcels:
        try:
            lines.append(parcel.model_dump_json(by_alias=True).encode() + b"\n")
            results.append(None)
        except ValueError as error:
            results.append(error)
    return lines, results


def _write_folder(root: Path, parcel: Parcel, sources: Sequence[Path]) -> Entry:
    path, temporary = root / parcel.name, root / f".{parcel.name}"
    try:
        _remove(temporary)
        temporary.mkdir(mode=0o700)
        for file, source in zip(parcel.files, sources, strict=True):
            source.rename(temporary / file.stored)
            _keep(temporary / file.stored)
            reach(Failpoint.FILE_MOVED)
        write_synced(temporary / _RESULT, parcel.model_dump_json(by_alias=True).encode())
        sync_folder(temporary)
        reach(Failpoint.PARCEL_WRITTEN)
        _remove(path)
        temporary.rename(path)
        sync_folder(root)
    except OSError:
        _remove(temporary)
        raise
    return Entry(parcel, path)


def _keep(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
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
        reach(Failpoint.ENTRY_HALF_GONE)
    shutil.rmtree(path, ignore_errors=True)
