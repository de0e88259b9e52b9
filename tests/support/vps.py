"""A VPS as `tandem init` makes it, on free ports of this machine: what its units and its Caddyfile say is what runs.

Postgres is the session's; nats-server, the coordinator and (if it is installed) Caddy are processes of the test's own.
"""

import asyncio
import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.processes import clean_environment, tandem
from tests.support.servers import eventually

AGENT = (sys.executable, "-c", "from agent.cli import main; main()")
CADDY = shutil.which("caddy")
READY_S = 60.0


class Vps:
    """What `tandem init` wrote, and the processes that run on it."""

    def __init__(self, folder: Path, dsn: str, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.http_port, self.nats_port, self.websocket_port, self.https_port = free_ports(4)
        self.dsn = dsn
        self._stack = stack
        self.authority = folder.parent / "caddy" / "pki" / "authorities" / "local" / "root.crt"

    @property
    def url(self) -> str:
        return f"https://localhost:{self.https_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What differs from a real VPS: its ports, and that it is called localhost."""
        nats = f"tls://localhost:{self.nats_port},wss://localhost:{self.https_port}/nats"
        return {"TANDEM_PUBLIC_URL": self.url, "TANDEM_NATS_PUBLIC_URL": nats, "TANDEM_PRESENCE_S": "1"}

    @property
    def token(self) -> str:
        return env_file(self.folder / "admin.env")["TANDEM_TOKEN"]

    async def init(self, *flags: str) -> tuple[int, str, str]:
        ports = ("--http-port", self.http_port, "--nats-port", self.nats_port, "--websocket-port", self.websocket_port)
        asked = ("init", str(self.folder), "--host", "localhost", *map(str, ports), *flags)
        return await tandem(*asked, TANDEM_POSTGRES=self.dsn)

    async def start(self, unit: str, **environment: str) -> subprocess.Popen[bytes]:
        """Run what a unit starts."""
        words = shlex.split(unit_of(self.folder / "systemd" / unit)["Service"]["ExecStart"])
        return self.run(unit, words, **environment)

    def run(self, name: str, words: list[str], **environment: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environment() | environment
            )
        self._stack.callback(ended, process)
        return process

    def log(self, name: str) -> Path:
        return self.folder.parent / f"{name}.log"

    async def nats(self) -> subprocess.Popen[bytes]:
        process = await self.start("tandem-nats.service")
        await self._listens(process, self.nats_port, "tandem-nats.service")
        return process

    async def coordinator(self, **environment: str) -> subprocess.Popen[bytes]:
        process = await self.start("tandem-coordinator.service", **{**self.environment, **environment})
        await self._listens(process, self.http_port, "tandem-coordinator.service")
        return process

    async def caddy(self) -> subprocess.Popen[bytes]:
        """Run Caddy on the Caddyfile, with an authority of its own instead of the internet's, and other ports."""
        assert CADDY is not None
        storage = self.authority.parents[3]
        text = (self.folder / "Caddyfile").read_text()
        site, found = re.subn(
            r"^localhost \{", f"localhost:{self.https_port} {{\n\ttls internal", text, flags=re.MULTILINE
        )
        assert found == 1
        options = f"admin off\nskip_install_trust\nauto_https disable_redirects\nstorage file_system {storage}"
        path = self.folder.parent / "Caddyfile.test"
        path.write_text(f"{{\n{options}\n}}\n{site}")
        process = self.run("caddy", [CADDY, "run", "--adapter", "caddyfile", "--config", str(path)])
        await self._listens(process, self.https_port, "caddy")
        await eventually(self.authority.exists, within_s=READY_S)
        return process

    async def tandem(self, *words: str) -> str:
        """Run an administrator's command, as admin.env says; return what it printed."""
        status, out, error = await tandem(
            *words, TANDEM_URL=f"http://127.0.0.1:{self.http_port}", TANDEM_TOKEN=self.token
        )
        assert status == 0, error
        return out

    async def agent(self, worker: str, *flags: str) -> tuple[Path, str]:
        """Invite a worker and let it join; return its folder and what joining said."""
        line = (await self.tandem("workers", "invite", worker)).split("'")[1]
        folder = self.folder.parent / worker
        told = ("--folder", str(folder), "--executor", "sketch", "--set", f"data={folder / 'data'}", "--yes", *flags)
        process = await asyncio.create_subprocess_exec(
            *AGENT,
            "join",
            line,
            *told,
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(READY_S):
            said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return folder, said.decode()

    async def _listens(self, process: subprocess.Popen[bytes], port: int, name: str) -> None:
        def there() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0 or process.poll() is not None

        await eventually(there, within_s=READY_S)
        assert process.poll() is None, self.log(name).read_text()[-3000:]


@asynccontextmanager
async def vps(folder: Path, dsn: str) -> AsyncIterator[Vps]:
    """Make one in `folder`/tandem; whatever the test started is ended afterwards."""
    async with AsyncExitStack() as stack:
        made = Vps(folder / "tandem", dsn, stack)
        status, _, error = await made.init()
        assert status == 0, error
        yield made


def unit_of(path: Path) -> configparser.ConfigParser:
    """Read a unit; of a repeated name (SystemCallFilter=) the last one stays."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#", ";"))
    unit.optionxform = str  # type: ignore[assignment, method-assign] # names of units have capitals
    unit.read_string(path.read_text())
    return unit


def env_file(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has now; all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process that the test started, if it has not ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def private(path: Path) -> bool:
    """Whether only its owner can read a file."""
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o077
