"""The commands of docs/operations.md on workers, publishers, tokens, backups and the schema, run as they stand."""

import asyncio
import json
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.processes import UpProcess, clean_environment, tandem_up

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
SECTIONS = ("Workers: invite, rotate, revoke", "Publishers over NATS", "Tokens", "Backup and restore", "Schema")
PROGRAMS = {
    "tandem": (sys.executable, "-c", "from coordinator.cli import main; main()"),
    "tandem-agent": (sys.executable, "-c", "from agent.cli import main; main()"),
}


def commands() -> list[str]:
    """The commands of the sections, in order, without what is said beside them."""
    text = DOCS.read_text()
    found: list[str] = []
    for section in SECTIONS:
        body = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        lines = re.findall(r"^    (tandem(?:-agent)? .*)$", body, re.MULTILINE)
        assert lines, section
        found += [re.sub(r"\s+# .*", "", line).strip() for line in lines]
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def up() -> AsyncIterator[UpProcess]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    async with tandem_up(folder / "data") as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


class Reader:
    """Somebody who types what stands there, with their own names in place of the examples."""

    def __init__(self, up: UpProcess) -> None:
        self.folder = up.data.parent
        self.postgres = up.connection["postgres"]
        self.files = 0
        self.backup = ""
        for name, database in (("tandem.toml", "tandem"), ("empty.toml", "restored")):
            dsn = self.postgres.removesuffix("tandem") + database
            here = self.folder / name.removesuffix(".toml")
            (self.folder / name).write_text(
                f'postgres = "{dsn}"\nsecrets = "{here}/secrets"\nartifacts = "{here}/artifacts"\n'
            )

    async def run(self, *arguments: str, stdin: str = "") -> str:
        home = {"HOME": str(self.folder), "COLUMNS": "200"}
        process = await asyncio.create_subprocess_exec(
            *PROGRAMS[arguments[0]],
            *arguments[1:],
            cwd=self.folder,
            env=clean_environment() | ({"TANDEM_POSTGRES": self.postgres} if "migrate" in arguments else {}) | home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await process.communicate(stdin.encode())
        assert process.returncode == 0, f"{shlex.join(arguments)}: {error.decode()}"
        return out.decode()

    async def line(self) -> str:
        out = await self.run("tandem", "workers", "invite", "mini", "--replace", "--json")
        line: str = json.loads(out)["line"]
        return line

    async def read(self, command: str) -> None:
        """Run one command, its examples filled in."""
        words = shlex.split(command)
        stdin = ""
        if words[:2] == ["tandem-agent", "join"]:
            line = await self.line()
            stdin = f"{line}\n"
            words = [line if word.startswith("https://") else word for word in words]
            words += [] if "-" in words else ["--yes", "--executor", "sketch"]
        if words[:3] == ["tandem", "tokens", "revoke"]:
            words[3] = json.loads(await self.run("tandem", "tokens", "list", "--json"))[-1]["id"]
        if words[1] == "backup":
            self.files += 1
            self.backup = str(self.folder / f"{self.files}.tar")
        filled = {
            "/backups/monday.tar": self.backup,
            "NEW": str(self.folder / "new"),
            "FILE": str(self.folder / ("empty.toml" if words[1] == "restore" else "tandem.toml")),
        }
        await self.run(*(filled.get(word, word) for word in words), stdin=stdin)


@pytest.mark.timeout(600)  # some twenty programs, each of which takes seconds to start on a busy machine
async def test_every_command_does_what_it_says(up: UpProcess) -> None:
    reader = Reader(up)
    for command in commands():
        await reader.read(command)
    assert (reader.folder / "new" / "postgres" / "PG_VERSION").exists()
    assert (reader.folder / ".config" / "tandem-agent" / "agent.toml").exists()
