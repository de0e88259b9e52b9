"""What callbacks are signed with: a source's own secret out of the settings, else the one that lies in a file."""

import base64
import secrets
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from shared.errors import ConfigurationError
from shared.private_file import load_or_create

_BYTES = 32  # Standard Webhooks: 24 to 64


class CallbackSecrets:
    """Tells a source's secret; all coordinators of one ledger need the same."""

    def __init__(self, default: SecretStr, own: Mapping[str, SecretStr]) -> None:
        """Check them: ConfigurationError for one that is not `whsec_` and base64."""
        for name, secret in {"the default": default, **own}.items():
            if not _is_secret(secret.get_secret_value()):
                msg = f"the callback secret of {name} is not whsec_ and base64"
                raise ConfigurationError(msg)
        self._default = default
        self._own = dict(own)

    @classmethod
    def load_or_create(cls, path: Path, own: Mapping[str, SecretStr]) -> "CallbackSecrets":
        """Use the default in this file, made (0600) if there is none; refuse one that others may read."""
        return cls(SecretStr(load_or_create(path, _make)), own)

    def of(self, source: str) -> str:
        """Return what callbacks of this source are signed with."""
        return self._own.get(source, self._default).get_secret_value()


def _make() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(_BYTES)).decode()}"


def _is_secret(text: str) -> bool:
    try:
        Webhook(text)
    except (ValueError, EmptyWebhookSecretError):
        return False
    return text.startswith("whsec_")
