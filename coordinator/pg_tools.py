"""pg_dump and pg_restore: the wheel's or those on PATH, whichever fits the server's version.

The password goes by the environment: `ps` shows arguments.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from coordinator.cluster import binaries
from shared.errors import ConfigurationError, TandemError

LIMIT_S = 6 * 3600.0
"""A dump that takes longer hangs."""

_TOLD = 2000
_VERSION = re.compile(r"\) (\d+)")


class ToolError(TandemError):
    """pg_dump or pg_restore failed; the message has the end of what it said."""


async def dump(dsn: str, path: Path, *, server: int) -> None:
    """Write one snapshot of the database, while others go on; `server` is its major version."""
    await _run("pg_dump", server, dsn, "--format=custom", "--no-owner", "--no-privileges", f"--file={path}")


async def restore(dsn: str, path: Path, *, server: int) -> None:
    """Fill an empty database, all or nothing."""
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    await _run("pg_restore", server, dsn, *options, str(path))


async def _run(tool: str, server: int, dsn: str, *arguments: str) -> None:
    place, password = without_password(dsn)
    status, said = await _said(
        await _found(tool, server),
        "--no-password",
        f"--dbname={place}",
        *arguments,
        environment={"PGPASSWORD": password} if password else {},
    )
    if status:
        msg = f"{tool} failed: {said.strip()[-_TOLD:]}"
        raise ToolError(msg)


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


async def _found(tool: str, server: int) -> str:
    """Return the program of the server's version, else the next later one, else the latest (which will say why not)."""
    there = [path for path in (shutil.which(tool), _in_wheel(tool)) if path is not None]
    if not there:
        msg = f"{tool} is not installed: install Postgres's client programs, of version {server} or later"
        raise ConfigurationError(msg)
    by_version: dict[int, str] = {}
    for path in there:
        _, said = await _said(path, "--version", environment={})
        version = _VERSION.search(said)
        by_version.setdefault(int(version[1]) if version else 0, path)
    fitting = [version for version in by_version if version >= server]
    return by_version[min(fitting) if fitting else max(by_version)]


def _in_wheel(tool: str) -> str | None:
    try:
        return str(binaries() / tool)
    except ConfigurationError:
        return None
