"""Files for their owner alone (0600) that are there whole or not at all, and stay after a power cut.

All of it blocks for as long as the disk takes. Called for seeds, tokens, settings with secrets, and by the spool.
"""

import fcntl
import os
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shared.errors import ConfigurationError

_DRAFT: Final = re.compile(r"\..+\.[0-9a-f]{16}")


def replace_private(path: Path, content: bytes) -> None:
    """Write the file, or put this one in its place; OSError leaves what was there."""
    while True:
        draft = _draft(path, content)
        try:
            draft.replace(path)
            break
        except FileNotFoundError:
            continue  # somebody swept the drafts: again
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def create_private(path: Path, content: bytes) -> None:
    """Write the file unless it is there by now: of two processes that do so at once, the first one's stands."""
    while True:
        draft = _draft(path, content)
        try:
            path.hardlink_to(draft)
            break
        except FileExistsError:
            break
        except FileNotFoundError:
            continue  # as above
        finally:
            draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def load_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in this file, which `make` makes (0600) if there is none.

    Raises ConfigurationError for a file that others may read.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        create_private(path, f"{make()}\n".encode())
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        msg = f"{path} must be readable by its owner only: chmod 600 (it is {mode:o})"
        raise ConfigurationError(msg)
    return path.read_text().strip()


def write_synced(path: Path, content: bytes) -> None:
    """Write a private file in place, on disk when this returns; whoever wants all or nothing renames it afterwards."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = memoryview(content)
        while data:
            data = data[os.write(descriptor, data) :]
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Have the disk keep what was written; on macOS plain fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Have the disk keep a folder's names: what was made, renamed and removed in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def is_draft(path: Path) -> bool:
    """Say whether this is what a killed process left instead of a file, or is about to become one."""
    return _DRAFT.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def sweep_drafts(folder: Path) -> None:
    """Remove the drafts in a folder, if it is there; whoever writes there at this moment does so again."""
    for path in folder.glob(".*"):
        if is_draft(path):
            path.unlink(missing_ok=True)


def _draft(path: Path, content: bytes) -> Path:
    """Write it under a name of its own beside `path`."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write_synced(draft, content)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft
