"""What the log files say about a job: searched from the newest line backwards, bounded in bytes and in time.

Searched are the coordinator's own files (`log_file`, and what it was before it was begun anew) and those of the agents
whose folders lie in `log_agents` (`tandem up --agents`). Other agents' lines stay on their Macs, other coordinators'
on their machines. Blocking work on a thread; called for `GET /v1/jobs/{id}/logs` and a job's page.
"""

import asyncio
import contextlib
import glob
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import UUID

import orjson

SEARCH_BYTES: Final = 96 * 1024 * 1024
"""More than the files hold by default (5 of 16 MiB): older lines than these are not looked for."""

SEARCH_S: Final = 2.0
_BLOCK: Final = 1024 * 1024
_LONGEST: Final = 4 * _BLOCK
"""A line that is longer is no line of ours."""

_CLOCKS: Final = timedelta(hours=1)
"""How far the clock of whoever wrote a line may be behind the ledger's."""

_NUMBERED: Final = re.compile(r"\.[1-9][0-9]{0,2}").fullmatch


@dataclass(slots=True)
class _Budget:
    """What one search may still cost; `files` are those read already: one may be renamed while it is looked for."""

    bytes: int
    until: float  # time.monotonic()
    files: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class LogLines:
    """Finds a job's lines; several searches at once are as many threads, each with its own budget."""

    log_file: Path | None
    log_agents: Path | None = None

    async def of(self, job_id: UUID, most: int, created_at: datetime | None = None) -> list[dict[str, Any]]:
        """Return the newest lines about a job, newest last; `program` says whose: `coordinator` or `agent`.

        `created_at`: of the job, by the ledger's clock; the search stops at lines from well before it.
        """
        return await asyncio.to_thread(self.find, job_id, most, created_at)

    def find(self, job_id: UUID, most: int, created_at: datetime | None = None) -> list[dict[str, Any]]:
        """Do it; blocks."""
        since = min(created_at, datetime.now(UTC)) - _CLOCKS if created_at is not None else None
        budget = _Budget(SEARCH_BYTES, time.monotonic() + SEARCH_S)
        found: list[dict[str, Any]] = []
        for program, path in self._paths():
            found += [{**line, "program": program} for line in _find(path, str(job_id), most, budget, since)]
        found.sort(key=lambda line: str(line.get("timestamp", "")))
        return found[-most:]

    def _paths(self) -> Iterator[tuple[str, Path]]:
        if self.log_file is not None:
            yield "coordinator", self.log_file.expanduser()
        if self.log_agents is not None:
            for path in sorted(self.log_agents.expanduser().glob("*/logs/agent.jsonl")):
                yield "agent", path


def _find(path: Path, job_id: str, most: int, budget: _Budget, since: datetime | None) -> list[dict[str, Any]]:
    """Return up to `most` lines about a job, newest first; stops at a block that ends before `since`."""
    found: list[dict[str, Any]] = []
    for block in _blocks(path, budget):
        if since is not None and _ends_before(block, since):
            break
        if job_id.encode() not in block:
            continue
        for line in reversed(block.split(b"\n")):
            if job_id.encode() in line and (entry := _read(line)).get("job_id") == job_id:
                found.append(entry)
                if len(found) == most:
                    return found
    return found


def _ends_before(block: bytes, since: datetime) -> bool:
    """Say whether the last line of a block is older; one that can't be read says nothing."""
    last = block.rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return datetime.fromisoformat(str(_read(last).get("timestamp"))) < since
    except (ValueError, TypeError):  # TypeError: an instant without its zone
        return False


def _read(line: bytes) -> dict[str, Any]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:  # cut short when its program was killed
        return {}
    return entry if isinstance(entry, dict) else {}


def _blocks(path: Path, budget: _Budget) -> Iterator[bytes]:
    """Yield whole lines, block by block, from the end of the newest file to the begin of the oldest."""
    with contextlib.ExitStack() as stack:
        for file in [stack.enter_context(opened) for opened in _open_all(path)]:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) not in budget.files:
                budget.files.add((status.st_dev, status.st_ino))
                yield from _backwards(file, status.st_size, budget)


def _open_all(path: Path) -> list[BinaryIO]:
    """Open the file and those that it was before, newest first, at once: it may be begun anew meanwhile.

    A number may be missing: its program was killed while it moved them on.
    """
    numbers = {int(one.suffix[1:]) for one in path.parent.glob(f"{glob.escape(path.name)}.*") if _NUMBERED(one.suffix)}
    found: list[BinaryIO] = []
    last = max(numbers, default=0)
    for name in (path.name, *(f"{path.name}.{number}" for number in sorted({*numbers, last + 1}))):
        with contextlib.suppress(OSError):
            found.append(path.with_name(name).open("rb"))
    return found


def _backwards(file: BinaryIO, end: int, budget: _Budget) -> Iterator[bytes]:
    rest = b""  # the end of a line whose begin lies before
    while end and budget.bytes > 0 and time.monotonic() < budget.until:
        size = min(_BLOCK, end)
        end -= size
        budget.bytes -= size
        file.seek(end)
        data = file.read(size) + rest
        cut = data.find(b"\n") + 1 if end else 0
        if end and not cut:
            rest = data if len(data) < _LONGEST else b""
            continue
        rest = data[:cut]
        yield data[cut:]
