"""Text that Postgres can't store."""

from typing import Any


def has_nul(value: Any) -> bool:
    """Say whether a JSON value has NUL in any of its texts or names."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                if "\x00" in text:
                    return True
            case dict() as table:
                waiting += table.keys()
                waiting += table.values()
            case list() as items:
                waiting += items
    return False
