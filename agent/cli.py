"""`tandem-agent`: run the agent, or find out why it would not run.

Exit status: 0 ok, 1 failed, 2 usage or settings, 3 a server can't be reached. Settings are loaded here only.
"""

import asyncio
import importlib.metadata
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import orjson
import structlog
import typer
import uvloop

from agent import cli_service
from agent.doctor import examine
from agent.join import JOINED, join
from agent.rule_watch import RulesFile
from agent.service import run_agent
from agent.settings import AgentSettings, from_environment, load_settings
from shared import log
from shared.errors import ConfigurationError, UnreachableError
from shared.finding import Finding
from shared.rules import Rules

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

_CONFIG_HELP = f"Settings in TOML; else, unless --worker or the environment names a worker, those of `join` ({JOINED})."

Config = Annotated[Path | None, typer.Option("--config", help=_CONFIG_HELP)]
Worker = Annotated[str | None, typer.Option("--worker", help="This agent's name, the same after every restart.")]
Nats = Annotated[str | None, typer.Option("--nats", help="URL of the NATS server.")]
SeedFile = Annotated[Path | None, typer.Option("--seed-file", help="File with the nkey seed (mode 0600).")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder for results that wait, and for running jobs.")]
Slots = Annotated[int | None, typer.Option("--slots", help="How many jobs may run at once.")]
Executors = Annotated[
    list[str] | None, typer.Option("--executor", help="Use this executor with its defaults (repeatable).")
]


def _say_version(asked: bool) -> None:  # noqa: FBT001 - the shape of an option's callback
    if asked:
        typer.echo(f"tandem {importlib.metadata.version('tandem')}")
        raise typer.Exit


@app.callback(help=__doc__)
def _program(
    *,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version.")
    ] = False,
) -> None:
    """Say how it is called; the commands do the work."""


@app.command()
def run(
    config: Config = None,
    worker: Worker = None,
    nats: Nats = None,
    seed_file: SeedFile = None,
    data: Data = None,
    slots: Slots = None,
    executor: Executors = None,
    *,
    json_log: Annotated[bool, typer.Option("--json-log", help="Log JSON lines.")] = False,
    in_service: Annotated[
        bool, typer.Option("--in-service", help="As `install` has it run: log to the log file only.")
    ] = False,
) -> None:
    """Take jobs and run them until SIGTERM or SIGINT; then drain. A second signal does not wait for running jobs."""
    if in_service:
        cli_service.begin_stray_anew()
    config = config or _joined(worker)

    def load() -> AgentSettings:
        return load_settings(config, _flags(worker, nats, seed_file, data, slots), executor or ())

    settings = _loaded(load)
    if in_service:
        cli_service.service_log(settings.log_level)
    else:
        log.configure(json=json_log, level=settings.log_level)
    structlog.contextvars.bind_contextvars(worker=settings.worker)
    path = settings.data.expanduser() / settings.log_file.expanduser()
    reload_rules = RulesFile(config, lambda: load().rules) if config is not None else lambda: None
    try:
        with log.kept(path, most_bytes=settings.log_file_bytes, files=settings.log_files):
            _finish(_run(settings, reload_rules))
    except ConfigurationError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        sys.exit(2)


@app.command()
def doctor(
    config: Config = None,
    worker: Worker = None,
    nats: Nats = None,
    seed_file: SeedFile = None,
    data: Data = None,
    slots: Slots = None,
    executor: Executors = None,
    *,
    in_service: Annotated[
        bool, typer.Option("--in-service", help="Look from where the service runs (launchd, systemd), not from here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of findings.")] = False,
    report: Annotated[Path | None, typer.Option("--report", hidden=True, help="Write the findings here.")] = None,
) -> None:
    """Check settings, machine, folder, server and executors; say what to do about each fault."""
    flags = _flags(worker, nats, seed_file, data, slots)
    if in_service:
        if executor or any(value is not None for value in flags.values()):
            typer.echo(
                "tandem-agent: --in-service looks with the service's settings: only --config goes with it", err=True
            )
            raise typer.Exit(2)
        _print_findings(cli_service.examine_in_service(config), as_json=as_json)
        return
    settings = _loaded(lambda: load_settings(config or _joined(worker), flags, executor or ()))
    log.configure(json=False, level="error")
    found = asyncio.run(examine(settings))
    if report is not None:
        cli_service.write_report(report, found)
        return
    _print_findings(found, as_json=as_json)


app.command()(join)
cli_service.register(app)


def main() -> None:
    """Be the program `tandem-agent`."""
    app()


def _print_findings(found: list[Finding], *, as_json: bool) -> None:
    """Print them; exit status 1 if there is a fault."""
    faults = sum(not finding.ok for finding in found)
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        for finding in found:
            typer.echo(f"{'ok   ' if finding.ok else 'FAULT'}  {finding.what}: {finding.said}")
            if not finding.ok:
                typer.echo(f"       {finding.todo}")
        if faults:
            typer.echo(f"{faults} to mend")
    if faults:
        raise typer.Exit(1)


def _joined(worker: str | None) -> Path | None:
    """Return the settings that `join` wrote, if they are there and neither flag nor environment names a worker."""
    if worker is not None or "worker" in from_environment():
        return None
    path = JOINED.expanduser()
    return path if path.exists() else None


def _flags(
    worker: str | None, nats: str | None, seed_file: Path | None, data: Path | None, slots: int | None
) -> dict[str, Any]:
    return {"worker": worker, "nats": nats, "seed_file": seed_file, "data": data, "slots": slots}


def _loaded(load: Callable[[], AgentSettings]) -> AgentSettings:
    try:
        return load()
    except ConfigurationError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(2) from None


async def _run(settings: AgentSettings, reload_rules: Callable[[], Rules | None]) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    await run_agent(settings, stop=stop, hurry=hurry, reload_rules=reload_rules)


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run a program to its end, and turn its errors into the exit status that they mean."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(work)
        except* ConfigurationError as group:
            _say(group)
            sys.exit(2)
        except* UnreachableError as group:
            _say(group)
            sys.exit(3)


def _say(group: BaseExceptionGroup[Exception]) -> None:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    typer.echo(f"tandem-agent: {error}", err=True)
