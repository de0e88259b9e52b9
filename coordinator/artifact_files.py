"""The blocking half of FolderStore: one file arriving, one being read; called on its threads only.

Calls on one file wait for each other: a cancelled await leaves its thread running, and a close beside it would free a
descriptor that is in use.
"""

import fcntl
import hashlib
import os
import re
import secrets
import threading
from contextlib import suppress
from pathlib import Path

from shared.errors import TandemError
from shared.failpoints import Failpoint, reach
from shared.private_file import sync, sync_folder

_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_sha256(text: str) -> bool:
    """Say whether this is a SHA-256 as contents are named by: 64 lower-case hex digits."""
    return _SHA256.fullmatch(text) is not None


class WrongContentError(TandemError):
    """What arrived is not what was announced (length or SHA-256): nothing was stored; send it again."""


class Incoming:
    """A file that is still arriving. Each call waits for the one before, so that a discard may come at any time."""

    def __init__(self, folder: Path) -> None:
        self.size = 0
        self._path = folder / secrets.token_hex(16)
        self._fd: int | None = None
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()

    def write(self, chunks: list[bytes]) -> None:
        """Append; the first call makes the file."""
        with self._lock:
            fd = self._open()
            for chunk in chunks:
                self._hash.update(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view) :]
                self.size += len(chunk)

    def keep(self, final: Path, sha256: str, size: int) -> bool:
        """Move it, durable, to its place; say whether it is new there. An old one is replaced, and so young again."""
        with self._lock:
            if self.size != size:
                msg = f"{self.size} bytes arrived, {size} were announced"
                raise WrongContentError(msg)
            if self._hash.hexdigest() != sha256:
                msg = f"sha256 of what arrived is {self._hash.hexdigest()}, announced was {sha256}"
                raise WrongContentError(msg)
            sync(self._open())
            reach(Failpoint.FILE_SYNCED)
            new = not final.exists()
            if not final.parent.exists():
                final.parent.mkdir(mode=0o700, exist_ok=True)
                sync_folder(final.parent.parent)
            self._path.replace(final)
            reach(Failpoint.FILE_RENAMED)
            sync_folder(final.parent)
            return new

    def discard(self) -> None:
        """Close it, and remove it if it was not kept."""
        with self._lock:
            if self._fd is None:
                return
            with suppress(FileNotFoundError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        """Make the file, locked; again under another name if a cleaner took it between its creation and its lock."""
        while self._fd is None:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    self._fd = fd
                    break
            except BlockingIOError:
                pass
            os.close(fd)
            self._path = self._path.with_name(secrets.token_hex(16))
        return self._fd


class Content:
    """A stored file that is being read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._lock = threading.Lock()

    def read(self, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; empty at the end."""
        with self._lock:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY)
            return os.pread(self._fd, length, start)

    def close(self) -> None:
        """Close it, if it was ever opened."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


def remove_unless_locked(path: Path) -> bool:
    """Remove an unfinished file, unless a living process is writing it; say whether it was removed."""
    with suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(fd)
        return True
    return False


def digest(path: Path) -> str | None:
    """Return the SHA-256 of what lies there; None if nothing does."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def delete(path: Path, older_than_s: float) -> bool:
    """Remove a stored file unless it was put less than `older_than_s` ago; say whether it was removed."""
    try:
        if older_than_s and path.stat().st_mtime > _file_system_now(path.parent) - older_than_s:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def listed(folder: Path, older_than_s: float) -> list[str]:
    """Return the digests of the stored files in one shard's folder, without those put less than so long ago."""
    found: list[str] = []
    with suppress(FileNotFoundError):  # a shard without contents has no folder
        latest = _file_system_now(folder) - older_than_s
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                if is_sha256(folder.name + entry.name) and entry.stat().st_mtime <= latest:
                    found.append(folder.name + entry.name)
    return sorted(found)


def _file_system_now(folder: Path) -> float:
    """Return the time as the files' own file system tells it, so that no other clock is compared with theirs.

    Nothing is written for it: a full disk is when sweeping is needed most.
    """
    os.utime(folder)
    return folder.stat().st_mtime
