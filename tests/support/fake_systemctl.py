"""systemctl --user, systemd-run and loginctl as programs: the units are real processes. See `install`."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ENDED_S = 30.0
SCRIPT = """#!/bin/sh
exec "{python}" "{program}" "{folder}" {tool} "$@"
"""


def install(folder: Path) -> str:
    """Put the programs into a folder; return PATH with them first. `folder/calls` has a line for each call."""
    (folder / "bin").mkdir(parents=True)
    for tool in ("systemctl", "systemd-run", "loginctl"):
        program = folder / "bin" / tool
        program.write_text(SCRIPT.format(python=sys.executable, program=__file__, folder=folder, tool=tool))
        program.chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class _Manager:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "systemd.json"
        self.known = json.loads(self.file.read_text()) if self.file.exists() else {"enabled": False, "pid": None}

    def save(self) -> None:
        self.file.write_text(json.dumps(self.known))

    @property
    def unit(self) -> Path:
        return Path(os.environ["HOME"]) / ".config/systemd/user/tandem-agent.service"

    def running(self) -> bool:
        pid = self.known["pid"]
        try:
            return pid is not None and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def start(self) -> None:
        lines = [line.split("=", 1) for line in self.unit.read_text().splitlines() if "=" in line]
        environment = dict(shlex.split(value)[0].split("=", 1) for name, value in lines if name == "Environment")
        settings = dict(lines)
        process = subprocess.Popen(
            [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(settings["ExecStart"])],
            env={"HOME": os.environ["HOME"], **environment},
            cwd=settings["WorkingDirectory"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.known["pid"] = process.pid

    def stop(self) -> None:
        if self.running():
            os.kill(self.known["pid"], signal.SIGTERM)
        until = time.monotonic() + ENDED_S
        while self.running() and time.monotonic() < until:
            time.sleep(0.02)
        self.known["pid"] = None

    def show(self) -> None:
        there, running = self.unit.exists(), self.running()
        say(f"LoadState={'loaded' if there else 'not-found'}\nActiveState={'active' if running else 'inactive'}")
        say(f"SubState={'running' if running else 'dead'}\nMainPID={self.known['pid'] if running else 0}")
        say("ExecMainStatus=0\nNRestarts=0")


def _systemctl(manager: _Manager, verb: str, rest: list[str]) -> int:
    if (manager.folder / "no_manager").exists():
        sys.stderr.write("Failed to connect to bus: No medium found\n")
        return 1
    if verb in ("enable", "disable"):
        manager.known["enabled"] = verb == "enable"
    if verb == "disable" and "--now" in rest:
        manager.stop()
    if verb == "restart":
        manager.stop()
        manager.start()
    if verb == "show":
        manager.show()
    return 1 if verb == "is-system-running" else 0  # `degraded`, as on many a machine


def _systemd_run(rest: list[str]) -> int:
    flags, program = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    environment = dict(flag.removeprefix("--setenv=").split("=", 1) for flag in flags if flag.startswith("--setenv="))
    environment = {"HOME": os.environ["HOME"], **environment}
    return subprocess.run(program, env=environment, check=False).returncode


def _main() -> int:
    folder, tool, *rest = Path(sys.argv[1]), *sys.argv[2:]
    with (folder / "calls").open("a") as calls:
        calls.write(f"{tool} {' '.join(rest)}\n")
    if tool == "systemd-run":
        return _systemd_run(rest)
    if tool == "loginctl":
        if rest[0] == "show-user":
            say("yes" if (folder / "lingers").exists() else "no")
        return 0
    manager = _Manager(folder)
    status = _systemctl(manager, rest[1], rest[2:])
    manager.save()
    return status


if __name__ == "__main__":
    sys.exit(_main())
