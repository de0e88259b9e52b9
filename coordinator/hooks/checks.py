"""Tells whether an event is from its source: each check is a table of the sources file, and `refusal` what it says.

Everything is compared in constant time, with every secret that is valid: several are, while a new one takes the place
of an old one. What says when it was signed is refused once that is too long ago; within that time a replay names the
job that is there already.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

_LEAST_SECRET: Final = 16  # characters
_LEAST_STANDARD: Final = 24  # bytes
_GHOST: Final = re.compile(r"sha256=([0-9a-f]{64}), ?t=([0-9]{1,15})")
_STAMP: Final = re.compile(r"[0-9]{1,15}")
_SIGNED_AT, _SIGNED = "x-contentful-timestamp", "x-contentful-signed-headers"


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it arrived: the raw path and body, header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class _Check(BaseModel):
    """What all checks have: secrets, here or in files, and not one of them in any message."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    secrets: list[SecretStr] = Field(default=[], repr=False)
    secret_files: list[Path] = []  # one secret a line, readable by its owner only; they are added to `secrets`

    @model_validator(mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        paths = raw.get("secret_files") if isinstance(raw, dict) else None
        if not isinstance(paths, list):
            return raw
        read = [secret for path in paths if isinstance(path, str) for secret in _secrets_in(Path(path))]
        return {**raw, "secrets": [*raw.get("secrets", []), *read]}

    @model_validator(mode="after")
    def _strong(self) -> "_Check":
        if not self.secrets:
            msg = "needs a secret: secrets or secret_files"
            raise ValueError(msg)
        for number, secret in enumerate(self._plain(), 1):
            fault = self._fault_of(secret)
            if fault is not None:
                msg = f"secret {number} {fault}"
                raise ValueError(msg)
        return self

    @property
    def proof(self) -> str | None:
        """The header that proves who it is, of those that the source names."""
        return None

    def refusal(self, request: Received, now_s: float) -> str | None:
        """Return why a request is not from the source, in words that give nothing away; None = it is."""
        raise NotImplementedError

    def _plain(self) -> list[str]:
        return [secret.get_secret_value() for secret in self.secrets]

    def _fault_of(self, secret: str) -> str | None:
        return f"has less than {_LEAST_SECRET} characters" if len(secret) < _LEAST_SECRET else None

    def _signed(self, message: bytes, presented: bytes) -> bool:
        """Say whether one of the secrets signed it; all of them are tried."""
        made = [hmac.digest(secret.encode(), message, "sha256") for secret in self._plain()]
        return any([hmac.compare_digest(one, presented) for one in made])  # noqa: C419 - not only up to the first


class StandardCheck(_Check):
    """Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`; five minutes of tolerance."""

    kind: Literal["standard"]

    def refusal(self, request: Received, now_s: float) -> str | None:  # noqa: ARG002 - the library has its own clock
        """Hold it against the library's check."""
        return None if any([_verified(secret, request) for secret in self._plain()]) else "the signature is not valid"  # noqa: C419

    def _fault_of(self, secret: str) -> str | None:
        try:
            Webhook(secret)
            size = len(base64.b64decode(secret.removeprefix("whsec_") + "=="))
        except (ValueError, EmptyWebhookSecretError):
            size = 0
        fits = secret.startswith("whsec_") and size >= _LEAST_STANDARD
        return None if fits else f"is not whsec_ and the base64 of {_LEAST_STANDARD} bytes or more"


class GhostCheck(_Check):
    """Ghost's `X-Ghost-Signature: sha256=<hex>, t=<ms>` over the body and that time."""

    kind: Literal["ghost"]
    tolerance_s: float = Field(default=300, gt=0, le=3600)

    def refusal(self, request: Received, now_s: float) -> str | None:
        """Check time and signature."""
        found = _GHOST.fullmatch(request.headers.get("x-ghost-signature", ""))
        if found is None:
            return "no X-Ghost-Signature, or not one of the form sha256=<hex>, t=<ms>"
        if not self._signed(request.body + found[2].encode(), bytes.fromhex(found[1])):
            return "the signature is not valid"
        return _too_old(found[2], now_s, self.tolerance_s)


class HmacCheck(_Check):
    """A header with the HMAC-SHA256 of the body. It says no time: what was overheard can be sent again."""

    kind: Literal["hmac"]
    header: "Header"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""  # in front of the digest, like `sha256=`

    @property
    def proof(self) -> str | None:
        """The header with the digest."""
        return self.header

    def refusal(self, request: Received, now_s: float) -> str | None:  # noqa: ARG002 - no time is signed
        """Check the signature."""
        given = request.headers.get(self.header, "")
        digest = given.removeprefix(self.prefix)
        if not given.startswith(self.prefix):
            return f"no {self.header}, or not one that begins as it should"
        try:
            presented = bytes.fromhex(digest) if self.encoding == "hex" else base64.b64decode(digest, validate=True)
        except (ValueError, binascii.Error):
            return "the signature is not valid"
        return None if self._signed(request.body, presented) else "the signature is not valid"


class BearerCheck(_Check):
    """A header with the secret itself, for what signs nothing; only over https."""

    kind: Literal["bearer"]
    header: "Header" = "authorization"
    scheme: str | None = None  # in front of it; None = `Bearer` in Authorization, nothing in another header

    @property
    def proof(self) -> str | None:
        """The header with the secret."""
        return self.header

    def refusal(self, request: Received, now_s: float) -> str | None:  # noqa: ARG002 - there is no time in it
        """Compare the secret."""
        scheme = self.scheme if self.scheme is not None else "Bearer" * (self.header == "authorization")
        first, _, rest = request.headers.get(self.header, "").partition(" ") if scheme else ("", "", "")
        given = rest.strip() if scheme else request.headers.get(self.header, "")
        if not given or first.lower() != scheme.lower():
            return f"no {self.header} with the token"
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        known = [hashlib.sha256(secret.encode()).digest() for secret in self._plain()]
        return None if any([hmac.compare_digest(one, digest) for one in known]) else "the token is not valid"  # noqa: C419


class ContentfulCheck(_Check):
    """Contentful's request verification: HMAC-SHA256 of method, path, signed headers and body, one a line."""

    kind: Literal["contentful"]
    tolerance_s: float = Field(default=300, gt=0, le=3600)
    path: str | None = Field(default=None, pattern=r"^/")  # as Contentful asks for it; None = as it arrives here

    def refusal(self, request: Received, now_s: float) -> str | None:
        """Check time and signature; time and names of what is signed must be among it."""
        headers = request.headers
        names = sorted({name.strip().lower() for name in headers.get(_SIGNED, "").split(",")})
        stamp, signature = headers.get(_SIGNED_AT, ""), headers.get("x-contentful-signature", "")
        if _SIGNED_AT not in names or _SIGNED not in names or not _STAMP.fullmatch(stamp):
            return "not signed by Contentful: its time and the list of signed headers must be signed"
        if not re.fullmatch(r"[0-9a-f]{64}", signature):
            return "the signature is not valid"
        signed = ";".join(f"{name}:{headers[name].strip()}" for name in names if name in headers)
        head = f"POST\n{self.path or request.path}\n{signed}\n"
        if not self._signed(head.encode("utf-8", "surrogateescape") + request.body, bytes.fromhex(signature)):
            return "the signature is not valid"
        return _too_old(stamp, now_s, self.tolerance_s)

    def _fault_of(self, secret: str) -> str | None:
        fits = re.fullmatch(r"[0-9a-zA-Z+/=_-]{64}", secret)
        return None if fits else "is not 64 characters out of 0-9 a-z A-Z + / = _ -"


Header = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=100), AfterValidator(str.lower)]

Check = Annotated[StandardCheck | GhostCheck | HmacCheck | BearerCheck | ContentfulCheck, Field(discriminator="kind")]


def _verified(secret: str, request: Received) -> bool:
    try:
        Webhook(secret).verify(request.body, dict(request.headers), json_parse=False)
    except Exception:  # noqa: BLE001 - standardwebhooks 1.1 lets several kinds through for a malformed signature
        return False
    return True


def _too_old(stamp_ms: str, now_s: float, tolerance_s: float) -> str | None:
    """Refuse what was signed too long ago, or will be: a clock that is wrong is worth knowing."""
    return (
        None if abs(now_s - int(stamp_ms) / 1000) <= tolerance_s else "it was signed too long ago, or a clock is wrong"
    )


def _secrets_in(path: Path) -> list[str]:
    try:
        mode, text = path.stat().st_mode & 0o777, path.read_text()
    except (OSError, ValueError) as error:
        raise ValueError(str(error)) from None
    if mode & 0o077:
        msg = f"{path} must be readable by its owner only: chmod 600 (it is {mode:o})"
        raise ValueError(msg)
    return [line.strip() for line in text.splitlines() if line.strip()]
