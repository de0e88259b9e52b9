"""Why would this coordinator not work? Each check says what it found, and what to do about a fault.

Settings, Postgres, NATS (`doctor_nats.py`), clocks, disk, the artifact store, and the HTTP side as others reach it.
Nothing that a running coordinator could notice is changed: a file of 32 bytes is put into the artifact store and
removed. Called by `cli_doctor.py`.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from coordinator.artifact_stores import store_of
from coordinator.artifacts import NoRoomError
from coordinator.doctor_findings import Finding
from coordinator.doctor_nats import examine_nats
from coordinator.ledger.database import fetch, open_pool
from coordinator.ledger.migrate import missing_revisions, revision_of
from coordinator.settings import CoordinatorSettings
from shared.errors import ConfigurationError, LedgerDownError, TandemError

__all__ = ["Finding", "examine"]

_STEP_S: Final = 5.0
_SKEW_S: Final = 2.0
_LEAST_FREE_BYTES: Final = 2 * 1024**3
_OTHERS: Final = 0o077
_START: Final = (
    "start it: systemctl start tandem-coordinator, or `tandem coordinator --config FILE`; its log says why not"
)


async def examine(settings: CoordinatorSettings, config: Path | None) -> list[Finding]:
    """Run every check; `config`: the file that the settings were read from."""
    found = _files(settings, config)
    if not all(finding.ok for finding in found):
        return found  # as somebody else this would leave files that the coordinator can't use
    ledger, ledger_now = await _postgres(settings)
    nats, nats_now = await examine_nats(settings)
    found += [*_addresses(settings), ledger, *nats, await _clock({"Postgres": ledger_now, "NATS": nats_now})]
    found += [*_disk(settings), await _store(settings), *await _http(settings)]
    return found


# ---- settings


def _files(settings: CoordinatorSettings, config: Path | None) -> list[Finding]:
    """Say whose settings these are, and whether others can read what is secret in them."""
    if config is None:
        return [Finding("settings", True, "from the environment")]
    found = config.stat()
    if found.st_uid != os.geteuid():
        todo = f"run it as the one who runs the coordinator: sudo -u '#{found.st_uid}' tandem doctor --config {config}"
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


def _addresses(settings: CoordinatorSettings) -> list[Finding]:
    """Say what would cross a network in the clear."""
    found = []
    url = urlsplit(settings.public_url or f"http://{settings.http}")
    if url.scheme != "https" and not _is_here(url.hostname):
        todo = "put Caddy before it, and set public_url to https://HOST"
        found.append(Finding("public_url", False, f"{url.geturl()} is not https: tokens cross the network", todo))
    for one in (settings.nats_public_url or settings.nats).split(","):
        parts = urlsplit(one.strip())
        if parts.scheme not in ("tls", "wss") and not _is_here(parts.hostname):
            todo = "give NATS a certificate (tandem init makes one), and write tls:// or wss://"
            found.append(Finding("nats_public_url", False, f"{one} is not encrypted: jobs cross the network", todo))
    return found or [Finding("addresses", True, "nothing crosses a network in the clear")]


def _is_here(host: str | None) -> bool:
    return host in ("localhost", "127.0.0.1", "::1")


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
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        space = os.statvfs(there)
        free = space.f_bavail * space.f_frsize
        todo = "make room: a full disk stops everything; docs/operations.md says what can go (retention)"
        finding = Finding("disk", free >= _LEAST_FREE_BYTES, f"{there}: {free / 1024**3:.1f} GiB free", todo)
        found.setdefault(there.stat().st_dev, finding)
    return list(found.values())


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
    host, _, port = settings.http.rpartition(":")
    near = f"http://{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{port}"  # noqa: S104 - a comparison
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_STEP_S)) as session:
        said, answer = await _get(session, f"{near}/readyz")
        if answer is None:
            return [Finding("coordinator", False, f"{near}: {said}", _START)]
        reasons = "; ".join(answer.get("reasons", ())) or said
        found = [Finding("coordinator", said == "200", f"{near}: {'ready' if said == '200' else reasons}", _LOOK)]
        if settings.public_url is not None:
            said, answer = await _get(session, f"{settings.public_url}/healthz")
            ok = answer is not None and said == "200"
            found.append(Finding("public_url", ok, f"{settings.public_url}: {'answers' if ok else said}", _PUBLIC))
    return found


_LOOK: Final = "the reasons name what is away; journalctl -u tandem-coordinator has more"
_PUBLIC: Final = "is the name's address this machine, are 80 and 443 open, does Caddy run? journalctl -u caddy"


async def _get(session: aiohttp.ClientSession, url: str) -> tuple[str, dict[str, Any] | None]:
    """Return status and JSON body; or what went wrong, and None."""
    try:
        async with session.get(url, allow_redirects=False) as answer:
            body = await answer.json(content_type=None)
            return str(answer.status), body if isinstance(body, dict) else {}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return str(error) or type(error).__name__, None
