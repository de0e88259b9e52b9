"""Jobs as people name them on the command line: by the id, or by as much of its beginning as no other job has."""

import re
from typing import Annotated, Final
from uuid import UUID

import typer

from shared.client import Client
from shared.errors import ConfigurationError, TandemError

SHORTEST: Final = 6
"""Characters of an id that name a job at least."""

_DIGITS: Final = 32
_GROUPS: Final = (8, 12, 16, 20)
_MOST_PAGES: Final = 20

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or the beginning of it.")]


async def job_named(client: Client, text: str) -> UUID:
    """Return the id of the one job whose id begins so; ConfigurationError for no such text, TandemError for no job."""
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(rf"[0-9a-f]{{{SHORTEST},{_DIGITS}}}", digits):
        msg = f"not the id of a job, nor the first {SHORTEST} characters or more of one: {text!r}"
        raise ConfigurationError(msg)
    if len(digits) == _DIGITS:
        return UUID(digits)
    found = await _begin(client, "".join(f"-{d}" if n in _GROUPS else d for n, d in enumerate(digits)))
    match found:
        case []:
            msg = f"no job's id begins with {text}"
        case [only]:
            return only
        case _:
            msg = f"more than one job's id begins with {text}: {', '.join(map(str, found[:3]))} ...; give more of it"
    raise TandemError(msg)


async def _begin(client: Client, beginning: str) -> list[UUID]:
    """Return the ids of jobs that begin so; enough of them to say that it is not one."""
    found: list[UUID] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.jobs(text=beginning, cursor=cursor)
        found += [job.id for job in page.jobs if str(job.id).startswith(beginning)]
        cursor = page.next
        if cursor is None or len(found) > 1:
            break
    return found
