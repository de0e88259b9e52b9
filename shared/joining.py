"""The line that lets a Mac join, and the seals that prove that both sides have it.

    https://tandem.example.org/join/mini#<secret>

The secret behind the `#` is never sent: what is asked and what is answered is sealed (HMAC-SHA256) with a key that
derives from it. So whoever listens, or stands between, can neither join in the Mac's place nor give it another server.
The Mac makes its own nkey and sends the public half; the seed stays where it was made.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from shared.ids import NAME_PATTERN

_SECRET_BYTES = 24
_SECRET = re.compile(r"[A-Za-z0-9_-]{32}")


@dataclass(frozen=True, slots=True)
class JoinLine:
    """A line, taken apart."""

    url: str  # of the coordinator, without a path
    worker: str
    secret: str


def new_secret() -> str:
    """Return a secret for a line: 32 characters."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def line_of(url: str, worker: str, secret: str) -> str:
    """Return the line."""
    return f"{url.rstrip('/')}/join/{worker}#{secret}"


def parse_line(line: str) -> JoinLine:
    """Take a line apart; ValueError, which does not repeat it, if it is none."""
    parts = urlsplit(line.strip().removeprefix("tandem-agent join").strip(" '\""))
    worker = parts.path.rpartition("/join/")[2]
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.path != f"/join/{worker}"
        or not re.fullmatch(NAME_PATTERN, worker)
        or not _SECRET.fullmatch(parts.fragment)
    ):
        msg = "this is not a line of `tandem workers invite`: https://HOST/join/WORKER#SECRET, whole and in quotes"
        raise ValueError(msg)
    return JoinLine(f"{parts.scheme}://{parts.netloc}", worker, parts.fragment)


def invitation_id(secret: str) -> str:
    """Return what a secret is known by; nothing of it can be told from this."""
    return hashlib.sha256(f"tandem join id\n{secret}".encode()).hexdigest()[:32]


def invitation_key(secret: str) -> bytes:
    """Return what is sealed with."""
    return hashlib.sha256(f"tandem join key\n{secret}".encode()).digest()


def seal(key: bytes, *said: str) -> str:
    """Return the seal over these texts, in this order."""
    whole = "".join(f"{len(text.encode())}:{text}" for text in said)
    return hmac.new(key, whole.encode(), hashlib.sha256).hexdigest()


def is_sealed(key: bytes, shown: str, *said: str) -> bool:
    """Say whether `shown` is the seal over these texts."""
    return hmac.compare_digest(shown.encode(), seal(key, *said).encode())
