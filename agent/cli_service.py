"""`tandem-agent install|uninstall|status|restart|logs`: the agent as a service of launchd, on Linux of systemd.

Also what a service is to do differently when it runs: log to its file alone, and keep what launchd catches short.
Exit status as in `cli`.
"""

import asyncio
import contextlib
import os
import stat
import sys
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer

from agent import mac
from agent.finding import Finding
from agent.join import FOLDER
from agent.launchd import Launchd
from agent.log_lines import follow, line_for_people
from agent.settings import load_settings
from agent.supervised import (
    EXIT_S,
    STRAY_NAME,
    Plan,
    Standing,
    Supervisor,
    SupervisorError,
    mac_logs,
    plan_for,
    python,
)
from agent.systemd_user import SystemdUser
from agent.tools import find
from shared import log
from shared.errors import ConfigurationError
from shared.private_file import replace_private

JOINED: Final = FOLDER / "agent.toml"
"""The settings that `tandem-agent join` writes."""
_STRAY_MOST_BYTES: Final = 1024 * 1024
_REPORT: Final = ".doctor.json"
_DOCTOR_S: Final = 300.0
_STRAY_LINES: Final = 20

Config = Annotated[Path, typer.Option("--config", help="Settings in TOML; else those that `join` wrote.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (install, uninstall, status, restart, logs):
        app.command()(command)


def install(config: Config = JOINED) -> None:
    """Have launchd (on Linux systemd) run the agent from now on; installing again takes changed settings."""
    plan, supervisor = _plan(config), supervisor_here()
    pid = _wait(supervisor.install(plan))
    typer.echo(
        f"runs (pid {pid}), and from now on whenever you are logged in\nservice: {supervisor.file}\nlog: {plan.log}"
    )
    ends_s = load_settings(config.expanduser()).drain_limit_s
    if ends_s > EXIT_S:
        typer.echo(
            f"drain_limit_s is {ends_s:g}: it will be killed after {EXIT_S} s, and its jobs run elsewhere", err=True
        )


def uninstall() -> None:
    """Stop the agent and remove the service. Settings, logs and results that wait stay."""
    gone = _wait(supervisor_here().uninstall())
    typer.echo("removed" if gone else "was not installed")


def restart(config: Config = JOINED) -> None:
    """Let the agent drain, and start it anew; settings are read again."""
    typer.echo(f"runs (pid {_wait(supervisor_here().restart(_plan(config)))})")


def status(*, as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False) -> None:
    """Say whether the service runs; exit status 1 if it does not."""
    supervisor = supervisor_here()
    standing = _wait(supervisor.standing())
    stray = _stray()
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
    path = _plan(config).log
    if not path.exists() and not follow_:
        typer.echo(f"no log yet at {path}", err=True)
        raise typer.Exit(1)
    with contextlib.suppress(KeyboardInterrupt):
        for line in follow(path, lines) if follow_ else deque(_lines(path), maxlen=lines):
            typer.echo(line if raw else line_for_people(line))


# ---- inside the service


def service_log(level: str) -> None:
    """Log to the agent's file alone, and begin launchd's anew when it has grown: its inode must stay, so in place."""
    log.configure(json=True, level=level, stream=Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for life
    for stream in (sys.stdout, sys.stderr):
        found = os.fstat(stream.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_size > _STRAY_MOST_BYTES:
            os.ftruncate(stream.fileno(), 0)
            os.lseek(stream.fileno(), 0, os.SEEK_SET)


def examine_in_service(config: Path | None) -> list[Finding]:
    """Have the doctor look from the service's context: its PATH, its session, its permissions."""
    plan, supervisor = _plan(config or JOINED), supervisor_here()
    report = plan.data / _REPORT
    report.unlink(missing_ok=True)
    program = python("doctor", "--config", str((config or JOINED).expanduser().absolute()), "--report", str(report))
    once = Plan(program, plan.environment, plan.data, plan.log, plan.stray.with_name("doctor.log"))
    once.stray.unlink(missing_ok=True)
    try:
        asyncio.run(supervisor.run_once(once, report, _DOCTOR_S))
        found = [Finding(**one) for one in orjson.loads(report.read_bytes())]
    except SupervisorError as error:
        caught = "\n  | ".join(["", *deque(_lines(once.stray), maxlen=_STRAY_LINES)])
        typer.echo(f"tandem-agent: {error}{caught}", err=True)
        raise typer.Exit(1) from None
    finally:
        report.unlink(missing_ok=True)
        once.stray.unlink(missing_ok=True)
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


def _plan(config: Path) -> Plan:
    """Return what is to be run, from settings that are right; exit status 2 else."""
    path = config.expanduser()
    if not path.exists():
        typer.echo(
            f"tandem-agent: no settings at {path}: `tandem-agent join` writes them, --config names others", err=True
        )
        raise typer.Exit(2)
    try:
        settings = load_settings(path)
        settings.read_seed()
        return plan_for(settings, path, mac=mac.here())
    except ConfigurationError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(2) from None


def _wait(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return asyncio.run(work)
    except SupervisorError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(1) from None


def _told(supervisor: Supervisor, standing: Standing) -> str:
    if not standing.installed:
        return "not installed: tandem-agent install"
    ended = f"; the last one ended with {standing.last_exit}" if standing.last_exit else ""
    if standing.pid is None:
        return f"installed, but does not run ({standing.said}{ended}): look at `tandem-agent logs`"
    return f"runs (pid {standing.pid}) by {supervisor.name}{ended}"


def _stray() -> list[str]:
    """Return the last of what launchd caught: errors from before the log is up (systemd's are in the journal)."""
    return list(deque(_lines(mac_logs() / STRAY_NAME), maxlen=_STRAY_LINES))


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                yield line.rstrip("\n")
