"""The programs of a VPS that a test can't let loose: each call is a line in `calls`, and what can be done here is done.

`sudo` runs what it is given, as who runs the test; `systemctl start` of a oneshot unit runs its commands; `docker
compose` runs what compose.yaml, or the rest of its line, says; `python3 -m venv` makes a folder with Tandem's programs;
`git clone` leads to this checkout. Packages, users, databases and services are only on record. See `install`.
"""

import configparser
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support import fake_systemctl

ROOT = Path(__file__).parents[2]
TOOLS = (
    "apt-get", "createdb", "createuser", "docker", "git", "install", "pip", "python3", "python3.11", "python3.12",
    "python3.13", "python3.14", "rsync", "sudo", "systemctl", "useradd", "uv",
)  # fmt: skip
SCRIPT = """#!/bin/sh
PYTHONPATH="{root}" exec "{python}" -m tests.support.fake_system "{folder}" {tool} "$@"
"""


def install(folder: Path, places: dict[str, str]) -> str:
    """Put the programs into a folder; return PATH with them first. `places`: where a path of a VPS is here."""
    path = fake_systemctl.install(folder / "user")
    (folder / "bin").mkdir()
    (folder / "places").write_text(json.dumps(places))
    for tool in TOOLS:
        program = folder / "bin" / tool
        program.write_text(SCRIPT.format(root=ROOT, python=sys.executable, folder=folder, tool=tool))
        program.chmod(0o755)
    return f"{folder / 'bin'}:{path}"


def calls(folder: Path) -> list[str]:
    """Return what was called, a line each."""
    return (folder / "calls").read_text().splitlines()


def here(text: str, places: dict[str, str]) -> str:
    """Return a text with its places in a VPS changed to those here."""
    pattern = re.compile("|".join(re.escape(place) for place in sorted(places, key=len, reverse=True)))
    return pattern.sub(lambda found: places[found[0]], text)


def _run(words: list[str], cwd: str | None = None) -> int:
    return subprocess.run(words, check=False, cwd=cwd).returncode


def _systemctl(folder: Path, words: list[str]) -> int:
    if words[:1] == ["--user"]:
        return _run([str(folder / "user" / "bin" / "systemctl"), *words])
    if words[0] != "start":
        return 0
    places = json.loads((folder / "places").read_text())
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.read_string(Path(here(f"/etc/systemd/system/{words[1]}.service", places)).read_text())
    service = unit["Service"]
    assert service["Type"] == "oneshot", "only such a unit is started by name"
    commands = [shlex.split(service[name]) for name in ("ExecStart", "ExecStartPost") if name in service]
    return max(_run(command, service["WorkingDirectory"]) for command in commands)


def _docker(folder: Path, words: list[str]) -> int:
    match words:
        case ["compose", "exec", _, *command]:
            return _run(command)
        case ["compose", "run", "--rm", service]:
            text = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"][service]["command"]
            for name, value in (line.split("=", 1) for line in Path(".env").read_text().splitlines()):
                text = re.sub(rf"\$\{{{name}[^}}]*\}}", value, text)
            return _run(shlex.split(here(text, json.loads((folder / "places").read_text()))))
        case _:
            return 0


def _environment(folder: Path, target: Path) -> int:
    programs = target / "bin"
    programs.mkdir(parents=True)
    (programs / "pip").symlink_to(folder / "bin" / "pip")
    for name in ("tandem", "tandem-agent", "nats-server"):
        (programs / name).symlink_to(Path(sys.executable).parent / name)
    return 0


def _pip(words: list[str]) -> int:
    """Refuse what pip would, of what can be known without installing."""
    files = [Path(after) for word, after in itertools.pairwise(words) if word == "-r"]
    source = [] if files else [Path(words[-1]) / "pyproject.toml"]
    return 0 if all(path.is_file() for path in [*files, *source]) else 1


def _main() -> int:
    folder, tool, *words = Path(sys.argv[1]), *sys.argv[2:]
    with (folder / "calls").open("a") as log:
        log.write(f"{shlex.join([tool, *words])}\n")
    match tool, words:
        case "sudo", ["-u", _, *command]:
            return _run(command)
        case "systemctl", _:
            return _systemctl(folder, words)
        case "docker", _:
            return _docker(folder, words)
        case _, ["-m", "venv", target]:
            return _environment(folder, Path(target))
        case "pip", _:
            return _pip(words)
        case "git", ["clone", _, target]:
            Path(target).symlink_to(ROOT)
        case "install", _:
            owned = [n for n, word in enumerate(words) if word in ("-o", "-g")]
            kept = [word for n, word in enumerate(words) if n not in owned and n - 1 not in owned]
            program = shutil.which("install", path=os.defpath)
            assert program is not None
            return _run([program, *kept])
    return 0


if __name__ == "__main__":
    sys.exit(_main())
