"""`tandem jobs`, `show`, and what is done to a job: `cancel`, `retry`, `approve`, `reject`, `priority`, `callbacks`."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from coordinator import cli_show, cli_show_operations
from coordinator.cli_ids import JobArgument, job_named
from coordinator.cli_submit import labels_of
from coordinator.cli_where import Data, Json, Token, Url, ask
from shared.client import Client, HeartbeatLine, JobLine, JobView
from shared.states import JobState, Priority

_PAGE = 500
_BEATS = 20

Note = Annotated[str | None, typer.Option(help="Why; kept with what was done.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(jobs)
    app.command()(show)
    app.command("cancel", help="Call a job off; whoever works on it is told to stop.")(_acting(Client.cancel))
    app.command("retry", help="Start a settled job anew, with all counters at zero.")(_acting(Client.retry))
    app.command("approve", help="Accept a result that awaits review.")(_acting(Client.approve))
    for command in (reject, priority, callbacks):
        app.command()(command)


def jobs(
    state: Annotated[JobState | None, typer.Option(help="Only those in this state.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only those of this kind.")] = None,
    model: Annotated[str | None, typer.Option(help="Only those that ask for this model.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only those that this worker has or had.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; each must match (repeatable).")] = None,
    text: Annotated[str | None, typer.Option(help="Begins the id or key, is a label's value, or in the error.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """List jobs, newest first."""
    labels = labels_of(label or [])

    async def work(client: Client) -> list[JobLine]:
        found: list[JobLine] = []
        cursor: str | None = None
        while len(found) < limit:
            page = await client.jobs(
                state=state,
                kind=kind,
                model=model,
                worker=worker,
                labels=labels,
                text=text,
                limit=min(limit - len(found), _PAGE),
                cursor=cursor,
            )
            found += page.jobs
            cursor = page.next
            if cursor is None:
                break
        return found

    found = ask(url, token, data, work)
    typer.echo(cli_show.as_json(found)) if json else cli_show.jobs(found)


def show(
    job_id: JobArgument,
    heartbeats: Annotated[int, typer.Option(min=0, max=5000, help="How many of its last heartbeats.")] = _BEATS,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Show a job: its attempts, heartbeats, files and result."""

    async def work(client: Client) -> tuple[JobView, list[HeartbeatLine]]:
        found = await job_named(client, job_id)
        return await client.job(found), await client.heartbeats(found, heartbeats) if heartbeats else []

    job, beats = ask(url, token, data, work)
    if json:
        typer.echo(cli_show.as_json({**job.model_dump(mode="json"), "heartbeat_history": cli_show.plain(beats)}))
    else:
        cli_show.job(job, beats)


def reject(
    job_id: JobArgument,
    note: Note = None,
    *,
    again: Annotated[bool, typer.Option("--again", help="Have it made anew, instead of canceling it.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Refuse a result that awaits review."""
    _act(url, token, data, job_id, lambda client, found: client.reject(found, note, again=again), json=json)


def priority(
    job_id: JobArgument,
    priority: Annotated[Priority, typer.Argument(help="Its place in the backlog from now on.")],
    note: Note = None,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Move a job that waits within the backlog."""
    _act(url, token, data, job_id, lambda client, found: client.prioritize(found, priority, note), json=json)


def callbacks(
    again: Annotated[str | None, typer.Option(metavar="ID", help="Send this job's last callback again.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, help="At most so many.")] = 50,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """List callbacks that were given up, newest first."""
    if again is not None:
        named = again

        async def work(client: Client) -> str:
            found = await job_named(client, named)
            told = await client.callback_again(found)
            return cli_show.as_json(told) if json else f"{found} is told again"

        typer.echo(ask(url, token, data, work))
        return
    found = ask(url, token, data, lambda client: client.undelivered(limit))
    typer.echo(cli_show.as_json(found)) if json else cli_show_operations.undelivered(found)


def _acting(method: Callable[[Client, UUID, str | None], Awaitable[JobView]]) -> Callable[..., None]:
    """Return the command that does to a job what needs nothing but a note."""

    def command(
        job_id: JobArgument,
        note: Note = None,
        *,
        json: Json = False,
        url: Url = None,
        token: Token = None,
        data: Data = None,
    ) -> None:
        _act(url, token, data, job_id, lambda client, found: method(client, found, note), json=json)

    return command


def _act(
    url: str | None,
    token: str | None,
    data: Path | None,
    job_id: str,
    action: Callable[[Client, UUID], Awaitable[JobView]],
    *,
    json: bool,
) -> None:
    """Do something to a job and print how it then is."""

    async def work(client: Client) -> JobView:
        return await action(client, await job_named(client, job_id))

    job = ask(url, token, data, work)
    typer.echo(cli_show.as_json(job) if json else f"{job.id} {job.state}")
