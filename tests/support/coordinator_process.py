"""`tandem coordinator` as a process of its own, beside servers that the test owns."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from tests.support.processes import TANDEM, clean_environment
from tests.support.servers import TandemServers, eventually

PATIENCE_S = 60.0


class CoordinatorProcess:
    """One coordinator; its log is JSON lines in a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has logged so far; a line that is no JSON stands under `raw`."""
        return json_lines(self.log)

    @property
    def url(self) -> str:
        """Return where its HTTP side listens; empty until it does."""
        return next((str(line["http"]) for line in self.lines() if line.get("event") == "coordinator serves"), "")

    async def serves(self) -> None:
        """Return once it listens."""
        await eventually(lambda: self.url or self.process.returncode is not None, within_s=PATIENCE_S)
        assert self.url, self.log.read_text()

    async def kill(self) -> None:
        """End it as a power cut does."""
        self.process.kill()
        await self.process.wait()


def json_lines(log: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log."""
    return [_parsed(line) for line in log.read_bytes().split(b"\n")[:-1]]


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {"raw": line.decode(errors="replace")}
    return parsed


@asynccontextmanager
async def coordinator_process(
    servers: TandemServers, dsn: str, folder: Path, **environment: str
) -> AsyncIterator[CoordinatorProcess]:
    """Run one on these servers until the block is left; it serves when the block begins."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    identities, log = servers.nats.identities, folder / "coordinator.log"
    settings = {
        "TANDEM_POSTGRES": dsn,
        "TANDEM_NATS": servers.nats.url,
        "TANDEM_NATS_SEED": identities.coordinator,
        "TANDEM_NATS_PROVISIONER_SEED": identities.provisioner,
        "TANDEM_HTTP": "127.0.0.1:0",
        "TANDEM_ARTIFACTS": str(folder / "artifacts"),
        "TANDEM_SECRETS": str(folder / "secrets"),
        "TANDEM_SOURCES": '["local"]',
        "TANDEM_JSON_LOG": "true",
        **environment,
    }
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *TANDEM,
            "coordinator",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=clean_environment() | settings,
        )
    made = CoordinatorProcess(process, log)
    try:
        await made.serves()
        yield made
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await process.wait()
            except TimeoutError:
                await made.kill()
