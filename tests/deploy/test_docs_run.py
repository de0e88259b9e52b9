"""The blocks of deploy/README.md and docs/operations.md, carried out in order, as they stand but for names and places.

`sh run` is for anywhere, `sh system` for a VPS, `sh mac` for a Mac in its clone. Tandem's own programs are real, on a
VPS of the test's own; packages, users, systemd, containers and other machines are `tests.support.fake_system`'s.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.embedded import EmbeddedPostgres
from tests.support import fake_system
from tests.support.ledger import database
from tests.support.processes import clean_environment, tandem_up
from tests.support.vps import Vps, env_file, vps

ROOT = Path(__file__).parents[2]
README = ROOT / "deploy" / "README.md"
OPERATIONS = ROOT / "docs" / "operations.md"
BLOCK = re.compile(r"^```sh (?:run|system|mac)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = Path(sys.executable).parent
BLOCK_S = 120.0


def blocks(page: Path, *sections: str) -> list[str]:
    """Return the blocks of a page's sections, in order."""
    parts = page.read_text().split("\n## ")
    found = [
        block for section in sections for part in parts if part.startswith(section) for block in BLOCK.findall(part)
    ]
    assert found, sections
    return found


class Reader:
    """Somebody who types what stands there, as root of a new VPS and as the user of a Mac."""

    def __init__(self, this: Vps, folder: Path) -> None:
        self.this = this
        self.root = folder / "root"
        self.clone = folder / "clone"
        self.home = folder / "home"
        self.line = "LINE"
        self.places = {"/var/lib/tandem": str(this.folder), "vps.example.org": "localhost"}
        self.places |= {place: str(self.root) + place for place in ("/opt/tandem", "/etc/", "/usr/local/bin/")}
        for name in ("opt", "etc/systemd/system", "etc/caddy", "usr/local/bin"):
            (self.root / name).mkdir(parents=True)
        for path in (self.clone, self.home):
            path.mkdir()
        for name in ("deploy", "pyproject.toml"):
            (self.clone / name).symlink_to(ROOT / name)
        self.fakes = folder / "fakes"
        self.fakes.mkdir()
        self.path = f"{fake_system.install(self.fakes, self.places)}:{PROGRAMS}"

    def type(self, block: str) -> str:
        """Run a block; return all that it printed. It must succeed, line by line."""
        url = f"http://127.0.0.1:{self.this.http_port}"
        doctor = {"TANDEM_PUBLIC_URL": "", "TANDEM_NATS_PUBLIC_URL": "tls://localhost"}  # no Caddy runs here
        changes = self.places | {
            "'LINE'": f"'{self.line}' --executor sketch --set time_server= --yes",
            "set +a": f"set +a; export TANDEM_URL={url}",
        }
        text = fake_system.here(block, changes)
        admin = env_file(self.this.folder / "admin.env")
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            env=clean_environment()
            | {"PATH": self.path, "HOME": str(self.home), "COLUMNS": "200", "REPOSITORY": "tandem"}
            | {"TANDEM_TOKEN": admin["TANDEM_TOKEN"], "TANDEM_URL": url, "TANDEM_POSTGRES": self.this.dsn}
            | (doctor if "tandem doctor" in block else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=BLOCK_S,
            cwd=self.clone,
        )
        said = done.stdout.decode()
        assert done.returncode == 0, f"{text}\n{said}"
        for line in said.splitlines():
            if line.startswith("tandem-agent join '") and self.line == "LINE":
                self.line = line.split("'")[1]
        return said

    @property
    def called(self) -> list[str]:
        return fake_system.calls(self.fakes)


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    """Whoever is in this list leaves no agent behind."""
    found: list[Reader] = []
    yield found
    for reader in found:
        if (reader.home / ".config" / "systemd").exists():
            reader.type("tandem-agent uninstall")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder outside pytest's own, which nobody but root may enter: root's Postgres runs as somebody else."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(600)  # some thirty programs, each of which takes seconds to start on a busy machine
async def test_the_fifteen_minutes_of_the_readme(tmp_path: Path, ledger_dsn: str, readers: list[Reader]) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        await this.nats()
        await this.coordinator(TANDEM_PUBLIC_URL=f"http://127.0.0.1:{this.http_port}")
        reader = Reader(this, tmp_path)
        readers.append(reader)
        said = "\n".join(reader.type(block) for block in blocks(README, "1.", "2.", "3.", "In containers"))
        assert "is there" in said  # what `vps` had made by the same command
        assert said.count("ok     coordinator: ") == 4  # by the doctors of VPS, Mac, service and container
        assert said.count("ok     both versions: ") == 2  # by those of Mac and service
        assert len(re.findall(r"^tandem-agent join '", said, re.MULTILINE)) == 3  # on the VPS, and in its container
        assert "joined" in said
        assert re.search(r"completed .*mini|mini.*completed", said.replace("\n", " "))
        for unit in this.folder.glob("systemd/*"):
            copied = reader.root / "etc/systemd/system" / unit.name
            assert (copied.read_text(), copied.stat().st_mode & 0o777) == (unit.read_text(), 0o644)
        (packages,) = [call.split()[3:] for call in reader.called if call.startswith("apt-get install")]
        asked = {call.split()[0] for call in reader.called} - {"apt-get", "systemctl", "docker", "useradd", "install"}
        brings = {name: "python3-venv" for name in asked if name.startswith(("python3", "pip"))}
        brings |= {"sudo": "sudo", "git": "git"}
        brings |= {"createuser": "postgresql", "createdb": "postgresql"}
        assert {brings[program] for program in asked} <= set(packages)  # a minimal Debian has none of them


@pytest.mark.timeout(600)
async def test_what_operations_does_to_a_vps(
    tmp_path: Path, postgres_server: EmbeddedPostgres, readers: list[Reader], open_folder: Path
) -> None:
    async with database(postgres_server, "template0") as dsn, vps(tmp_path, dsn) as this:
        reader = Reader(this, tmp_path)
        readers.append(reader)
        (reader.clone / "data").symlink_to(open_folder / "data")
        async with tandem_up(open_folder / "data"):
            for block in blocks(OPERATIONS, "Install"):
                reader.type(block)
        await this.nats()
        await this.coordinator(TANDEM_PUBLIC_URL=f"http://127.0.0.1:{this.http_port}")
        reader.type("tandem workers invite mini")
        reader.type("python3 -m venv /opt/tandem; git clone it /opt/tandem/src; python3 -m venv ~/.tandem")
        reader.type("tandem-agent join 'LINE'; tandem-agent install; cp /var/lib/tandem/systemd/* /etc/systemd/system")
        said = [reader.type(block) for block in blocks(OPERATIONS, "Upgrade") for _ in range(2)]  # a second one, too
        assert "ok     coordinator: " in "\n".join(said)
        assert len(list((this.folder / "backups").glob("tandem-2*.tar"))) == 2
        assert "systemctl daemon-reload" in reader.called
        before = (this.folder / "tls" / "nats.crt").read_bytes()
        for block in blocks(OPERATIONS, "Certificates", "Dependencies"):
            reader.type(block)
        assert (this.folder / "tls" / "nats.crt").read_bytes() != before
        reader.places["/var/lib/tandem"] = str(tmp_path / "second")
        for block in blocks(OPERATIONS, "Grow"):
            reader.type(block)
        assert "User=" in (tmp_path / "second" / "systemd" / "tandem-nats.service").read_text()
