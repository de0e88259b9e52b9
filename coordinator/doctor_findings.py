"""What a check of the coordinator's doctor found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, how it is, and what to do if that is a fault."""

    what: str
    ok: bool
    said: str
    todo: str = ""
