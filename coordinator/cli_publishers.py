"""`tandem publishers add`, `list`, `revoke`: who speaks for a source over NATS. Seeds are made here, and stay."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator import cli_show
from coordinator.cli_where import Data, Json, Token, Url, ask
from coordinator.cli_workers import checked_name
from shared.client import RefusedRequestError
from shared.errors import ConfigurationError, TandemError
from shared.nkey import new_seed, public_key
from shared.private_file import write_synced

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The source of what it submits: a-z, 0-9 and -.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Add, list and revoke publishers over NATS.")
    for name, command in (("add", add), ("list", list_), ("revoke", revoke)):
        group.command(name)(command)
    app.add_typer(group, name="publishers")


def add(
    name: NameArgument,
    seed_file: Annotated[Path | None, typer.Option(help="Write the seed there (0600), and print none.")] = None,
    key: Annotated[str | None, typer.Option("--public-key", metavar="U...", help="Of a key made elsewhere.")] = None,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="It has a key: give it another.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Make a key with which NAME connects to NATS, and print its seed, this once: it is kept and sent nowhere."""
    checked_name(name, "NAME")
    if key is not None and seed_file is not None:
        msg = "either --public-key or --seed-file: who made a key has its seed"
        raise ConfigurationError(msg)
    seed = new_seed() if key is None else None
    public = public_key(seed) if seed is not None else key or ""
    if seed is not None and seed_file is not None:
        _write(seed_file, seed)
    try:
        made = ask(url, token, data, lambda client: client.add_publisher(name, public, replace=replace))
    except TandemError as error:
        is_unknown = isinstance(error, ConfigurationError) or (
            isinstance(error, RefusedRequestError) and error.status < 500  # noqa: PLR2004
        )
        if seed is not None and not is_unknown:
            _say_doubtful(name, public, seed, seed_file)
        elif seed_file is not None:
            seed_file.unlink(missing_ok=True)
        raise
    if json:
        shown = {} if seed is None or seed_file is not None else {"seed": seed}
        typer.echo(cli_show.as_json({**made, **shown}))
        return
    if seed is not None and seed_file is None:
        typer.echo(seed)
    where = f"its seed is in {seed_file}" if seed_file is not None else "its seed is shown this once"
    said = "" if seed is None else f"; {where}"
    typer.echo(f"{name} connects to {made['nats']} with {public}{said}", err=True)


def _say_doubtful(name: str, public: str, seed: str, seed_file: Path | None) -> None:
    """Keep a seed whose key the coordinator may have taken, though it did not say so."""
    if seed_file is None:
        typer.echo(seed)
    again = f"tandem publishers add {name} --replace --public-key {public}"
    typer.echo(f"NATS may or may not know this key by now; keep its seed, and repeat: {again}", err=True)


def list_(*, json: Json = False, url: Url = None, token: Token = None, data: Data = None) -> None:
    """List the publishers that may connect to NATS, and their public keys."""
    found = ask(url, token, data, lambda client: client.publishers())
    if json:
        typer.echo(cli_show.as_json(found))
        return
    typer.echo(f"{'name':<20}  public key")
    for one in found:
        typer.echo(f"{one['source']:<20}  {one['public_key']}")


def revoke(name: NameArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None) -> None:
    """Cut NAME off NATS now: its key is good no more, its connection ends. Its jobs and results stay."""
    checked_name(name, "NAME")
    done = ask(url, token, data, lambda client: client.revoke_publisher(name))
    typer.echo(cli_show.as_json(done) if json else f"{name} revoked")


def _write(path: Path, seed: str) -> None:
    """Write a new file for its owner alone; ConfigurationError for one that is there, or can't be written."""
    try:
        path.touch(mode=0o600, exist_ok=False)
        write_synced(path, f"{seed}\n".encode())
    except FileExistsError:
        msg = f"--seed-file {path}: is there already; name another"
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"--seed-file {path}: {error.strerror}"
        raise ConfigurationError(msg) from None
