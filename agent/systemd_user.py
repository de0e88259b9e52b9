"""The agent as a systemd user unit, for agents on Linux. Called by `cli_service`.

It runs while its user is logged in, and always once that user lingers (`loginctl enable-linger`), which is asked for
at the install. Without polkit, as on a small Debian, only root may grant that; until then it is not installed.
"""

import asyncio
import os
import pwd
from pathlib import Path
from typing import Final

from agent.supervised import EXIT_S, THROTTLE_S, Plan, Standing, SupervisorError, at_work
from agent.tools import Said, call
from shared.private_file import replace_private

UNIT: Final = "tandem-agent.service"
_STOP_S: Final = EXIT_S + 30.0
_STARTED_S: Final = THROTTLE_S + 15.0
_NO_MANAGER: Final = (
    "; log in as this user (not by su or sudo), or have root run `loginctl enable-linger USER`; without a service: "
    "tandem-agent run"
)


def unit_of(plan: Plan) -> str:
    """Return the unit's text."""
    sections = {
        "Unit": [("Description", "Tandem agent"), ("StartLimitIntervalSec", "0")],
        "Service": [
            ("Type", "exec"),
            ("ExecStart", " ".join(_quoted(word).replace("$", "$$") for word in plan.program)),
            *(("Environment", _quoted(f"{name}={value}")) for name, value in plan.environment.items()),
            ("WorkingDirectory", str(plan.data).replace("%", "%%")),
            ("Restart", "always"),
            ("RestartSec", str(THROTTLE_S)),
            ("TimeoutStopSec", str(EXIT_S)),
            ("KillMode", "mixed"),
            ("UMask", "0077"),
            ("NoNewPrivileges", "yes"),
        ],
        "Install": [("WantedBy", "default.target")],
    }
    parts = (f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in lines) for name, lines in sections.items())
    return "\n".join(parts)


class SystemdUser:
    """Implements Supervisor."""

    name = "systemd"
    when = "without a login"

    def __init__(self, *, look_s: float = 0.25) -> None:
        """Look every `look_s`."""
        self.file = Path("~/.config/systemd/user").expanduser() / UNIT
        self._look_s = look_s

    async def install(self, plan: Plan) -> int:
        """Write the unit, enable and start it, and see that it works."""
        await _done("is-system-running", ok_always=True)
        await _linger()
        plan.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        was_there = self.file.exists()
        replace_private(self.file, unit_of(plan).encode())
        try:
            await _done("daemon-reload")
            await _done("enable", UNIT)
            await _done("restart", UNIT)
        except SupervisorError:
            if not was_there:
                await call("systemctl", "--user", "disable", "--now", UNIT)
                self.file.unlink(missing_ok=True)
                await call("systemctl", "--user", "daemon-reload")
            raise
        return await at_work(self.standing, plan, not_pid=None, within_s=_STARTED_S, look_s=self._look_s)

    async def uninstall(self) -> bool:
        """Stop and disable it, and remove the unit; the agent drains first."""
        if not self.file.exists():
            return False
        await _done("disable", "--now", UNIT)
        self.file.unlink()
        await _done("daemon-reload")
        return True

    async def restart(self, plan: Plan) -> int:
        """Stop it, which lets it drain, and start it."""
        if not self.file.exists():
            msg = "the agent is not installed: tandem-agent install"
            raise SupervisorError(msg)
        await _done("restart", UNIT)
        return await at_work(self.standing, plan, not_pid=None, within_s=_STARTED_S, look_s=self._look_s)

    async def standing(self) -> Standing:
        """Return what `systemctl show` says of it."""
        names = ("LoadState", "ActiveState", "SubState", "MainPID", "ExecMainStatus", "NRestarts")
        said = await _done("show", f"--property={','.join(names)}", UNIT)
        found = dict(line.split("=", 1) for line in said.out.splitlines() if "=" in line)
        pid, ended = int(found.get("MainPID", "0")), found.get("ExecMainStatus", "0")
        return Standing(
            installed=found.get("LoadState") == "loaded",
            pid=pid or None,
            last_exit="" if ended == "0" and found.get("NRestarts", "0") == "0" else ended,
            said=f"{found.get('ActiveState', '')} ({found.get('SubState', '')})",
        )

    def caught(self) -> list[str]:
        """Return nothing: systemd's journal keeps it."""
        return []

    async def run_once(self, plan: Plan, done: Path, within_s: float) -> None:
        """Run it as a unit of its own in the user's manager, until it has ended."""
        settings = [f"--setenv={name}={value}" for name, value in plan.environment.items()]
        flags = ["--user", "--wait", "--collect", "--quiet", f"--property=WorkingDirectory={plan.data}"]
        flags += [f"--property=RuntimeMaxSec={within_s:g}", *settings]
        plan.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        said = await call("systemd-run", *flags, "--", *plan.program, within_s=within_s + _STARTED_S)
        if not await asyncio.to_thread(done.exists):
            msg = f"no answer from systemd's context (status {said.status}): {said.error}{_cure(said)}"
            raise SupervisorError(msg)


async def _done(verb: str, *args: str, ok_always: bool = False) -> Said:
    """Call systemctl; SupervisorError with its word when it refuses."""
    said = await call("systemctl", "--user", verb, *args, within_s=_STOP_S)
    cure = _cure(said)
    if cure or not (said.ok or ok_always):
        msg = f"systemctl --user {verb}: {said.error or said.status}{cure}"
        raise SupervisorError(msg)
    return said


async def _linger() -> None:
    """Ask that services of this user run without a login; SupervisorError if they would end with the last one."""
    asked = await call("loginctl", "enable-linger")
    if asked.ok:
        return
    user = pwd.getpwuid(os.getuid()).pw_name
    granted = await call("loginctl", "show-user", user, "--property=Linger", "--value")
    if granted.out.strip() != "yes":
        msg = (
            f"loginctl enable-linger: {asked.error}; the agent would end when you log out, so nothing was changed: "
            f"have root run `loginctl enable-linger {user}`, then install; without a service: tandem-agent run"
        )
        raise SupervisorError(msg)


def _cure(said: Said) -> str:
    """Return what to do if this user has no manager of services; empty: it is not that."""
    return _NO_MANAGER if "Failed to connect" in said.error else ""


def _quoted(word: str) -> str:
    """Quote a word as systemd.syntax(7) and its specifiers want it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
