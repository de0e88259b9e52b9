"""The agent as a service: what is installed, and the words that launchd and systemd share. Nothing here runs anything.

`launchd.py` and `systemd_user.py` each implement Supervisor; `cli_service.py` chooses between them.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from agent.settings import AgentSettings
from agent.tools import until
from shared.errors import TandemError

THROTTLE_S: Final = 15
"""The least time between two starts."""
EXIT_S: Final = 30
"""From SIGTERM to SIGKILL; `drain_limit_s` is to be shorter."""
LOG_NAME: Final = "agent.jsonl"
_MAC_PATH: Final = "/opt/homebrew/bin:/opt/homebrew/sbin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_LINUX_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_LOG_FILE: Final = "TANDEM_AGENT_LOG_FILE"


class SupervisorError(TandemError):
    """launchd or systemd would not do it; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run, and where it writes. Nothing secret is in it: service files are read by others, and backed up."""

    program: Sequence[str]
    environment: Mapping[str, str]
    data: Path
    log: Path  # the agent's own, rotated


@dataclass(frozen=True, slots=True)
class Standing:
    """How the service stands."""

    installed: bool
    pid: int | None = None
    last_exit: str = ""  # status or signal of the last process that ended; empty = none did
    said: str = ""  # the supervisor's own word: `running`, `activating (auto-restart)`


class Supervisor(Protocol):
    """What keeps the agent running."""

    name: str
    when: str  # it runs, in words
    file: Path  # the service file

    async def install(self, plan: Plan) -> int:
        """Put the service there and start it, instead of one that is there; return its pid. SupervisorError."""
        ...

    async def uninstall(self) -> bool:
        """Stop it, wait until it has ended, remove it; False: it was not there. SupervisorError."""
        ...

    async def restart(self, plan: Plan) -> int:
        """Have it drain and start anew; return its pid. SupervisorError."""
        ...

    async def standing(self) -> Standing:
        """Return how it stands. SupervisorError if that can't be known."""
        ...

    def caught(self) -> list[str]:
        """Return the last lines from before the agent's log was up, and tracebacks, if it is this that keeps them."""
        ...

    async def run_once(self, plan: Plan, done: Path, within_s: float) -> None:
        """Run a program once in the service's context, until it has made the file `done`. SupervisorError."""
        ...


def plan_for(settings: AgentSettings, config: Path, *, mac: bool) -> Plan:
    """Return what runs this agent: this very Python, by its absolute path in its environment."""
    data = settings.data.expanduser().absolute()
    environment = {"PATH": _MAC_PATH if mac else _LINUX_PATH}
    if "log_file" in settings.model_fields_set:
        log = data / settings.log_file.expanduser()
    else:
        log = (mac_logs() if mac else data / "logs") / LOG_NAME
        environment[_LOG_FILE] = str(log)
    program = python("run", "--config", str(config.expanduser().absolute()), "--in-service")
    return Plan(program, environment, data, log)


async def at_work(
    look: Callable[[], Awaitable[Standing]], plan: Plan, *, not_pid: int | None, within_s: float, look_s: float
) -> int:
    """Return the pid once an agent, another than `not_pid`, holds its data folder; SupervisorError if it dies before.

    By then its settings are right and its executors loaded; a process alone proves nothing.
    """
    standing, seen = Standing(installed=True), None

    async def decided() -> bool:
        nonlocal standing, seen
        standing = await look()
        if seen is not None and standing.pid != seen:
            return True
        if standing.pid not in (None, not_pid):
            seen = standing.pid
        return seen is not None and await asyncio.to_thread(_holds, plan.data, seen)

    if await until(decided, within_s=within_s, look_s=look_s) and seen is not None and standing.pid == seen:
        return seen
    ended = f"ended with status {standing.last_exit}" if standing.last_exit else f"is {standing.said or 'gone'}"
    msg = f"the agent does not get to work: it {ended}; look at `tandem-agent status` and `tandem-agent logs`"
    raise SupervisorError(msg)


def _holds(data: Path, pid: int) -> bool:
    """Say whether this process has the data folder (`workspace.data_folder`)."""
    try:
        return (data / "agent.lock").read_text(encoding="utf-8").startswith(f"pid {pid},")
    except (OSError, ValueError):
        return False


def mac_logs() -> Path:
    """Return where a Mac keeps the agent's logs; Console shows them."""
    return Path("~/Library/Logs/Tandem").expanduser()


def python(*args: str) -> list[str]:
    """Return the command line of this Python with the agent; -P: no module from the working directory."""
    return [sys.executable, "-P", "-m", "agent", *args]
