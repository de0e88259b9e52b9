"""`tandem workers invite`, `workers revoke`, `workers rules`: who may work, and when."""

import re
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from coordinator import cli_show
from coordinator.admin_client import AdminClient
from coordinator.cli_where import Data, Json, Token, Url, ask
from coordinator.worker_rules import words_of
from shared.errors import ConfigurationError
from shared.ids import NAME_PATTERN
from shared.rules import Rules
from shared.wire import faults_of

_HOUR_S = 3600.0
_LISTS = {"hours": ";", "stops": ","}

WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its name, like mini: a-z, 0-9 and -.")]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    for command in (invite, revoke, rules):
        group.command()(command)


def checked_name(name: str, metavar: str) -> str:
    """Return a worker's or a source's name; ConfigurationError if it can't be one."""
    if not re.fullmatch(NAME_PATTERN, name):
        msg = f"{metavar}: not like {NAME_PATTERN}: {name!r}"
        raise ConfigurationError(msg)
    return name


def invite(
    worker: WorkerArgument,
    hours: Annotated[float, typer.Option(min=0.02, max=720, help="How long the line is good.")] = 24.0,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="It has joined before: give it a new key.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Print the line by which a Mac joins as WORKER: it works once, and for a day."""
    checked_name(worker, "WORKER")
    made = ask(url, token, data, lambda client: client.invite(worker, good_s=hours * _HOUR_S, replace=replace))
    for warning in made["warnings"]:
        typer.echo(f"note: {warning}", err=True)
    typer.echo(cli_show.as_json(made) if json else f"tandem-agent join '{made['line']}'")


def revoke(
    worker: WorkerArgument, *, json: Json = False, url: Url = None, token: Token = None, data: Data = None
) -> None:
    """Cut WORKER off now: its key is good no more, its connection ends, what it held goes to others."""
    checked_name(worker, "WORKER")
    done = ask(url, token, data, lambda client: client.revoke_worker(worker))
    ended = done["leases_ended"]
    what = f"{ended} {'job goes' if ended == 1 else 'jobs go'} to others" if ended else "it held nothing"
    typer.echo(cli_show.as_json(done) if json else f"{worker} revoked; {what}")


def rules(
    worker: WorkerArgument,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RULE=VALUE", help="Change one, like 'hours=mon-fri 22:00-07:00; sat,sun'"),
    ] = None,
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Let its own settings count again.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Show when WORKER works, or change it: the other rules stay, one without a value goes."""
    if set_ and clear:
        msg = "either --set or --clear"
        raise ConfigurationError(msg)
    changes = dict(_change(text) for text in set_ or [])

    async def work(client: AdminClient) -> dict[str, Any]:
        if clear:
            return await client.clear_rules(worker)
        found = await client.rules(worker)
        if not changes:
            return found
        before = found["in_force"] if found["rules"] is None else found["rules"]
        wanted = {name: value for name, value in {**before, **changes}.items() if value not in ("", [])}
        return await client.tell_rules(worker, _checked(wanted))

    found = ask(url, token, data, work)
    typer.echo(cli_show.as_json(found) if json else "\n".join(_lines(found)))


def _change(text: str) -> tuple[str, str | list[str]]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        msg = f"--set: not RULE=VALUE: {text!r}"
        raise ConfigurationError(msg)
    if name not in _LISTS:
        return name, value
    return name, [one.strip() for one in value.split(_LISTS[name]) if one.strip()]


def _checked(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return rules that were typed as text as what they are; ConfigurationError naming what is none."""
    try:
        return Rules.model_validate(wanted).said()
    except ValidationError as error:
        msg = "; ".join(f"{fault.field}: {fault.message}" for fault in faults_of(error))
        raise ConfigurationError(msg) from None


def _lines(found: dict[str, Any]) -> list[str]:
    told, follows = found["rules"], found["in_force"]
    late = " (not yet what it was told)" if told is not None and told != follows else ""
    lines = [
        f"told:    {'its own settings count' if told is None else _sentence(told)}",
        f"follows: {_sentence(follows)}{late}",
    ]
    if found["fault"]:
        lines.append(f"can't follow what it was told: {found['fault']}")
    return lines + [f"takes nothing now: {one}" for one in found["forbidden"]]


def _sentence(rules: dict[str, Any]) -> str:
    return "; ".join(words_of(rules)) or "whenever it runs"
