"""The agent's log file as people read it: a line each, and the next ones as they come, over rotation. For `logs`."""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

import orjson

_LOOK_S: Final = 0.3
_FIRST: Final = ("timestamp", "level", "event", "worker")


def line_for_people(line: str) -> str:
    """Return one JSON line as `09:41:07 info  run ended  job_id=… how=completed`; another stays as it is."""
    try:
        told = orjson.loads(line)
    except ValueError:
        return line
    if not isinstance(told, dict):
        return line
    rest = " ".join(f"{name}={_short(value)}" for name, value in told.items() if name not in _FIRST)
    at = str(told.get("timestamp", ""))[:19].replace("T", " ")
    return f"{at} {told.get('level', ''):<7} {told.get('event', '')}  {rest}".rstrip()


def newest(path: Path, most: int) -> list[str]:
    """Return the last lines of a file, the newest last; none if it is not there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=most)]


def follow(path: Path, last: int) -> Iterator[str]:
    """Yield the `last` lines, then those that are written, for ever; a file begun anew is read from its beginning."""
    file = _opened(path)
    try:
        *there, kept = (file.read() if file is not None else "").split("\n")
        yield from there[len(there) - min(last, len(there)) :]
        while True:
            text = file.read() if file is not None else ""
            *whole, kept = (kept + text).split("\n")
            yield from whole
            if text:
                continue
            anew = None if file is not None and _is_same(path, file.fileno()) else _opened(path)
            if anew is None:
                time.sleep(_LOOK_S)
                continue
            if file is not None:
                rest = kept + file.read()
                file.close()
                yield from rest.splitlines()
            file, kept = anew, ""
    finally:
        if file is not None:
            file.close()


def _opened(path: Path) -> TextIO | None:
    return path.open(encoding="utf-8", errors="replace") if path.exists() else None


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return True  # between two files


def _short(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
