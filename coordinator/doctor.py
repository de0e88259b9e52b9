"""Why would this coordinator not work? Each check says what it found, and what to do about a fault.

Settings, Postgres, NATS (`doctor_nats.py`), clocks, disk, the artifact store, backups, and the HTTP side as others
reach it.
Nothing that a running coordinator could notice is changed: a file of 32 bytes is put into the artifact store and
removed. Called by `cli_doctor.py`.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp

from coordinator.artifact_stores import store_of
from coordinator.artifacts import NoRoomError
from coordinator.doctor_nats import examine_nats
from coordinator.init import ANSWERS
from coordinator.ledger.database import fetch, open_pool
from coordinator.ledger.migrate import missing_revisions, revision_of
from coordinator.settings import CoordinatorSettings, address_of
from coordinator.up_folder import CONNECTION
from coordinator.web.access import Access, check_listen
from shared.errors import ConfigurationError, LedgerDownError, TandemError
from shared.finding import Finding

__all__ = ["Finding", "examine"]

_STEP_S: Final = 5.0
_SKEW_S: Final = 2.0
_LEAST_FREE_BYTES: Final = 2 * 1024**3
_OTHERS: Final = 0o077
_BACKUP_EVERY: Final = timedelta(days=2)  # one each night, and one may fail
_START: Final = (
    "start it: systemctl start tandem-coordinator, or `tandem coordinator --config FILE`; its log says why not"
)


async def examine(settings: CoordinatorSettings, config: Path | None, data: Path | None = None) -> list[Finding]:
    """Run every check; the settings were read from the file `config`, or are those of a `tandem up` in `data`."""
    if data is not None:
        found = _files(settings, data / CONNECTION, f"--data {data}")
    else:
        found = _files(settings, config, f"--config {config}")
    if not all(finding.ok for finding in found):
        return found  # as somebody else this would leave files that the coordinator can't use
    ledger, ledger_now = await _postgres(settings)
    nats, nats_now = await examine_nats(settings)
    found += [ledger, *nats, await _clock({"Postgres": ledger_now, "NATS": nats_now})]
    found += [*_disk(settings), await _store(settings), *_backups(settings), *await _http(settings)]
    return found


# ---- settings


def _files(settings: CoordinatorSettings, config: Path | None, flag: str) -> list[Finding]:
    """Say whose settings these are, and whether others can read what is secret in them."""
    if config is None:
        return [Finding("settings", True, "from the environment")]
    found = config.stat()
    if found.st_uid != os.geteuid():
        todo = f"run it as the one who runs the coordinator: sudo -u '#{found.st_uid}' tandem doctor {flag}"
        return [Finding("settings", False, f"{config} is of user {found.st_uid}, this is {os.geteuid()}", todo)]
    if found.st_mode & _OTHERS:
        said = f"others can read {config}, which has secrets (mode {found.st_mode & 0o777:o})"
        return [Finding("settings", False, said, f"chmod 600 {config}")]
    folder = settings.nats_identities
    if folder is not None and not (folder / "identities" / "agents.conf").is_file():
        todo = "set nats_identities to the folder that `tandem init` made"
        return [Finding("settings", False, f"nats_identities: no identities in {folder}", todo)]
    command = settings.nats_reload
    if command and shutil.which(command[0]) is None:
        return [Finding("settings", False, f"nats_reload: no program {command[0]}", "mend its path in the settings")]
    return [Finding("settings", True, f"{config}, readable by its owner only")]


# ---- Postgres


async def _postgres(settings: CoordinatorSettings) -> tuple[Finding, datetime | None]:
    """Look at the ledger's database; return its clock, too."""
    dsn = settings.postgres.get_secret_value()
    try:
        async with asyncio.timeout(3 * _STEP_S), await open_pool(dsn, max_size=1) as pool:
            database = (await fetch(pool, "doctor_database"))[0]
        revision = await revision_of(dsn)
    except (LedgerDownError, TimeoutError) as error:
        return Finding("Postgres", False, str(error) or "no answer", _postgres_cure(str(error))), None
    now: datetime = database["now"]
    missing = missing_revisions(revision)
    if missing is None:
        todo = "a newer tandem was here: install that version, or restore the backup from before it"
        return Finding("Postgres", False, f"schema {revision} is newer than this program", todo), now
    if not database["may_create"]:
        todo = f"as its owner: GRANT CREATE ON SCHEMA public TO {database['who']}"
        return Finding("Postgres", False, f"{database['who']} may not make tables", todo), now
    state = f"schema {revision}" if not missing else f"{len(missing)} migrations to come at the next start"
    return Finding("Postgres", True, f"version {database['version']}, {state}, as {database['who']}"), now


def _postgres_cure(said: str) -> str:
    text = said.lower()
    if "no such file" in text or "refused" in text:
        return "start Postgres (systemctl start postgresql), or mend host and port in `postgres`"
    if "does not exist" in text:
        return "make role and database: sudo -u postgres createuser tandem; sudo -u postgres createdb -O tandem tandem"
    if "password" in text or "authentication" in text:
        return "mend user and password in `postgres`, or the line of pg_hba.conf"
    return "look at Postgres's log, and at `postgres` in the settings"


# ---- this machine


async def _clock(others: dict[str, datetime | None]) -> Finding:
    """Hold this machine's clock against the servers', and ask systemd whether it is set by the network."""
    for name, now in others.items():
        skew_s = abs((datetime.now(UTC) - now).total_seconds()) if now else 0.0
        if skew_s > _SKEW_S:
            said = f"this machine and {name} differ by {skew_s:.1f} s"
            return Finding("clock", False, said, "have both set by the network: timedatectl set-ntp true")
    if await _ntp() == "no":
        return Finding("clock", False, "it is not set by the network", "timedatectl set-ntp true")
    compared = ", ".join(name for name, now in others.items() if now)
    return Finding("clock", True, f"agrees with {compared}" if compared else "nothing to compare it with")


async def _ntp() -> str:
    """Return what systemd says of the clock: yes, no, or nothing."""
    program = shutil.which("timedatectl")
    if program is None:
        return ""
    words = (program, "show", "--property=NTPSynchronized", "--value")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(_STEP_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return said.decode().strip()


def _disk(settings: CoordinatorSettings) -> list[Finding]:
    """Look at each file system that grows."""
    folders = [settings.secrets, *([settings.artifacts] if settings.artifacts_url is None else [])]
    folders += [path.parent for path in (settings.log_file,) if path is not None]
    folders += [settings.nats_identities] if settings.nats_identities is not None else []
    found: dict[int, Finding] = {}
    for folder in folders:
        there = _mounted_at(next(path for path in (folder, *folder.absolute().parents) if path.exists()))
        space = os.statvfs(there)
        free = space.f_bavail * space.f_frsize
        todo = "make room: a full disk stops everything; docs/operations.md says what can go (retention)"
        finding = Finding("disk", free >= _LEAST_FREE_BYTES, f"{there}: {free / 1024**3:.1f} GiB free", todo)
        found.setdefault(there.stat().st_dev, finding)
    return list(found.values())


def _mounted_at(path: Path) -> Path:
    """Return the folder where the file system begins that has a path."""
    path = path.resolve()
    device = path.stat().st_dev
    return [one for one in (path, *path.parents) if one.stat().st_dev == device][-1]


def _backups(settings: CoordinatorSettings) -> list[Finding]:
    """Look for last night's, where `tandem init` made a folder for them."""
    made = settings.nats_identities
    if made is None or not (made / ANSWERS).exists() or not (made / "backups").is_dir():
        return []
    folder = made / "backups"
    newest = max(((path.stat().st_mtime, path.name) for path in folder.glob("*.tar")), default=None)
    since = newest[0] if newest else (made / ANSWERS).stat().st_mtime
    age = datetime.now(UTC) - datetime.fromtimestamp(since, UTC)
    days = age / timedelta(days=1)
    said = f"the newest, {newest[1]}, is {days:.1f} days old" if newest else f"none in {folder} yet"
    todo = "systemctl enable --now tandem-backup.timer; why one failed: journalctl -u tandem-backup"
    return [Finding("backups", age <= _BACKUP_EVERY, said, todo)]


async def _store(settings: CoordinatorSettings) -> Finding:
    """Put a content, read it, and remove it."""
    content = secrets.token_bytes(32)
    sha256 = hashlib.sha256(content).hexdigest()
    where = settings.artifacts_url or str(settings.artifacts)
    todo = "mend the folder's owner and rights" if settings.artifacts_url is None else "mend artifacts_*; is it up?"
    store = store_of(settings)
    try:
        async with asyncio.timeout(4 * _STEP_S):
            await store.prepare()
            await store.put(_once(content), sha256=sha256, size=len(content))
            read = b"".join([part async for part in store.read(sha256)])
            await store.delete(sha256)
    except (ConfigurationError, NoRoomError, TandemError, OSError, TimeoutError) as error:
        return Finding("artifacts", False, f"{where}: {error or 'no answer'}", todo)
    finally:
        store.close()
    return Finding("artifacts", read == content, f"{where}: written, read, removed", todo)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


# ---- HTTP


async def _http(settings: CoordinatorSettings) -> list[Finding]:
    """Ask the coordinator itself, then by the address that agents and readers use."""
    host, port = address_of(settings.http)
    try:
        await asyncio.to_thread(check_listen, host, Access(), encrypted=False)
    except ConfigurationError as error:
        return [Finding("http", False, str(error), f"listen on 127.0.0.1:{port}")]
    near = f"http://{settings.http}"
    trusted = aiohttp.TCPConnector(ssl=_trusted(settings.nats_ca))
    async with aiohttp.ClientSession(connector=trusted, timeout=aiohttp.ClientTimeout(total=_STEP_S)) as session:
        said, answer = await _get(session, f"{near}/readyz")
        if answer is None:
            return [Finding("coordinator", False, f"{near}: {said}", _START)]
        reasons = "; ".join(answer.get("reasons", ())) or said
        found = [Finding("coordinator", said == "200", f"{near}: {'ready' if said == '200' else reasons}", _LOOK)]
        if settings.public_url is not None:
            said, answer = await _get(session, f"{settings.public_url}/healthz")
            ok = answer is not None and said == "200"
            todo = _PUBLIC if settings.https is None else _OURS
            found.append(Finding("public_url", ok, f"{settings.public_url}: {'answers' if ok else said}", todo))
    return found


def _trusted(authority: Path | None) -> ssl.SSLContext:
    """Return what agents go by: the system's authorities, and ours, which may have signed the HTTP side's, too."""
    tls = ssl.create_default_context()
    if authority is not None:
        with suppress(OSError, ssl.SSLError):  # NATS's checks say so
            tls.load_verify_locations(authority)
    return tls


_LOOK: Final = "the reasons name what is away; journalctl -u tandem-coordinator has more"
_OURS: Final = "is the name's address this machine, is the port of `https` open, is its certificate for that name?"
_PUBLIC: Final = "is the name's address this machine, are 80 and 443 open, does Caddy run? journalctl -u caddy"


async def _get(session: aiohttp.ClientSession, url: str) -> tuple[str, dict[str, Any] | None]:
    """Return status and JSON body; or what went wrong, and None."""
    try:
        async with session.get(url, allow_redirects=False) as answer:
            body = await answer.json(content_type=None)
            return str(answer.status), body if isinstance(body, dict) else {}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return str(error) or type(error).__name__, None
