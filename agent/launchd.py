"""The agent as a LaunchAgent of the logged-in user (facts/mac.md C.1 to C.4). Called by `cli_service`.

An agent, not a daemon: it must reach the GPU and the backends in the user's session. So it runs from login to logout.
launchctl's own traps are handled here: kickstart does not read the file again, so installing is bootout → wait until it
is gone → bootstrap; a bootstrap too soon after fails with 5 or 37; a job may sit there unstarted until kickstart.
"""

import asyncio
import os
import plistlib
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from agent import mac
from agent.log_lines import newest
from agent.supervised import EXIT_S, THROTTLE_S, Plan, Standing, SupervisorError, at_work, mac_logs
from agent.tools import HUNG, Said, until
from shared.private_file import replace_private

LABEL: Final = "tandem.agent"
_ONCE_LABEL: Final = "tandem.agent.doctor"
_UMASK: Final = 0o077
_TOO_SOON: Final = frozenset({5, 37})
"""What bootstrap says while the old job still leaves; 5 also of a label that is disabled, or a file that is wrong."""
_TRIES: Final = 12
_KILLED_S: Final = 15.0
_GONE_S: Final = EXIT_S + _KILLED_S
_STARTED_S: Final = THROTTLE_S + 15.0
_STRAY_LINES: Final = 20


def plist_of(plan: Plan, stray: Path, *, label: str = LABEL, keep: bool = True) -> dict[str, Any]:
    """Return the property list; `keep`: started again whenever it ends (also after exit 0: a drain is no goodbye).

    `stray` is what launchd catches of stdout and stderr: the time before the log is up, and tracebacks.
    """
    return {
        "Label": label,
        "ProgramArguments": list(plan.program),
        "EnvironmentVariables": dict(plan.environment),
        "WorkingDirectory": str(plan.data),
        "RunAtLoad": True,
        "KeepAlive": keep,
        "ThrottleInterval": THROTTLE_S,
        "ExitTimeOut": EXIT_S,
        "ProcessType": "Interactive",
        "Umask": _UMASK,
        "StandardOutPath": str(stray),
        "StandardErrorPath": str(stray),
    }


class Launchd:
    """Implements Supervisor."""

    name = "launchd"
    when = "whenever you are logged in"

    def __init__(self, *, look_s: float = 0.25, pause_s: float = 1.0, exit_s: float = EXIT_S) -> None:
        """Look every `look_s`, try bootstrap again after `pause_s`, kill what has not ended after `exit_s`."""
        self.file = Path("~/Library/LaunchAgents").expanduser() / f"{LABEL}.plist"
        self._stray = mac_logs() / "launchd.log"
        self._domain = f"gui/{os.getuid()}"
        self._look_s, self._pause_s, self._exit_s = look_s, pause_s, exit_s

    async def install(self, plan: Plan) -> int:
        """Write the file, replace what is loaded, start it, and see that it works."""
        await self._check_session()
        self._make_folders(plan)
        was_there = self.file.exists()
        self._write(self.file, plist_of(plan, self._stray))
        try:
            await self._out(LABEL)
            await mac.launchctl("enable", self._target(LABEL))  # one that was disabled would fail with 5 for ever
            await self._in(self.file)
        except SupervisorError:
            if not was_there:
                self.file.unlink(missing_ok=True)
            raise
        return await self._start(plan, not_pid=None)

    async def uninstall(self) -> bool:
        """Take it out of launchd and remove its file; the agent drains first."""
        known = await self._out(LABEL) or self.file.exists()
        self.file.unlink(missing_ok=True)
        return known

    async def restart(self, plan: Plan) -> int:
        """Send SIGTERM, so that it drains, at last SIGKILL, and start it as soon as it has ended.

        `launchctl kill` knows no ExitTimeOut. What the agent has made is in its spool by then.
        """
        if not self.file.exists():
            msg = "the agent is not installed: tandem-agent install"
            raise SupervisorError(msg)
        before = await self.standing()
        if not before.installed:
            await self._check_session()
            await self._in(self.file)
        elif before.pid is not None:
            await mac.launchctl("kill", "SIGTERM", self._target(LABEL))
            if not await self._ended(before.pid, self._exit_s):
                with suppress(ProcessLookupError):
                    os.kill(before.pid, signal.SIGKILL)  # by its pid: the label may be its successor's by now
                if not await self._ended(before.pid, _KILLED_S):
                    msg = f"the agent (pid {before.pid}) does not end"
                    raise SupervisorError(msg)
        return await self._start(plan, not_pid=before.pid)

    async def standing(self) -> Standing:
        """Return what `launchctl print` says of it."""
        return _standing_of(await self._asked(self._target(LABEL)))

    def caught(self) -> list[str]:
        """Return the last of what launchd caught."""
        return newest(self._stray, _STRAY_LINES)

    async def run_once(self, plan: Plan, done: Path, within_s: float) -> None:
        """Load a job that runs once, wait for its file, and take it out again, whatever came of it."""
        await self._check_session()
        self._make_folders(plan)
        file, stray = plan.data / f"{_ONCE_LABEL}.plist", self._stray.with_name("doctor.log")
        stray.unlink(missing_ok=True)
        self._write(file, plist_of(plan, stray, label=_ONCE_LABEL, keep=False))
        try:
            await self._out(_ONCE_LABEL)
            await self._in(file)
            await mac.launchctl("kickstart", self._target(_ONCE_LABEL))
            await self._made(done, within_s, stray)
        finally:
            file.unlink(missing_ok=True)
            await self._out(_ONCE_LABEL)
            stray.unlink(missing_ok=True)

    # ---- steps

    async def _check_session(self) -> None:
        """Refuse where nobody is logged in at the screen, as over ssh to a Mac that was just started."""
        await self._asked(self._domain)

    async def _asked(self, target: str) -> Said:
        """Return what launchd says of a target; one that it does not know is an answer, everything else an error."""
        if "SUDO_USER" in os.environ or (self.file.exists() and self.file.stat().st_uid != os.getuid()):
            msg = "not by sudo or as root: the agent belongs to the user who is logged in"
            raise SupervisorError(msg)
        said = await mac.launchctl("print", target)
        if said.ok or _is_unknown(said):
            return said
        msg = (
            f"launchd has no session {self._domain} ({said.error or said.status}): log in at this Mac's screen; "
            "without a service: tandem-agent run"
        )
        if said.status == HUNG:
            msg = f"{said.error}: try again, or restart this Mac"
        raise SupervisorError(msg)

    async def _out(self, label: str) -> bool:
        """Take a job out and wait until launchd no longer knows it; False: it did not know it."""
        target = self._target(label)
        if _is_unknown(await self._asked(target)):
            return False
        said = await mac.launchctl("bootout", target)

        async def gone() -> bool:
            return _is_unknown(await mac.launchctl("print", target))

        if not await until(gone, within_s=_GONE_S, look_s=self._look_s):
            msg = f"launchd does not let go of {target} ({said.error or said.status}); log out and in again"
            raise SupervisorError(msg)
        return True

    async def _in(self, file: Path) -> None:
        """Load a job; SupervisorError with launchd's word when it goes on refusing."""
        for _ in range(_TRIES):
            said = await mac.launchctl("bootstrap", self._domain, str(file))
            if said.ok:
                return
            if said.status not in _TOO_SOON:
                break
            await asyncio.sleep(self._pause_s)
        msg = f"launchd does not take {file}: {said.error or said.status}"
        raise SupervisorError(msg)

    async def _start(self, plan: Plan, *, not_pid: int | None) -> int:
        """Kick the job, which may just sit there, and return its pid once the agent is at work."""
        await mac.launchctl("kickstart", self._target(LABEL))
        return await at_work(self.standing, plan, not_pid=not_pid, within_s=_STARTED_S, look_s=self._look_s)

    async def _ended(self, pid: int, within_s: float) -> bool:
        async def ended() -> bool:
            return (await self.standing()).pid != pid

        return await until(ended, within_s=within_s, look_s=self._look_s)

    async def _made(self, done: Path, within_s: float, stray: Path) -> None:
        standing = Standing(installed=True)

        async def over() -> bool:
            nonlocal standing
            standing = _standing_of(await mac.launchctl("print", self._target(_ONCE_LABEL)))
            return standing.pid is None and bool(standing.last_exit)

        ended = await until(over, within_s=within_s, look_s=self._look_s)
        if not await asyncio.to_thread(done.exists):
            how = f"it ended with status {standing.last_exit}" if ended else f"not within {within_s:g} s"
            msg = "\n  | ".join([f"no answer from launchd's context: {how}", *newest(stray, _STRAY_LINES)])
            raise SupervisorError(msg)

    def _target(self, label: str) -> str:
        return f"{self._domain}/{label}"

    def _make_folders(self, plan: Plan) -> None:
        """Make what launchd wants to find: it starts nothing in a folder that is not there."""
        for folder in (plan.data, self._stray.parent, plan.log.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _write(self, file: Path, plist: dict[str, Any]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_private(file, plistlib.dumps(plist))


def _is_unknown(said: Said) -> bool:
    """Whether launchd does not know the job; a status alone, or silence, does not say so."""
    return not said.ok and "could not find service" in said.error.lower()


def _standing_of(said: Said) -> Standing:
    """Read `launchctl print`: lines `state = running`, `pid = 4711`, `last exit code = 0` one tab deep."""
    if not said.ok:
        return Standing(installed=False)
    found = dict(re.findall(r"^\t(state|pid|last exit code|last terminating signal) = (.+)$", said.out, re.MULTILINE))
    ended = found.get("last exit code", "")
    return Standing(
        installed=True,
        pid=int(found["pid"]) if found.get("pid", "").isdigit() else None,
        last_exit=str(found.get("last terminating signal", "" if "never" in ended else ended)),
        said=found.get("state", ""),
    )
