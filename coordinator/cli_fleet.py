"""`tandem workers` and `tandem lanes`: who can work, and what waits for whom."""

import typer

from coordinator import cli_show
from coordinator.cli_where import Data, Json, Token, Url, ask
from shared.client import Client, LaneLine, WorkerLine


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (workers, lanes):
        app.command()(command)


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
