"""`tandem logs`: what the coordinator's log, and those of the agents beside it, say about a job."""

import asyncio
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer

from coordinator.cli_ids import JobArgument, job_named
from coordinator.cli_show import moment, printable
from coordinator.cli_where import Data, Json, Token, Url, ask
from shared.client import Client
from shared.states import SETTLED

_FIRST = ("timestamp", "level", "program", "event", "job_id")
_AGAIN_S = 1.0
_MOST = 2000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(logs)


def logs(
    job_id: JobArgument,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="At most so many, the newest.")] = 200,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is settled.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Print the log lines about a job, newest last (none, unless the coordinator has a log_file)."""
    printed: set[bytes] = set()

    async def tell(client: Client, found: UUID, most: int) -> None:
        for line in await client.logs(found, most):
            raw = orjson.dumps(line)
            if raw not in printed:
                printed.add(raw)
                typer.echo(raw.decode() if json else text_of(line))

    async def work(client: Client) -> None:
        found = await job_named(client, job_id)
        await tell(client, found, limit)
        settled = not follow
        while not settled:
            settled = (await client.job(found)).state in SETTLED
            await asyncio.sleep(_AGAIN_S)  # also for what a log's writer still had in hand
            await tell(client, found, _MOST)

    ask(url, token, data, work)
    if not printed:
        typer.echo("no lines are kept about this job", err=True)


def text_of(line: dict[str, Any]) -> str:
    """Return a line as people read it."""
    facts = " ".join(f"{name}={_value(value)}" for name, value in line.items() if name not in _FIRST)
    head = f"{line.get('level', ''):<7}  {line.get('program', ''):<11}  {line.get('event', '')}"
    return printable(f"{_at(line)}  {head}  {facts}")


def _at(line: dict[str, Any]) -> str:
    try:
        return moment(datetime.fromisoformat(str(line.get("timestamp"))))
    except ValueError:
        return str(line.get("timestamp", "-"))


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value and " " not in value else orjson.dumps(value).decode()
