"""Upload tokens: the right to put files there for one epoch of one job, signed (HMAC-SHA256), kept nowhere.

Issued with a grant, checked at each upload. A token says nothing about the lease being still good; the ledger does.
"""

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from uuid import UUID

from pydantic import SecretStr

from shared.errors import ConfigurationError
from shared.private_file import load_or_create

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
        return cls(SecretStr(load_or_create(path, lambda: secrets.token_urlsafe(48))))

    def issue(self, job_id: UUID, epoch: int, worker: str) -> str:
        """Return the token for one epoch of one job; it is good for as long as the epoch is."""
        return f"{_VERSION}.{worker}.{self._signature(job_id, epoch, worker)}"

    def verify(self, token: str, job_id: UUID, epoch: int) -> str | None:
        """Return the worker whose token this is for exactly this epoch of this job; None if it is not valid."""
        parts = token.split(".")
        if len(parts) != 3 or parts[0] != _VERSION or not token.isascii():  # noqa: PLR2004
            return None
        worker = parts[1]
        return worker if hmac.compare_digest(parts[2], self._signature(job_id, epoch, worker)) else None

    def _signature(self, job_id: UUID, epoch: int, worker: str) -> str:
        said = f"{_VERSION}\n{job_id}\n{epoch}\n{worker}".encode()
        mac = hmac.new(self._secret.get_secret_value().encode(), said, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
