"""`tandem-agent join LINE`: this Mac becomes a worker. Stores its seed, the server's address and CA, and its settings.

    ~/.config/tandem-agent/agent.toml      settings; what stood there stays, but for what the line decides
    ~/.config/tandem-agent/mini.seed       the nkey seed (0600): made here, sent nowhere
    ~/.config/tandem-agent/ca.pem          certificates to trust, if the server has its own

The key is made first and kept beside (`mini.seed.new`); it gets its name last, when all else is written. So after a
lost answer, a full disk or a crash the same line can be repeated: it works once, but for this key again.

Called by `cli`.
"""

import asyncio
import json
import os
import re
import shlex
import ssl
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import orjson
import typer

from agent.executors.base import Backed, Executor, Proposing
from agent.executors.http import NOT_YET
from agent.executors.registry import Registry, load_executors
from agent.host import Clock
from agent.launchd import Launchd
from agent.machine import read_machine
from agent.settings import load_settings
from agent.systemd_user import SystemdUser
from shared import log
from shared.addresses import http_in_the_clear, nats_in_the_clear
from shared.errors import ConfigurationError, TandemError, UnreachableError
from shared.joining import JoinLine, invitation_id, invitation_key, is_sealed, parse_line, seal
from shared.nkey import new_seed, public_key
from shared.private_file import create_private, replace_private, sync_folder
from shared.rules import Rule

FOLDER: Final = Path("~/.config/tandem-agent")
JOINED: Final = FOLDER / "agent.toml"
"""The settings that `tandem-agent join` writes."""
_CA: Final = "ca.pem"
_ANSWER_S: Final = 20.0
_FIND_S: Final = 3.0
_OTHERS_MAY_WRITE: Final = 0o022
_BACKENDS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("ollama", {}, "Ollama"),
    ("openai", {"url": "http://127.0.0.1:1234"}, "LM Studio"),
    ("openai", {"url": "http://127.0.0.1:8080"}, "llama.cpp or mlx_lm"),
    ("comfyui", {"workflows": True}, "ComfyUI"),
    ("comfyui", {"url": "http://127.0.0.1:8000", "workflows": True}, "ComfyUI Desktop"),
)
"""What is looked for: executor, its settings, its name for people. The first of an executor counts."""
_USED: Final = "no_invitation"
"""The code of a coordinator that knows no such line any more, or only with another key."""
_ASIDE: Final = re.compile(r" ssl:(<[^>]*>|\w+)")
"""What aiohttp puts into its errors of the object that holds the certificates."""


class RefusedError(TandemError):
    """The coordinator says no; `code` says why, empty if it was not a coordinator's word."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the coordinator says to one who joined."""

    nats: str
    ca: str  # PEM; empty = none of its own


def join(
    line: Annotated[str, typer.Argument(metavar="LINE", help="As `tandem workers invite` printed it; - reads it.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where settings and seed are kept.")] = FOLDER,
    executor: Annotated[
        list[str] | None, typer.Option("--executor", help="Use this one (repeatable); without: what is found.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting as in the file: rank=1 (repeatable).")
    ] = None,
    hours: Annotated[
        list[str] | None, typer.Option("--hours", help="When it works: 'mon-fri 22:00-07:00' (repeatable).")
    ] = None,
    battery_above: Annotated[
        int | None, typer.Option("--battery-above", min=0, max=99, help="On battery only above so many per cent.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option("--ca-file", help="To trust for the line's address (PEM).")] = None,
    *,
    on_mains: Annotated[bool, typer.Option("--on-mains", help="Not on battery.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> None:
    """Make this machine a worker: its key, and its settings after asking (or by flags)."""
    log.configure(json=False, level="error")
    asks = not yes and line != "-" and sys.stdin.isatty()
    try:
        told = parse_line(sys.stdin.readline() if line == "-" else line)
        given = _given(set_ or [])
        _merge(given, _rules(hours, battery_above, on_mains=on_mains))
        written = _join(told, folder.expanduser().absolute(), executor or [], given, ca_file, asks=asks)
    except (ConfigurationError, ValueError) as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(2) from None
    except UnreachableError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(3) from None
    except TandemError as error:
        typer.echo(f"tandem-agent: {error}", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"tandem-agent: {error}; the same line works again once that is mended", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"joined; settings are in {written}\n{_next(written)}")


def _join(
    line: JoinLine,
    folder: Path,
    executors: Sequence[str],
    given: Mapping[str, Any],
    ca_file: Path | None,
    *,
    asks: bool,
) -> Path:
    """Join, and return where the settings are. Whatever can be wrong here is looked at before the line is used."""
    if clear := http_in_the_clear(line.url):
        msg = f"{clear} is not encrypted: have public_url there set to https://HOST, and be invited again"
        raise ConfigurationError(msg)
    _own(folder)
    path, seed_path = folder / JOINED.name, folder / f"{line.worker}.seed"
    table = _table_of(path)
    table.pop("nats", None)
    _merge(table, given)
    table |= {"worker": line.worker, "seed_file": str(seed_path)}
    table["executors"] = _executors(table.get("executors", {}), executors, asks=asks)
    if asks and "rules" not in table:
        _merge(table, _asked_rules())
    load_executors(load_settings(None, table, environment=False).executors)
    to_toml(table).encode()
    new_seed_path = seed_path.with_suffix(".seed.new")
    create_private(new_seed_path, f"{new_seed()}\n".encode())
    welcome, accepted = _welcomed(line, new_seed_path, seed_path, _tls(ca_file))
    table["nats"] = welcome.nats
    trusted = "\n".join(pem.strip() for pem in (welcome.ca, ca_file.read_text() if ca_file else "") if pem.strip())
    if clear := nats_in_the_clear(welcome.nats, has_ca=bool(trusted)):
        msg = f"the coordinator names {clear}, not encrypted: have nats_public_url set there, and be invited anew"
        raise ConfigurationError(msg)
    if trusted:
        replace_private(folder / _CA, f"{trusted}\n".encode())
        table["ca_file"] = str(folder / _CA)
    settings = to_toml(table).encode()
    if path.exists() and path.read_bytes() != settings:
        replace_private(path.with_suffix(".toml.before"), path.read_bytes())
    replace_private(path, settings)
    accepted.replace(seed_path)
    new_seed_path.unlink(missing_ok=True)
    sync_folder(folder)
    return path


def _next(written: Path) -> str:
    """Say what to do now: a service that is there already reads changed settings when it is restarted."""
    if written != JOINED.expanduser():
        flag = f" --config {shlex.quote(str(written))}"
        return f"next: tandem-agent doctor{flag}\nthen: tandem-agent install{flag}"
    is_service = any(service.file.exists() for service in (Launchd(), SystemdUser()))
    return f"next: tandem-agent doctor\nthen: tandem-agent {'restart' if is_service else 'install'}"


def _own(folder: Path) -> None:
    """Make the folder, or make sure that nobody else can put files there; ConfigurationError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        msg = f"{folder}: {error.strerror}"
        raise ConfigurationError(msg) from None
    if found.st_uid != os.getuid():
        msg = f"{folder} belongs to user {found.st_uid}, this process runs as {os.getuid()}"
        raise ConfigurationError(msg)
    if found.st_mode & _OTHERS_MAY_WRITE:
        msg = f"others may write in {folder} (mode {found.st_mode & 0o777:o}); run: chmod 700 {folder}"
        raise ConfigurationError(msg)


def _table_of(path: Path) -> dict[str, Any]:
    """Return the settings that stand there; ConfigurationError if they can't be read."""
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"settings file {path}: {error}"
        raise ConfigurationError(msg) from None


def _given(pairs: Sequence[str]) -> dict[str, Any]:
    """Read settings as a TOML file has them, one a line; what is no TOML value is text."""
    table: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            msg = f"--set: not NAME=VALUE: {pair!r}"
            raise ConfigurationError(msg)
        try:
            one = tomllib.loads(f"{name} = {value}")
        except tomllib.TOMLDecodeError:
            try:
                one = tomllib.loads(f"{name} = {_text(value)}")
            except tomllib.TOMLDecodeError as error:
                msg = f"--set {pair!r}: {error}"
                raise ConfigurationError(msg) from None
        _merge(table, one)
    return table


def _merge(table: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(table.get(name), dict):
            _merge(table[name], value)
        else:
            table[name] = value


def _executors(known: Mapping[str, Any], named: Sequence[str], *, asks: bool) -> dict[str, Any]:
    """Return the tables of executors: those that are named or stand there already, else those that are found."""
    if named:
        unknown = {name for name in named if name not in known}
        found = asyncio.run(find_backends(unknown)) if unknown else {}
        return {name: known.get(name) or found.get(name, ({}, ""))[0] for name in named}
    if known:
        return dict(known)
    found = asyncio.run(find_backends())
    chosen = {}
    for name, (table, called) in found.items():
        if not asks or typer.confirm(f"{called} was found here. Use it?", default=True):
            chosen[name] = table
    if not chosen:
        msg = "no Ollama, LM Studio, llama.cpp or ComfyUI answers here: start one, or say which with --executor NAME"
        raise ConfigurationError(msg)
    return chosen


def _rules(hours: Sequence[str] | None, battery_above: int | None, *, on_mains: bool) -> dict[str, Any]:
    """Return the table of rules that flags ask for; without any, none."""
    rules: dict[str, Any] = {"hours": list(hours)} if hours else {}
    rules |= {"on_mains": True} if on_mains else {}
    rules |= {"battery_above": battery_above} if battery_above is not None else {}
    return {"rules": rules} if rules else {}


def _asked_rules() -> dict[str, Any]:
    """Ask a person when this machine shall work; on mains only if it has a battery."""
    hours = typer.prompt("When may it work? Like 22:00-07:00 or mon-fri 18:00-08:00; empty: always", default="")
    battery = asyncio.run(read_machine(frozenset({Rule.ON_MAINS}))).battery
    on_mains = battery is not None and typer.confirm("Only on mains, never on battery?", default=True)
    return _rules([hours] if hours.strip() else None, None, on_mains=on_mains)


async def find_backends(names: Collection[str] | None = None) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the backends that answer on this machine: executor -> its settings, and its name for people.

    `names`: look for these executors only.
    """
    sought = [one for one in _BACKENDS if names is None or one[0] in names]
    if not sought:
        return {}
    plugins = [load_executors({name: {**table, "probe_s": 0}})[0] for name, table, _ in sought]
    async with Registry(plugins, Clock().now):
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIND_S):
                while any(_reason(plugin) == NOT_YET for plugin in plugins):  # noqa: ASYNC110 - none tells
                    await asyncio.sleep(0.05)
        found: dict[str, tuple[dict[str, Any], str]] = {}
        for (name, table, called), plugin in zip(sought, plugins, strict=True):
            if name not in found and not _reason(plugin):
                more = await plugin.proposal() if isinstance(plugin, Proposing) else {}
                found[name] = ({**table, **more}, called)
        return found


def _reason(plugin: Executor) -> str:
    """Return why a backend can't be used; empty if it can."""
    return str(plugin.status()["reason"] or "") if isinstance(plugin, Backed) else "no backend"


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return who must vouch for the line's address. Without a file nobody: the seal does (`shared/joining.py`)."""
    try:
        context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        msg = f"--ca-file {ca_file}: {error}"
        raise ConfigurationError(msg) from None
    if ca_file is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _welcomed(line: JoinLine, new: Path, before: Path, tls: ssl.SSLContext) -> tuple[Welcome, Path]:
    """Return the answer and the file of the key that it is for: the new one, or the one that used this line before."""
    try:
        return asyncio.run(_ask(line, public_key(new.read_text()), tls)), new
    except RefusedError as error:
        if error.code != _USED or not before.exists():
            raise
    return asyncio.run(_ask(line, public_key(before.read_text()), tls)), before


async def _ask(line: JoinLine, public: str, tls: ssl.SSLContext) -> Welcome:
    """Show the invitation; RefusedError with the coordinator's words, UnreachableError when none came."""
    key = invitation_key(line.secret)
    said = {
        "invitation": invitation_id(line.secret),
        "public_key": public,
        "seal": seal(key, "join", line.worker, public),
    }
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session,
            session.post(f"{line.url}/v1/join", json=said, ssl=tls, allow_redirects=False) as answer,
        ):
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        msg = f"can't reach {line.url}: {_ASIDE.sub('', str(error)) or type(error).__name__}"
        raise UnreachableError(msg) from None
    try:
        told = orjson.loads(body)
        if status != 200:  # noqa: PLR2004
            raise RefusedError(str(told["error"]["message"]), str(told["error"]["code"]))
        welcome = Welcome(str(told["nats"]), str(told["ca"]))
        sealed = is_sealed(key, str(told["seal"]), "welcome", line.worker, public, welcome.nats, welcome.ca)
    except (ValueError, KeyError, TypeError):
        msg = f"{line.url} does not answer as a Tandem coordinator does (HTTP {status})"
        raise RefusedError(msg) from None
    if not sealed:
        msg = f"the answer of {line.url} is not from who made this line: nothing was stored"
        raise RefusedError(msg)
    return welcome


def to_toml(table: Mapping[str, Any]) -> str:
    """Return settings as TOML: plain values first, then the tables."""
    return "".join(_lines(table, ())).lstrip("\n")


def _lines(table: Mapping[str, Any], place: tuple[str, ...]) -> list[str]:
    inner = {name: value for name, value in table.items() if isinstance(value, dict)}
    plain = [f"{_name(name)} = {_value(value)}\n" for name, value in table.items() if name not in inner]
    head = [f"\n[{'.'.join(map(_name, place))}]\n"] if place and (plain or not inner) else []
    return head + plain + [line for name, value in inner.items() for line in _lines(value, (*place, name))]


def _name(name: str) -> str:
    is_bare = name and all(char.isascii() and (char.isalnum() or char in "_-") for char in name)
    return name if is_bare else _text(name)


def _text(text: str) -> str:
    """Quote as TOML wants it: as JSON does, but without its halves of characters, and with DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    match value:
        case str():
            return _text(value)
        case bool() | int():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return "{" + ", ".join(f"{_name(name)} = {_value(one)}" for name, one in value.items()) + "}"
        case float():
            return repr(value)
        case _:  # dates and times are written as they are read
            return str(value)
