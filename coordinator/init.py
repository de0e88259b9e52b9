"""`tandem init`: a folder with what a VPS needs: settings, NATS's configuration and certificates, identities, units.

    DIR/init.json            what was asked for (host, ports, user); a later run needs no flags
    DIR/tandem.toml          the coordinator's settings, with its secrets
    DIR/admin.env            how an administrator's command line finds it: TANDEM_URL, TANDEM_TOKEN
    DIR/nats-server.conf     what nats-server runs: includes nats.conf and identities/
    DIR/tls/                 the certificate of NATS and the authority that signed it
    DIR/systemd/, Caddyfile  to be copied where systemd and Caddy look
    DIR/backups/             where the units put one every night

Nothing that is there is ever overwritten: secrets stay, and a file that this version would write otherwise is left,
with the other version beside it (`NAME.new`). All files are their owner's alone (0600). Called by `cli_init.py`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from coordinator.embedded import nats_conf
from coordinator.identities import Identities, ServerSettings
from coordinator.init_certificates import make_authority, make_server
from shared.errors import ConfigurationError
from shared.private_file import create_private, is_draft, replace_private, sweep_drafts

ANSWERS: Final = "init.json"
POSTGRES: Final = "postgresql://tandem@/tandem?host=/var/run/postgresql"
"""Debian's Postgres on the same machine: its socket, and the system's user for a password."""

_UNITS: Final = ("tandem-nats.service", "tandem-coordinator.service", "tandem-backup.service", "tandem-backup.timer")
_DRAFTED: Final = (".", "tls", "identities", "identities/agents", "identities/publishers", "systemd")
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PATH = re.compile(r"/[A-Za-z0-9._/@+-]*")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_HOMES: Final = ("/home/", "/root/", "/run/user/")


_Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was asked for; kept in init.json."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    host: str  # the VPS's name on the internet
    user: str  # the system's user that the services run as
    http_port: _Port = 8420  # on this machine only: Caddy stands before it
    nats_port: _Port = 4222  # to the internet, TLS
    websocket_port: _Port = 4223  # on this machine only: Caddy again


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where the programs are that the units start; absolute."""

    tandem: Path
    nats_server: Path


class Outcome(StrEnum):
    """What became of one file."""

    WRITTEN = "written"
    THERE = "is there"  # and is what would be written
    DIFFERS = "kept"  # and something else would be written now: it is in NAME.new


def initialise(folder: Path, answers: Answers, programs: Programs, postgres: str | None = None) -> dict[str, Outcome]:
    """Write what is missing; return what became of each file, by its name in the folder; of `tls/` what was made.

    `postgres`: DSN, None = `POSTGRES`. Raises ConfigurationError for a folder of something else or of another host,
    and for names that can't stand in a configuration file.
    """
    _check(folder, answers, programs)
    _claim(folder, answers)
    identities = Identities(folder)
    (folder / "tls").mkdir(mode=0o700, exist_ok=True)
    made = make_authority(folder / "tls")
    made += make_server(folder / "tls", "nats", list(dict.fromkeys((answers.host, "localhost", "127.0.0.1"))))
    if not (identities.folder / "server.conf").exists():
        identities.write_server(_server(folder, answers))
    settings = _settings(folder, answers, programs, identities, postgres or _postgres_of(folder) or POSTGRES)
    files = {
        "tandem.toml": settings,
        "admin.env": f"TANDEM_URL=https://{answers.host}\nTANDEM_TOKEN={identities.secret('admin-token')}\n",
        "nats.conf": nats_conf().read_text(),
        "nats-server.conf": _filled("nats/nats-server.conf", folder, answers, programs),
        "Caddyfile": _filled("Caddyfile", folder, answers, programs),
        **{f"systemd/{name}": _filled(f"systemd/{name}", folder, answers, programs) for name in _UNITS},
    }
    for name in ("systemd", "backups"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    certificates = {f"tls/{name}": Outcome.WRITTEN for name in made}
    return certificates | {name: _write(folder / name, text) for name, text in files.items()}


def answers_of(folder: Path) -> Answers | None:
    """Return what was asked for when the folder was made; None if it was not made by init."""
    try:
        return TypeAdapter(Answers).validate_json((folder / ANSWERS).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        told = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    except OSError as error:
        told = error.strerror or str(error)
    msg = f"{folder / ANSWERS} can't be read: {told}"
    raise ConfigurationError(msg)


def _check(folder: Path, answers: Answers, programs: Programs) -> None:
    if not is_host(answers.host):
        msg = f"--host: not a host's name in lower case, like vps.example.org: {answers.host!r}"
        raise ConfigurationError(msg)
    if not _USER.fullmatch(answers.user):
        msg = f"--user: not a user's name: {answers.user!r}"
        raise ConfigurationError(msg)
    for path in (folder, programs.tandem, programs.nats_server):
        if not _PATH.fullmatch(str(path)):
            msg = f"{path}: a path of units and configuration may have letters, digits and ._/@+- only"
            raise ConfigurationError(msg)


def is_host(name: str) -> bool:
    """Say whether this is a host's name in lower case."""
    return _HOST.fullmatch(name) is not None


def _claim(folder: Path, answers: Answers) -> None:
    """Make the folder ours, or find that it is; ConfigurationError if it is somebody else's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = answers_of(folder)
        if known is None and not all(is_draft(one) for one in folder.iterdir()):
            msg = f"{folder} is not empty, and not of `tandem init`: choose another folder"
            raise ConfigurationError(msg)
        if known is not None and known != answers:
            changed = [name for name, value in asdict(answers).items() if value != getattr(known, name)]
            told = ", ".join(f"{name} {getattr(known, name)}" for name in changed)
            msg = f"{folder} was made for {told}; nothing is overwritten: edit its files, or choose another folder"
            raise ConfigurationError(msg)
        folder.chmod(0o700)
        for name in _DRAFTED:  # by an init that was killed
            sweep_drafts(folder / name)
        create_private(folder / ANSWERS, orjson.dumps(asdict(answers), option=orjson.OPT_INDENT_2))
    except OSError as error:
        msg = f"{folder}: {error.strerror}"
        raise ConfigurationError(msg) from None


def _write(path: Path, text: str) -> Outcome:
    other = path.with_name(f"{path.name}.new")
    if not path.exists():
        create_private(path, text.encode())
        return Outcome.WRITTEN
    if path.read_text() == text:
        other.unlink(missing_ok=True)
        return Outcome.THERE
    replace_private(other, text.encode())
    return Outcome.DIFFERS


def _postgres_of(folder: Path) -> str | None:
    """Return the DSN that the settings have by now: a later run need not be told again."""
    try:
        found = re.search(r'^postgres = (".*")$', (folder / "tandem.toml").read_text(), re.MULTILINE)
        return str(json.loads(found[1])) if found else None
    except (FileNotFoundError, ValueError):
        return None


def _server(folder: Path, answers: Answers) -> ServerSettings:
    return ServerSettings(
        host="0.0.0.0",  # noqa: S104 - agents come from everywhere, with TLS and a key
        port=answers.nats_port,
        store_dir=folder / "nats",
        tls_cert=folder / "tls" / "nats.crt",
        tls_key=folder / "tls" / "nats.key",
    )


def _settings(folder: Path, answers: Answers, programs: Programs, identities: Identities, postgres: str) -> str:
    """Return tandem.toml; every name in it is one of `settings.py`."""
    parts: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("Who may connect without a password is Postgres's affair: its pg_hba.conf.", {"postgres": postgres}),
        (
            "NATS on this machine. What agents are told comes after: TLS, and wss where 4222 is blocked.",
            {
                "nats": f"tls://127.0.0.1:{answers.nats_port}",
                "nats_ca": str(folder / "tls" / "ca.crt"),
                "nats_public_url": f"tls://{answers.host}:{answers.nats_port},wss://{answers.host}/nats",
                "nats_seed": identities.coordinator,
                "nats_provisioner_seed": identities.provisioner,
                "nats_watcher_seed": identities.watcher,
                "nats_identities": str(folder),
                "nats_reload": [str(programs.nats_server), "--signal", f"reload={folder / 'nats.pid'}"],
                "replicas": 1,
            },
        ),
        (
            "HTTP on this machine only; Caddy stands before it.",
            {"http": f"127.0.0.1:{answers.http_port}", "public_url": f"https://{answers.host}"},
        ),
        (
            "What is kept.",
            {
                "artifacts": str(folder / "artifacts"),
                "secrets": str(folder / "secrets"),
                "log_file": str(folder / "logs" / "coordinator.jsonl"),
            },
        ),
    )
    text = "# The coordinator's settings, with secrets: for its owner alone. coordinator/settings.py has every name.\n"
    for comment, table in parts:
        text += f"\n# {comment}\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
    text += "\n# Settings go above this line: whatever stands below [tokens] is one of them.\n"
    return text + f'[tokens]\n"admin:admin" = {json.dumps(identities.secret("admin-token"))}\n'


def _filled(name: str, folder: Path, answers: Answers, programs: Programs) -> str:
    """Return a file of deploy/ with this folder, user, host and ports in the place of its own."""
    text = deployed(name).read_text()
    changes = {
        "/opt/tandem/bin/nats-server": str(programs.nats_server),
        "/opt/tandem/bin/tandem": str(programs.tandem),
        "/var/lib/tandem": str(folder),
        "User=tandem\n": f"User={answers.user}\n",
        "port: 4223": f"port: {answers.websocket_port}",
        "127.0.0.1:4223": f"127.0.0.1:{answers.websocket_port}",
        "127.0.0.1:8420": f"127.0.0.1:{answers.http_port}",
        "{$TANDEM_HOST:vps.example}": answers.host,
    }
    if any(f"{path}/".startswith(_HOMES) for path in (folder, programs.tandem, programs.nats_server)):
        changes["ProtectHome=yes"] = "ProtectHome=read-only"
    pattern = re.compile("|".join(re.escape(old) for old in changes))
    return pattern.sub(lambda found: changes[found[0]], text)


def deployed(name: str) -> Path:
    """Return a file of deploy/: beside this module in an installed wheel, at the top level in a checkout."""
    here = Path(__file__).parent
    return next(path for path in (here / "deploy" / name, here.parent / "deploy" / name) if path.exists())
