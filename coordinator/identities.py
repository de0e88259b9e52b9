"""Who may speak to NATS: makes and keeps the identities of one data folder, and writes the server's user files.

Secrets are `identities/**/*.seed` (0600 in a 0700 folder); the `.conf` files that nats.conf includes hold public keys
and rights only. Every name is checked before it becomes part of a subject. Called by `coordinator/embedded.py`, the
command line, and whoever sets up a VPS; the running server learns of a change by a reload.
"""

import base64
import binascii
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from shared.ids import NAME_PATTERN
from shared.nkey import new_seed, public_key
from shared.private_file import replace_private

_NAME = re.compile(NAME_PATTERN)
_PUBLIC = re.compile(r"U[A-Z2-7]{55}")

Group: TypeAlias = Literal["agents", "publishers"]
"""Whose identities come and go while the server runs."""

JOBS_JS_PREFIX = "$JS.API"
"""The JetStream API's prefix for the coordinator and the provisioner."""

OUTSIDE_JS_PREFIX = "JSJ.API"
"""The JetStream API's prefix for agents and publishers: what little of it is exported to them."""

_COORDINATOR_MAY_PUBLISH = (
    # what it hands out, says and answers
    "tandem.work.>", "tandem.result.>", "tandem.control.*", "tandem.event.>", "tandem.submit.*", "_R_.>",
    # deliveries that it settles
    "$JS.ACK.>",
    # what it looks at, makes (consumers only) and takes
    "$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.INFO.*.*", "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.CREATE.WORK.>", "$JS.API.CONSUMER.CREATE.SUBMIT.>", "$JS.API.CONSUMER.CREATE.REPORTS.>",
    "$JS.API.CONSUMER.CREATE.RESULTS.>", "$JS.API.CONSUMER.MSG.NEXT.SUBMIT.intake",
    "$JS.API.CONSUMER.MSG.NEXT.REPORTS.reports", "$JS.API.STREAM.MSG.GET.*", "$JS.API.STREAM.MSG.DELETE.WORK",
)  # fmt: skip
_COORDINATOR_MAY_HEAR = (
    "_INBOX.coordinator.>", "tandem.claim.*", "tandem.lease.*", "tandem.presence.*", "$JS.ACK.WORK.>", "tandem.event.>",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What differs between servers: written to `identities/server.conf`."""

    host: str  # address to listen on
    port: int  # a real one: whoever wants any free port finds it first
    store_dir: Path  # where JetStream keeps its files
    sync_interval: str = "always"  # or a duration such as 2m, the server's own default
    max_file: str = "8G"  # below the disk's size: a full disk stops everything, a full store only new work
    tls_cert: Path | None = None  # PEM; with `tls_key` every client must speak TLS
    tls_key: Path | None = None
    http: str | None = None  # monitoring on host:port; loopback only


class Identities:
    """The identities under `<folder>/identities`; made on first use, kept for ever after."""

    def __init__(self, folder: Path) -> None:
        """Open or make the folder and the identities that every installation has."""
        self.folder = folder / "identities"
        for path in (self.folder, self.folder / "agents", self.folder / "publishers"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.coordinator = self._seed(self.folder / "coordinator.seed")
        self.provisioner = self._seed(self.folder / "provisioner.seed")
        self.watcher = self._seed(self.folder / "watcher.seed")
        self._write_users()

    def add_agent(self, worker: str, public: str | None = None) -> str | None:
        """Make sure that an agent of this name may connect; return its seed, None when only its public half is known.

        A `public` takes the place of any key that it had. ValueError: not a worker's name, or not a public key. A
        running server must be reloaded afterwards.
        """
        return self._add("agents", worker, public)

    def add_publisher(self, source: str, public: str | None = None) -> str | None:
        """Make sure that a publisher of this name may connect; as `add_agent`."""
        return self._add("publishers", source, public)

    def add_witness(self, group: Group = "agents") -> str:
        """Write the users of a group with one more, who may say and hear nothing, until they are written next.

        Return its seed, which is kept nowhere: a server that lets it in has read that file since.
        """
        seed = new_seed()
        self._write_group(group, _user(public_key(seed), (), ()))
        return seed

    def remove_agent(self, worker: str) -> None:
        """Forget an agent's identity; after a reload the server drops it."""
        self._remove("agents", worker)

    def remove_publisher(self, source: str) -> None:
        """Forget a publisher's identity; as `remove_agent`."""
        self._remove("publishers", source)

    @property
    def agents(self) -> dict[str, str]:
        """Public key by worker."""
        return agents_in(self.folder.parent)

    @property
    def publishers(self) -> dict[str, str]:
        """Public key by source."""
        return publishers_in(self.folder.parent)

    def agent_seed(self, worker: str) -> str:
        """Return the seed of an agent made here; FileNotFoundError if there is none."""
        return (self.folder / "agents" / f"{_checked(worker)}.seed").read_text().strip()

    def publisher_seed(self, source: str) -> str:
        """Return the seed of a publisher made here; FileNotFoundError if there is none."""
        return (self.folder / "publishers" / f"{_checked(source)}.seed").read_text().strip()

    def secret(self, name: str) -> str:
        """Return a random password that is kept under this name."""
        path = self.folder / f"{_checked(name)}.password"
        if not path.exists():
            _write(path, secrets.token_urlsafe(24))
        return path.read_text().strip()

    def write_server(self, settings: ServerSettings) -> str:
        """Write `server.conf`; return the server's name, by which a client can tell it from any other."""
        name_path = self.folder / "server-name"
        if not name_path.exists():
            _write(name_path, f"tandem-{secrets.token_hex(4)}")
        name = name_path.read_text().strip()
        lines = [
            f"TANDEM_SERVER: {name}",
            f'TANDEM_HOST: "{_text(settings.host)}"',
            f"TANDEM_PORT: {settings.port}",
            f'TANDEM_STORE: "{_text(str(settings.store_dir))}"',
            f'TANDEM_SYNC: "{_text(settings.sync_interval)}"',
            f"TANDEM_MAX_FILE: {_text(settings.max_file)}",
        ]
        if settings.tls_cert is not None and settings.tls_key is not None:
            cert, key = _text(str(settings.tls_cert)), _text(str(settings.tls_key))
            lines.append(f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 3 }}')
        if settings.http is not None:
            lines.append(f'http: "{_text(settings.http)}"')
        _write(self.folder / "server.conf", "\n".join(lines) + "\n")
        return name

    def _add(self, group: Group, name: str, public: str | None) -> str | None:
        path = self.folder / group / f"{_checked(name)}.seed"
        if public is not None:
            if not is_public_key(public):
                msg = f"{name}: not an nkey's public half: {public[:60]!r}"
                raise ValueError(msg)
            _write(path.with_suffix(".pub"), public)
            path.unlink(missing_ok=True)
        seed = None if path.with_suffix(".pub").exists() else self._seed(path)
        self._write_users()
        return seed

    def _remove(self, group: Group, name: str) -> None:
        for suffix in (".seed", ".pub"):
            (self.folder / group / f"{_checked(name)}{suffix}").unlink(missing_ok=True)
        self._write_users()

    def _seed(self, path: Path) -> str:
        if not path.exists():
            _write(path, new_seed())
        return path.read_text().strip()

    def _write_users(self) -> None:
        """Write the four user files; each user hears and says exactly what its role needs."""
        watcher = _user(self.watcher_public, (), ("$SYS.ACCOUNT.AGENTS.DISCONNECT",))
        coordinator = _user(public_key(self.coordinator), _COORDINATOR_MAY_PUBLISH, _COORDINATOR_MAY_HEAR)
        provisioner = _user(public_key(self.provisioner), ("$JS.API.>",), ("_INBOX.provisioner.>",))
        self._write_conf("sys", [watcher])
        self._write_conf("jobs", [coordinator, provisioner])
        self._write_group("agents")
        self._write_group("publishers")

    def _write_group(self, group: Group, *more: str) -> None:
        known, rights = (self.agents, _agent) if group == "agents" else (self.publishers, _publisher)
        self._write_conf(group, [*(rights(name, key) for name, key in known.items()), *more])

    @property
    def watcher_public(self) -> str:
        """The public key of the one who hears disconnects."""
        return public_key(self.watcher)

    def _write_conf(self, name: str, users: list[str]) -> None:
        _write(self.folder / f"{name}.conf", "users: [\n" + "".join(f"  {user}\n" for user in users) + "]\n")


def agents_in(folder: Path) -> dict[str, str]:
    """Return the public key of each worker that a data folder has an identity of; writes nothing."""
    return _public_keys(folder / "identities" / "agents")


def publishers_in(folder: Path) -> dict[str, str]:
    """Return the public key of each publisher; as `agents_in`."""
    return _public_keys(folder / "identities" / "publishers")


def holders_in(folder: Path, key: str) -> set[str]:
    """Return who has this public key: `agents/mini`, `publishers/blog`, `./coordinator`; NATS refuses it for two."""
    return {
        f"{group}/{name}"
        for group in (".", "agents", "publishers")
        for name, known in _public_keys(folder / "identities" / group).items()
        if known == key
    }


def is_public_key(text: str) -> bool:
    """Say whether this is the public half of a user's nkey, its checksum included."""
    if not _PUBLIC.fullmatch(text):
        return False
    raw = base64.b32decode(text)
    return binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")


def _public_keys(group: Path) -> dict[str, str]:
    found = {path.stem: public_key(path.read_text()) for path in group.glob("*.seed")}
    found |= {path.stem: path.read_text().strip() for path in group.glob("*.pub")}
    return dict(sorted(found.items()))


def _agent(worker: str, key: str) -> str:
    publish = (
        f"{OUTSIDE_JS_PREFIX}.CONSUMER.MSG.NEXT.WORK.*", "$JS.ACK.WORK.>", f"tandem.claim.{worker}",
        f"tandem.lease.{worker}", f"tandem.presence.{worker}", f"tandem.report.{worker}.*",
    )  # fmt: skip
    return _user(key, publish, (f"_INBOX.{worker}.>", f"tandem.control.{worker}"))


def _publisher(source: str, key: str) -> str:
    publish = (
        f"tandem.submit.{source}", f"{OUTSIDE_JS_PREFIX}.CONSUMER.MSG.NEXT.RESULTS.results-{source}",
        f"$JS.ACK.RESULTS.results-{source}.>",
    )  # fmt: skip
    return _user(key, publish, (f"_INBOX.{source}.>",))


def _user(key: str, publish: tuple[str, ...], hear: tuple[str, ...]) -> str:
    """Write one user; an empty list of subjects means none at all."""
    says, hears = (f"allow: [{_quoted(subjects)}]" if subjects else 'deny: ">"' for subjects in (publish, hear))
    return f"{{ nkey: {key}, permissions: {{ publish: {{ {says} }}, subscribe: {{ {hears} }} }} }}"


def _quoted(subjects: tuple[str, ...]) -> str:
    return ", ".join(f'"{subject}"' for subject in subjects)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        msg = f"not a worker's or source's name ({NAME_PATTERN}): {name[:80]!r}"
        raise ValueError(msg)
    return name


def _text(value: str) -> str:
    if any(char in value for char in '"\n\r\\'):
        msg = f"can't stand in a configuration file: {value!r}"
        raise ValueError(msg)
    return value


def _write(path: Path, text: str) -> None:
    replace_private(path, text.encode())
