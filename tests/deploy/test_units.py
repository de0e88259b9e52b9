"""The units, Caddyfile and compose file: read by the programs they are for, where these are here, and by us."""

import json
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.init import Answers, Programs, initialise
from tests.support.vps import CADDY, unit_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSED = 25
"""Of systemd's 100 (its own units are between 20 and 96)."""

HARDENED = {
    "User": r"tandem", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ReadWritePaths": "/var/lib/tandem",
    "ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes", "CapabilityBoundingSet": "", "UMask": "0077",
    "MemoryMax": r"\d+[MG]", "TasksMax": r"\d+", "RestrictSUIDSGID": "yes",
    "RestrictNamespaces": "yes", "LockPersonality": "yes", "ProtectKernelModules": "yes",
    "SystemCallArchitectures": "native",
}  # fmt: skip


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_hardened_and_comes_back(path: Path) -> None:
    service = unit_of(path)["Service"]
    if service.get("Type") == "oneshot":
        assert path.with_suffix(".timer").exists()
    else:
        assert service["Restart"] == "always"
        assert unit_of(path)["Install"]["WantedBy"] == "multi-user.target"
    assert {n: service.get(n) for n, wanted in HARDENED.items() if not re.fullmatch(wanted, service.get(n, "-"))} == {}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_has_no_secret_in_its_command(path: Path) -> None:
    words = shlex.split(unit_of(path)["Service"]["ExecStart"])
    assert not [word for word in words if re.search("seed|token|password|postgres", word)]
    assert "Environment" not in unit_of(path)["Service"]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Units as init writes them, whose programs exist."""
    programs = Programs(tandem=Path("/bin/true"), nats_server=Path("/bin/true"))
    initialise(tmp_path / "t", Answers(host="vps.example.org", user="root"), programs)
    return tmp_path / "t"


def test_init_fills_in_every_place(written: Path) -> None:
    for path in (*(written / "systemd").iterdir(), written / "nats-server.conf", written / "Caddyfile"):
        assert not re.search(r"/var/lib/tandem|/opt/tandem|vps\.example\b(?!\.org)|User=tandem", path.read_text())
    assert "vps.example.org {" in (written / "Caddyfile").read_text()


def test_a_folder_in_a_home_can_be_read_and_written_by_its_unit(tmp_path: Path) -> None:
    programs = Programs(tandem=Path("/home/me/bin/tandem"), nats_server=Path("/usr/bin/nats-server"))
    initialise(tmp_path / "t", Answers(host="vps.example.org", user="me"), programs)
    for path in (tmp_path / "t" / "systemd").glob("*.service"):
        assert unit_of(path)["Service"]["ProtectHome"] == "read-only"


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong(written: Path) -> None:
    assert ANALYZE is not None
    said = subprocess.run(
        [ANALYZE, "verify", *map(str, (written / "systemd").iterdir())], capture_output=True, check=False, timeout=60
    )
    assert (said.returncode, said.stderr.decode()) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
def test_systemd_finds_them_little_exposed(written: Path) -> None:
    assert ANALYZE is not None
    for path in (written / "systemd").glob("*.service"):
        said = subprocess.run(
            [ANALYZE, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(path)],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert said.returncode == 0, said.stdout.decode()


@pytest.mark.skipif(CADDY is None, reason="needs caddy (.ci/packages installs it)")
def test_caddy_reads_the_caddyfile_and_hides_nothing_of_us(written: Path, tmp_path: Path) -> None:
    assert CADDY is not None
    for path in (written / "Caddyfile", DEPLOY / "Caddyfile"):
        said = subprocess.run(
            [CADDY, "adapt", "--adapter", "caddyfile", "--config", str(path)],
            capture_output=True,
            check=False,
            timeout=60,
            env={"HOME": str(tmp_path), "TANDEM_HOST": "vps.example.org"},
        )
        assert said.returncode == 0, said.stderr.decode()
        ways = set(re.findall(r'"dial":"([^"]+)"', said.stdout.decode()))
        assert ways == {"127.0.0.1:4223", "127.0.0.1:8420"}
        assert json.loads(said.stdout)["apps"]["http"]["servers"]["srv0"]["listen"] == [":443"]


# ---- compose.yaml


@pytest.fixture
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_no_container_lends_its_network_or_processes(compose: dict[str, Any]) -> None:
    """When it restarts, or Docker does, whoever had joined it is left dead, or in a network that nobody else is in."""
    services = compose["services"]
    assert {name: service.get("network_mode") for name, service in services.items()} == {
        "init": None, "nats": "host", "coordinator": "host", "backup": "none", "postgres": "none", "caddy": "host",
    }  # fmt: skip
    assert {name for name, service in services.items() if service.get("pid") == "host"} == {"nats", "coordinator"}


def test_one_service_alone_builds_the_image(compose: dict[str, Any]) -> None:
    """Of several that build one image at once, all but the first fail in Docker's containerd image store."""
    assert [name for name, service in compose["services"].items() if "build" in service] == ["coordinator"]
    users = {name for name, service in compose["services"].items() if service["image"] == "tandem"}
    assert users == {"init", "nats", "coordinator", "backup"}
    assert {compose["services"][name]["pull_policy"] for name in users} == {"never"}


def test_only_who_needs_the_ledger_reaches_the_socket_that_lets_everybody_in(compose: dict[str, Any]) -> None:
    sharers = [
        name for name, service in compose["services"].items() if "postgres-socket" in str(service.get("volumes"))
    ]
    assert sharers == ["coordinator", "backup", "postgres"]
    assert compose["services"]["postgres"]["network_mode"] == "none"


def test_the_backups_of_containers_are_those_of_the_units(compose: dict[str, Any], tmp_path: Path) -> None:
    """The loop is run by a shell, with programs that say what they were asked, for one night."""
    unit = unit_of(DEPLOY / "systemd" / "tandem-backup.service")["Service"]
    words = [word.replace("$$", "$") for word in compose["services"]["backup"]["command"]]
    assert f"cd {unit['WorkingDirectory']} && " in words[-1]
    words[-1] = words[-1].replace(unit["WorkingDirectory"], str(tmp_path))
    for name in ("sleep", "tandem", "find"):
        program = tmp_path / name
        ends = "test ! -e slept; e=$?; touch slept; exit $e" if name == "sleep" else "exit 1"
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$(basename "$0") $*" >> said\n{ends}\n')
        program.chmod(0o755)
    subprocess.run(words, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False, timeout=20)
    slept, *said, _ = (tmp_path / "said").read_text().splitlines()
    asked = [unit[name].rpartition("bin/")[2] for name in ("ExecStart", "ExecStartPost")]
    assert said == [asked[0], asked[1].replace(unit["WorkingDirectory"], ".")]
    at = time.gmtime(time.time() + int(slept.removeprefix("sleep ")))
    minutes = at.tm_hour * 60 + at.tm_min
    assert abs(minutes - (3 * 60 + 30)) <= 1  # as in tandem-backup.timer


def test_containers_are_limited(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert "mem_limit" in service, name
        assert service["restart"] == ("no" if name == "init" else "unless-stopped")
        if name != "postgres":  # whose entry point changes owner and user by itself
            assert service["cap_drop"] == ["ALL"], name


def test_containers_run_what_the_units_run(compose: dict[str, Any]) -> None:
    for service, unit in (("nats", "tandem-nats"), ("coordinator", "tandem-coordinator")):
        words = unit_of(DEPLOY / "systemd" / f"{unit}.service")["Service"]["ExecStart"]
        assert compose["services"][service]["command"] == words.replace("/opt/tandem/bin/", "")
    assert compose["services"]["coordinator"]["pid"] == compose["services"]["nats"]["pid"]  # nats_reload signals across


def test_the_image_has_all_that_the_package_is_made_of(compose: dict[str, Any]) -> None:
    recipe = compose["services"]["coordinator"]["build"]["dockerfile_inline"]
    assert compose["services"]["coordinator"]["build"]["context"] == ".."
    copied = {name for line in re.findall(r"^COPY (.*)$", recipe, re.MULTILINE) for name in line.split()[:-1]}
    assert copied == {"pyproject.toml", "README.md", "nats.conf", "agent", "coordinator", "deploy", "shared"}
    assert all((ROOT / name).exists() for name in copied)
    assert "USER tandem" in recipe
