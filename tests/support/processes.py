"""`tandem` as its users run it: as a process, with a folder, stopped by signals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.servers import eventually

TANDEM = (sys.executable, "-c", "from coordinator.cli import main; main()")
PATIENCE_S = 60.0


class UpProcess:
    """A `tandem up` on one folder, any ports."""

    def __init__(self, data: Path, *flags: str, **environment: str) -> None:
        self.data = data
        self.environment = clean_environment() | environment
        data.parent.mkdir(parents=True, exist_ok=True)
        (data / "connection.json").unlink(missing_ok=True)  # a killed one's: `ready` waits for the new one's
        self.log = data.parent / f"{data.name}.up.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*TANDEM, "up", "--data", str(data), "--http", "127.0.0.1:0", "--nats", "127.0.0.1:0", *flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def connection(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "connection.json").read_text())
        return found

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    async def ready(self) -> None:
        path = self.data / "connection.json"
        await eventually(lambda: path.exists() or self.process.poll() is not None, within_s=PATIENCE_S)
        assert path.exists(), self.log.read_text()

    async def ended(self) -> int:
        await eventually(lambda: self.process.poll() is not None, within_s=PATIENCE_S)
        return self.process.returncode

    async def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return await self.ended()


@asynccontextmanager
async def tandem_up(data: Path, *flags: str, **environment: str) -> AsyncIterator[UpProcess]:
    """Run one, ready; whatever the test did to it, nothing of it is left afterwards."""
    up = UpProcess(data, *flags, **environment)
    try:
        await up.ready()
        yield up
    finally:
        if up.process.poll() is None:
            await up.stop()
        end_orphans(data)


def end_orphans(data: Path) -> None:
    """End what a killed one left running: the very processes that it recorded."""
    for record in (*data.glob("*.pid"), *data.glob("agents/*.pid")):
        known = json.loads(record.read_text())
        try:
            process = psutil.Process(known["pid"])
            if abs(process.create_time() - known["birth"]) < 1.0:
                process.kill()
                process.wait(10)
        except psutil.NoSuchProcess:
            continue


async def tandem(*arguments: str, stdin: str = "", cwd: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """Run a command to its end; return exit status, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *TANDEM,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment() | environment,
        cwd=cwd,
    )
    async with asyncio.timeout(PATIENCE_S):
        out, error = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


def clean_environment() -> dict[str, str]:
    """Return ours without Tandem's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
