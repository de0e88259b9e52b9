"""`tandem doctor`: says why a coordinator with these settings, or in this folder, would not work."""
# ruff: noqa: PLC0415 - what it needs is imported when it runs

import asyncio
from dataclasses import asdict

import typer
import uvloop

from coordinator import cli_show
from coordinator.cli_serve import Config, _settings_of, folder_meant, settings_in
from coordinator.cli_where import Data, Json
from shared import log


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(config: Config = None, data: Data = None, *, json: Json = False) -> None:
    """Check settings, Postgres, NATS, streams, clocks, disk and files; say what to do about each fault."""
    from coordinator.doctor import examine

    log.configure(json=False, level="error")
    folder = folder_meant(config, data)
    settings = settings_in(config) if folder is None else _settings_of(folder)
    if folder is not None:
        settings = settings.model_copy(update={"secrets": folder / "secrets"})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(examine(settings, config, folder and folder.expanduser()))
    if json:
        typer.echo(cli_show.as_json([asdict(finding) for finding in found]))
    for finding in () if json else found:
        typer.echo(f"{'ok   ' if finding.ok else 'FAULT'}  {finding.what}: {finding.said}")
        if not finding.ok:
            typer.echo(f"       {finding.todo}")
    faults = sum(not finding.ok for finding in found)
    if faults:
        typer.echo(f"{faults} to mend", err=True)
        raise typer.Exit(1)
