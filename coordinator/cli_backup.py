"""`tandem backup`, `tandem restore`."""
# ruff: noqa: PLC0415 - they need the servers' insides; the other commands don't

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from coordinator import cli_show
from coordinator.cli_where import DEFAULT_DATA, Data, Json, connection_of
from shared import log
from shared.errors import ConfigurationError, UnreachableError

if TYPE_CHECKING:
    from coordinator.backup import BackedUp, Restored

Config = Annotated[Path | None, typer.Option("--config", help="Settings of a coordinator with servers of its own.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (backup, restore):
        app.command()(command)


def backup(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Not there yet; else tandem-<date>.tar here.")
    ] = None,
    data: Data = None,
    config: Config = None,
    *,
    json: Json = False,
) -> None:
    """Write ledger, artifacts and settings to one file, while everything goes on. It holds every secret: keep it so."""
    from coordinator import backup as work
    from coordinator.cli_serve import settings_in

    log.configure(json=False, level="error")
    path = (file or Path(f"tandem-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar")).expanduser().resolve()
    folder = (data or DEFAULT_DATA).expanduser().resolve()

    async def run() -> "BackedUp":
        if config is not None:
            return await work.back_up(work.place_of_settings(settings_in(config), config), path)
        async with work.place_of_folder(folder, lambda: _running_dsn(folder)) as place:
            return await work.back_up(place, path)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        made = runner.run(run())
    if json:
        typer.echo(cli_show.as_json({"file": str(path), "jobs": made.jobs, "artifacts": made.artifacts}))
        return
    files = "its artifacts are in their bucket" if made.artifacts is None else f"{made.artifacts} artifacts"
    typer.echo(f"{path}: {made.jobs} jobs, {files}, {path.stat().st_size / 1e6:.1f} MB")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `tandem backup` wrote it.")],
    data: Annotated[Path | None, typer.Option("--data", help="A new folder, for `tandem up`.")] = None,
    config: Config = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", help="An empty folder: put the settings there, and nothing else.")
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Fill a new folder, or empty servers (--config), from a backup. Nothing is ever overwritten."""
    from coordinator import backup as work
    from coordinator.cli_serve import settings_in

    log.configure(json=False, level="error")
    if [data, config, settings].count(None) != 2:  # noqa: PLR2004 - of three
        msg = (
            "restore where? give --data with a new folder, --config with the settings of empty servers, or --settings"
            " with an empty folder for the settings alone"
        )
        raise ConfigurationError(msg)
    path = file.expanduser().resolve()
    if settings is not None:
        folder = settings.expanduser().resolve()
        work.restore_settings(path, folder)
        if json:
            typer.echo(cli_show.as_json({"settings": str(folder)}))
            return
        typer.echo(
            f"{folder} has the settings, and no jobs\nnext, if `tandem init` made them:"
            f" tandem init {folder}; tandem restore {path} --config {folder}/tandem.toml"
        )
        return

    async def run() -> "Restored":
        if data is not None:
            return await work.restore_folder(path, data.expanduser().resolve())
        return await work.restore_servers(path, settings_in(config))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(run())
    if json:
        told = {"jobs": found.jobs, "live": found.live, "artifacts": found.artifacts, "epoch_floor": found.epoch_floor}
        typer.echo(cli_show.as_json({**told, "made_at": found.manifest.made_at}))
        return
    typer.echo(
        f"restored as of {found.manifest.made_at:%Y-%m-%d %H:%M:%S} UTC: {found.jobs} jobs ({found.live} wait or run),"
        f" {found.artifacts} artifacts\n"
        f"what was granted since is refused, and done again with epochs from {found.epoch_floor} on\n"
        "revoke again what was revoked since: tokens, workers\n"
        + (_next_up(data) if data is not None else "next: start NATS with an empty store, then tandem")
    )


def _next_up(data: Path) -> str:
    """Say how the restored folder is started: one that served other machines must serve them by the same name."""
    from coordinator.up_beyond import last_name

    name = last_name(data.expanduser())
    if name is None:
        return f"next: tandem up --data {data}"
    return (
        f"next: tandem up --data {data} --listen {name}\n"
        "other machines know it by that name; if it had other ports than 8443 and 4222, give them again"
    )


def _running_dsn(folder: Path) -> str | None:
    try:
        return str(connection_of(folder)["postgres"])
    except UnreachableError:
        return None
