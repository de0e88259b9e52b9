"""`tandem jobs`, `show`, `cancel`, `retry`, `callbacks`, `workers`, `lanes`: who does what, and acting on it."""

from typing import Annotated
from uuid import UUID

import typer

from coordinator import cli_show
from coordinator.cli_submit import labels_of
from coordinator.cli_where import Data, Json, Token, Url, ask
from shared.client import Client, HeartbeatLine, JobLine, JobView, LaneLine, WorkerLine
from shared.states import JobState

_PAGE = 500
_BEATS = 20

JobArgument = Annotated[UUID, typer.Argument(metavar="ID", help="The job's id.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (jobs, show, cancel, retry, callbacks, workers, lanes):
        app.command()(command)


def jobs(
    state: Annotated[JobState | None, typer.Option(help="Only those in this state.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only those of this kind.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only those that this worker has or had.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; each must match (repeatable).")] = None,
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
            most = min(limit - len(found), _PAGE)
            page = await client.jobs(state=state, kind=kind, worker=worker, labels=labels, limit=most, cursor=cursor)
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
        return await client.job(job_id), await client.heartbeats(job_id, heartbeats) if heartbeats else []

    job, beats = ask(url, token, data, work)
    if json:
        typer.echo(cli_show.as_json({**job.model_dump(mode="json"), "heartbeat_history": cli_show.plain(beats)}))
    else:
        cli_show.job(job, beats)


def cancel(job_id: JobArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None) -> None:
    """Call a job off; whoever works on it is told to stop."""

    async def work(client: Client) -> JobView:
        return await client.cancel(job_id)

    _acted(ask(url, token, data, work), json=json)


def retry(job_id: JobArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None) -> None:
    """Start a settled job anew, with all counters at zero."""

    async def work(client: Client) -> JobView:
        return await client.retry(job_id)

    _acted(ask(url, token, data, work), json=json)


def callbacks(
    again: Annotated[UUID | None, typer.Option(metavar="ID", help="Send this job's last callback again.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, help="At most so many.")] = 50,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """List callbacks that were given up, newest first."""
    if again is not None:
        job_id = again
        told = ask(url, token, data, lambda client: client.callback_again(job_id))
        typer.echo(cli_show.as_json(told) if json else f"{job_id} is told again")
        return
    found = ask(url, token, data, lambda client: client.undelivered(limit))
    if json:
        typer.echo(cli_show.as_json(found))
    else:
        cli_show.undelivered(found)


def workers(*, json: Json = False, url: Url = None, token: Token = None, data: Data = None) -> None:
    """List the workers: what they can do, what they hold, when they were heard of."""

    async def work(client: Client) -> list[WorkerLine]:
        return await client.workers()

    found = ask(url, token, data, work)
    typer.echo(cli_show.as_json(found)) if json else cli_show.workers(found)


def lanes(*, json: Json = False, url: Url = None, token: Token = None, data: Data = None) -> None:
    """List the lanes: how many jobs wait, are offered, and run in each."""

    async def work(client: Client) -> list[LaneLine]:
        return await client.lanes()

    found = ask(url, token, data, work)
    typer.echo(cli_show.as_json(found)) if json else cli_show.lanes(found)


def _acted(job: JobView, *, json: bool) -> None:
    typer.echo(cli_show.as_json(job) if json else f"{job.id} {job.state}")
