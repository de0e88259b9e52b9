"""A lock file: who holds it has the folder to itself. It ends with the process, however that ends (flock).

Called by whoever owns a folder (`agent/workspace.py`, `coordinator/up_folder.py`, `coordinator/child.py`); the words
for a person are theirs.
"""

import fcntl
import os
from pathlib import Path

from shared.errors import TandemError

_OWNER_BYTES = 200


class FolderTakenError(TandemError):
    """A living process holds the lock; `owner` is what it wrote there about itself."""

    def __init__(self, path: Path, owner: str) -> None:
        """Keep the owner."""
        super().__init__(f"{path} is held by {owner}")
        self.owner = owner


def lock(path: Path, owner: str) -> int:
    """Lock the file, making it first, and write `owner` into it; return its descriptor, which `os.close` unlocks.

    Raises FolderTakenError, or OSError when the file can't be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = os.read(descriptor, _OWNER_BYTES).decode("utf-8", "replace").strip()
            raise FolderTakenError(path, found or "unknown") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{owner}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
