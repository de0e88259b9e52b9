"""`tandem tokens new`, `list`, `revoke`: who may ask over HTTP.

By way of a running coordinator, or with `--config` straight in its ledger: so the first one is made.
"""
# ruff: noqa: PLC0415 - with --url neither Postgres's driver nor the settings are needed

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import uvloop

from coordinator import cli_show
from coordinator.cli_where import Data, Json, Token, Url, ask
from coordinator.cli_workers import checked_name
from coordinator.web.access import Role
from shared.errors import TandemError

if TYPE_CHECKING:
    from coordinator.ledger.access_tokens import AccessTokens

_T = TypeVar("_T")

Config = Annotated[Path | None, typer.Option("--config", help="A coordinator's settings: go to its ledger itself.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens for publishers, viewers and admins.")
    for name, command in (("new", new), ("list", list_), ("revoke", revoke)):
        group.command(name)(command)
    app.add_typer(group, name="tokens")


def new(
    role: Annotated[Role, typer.Argument(help="What it allows.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: the source of what it submits.")],
    config: Config = None,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Make a token and print it, this once: only its digest is kept. It is good at once."""
    checked_name(name, "NAME")

    async def in_ledger(store: "AccessTokens") -> dict[str, Any]:
        from coordinator.tokens import make_token

        made = await make_token(store, role, name, actor=_me())
        return {"id": made.id, "role": role.value, "name": name, "token": made.token}

    if config is not None:
        made = _in_ledger(config, in_ledger)
    else:
        made = ask(url, token, data, lambda client: client.new_token(role.value, name))
    typer.echo(cli_show.as_json(made) if json else made["token"])
    if not json:
        typer.echo(f"{role.value} {name}: token {made['id']}; it is shown this once", err=True)


def list_(
    config: Config = None, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """List the tokens that are good; `-` stands for those of the coordinator's settings."""

    async def in_ledger(store: "AccessTokens") -> list[dict[str, Any]]:
        rows, _ = await store.good()
        return [
            {name: getattr(row, name) for name in ("id", "role", "name", "made_by", "made_at", "last_used_at")}
            for row in rows
        ]

    if config is not None:
        found = _in_ledger(config, in_ledger, reads=True)
    else:
        found = ask(url, token, data, lambda client: client.tokens())
    if json:
        typer.echo(cli_show.as_json(found))
        return
    typer.echo(f"{'id':<8}  {'role':<9}  {'name':<20}  last used")
    for one in found:
        used = f"used {_when(one['last_used_at'])}" if one["id"] else "in the settings"
        typer.echo(f"{one['id'] or '-':<8}  {one['role']:<9}  {one['name']:<20}  {used}")


def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `tandem tokens list` shows it.")],
    config: Config = None,
    *,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Make a token good no more, within two seconds everywhere; sessions that began with it end."""

    async def in_ledger(store: "AccessTokens") -> dict[str, Any]:
        found = await store.revoke(token_id, actor=_me())
        if found is None:
            msg = f"no token {token_id!r} is good"
            raise TandemError(msg)
        return {"id": token_id, "role": found[0], "name": found[1]}

    if config is not None:
        done = _in_ledger(config, in_ledger)
    else:
        done = ask(url, token, data, lambda client: client.revoke_token(token_id))
    typer.echo(cli_show.as_json(done) if json else f"{done['role']} {done['name']}: token {done['id']} revoked")


def _in_ledger(config: Path, work: "Callable[[AccessTokens], Awaitable[_T]]", *, reads: bool = False) -> _T:
    """Work in the ledger that the settings name; the schema is brought up to date first, unless the work only reads."""
    from coordinator.cli_serve import settings_in
    from coordinator.ledger.access_tokens import AccessTokens
    from coordinator.ledger.database import open_pool
    from coordinator.ledger.migrate import migrate, missing_revisions, revision_of

    dsn = settings_in(config).postgres.get_secret_value()

    async def run() -> _T:
        if not reads:
            await migrate(dsn)
        elif missing_revisions(await revision_of(dsn)):
            msg = "the ledger has no schema yet, or an older one: tandem migrate"
            raise TandemError(msg)
        async with await open_pool(dsn, max_size=1) as pool:
            return await work(AccessTokens(pool))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _me() -> str:
    return f"{getpass.getuser()} (command line)"


def _when(instant: datetime | str | None) -> str:
    return str(instant)[:16].replace("T", " ") if instant else "never"
