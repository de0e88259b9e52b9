"""The agent's folder: one process at a time, and a directory of its own for each job that wants one.

data/agent.lock   held by the process that uses the folder (flock: it ends with the process, however that ends)
data/spool/       results that wait for their verdict (`spool`)
data/journal/     attempts that the next process could take up (`journal`)
data/work/        <job>.<epoch>/, gone after the job; what a dead process left is removed at the next start
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import ConfigurationError
from shared.folder_lock import FolderTakenError, lock

OWNER_ONLY_DIR = 0o700


class FolderInUseError(ConfigurationError):
    """Another process has the folder; `owner` says which."""

    def __init__(self, root: Path, owner: str) -> None:
        super().__init__(f"data folder {root} is in use by another agent ({owner}); stop it, or choose another folder")
        self.owner = owner


@contextmanager
def data_folder(root: Path, instance: str) -> Iterator[Path]:
    """Hold the folder for this process, making it first; ConfigurationError when another process has it."""
    root = root.expanduser().resolve()
    try:
        root.mkdir(mode=OWNER_ONLY_DIR, parents=True, exist_ok=True)
        held = lock(root / "agent.lock", f"pid {os.getpid()}, instance {instance}")
    except OSError as error:
        msg = f"data folder {root}: {error}"
        raise ConfigurationError(msg) from None
    except FolderTakenError as taken:
        raise FolderInUseError(root, taken.owner) from None
    try:
        yield root
    finally:
        os.close(held)


class Workspaces:
    """The directories of running jobs. File system calls are short, and made only by jobs that want a directory."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder that holds them, this process's alone."""
        self._root = root

    def clear(self) -> int:
        """Remove what earlier processes left; return how many."""
        left = list(self._root.iterdir()) if self._root.exists() else []
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        self._root.mkdir(mode=OWNER_ONLY_DIR, exist_ok=True)
        return len(left)

    def path(self, name: str) -> Path:
        """Return where a job's directory is or would be."""
        return self._root / name

    def open(self, name: str) -> Path:
        """Make a job's directory, or return it."""
        path = self._root / name
        path.mkdir(mode=OWNER_ONLY_DIR, exist_ok=True)
        return path

    def remove(self, name: str) -> None:
        """Remove a job's directory if it has one; call it in a thread."""
        shutil.rmtree(self._root / name, ignore_errors=True)
