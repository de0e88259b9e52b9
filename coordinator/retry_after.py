"""How long a server asks to be left alone. Pure."""

from datetime import datetime
from email.utils import parsedate_to_datetime


def asked_s(header: str | None, now: datetime) -> float | None:
    """Read a Retry-After, seconds or a date; None if there is none that can be read. May be negative, or for years."""
    if header is None:
        return None
    try:
        return float(header) if header.strip().isdigit() else (parsedate_to_datetime(header) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
