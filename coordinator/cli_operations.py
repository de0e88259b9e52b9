"""`tandem status`, `rejected`, `workers`, `drain`, `pause`, `resume`, `lanes`: how things stand beside jobs."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from coordinator import cli_show, cli_show_operations, cli_tokens, cli_workers
from coordinator.cli_where import Data, Json, Token, Url, ask
from shared.client import Client

WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its name.")]
LaneArgument = Annotated[str, typer.Argument(metavar="LANE", help="Its name, as `tandem lanes` lists it.")]

_TOLD: Final = {"drain": "draining", "pause": "paused", "resume": "ready"}
"""What a worker that was told so is to be."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (status, rejected, drain, pause, resume):
        app.command()(command)
    people = typer.Typer(invoke_without_command=True, callback=workers)
    cli_workers.register(people)
    app.add_typer(people, name="workers")
    cli_tokens.register(app)
    group = typer.Typer(invoke_without_command=True, callback=lanes)
    group.command("pause")(pause_lane)
    group.command("resume")(resume_lane)
    app.add_typer(group, name="lanes")


def status(*, json: Json = False, url: Url = None, token: Token = None, data: Data = None) -> None:
    """Tell how the coordinator is. Exit status 1 if it is not ready."""
    found = ask(url, token, data, lambda client: client.status())
    typer.echo(cli_show.as_json(found)) if json else cli_show_operations.status(found)
    if not found["ready"]:
        raise typer.Exit(1)


def rejected(
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many of each.")] = 20,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """List the last results and submissions that were refused, newest first."""
    found = ask(url, token, data, lambda client: client.rejected(limit))
    typer.echo(cli_show.as_json(found)) if json else cli_show_operations.rejected(found)


def workers(
    context: typer.Context, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """List the workers: what they can do, what they hold, when they were heard of."""
    if context.invoked_subcommand is not None:
        return
    found = ask(url, token, data, lambda client: client.workers())
    typer.echo(cli_show.as_json(found)) if json else cli_show_operations.workers(found)


def drain(
    worker: WorkerArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """Have a worker finish what it has, and take nothing more."""
    _order(url, token, data, worker, "drain", json=json)


def pause(
    worker: WorkerArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """Have a worker take nothing until it is resumed."""
    _order(url, token, data, worker, "pause", json=json)


def resume(
    worker: WorkerArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """Have a worker take work again."""
    _order(url, token, data, worker, "resume", json=json)


def lanes(
    context: typer.Context, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """List the lanes: how many jobs wait, are offered, and run in each, and why they wait."""
    if context.invoked_subcommand is not None:
        return
    found = ask(url, token, data, lambda client: client.lanes())
    typer.echo(cli_show.as_json(found)) if json else cli_show_operations.lanes(found)


def pause_lane(
    lane: LaneArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """Offer no job of a lane until it is resumed."""
    _pause(url, token, data, lane, paused=True, json=json)


def resume_lane(
    lane: LaneArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """Offer the jobs of a lane again."""
    _pause(url, token, data, lane, paused=False, json=json)


def _order(
    url: str | None,
    token: str | None,
    data: Path | None,
    worker: str,
    order: Literal["drain", "pause", "resume"],
    *,
    json: bool,
) -> None:
    async def work(client: Client) -> None:
        await client.order(worker, order)

    ask(url, token, data, work)
    _said({"worker": worker, "order": order}, f"{worker}: {_TOLD[order]}", json=json)


def _pause(url: str | None, token: str | None, data: Path | None, lane: str, *, paused: bool, json: bool) -> None:
    async def work(client: Client) -> None:
        await client.pause_lane(lane, paused=paused)

    ask(url, token, data, work)
    _said({"lane": lane, "paused": paused}, f"{lane}: {'paused' if paused else 'open'}", json=json)


def _said(done: dict[str, Any], line: str, *, json: bool) -> None:
    typer.echo(cli_show.as_json(done) if json else line)
