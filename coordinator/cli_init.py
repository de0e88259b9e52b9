"""`tandem init`: writes the configuration of a VPS."""
# ruff: noqa: PLC0415 - what it needs is imported when it runs

import os
import pwd
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from shared.errors import ConfigurationError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(init)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where everything is kept; empty or not there yet.")],
    host: Annotated[str | None, typer.Option(help="This machine's name on the internet: vps.example.org.")] = None,
    postgres: Annotated[
        str | None, typer.Option(envvar="TANDEM_POSTGRES", help="DSN; without: the socket of Debian's Postgres.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Whose services they are: it must be who runs this.")] = None,
    http_port: Annotated[int | None, typer.Option(min=1, max=65535, help="On 127.0.0.1 (8420).")] = None,
    nats_port: Annotated[int | None, typer.Option(min=1, max=65535, help="To the internet, TLS (4222).")] = None,
    websocket_port: Annotated[int | None, typer.Option(min=1, max=65535, help="On 127.0.0.1 (4223).")] = None,
) -> None:
    """Write a VPS's configuration with fresh secrets; again, it says what is there and overwrites nothing."""
    from coordinator.embedded import nats_server
    from coordinator.init import Answers, Outcome, Programs, answers_of, initialise

    path = folder.expanduser().absolute()
    known = answers_of(path)
    if known is None and host is None:
        msg = "which host? give --host with this machine's name on the internet"
        raise ConfigurationError(msg)
    before = known or Answers(host="", user=_owner_but_root(path) or _name(os.geteuid()))
    answers = Answers(
        host=host or before.host,
        user=user or before.user,
        http_port=http_port or before.http_port,
        nats_port=nats_port or before.nats_port,
        websocket_port=websocket_port or before.websocket_port,
    )
    _refuse_others(path, answers.user)
    programs = Programs(tandem=Path(sys.executable).with_name("tandem"), nats_server=Path(nats_server()).absolute())
    outcomes = initialise(path, answers, programs, postgres)
    for name, outcome in outcomes.items():
        beside = f"; what this version would write is in {name}.new" if outcome is Outcome.DIFFERS else ""
        typer.echo(f"{outcome:<9} {path / name}{beside}")
    if answers.user == "root":
        typer.echo("note: the services will run as root; better make a user, and run this as that one", err=True)
    if Outcome.WRITTEN not in outcomes.values():
        typer.echo("everything was there already: nothing was overwritten", err=True)


def _refuse_others(folder: Path, user: str) -> None:
    """Raise ConfigurationError unless this is the services' user: all is written for its owner alone."""
    me, owner = _name(os.geteuid()), _owner(folder)
    if me != user:
        again = shlex.join(["sudo", "-u", user, "tandem", *sys.argv[1:]])
        msg = f"the services of {folder} run as {user} and could not read what {me} writes; run: {again}"
        raise ConfigurationError(msg)
    if owner not in (None, me):
        given = shlex.join(["sudo", "chown", "-R", f"{me}:", str(folder)])
        msg = f"{folder} belongs to {owner}, and its services run as {me}; run: {given}"
        raise ConfigurationError(msg)


def _owner(folder: Path) -> str | None:
    """Return whose folder it is; None if it is not there, or is out of sight."""
    try:
        return _name(folder.stat().st_uid)
    except OSError:
        return None


def _owner_but_root(folder: Path) -> str | None:
    """Return whose folder it is, unless it is root's: whoever made it with sudo meant another."""
    owner = _owner(folder)
    return None if owner == _name(0) else owner


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
