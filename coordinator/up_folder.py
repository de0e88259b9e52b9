"""The data folder of `tandem up`: who may use it, its tokens, and `connection.json`, which tells how to reach it.

    DIR/up.lock           held by the one `tandem up` that runs here (flock: it ends with the process)
    DIR/tokens.json       made once, kept (0600)
    DIR/connection.json   there while it runs (0600); see PROTOCOL, Command line
    DIR/audit.json        the same; the settings that `tandem audit` needs besides
    DIR/restore.unfinished  there while `tandem restore` fills the folder: what is in it is not whole

The rest belongs to NATS and Postgres (`embedded.py`), the artifact store, and the local agents (`up_agents.py`).
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from shared.errors import ConfigurationError
from shared.folder_lock import FolderTakenError, lock
from shared.private_file import replace_private

CONNECTION = "connection.json"
AUDIT = "audit.json"
LOCK = "up.lock"
UNFINISHED = "restore.unfinished"
ROLES = ("admin", "publisher", "viewer")
_TOKEN_BYTES = 32


@contextmanager
def only_one(data: Path) -> Iterator[None]:
    """Hold the folder, making it first; ConfigurationError when another `tandem up` has it, or it can't be made."""
    try:
        mode = 0o711 if os.geteuid() == 0 else 0o700  # as root, Postgres's user passes through
        data.mkdir(mode=mode, parents=True, exist_ok=True)
        held = lock(data / LOCK, str(os.getpid()))
    except OSError as error:
        msg = f"data folder {data}: {error.strerror}"
        raise ConfigurationError(msg) from None
    except FolderTakenError as taken:
        msg = f"{data} is in use: tandem runs there already (pid {taken.owner}); stop it, or choose another --data"
        raise ConfigurationError(msg) from None
    try:
        yield
    finally:
        os.close(held)


def refuse_unfinished(data: Path) -> None:
    """Refuse a folder that a killed `tandem restore` left half filled; ConfigurationError."""
    if (data / UNFINISHED).exists():
        msg = f"{data}: a restore was broken off here: run it again, or remove the folder"
        raise ConfigurationError(msg)


def tokens_of(data: Path) -> dict[str, str]:
    """Return the token of each role, making them on first use; ConfigurationError when the file can't be read."""
    path = data / "tokens.json"
    if not path.exists():
        write_private(path, {role: secrets.token_urlsafe(_TOKEN_BYTES) for role in ROLES})
    try:
        found = orjson.loads(path.read_bytes())
        return {role: str(found[role]) for role in ROLES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path} can't be read ({error}); remove it to have new tokens made"
        raise ConfigurationError(msg) from None


def write_private(path: Path, content: Any) -> None:
    """Write JSON for the owner alone, at once or not at all."""
    replace_private(path, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
