"""What the bus speaks of: its messages, its errors, and headers on the wire.

Pure; no I/O, no nats. `shared/bus.py` re-exports all of it, and callers import it from there.
"""

from collections.abc import Mapping
from typing import NamedTuple

import orjson

from shared.errors import TandemError

_HEAD = b"NATS/1.0"
_NEWLINES = str.maketrans({"\r": " ", "\n": " "})


class BusError(TandemError):
    """The message bus could not do it; the subclass says what is known about the outcome."""


class BusDown(BusError):  # noqa: N818 - an outcome
    """Not connected now: nothing was sent, try again after `wait_connected`."""


class BusTimeout(BusError):  # noqa: N818 - an outcome
    """No answer in time, or the connection was lost before it: the outcome is unknown. Ask, or repeat idempotently."""


class NoResponders(BusError):  # noqa: N818 - an outcome
    """Nobody listens on that subject: nothing happened."""


class Denied(BusError):  # noqa: N818 - an outcome
    """The server refused it: this identity has no right to that subject. Nothing happened, repeating is useless."""


class TooLarge(BusError):  # noqa: N818 - an outcome
    """Larger than the server takes, headers included; not sent, since sending it would cost the connection."""


class ApiError(BusError):
    """JetStream's own refusal; branch on `err_code` (10077 = full or subject taken), not on `code` (503 for both)."""

    def __init__(self, err_code: int, code: int, description: str) -> None:
        """Keep the three fields of JetStream's error object."""
        super().__init__(f"{description} ({err_code})")
        self.err_code = err_code
        self.code = code
        self.description = description


class PubAck(NamedTuple):
    """JetStream's word that a message is stored; `duplicate`: its Nats-Msg-Id was there already, at `seq`."""

    stream: str
    seq: int
    duplicate: bool


class Message:
    """One message as it arrived. Read-only by convention; headers are parsed when first asked for.

    A plain class with slots: a frozen dataclass is slower to make, and headers would not be lazy.
    """

    __slots__ = ("_headers", "_raw_headers", "data", "reply", "subject")

    def __init__(
        self,
        subject: str,
        data: bytes = b"",
        reply: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        raw_headers: bytes = b"",
    ) -> None:
        """Keep the parts; `raw_headers` is the header block of the wire, from `NATS/1.0` to its empty line."""
        self.subject = subject
        self.data = data
        self.reply = reply
        self._headers = headers
        self._raw_headers = raw_headers

    def __repr__(self) -> str:
        """Name the subject and the size, never the payload."""
        return f"Message({self.subject!r}, {len(self.data)} B, reply={self.reply!r})"

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The headers, None when there are none; names keep their case, a repeated name keeps its last value."""
        if self._headers is None and self._raw_headers:
            self._headers = decode_headers(self._raw_headers)
        return self._headers

    @property
    def status(self) -> int | None:
        """The server's inline status (404, 408, 409, 503...); None for an ordinary message."""
        raw = self._raw_headers
        if raw[8:9] != b" ":
            return None
        digits = raw[9:12]
        return int(digits) if digits.isdigit() else None

    @property
    def status_text(self) -> str:
        """What the server wrote beside the status; empty if nothing."""
        line = self._raw_headers.partition(b"\r\n")[0]
        return line[12:].strip().decode("utf-8", "replace") if self.status is not None else ""

    @property
    def sender(self) -> str | None:
        """The authenticated user (an nkey's public half) that the server stamped on it; None if it stamped none.

        The server writes `Nats-Request-Info` on whatever crosses a shared service import, over anything that the
        sender wrote there (facts/nats.md §1). A message from inside the coordinator's own account has no stamp.
        """
        info = (self.headers or {}).get("Nats-Request-Info")
        if info is None:
            return None
        try:
            fields = orjson.loads(info)
        except ValueError:
            return None
        user = fields.get("user") if isinstance(fields, dict) else None
        return user if isinstance(user, str) and user else None


def decode_headers(raw: bytes) -> dict[str, str]:
    """Parse a header block; a line that is none is skipped, bytes that are not UTF-8 become U+FFFD."""
    found: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon and name:
            found[name] = value.strip()
    return found


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Write a header block; line breaks in values become spaces, a name that could break the block is a ValueError."""
    lines = [_HEAD]
    for name, value in headers.items():
        if not name or not name.isascii() or not name.isprintable() or ":" in name or " " in name:
            msg = f"not a header name: {name!r}"
            raise ValueError(msg)
        lines.append(f"{name}: {value.translate(_NEWLINES)}".encode())
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
