"""Upload tokens: the right to put files there for one epoch of one job, signed (HMAC-SHA256), kept nowhere.

Issued with a grant, checked at each upload. A token says nothing about the lease being still good; the ledger does.
"""

import base64
import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from pydantic import SecretStr

from shared.errors import ConfigurationError

_VERSION = "tu1"
_LEAST_SECRET_CHARACTERS = 32


class UploadTokens:
    """Signs and checks; all coordinators of one ledger need the same secret."""

    def __init__(self, secret: SecretStr) -> None:
        if len(secret.get_secret_value()) < _LEAST_SECRET_CHARACTERS:
            msg = f"the upload secret needs at least {_LEAST_SECRET_CHARACTERS} characters"
            raise ConfigurationError(msg)
        self._secret = secret

    @classmethod
    def load_or_create(cls, path: Path) -> "UploadTokens":
        """Use the secret in this file, made (0600) if there is none; refuse one that others may read."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_new(path, secrets.token_urlsafe(48))
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            msg = f"{path} must be readable by its owner only: chmod 600 (it is {mode:o})"
            raise ConfigurationError(msg)
        return cls(SecretStr(path.read_text().strip()))

    def issue(self, job_id: UUID, epoch: int, worker: str, expires_at: datetime | None = None) -> str:
        """Return the token for one epoch of one job; without `expires_at` it is good for as long as the epoch is."""
        until = int(expires_at.timestamp()) if expires_at else 0
        return f"{_VERSION}.{worker}.{until}.{self._signature(job_id, epoch, worker, until)}"

    def verify(self, token: str, job_id: UUID, epoch: int, now: datetime | None = None) -> str | None:
        """Return the worker whose token this is for exactly this epoch of this job; None if it is not valid."""
        parts = token.split(".")
        if len(parts) != 4 or parts[0] != _VERSION or not token.isascii() or not parts[2].isdigit():  # noqa: PLR2004
            return None
        worker, until = parts[1], int(parts[2][:20])
        if not hmac.compare_digest(parts[3], self._signature(job_id, epoch, worker, until)):
            return None
        if until and (now or datetime.now(UTC)).timestamp() >= until:
            return None
        return worker

    def _signature(self, job_id: UUID, epoch: int, worker: str, until: int) -> str:
        said = f"{_VERSION}\n{job_id}\n{epoch}\n{worker}\n{until}".encode()
        mac = hmac.new(self._secret.get_secret_value().encode(), said, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def _write_new(path: Path, text: str) -> None:
    """Put a file there whole or not at all; if another process was first, its file stands."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
