"""`tandem-agent install|uninstall|status|restart|logs`: the agent as a service of launchd, on Linux of systemd.

Also what a service is to do differently when it runs: log to its file alone, and keep what launchd catches short.
Exit status as in `cli`.
"""

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer

from agent import mac
from agent.doctor_machine import examine_drain
from agent.join import JOINED
from agent.launchd import Launchd
from agent.log_lines import follow, line_for_people, newest
from agent.settings import AgentSettings, load_settings
from agent.supervised import Plan, Standing, Supervisor, SupervisorError, plan_for, python
from agent.systemd_user import SystemdUser
from agent.tools import find
from shared import log
from shared.errors import ConfigurationError
from shared.finding import Finding
from shared.private_file import replace_private

_STRAY_MOST_BYTES: Final = 1024 * 1024
_REPORT: Final = ".doctor.json"
_DOCTOR_S: Final = 300.0

Config = Annotated[Path, typer.Option("--config", help="Settings in TOML; else those that `join` wrote.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (install, uninstall, status, restart, logs):
        app.command()(command)


def install(config: Config = JOINED) -> None:
    """Have launchd (on Linux systemd) run the agent from now on; installing again takes changed settings."""
    settings, supervisor = _settings(config), supervisor_here()
    plan = _plan(config, settings)
    pid = _wait(supervisor.install(plan))
    typer.echo(f"runs (pid {pid}), and from now on {supervisor.when}\nservice: {supervisor.file}\nlog: {plan.log}")
    drain = examine_drain(settings)
    if not drain.ok:
        typer.echo(f"{drain.said}: {drain.todo}", err=True)


def uninstall() -> None:
    """Stop the agent and remove the service. Settings, logs and results that wait stay."""
    gone = _wait(supervisor_here().uninstall())
    typer.echo("removed" if gone else "was not installed")


def restart(config: Config = JOINED) -> None:
    """Let the agent drain, and start it anew; settings are read again."""
    typer.echo(f"runs (pid {_wait(supervisor_here().restart(_plan(config, _settings(config))))})")


def status(*, as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False) -> None:
    """Say whether the service runs; exit status 1 if it does not."""
    supervisor = supervisor_here()
    standing = _wait(supervisor.standing())
    stray = supervisor.caught()
    if as_json:
        told = {"installed": standing.installed, "pid": standing.pid, "last_exit": standing.last_exit}
        typer.echo(orjson.dumps({**told, "said": standing.said, "service": str(supervisor.file), "stray": stray}))
    else:
        typer.echo(_told(supervisor, standing))
        for line in stray:
            typer.echo(f"  | {line}")
    if standing.pid is None:
        raise typer.Exit(1)


def logs(
    config: Config = JOINED,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the newest.")] = 50,
    *,
    follow_: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="As they are in the file: JSON.")] = False,
) -> None:
    """Show the agent's newest log lines."""
    path = _plan(config, _settings(config)).log
    if not path.exists() and not follow_:
        typer.echo(f"no log yet at {path}", err=True)
        raise typer.Exit(1)
    with contextlib.suppress(KeyboardInterrupt):
        for line in follow(path, lines) if follow_ else newest(path, lines):
            typer.echo(line if raw else line_for_people(line))


# ---- inside the service


def begin_stray_anew() -> None:
    """Begin launchd's file anew when it has grown: its inode must stay, so in place (launchd appends)."""
    for stream in (sys.stdout, sys.stderr):
        found = os.fstat(stream.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_size > _STRAY_MOST_BYTES:
            os.ftruncate(stream.fileno(), 0)


def service_log(level: str) -> None:
    """Log to the agent's file alone."""
    log.configure(json=True, level=level, stream=Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for life


def examine_in_service(config: Path | None) -> list[Finding]:
    """Have the doctor look from the service's context: its PATH, its session, its permissions."""
    config = (config or JOINED).expanduser().absolute()
    plan, supervisor = _plan(config, _settings(config)), supervisor_here()
    report = plan.data / _REPORT
    report.unlink(missing_ok=True)
    program = python("doctor", "--config", str(config), "--report", str(report))
    try:
        asyncio.run(supervisor.run_once(replace(plan, program=program), report, _DOCTOR_S))
        found = [Finding(**one) for one in orjson.loads(report.read_bytes())]
    except SupervisorError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        report.unlink(missing_ok=True)
    return [Finding("context", True, f"as {supervisor.name} runs it"), *found]


def write_report(path: Path, found: Sequence[Finding]) -> None:
    """Leave what was found for who asked, whole or not at all."""
    replace_private(path, orjson.dumps(list(found)))


# ---- parts


def supervisor_here() -> Supervisor:
    """Return what runs services here; exit status 1 where nothing does."""
    if find("launchctl") is not None:
        return Launchd()
    if find("systemctl") is not None:
        return SystemdUser()
    typer.echo(
        "tandem-agent: neither launchd nor systemd is here; run `tandem-agent run` by what starts services", err=True
    )
    raise typer.Exit(1)


def _settings(config: Path) -> AgentSettings:
    """Return the settings as the service will read them, without this shell's variables; exit status 2 if wrong."""
    path = config.expanduser()
    if not path.exists():
        typer.echo(
            f"tandem-agent: no settings at {path}: `tandem-agent join` writes them, --config names others", err=True
        )
        raise typer.Exit(2)
    try:
        settings = load_settings(path, environment=False)
        settings.read_seed()
    except ConfigurationError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(2) from None
    return settings


def _plan(config: Path, settings: AgentSettings) -> Plan:
    return plan_for(settings, config, mac=mac.here())


def _wait(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return asyncio.run(work)
    except SupervisorError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(1) from None


def _told(supervisor: Supervisor, standing: Standing) -> str:
    if not standing.installed:
        return "not installed: tandem-agent install"
    ended = f"; the last one ended with {standing.last_exit}" if standing.last_exit not in ("", "0") else ""
    if standing.pid is None:
        return f"installed, but does not run ({standing.said}{ended}): look at `tandem-agent logs`"
    return f"runs (pid {standing.pid}) by {supervisor.name}{ended}"
