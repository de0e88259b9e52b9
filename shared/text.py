"""JSON values that Postgres, or the encoder, can't take: text with NUL, and nesting without end."""

from typing import Any

MOST_DEPTH = 100
"""Levels of nesting that are taken; orjson encodes no more than 254, and what is stored lies a few levels deeper."""


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


def too_deep(value: Any, most: int = MOST_DEPTH) -> bool:
    """Say whether a JSON value has objects or arrays inside each other more than `most` levels deep."""
    level = [value]
    for _ in range(most + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return False
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    return True
