"""`tandem publications`: what is not in its source's CMS yet, which sites are paused, and what is done about it."""

from typing import Annotated, Any

import typer

from coordinator import cli_show, cli_show_operations
from coordinator.cli_ids import job_named
from coordinator.cli_where import Data, Json, Token, Url, ask
from shared.client import Client
from shared.errors import ConfigurationError

_MOST = 500


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(publications)


def publications(
    again: Annotated[str | None, typer.Option(metavar="ID", help="Publish this job's last result again.")] = None,
    check: Annotated[str | None, typer.Option(metavar="SOURCE", help="Look at this source's paused site now.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="At most so many.")] = 50,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """List results that are not published yet, or can't be, newest first; and sites that let nobody in."""
    if again is not None and check is not None:
        msg = "--again or --check, one at a time"
        raise ConfigurationError(msg)
    if again is not None:
        named = again

        async def publish(client: Client) -> tuple[Any, str]:
            found = await job_named(client, named)
            return await client.publish_again(found), f"{found} is published again"

        told, line = ask(url, token, data, publish)
        typer.echo(cli_show.as_json(told) if json else line)
        return
    if check is not None:
        source = check
        ask(url, token, data, lambda client: client.check_site(source))
        typer.echo(cli_show.as_json({"source": source, "order": "check"}) if json else f"{source} is looked at now")
        return
    found = ask(url, token, data, lambda client: client.unpublished(limit))
    typer.echo(cli_show.as_json(found)) if json else cli_show_operations.unpublished(found)
