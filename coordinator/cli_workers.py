"""`tandem workers invite`, `workers revoke`: who may work."""

from typing import Annotated

import typer

from coordinator import cli_show
from coordinator.cli_where import Data, Json, Token, Url, ask

_HOUR_S = 3600.0

WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its name, like mini: a-z, 0-9 and -.")]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    for command in (invite, revoke):
        group.command()(command)


def invite(
    worker: WorkerArgument,
    hours: Annotated[float, typer.Option(min=0.02, max=720, help="How long the line is good.")] = 24.0,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="It has joined before: give it a new key.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Print the line by which a Mac joins as WORKER: it works once, and for a day."""
    made = ask(url, token, data, lambda client: client.invite(worker, good_s=hours * _HOUR_S, replace=replace))
    for warning in made["warnings"]:
        typer.echo(f"note: {warning}", err=True)
    typer.echo(cli_show.as_json(made) if json else f"tandem-agent join '{made['line']}'")


def revoke(
    worker: WorkerArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """Cut WORKER off now: its key is good no more, its connection ends, what it held goes to others."""
    done = ask(url, token, data, lambda client: client.revoke_worker(worker))
    ended = done["leases_ended"]
    what = f"{ended} {'job goes' if ended == 1 else 'jobs go'} to others" if ended else "it held nothing"
    typer.echo(cli_show.as_json(done) if json else f"{worker} revoked; {what}")
