"""The machine, as far as it can keep an agent from working: sleep, login, clock, rules, versions. For the doctor."""

import importlib.metadata
import os
import platform
import re
import sys
from datetime import UTC, datetime
from typing import Final

from agent import mac
from agent.machine import read_machine
from agent.settings import AgentSettings
from agent.sntp import skew_s
from agent.supervised import EXIT_S
from agent.tools import find
from shared.finding import Finding
from shared.rules import forbidden

_MOST_SKEW_S: Final = 5.0
_HOMEBREW: Final = ("/opt/homebrew/", "/usr/local/Cellar/")
_DESKTOP_SLEEP: Final = "sudo pmset -a sleep 0 (System Settings > Energy: prevent automatic sleeping)"


async def examine_machine(settings: AgentSettings) -> list[Finding]:
    """Look at the machine; nothing is changed."""
    found = [_versions(), examine_drain(settings), await _clock(settings.time_server)]
    if settings.rules.asked():
        found.append(await _rules(settings))
    if mac.here():
        found += await _mac()
    return found


def _versions() -> Finding:
    system = (
        f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else f"{platform.system()} {platform.release()}"
    )
    real = os.path.realpath(sys.executable)
    said = f"tandem {importlib.metadata.version('tandem')}, Python {platform.python_version()} ({real}), {system}"
    todo = (
        "Homebrew replaces this Python when it upgrades: the agent breaks, and macOS asks for Local Network permission "
        "again; make its environment anew with a Python that stays (uv, pyenv, python.org), then `tandem-agent install`"
    )
    return Finding("versions", not real.startswith(_HOMEBREW), said, todo)


def examine_versions(coordinators: str | None) -> Finding:
    """Say whether this agent and its coordinator may work together: they are one version apart at most."""
    here = importlib.metadata.version("tandem")
    said = f"this agent {here}, the coordinator {coordinators or 'does not say, so 0.1'}"
    ours, theirs = (_release(version) for version in (here, coordinators or "0.1"))
    todo = "upgrade the {} first, one version at a time (docs/operations.md, Upgrade)"
    return Finding(
        "both versions",
        ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= 1,
        said,
        todo.format("coordinator" if theirs < ours else "agent"),
    )


def _release(version: str) -> tuple[int, int]:
    """Return a version's first two numbers; it may be a pre-release's or a build's of its own."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def examine_drain(settings: AgentSettings) -> Finding:
    """Say whether running jobs are given back before a service is killed. Else they run elsewhere when leases end."""
    drain_s, release_s = settings.drain_limit_s, settings.release_limit_s
    said = (
        f"running jobs are given back after {drain_s:g} s, which takes {release_s:g} s more, or longer if backend or "
        f"network are slow; a service is killed after {EXIT_S} s, and what is made by then is safe in the spool"
    )
    todo = f"set drain_limit_s to {max(0, EXIT_S - release_s):g} at most"
    return Finding("drain", drain_s + release_s <= EXIT_S, said, todo)


async def _clock(server: str) -> Finding:
    if not server:
        return Finding("clock", True, "not checked: time_server is empty")
    skew = await skew_s(server)
    if skew is None:
        return Finding("clock", True, f"not checked: {server} does not answer")
    word = "ahead" if skew > 0 else "behind"
    todo = "switch on: System Settings > General > Date & Time > set automatically (Linux: timedatectl set-ntp true)"
    return Finding("clock", abs(skew) <= _MOST_SKEW_S, f"{abs(skew):.1f} s {word} {server}", todo)


async def _rules(settings: AgentSettings) -> Finding:
    """Say what the settings' rules say now; one that can't be read here will never let it work."""
    reading = await read_machine(settings.rules.asked())
    found = forbidden(settings.rules, reading, datetime.now(UTC))
    unread = [one for one in found if one.reason.endswith("_unknown")]
    said = "; ".join(one.said for one in found) or "it may work now"
    todo = f"take {', '.join(one.rule for one in unread)} out of [rules]: it can't be read on this machine"
    return Finding("rules", not unread, said, todo)


async def _mac() -> list[Finding]:
    battery, settings = await mac.has_battery(), await mac.sleep_settings()
    mains = settings.get("AC Power", {})
    found = [_caffeinate()]
    if not mains or battery is None:
        todo = "look at `pmset -g custom` and `pmset -g batt`"
        return [*found, Finding("sleep", False, "pmset does not say how this Mac sleeps", todo)]
    if battery:
        return [*found, _macbook_sleep(mains)]
    return [*found, *_desktop_sleep(mains), await _login()]


def _caffeinate() -> Finding:
    there = find("caffeinate") is not None
    said = "keeps it awake while a job runs" if there else "is missing"
    return Finding("caffeinate", there, said, "it is part of macOS (/usr/bin): look for what removed it")


def _macbook_sleep(mains: dict[str, str]) -> Finding:
    minutes = mains.get("sleep", "?")
    said = (
        "stays awake on mains"
        if minutes == "0"
        else f"sleeps after {minutes} idle min on mains, and takes no work then"
    )
    if minutes != "0":
        said += "; for nights: System Settings > Battery > Options > prevent automatic sleeping on power adapter"
    return Finding("sleep", True, f"{said}; with its lid closed it always sleeps unless a display is connected")


def _desktop_sleep(mains: dict[str, str]) -> list[Finding]:
    minutes, restart = mains.get("sleep", "?"), mains.get("autorestart")
    found = [
        Finding(
            "sleep",
            minutes == "0",
            f"sleeps after {minutes} idle min" if minutes != "0" else "stays awake",
            f"an idle Mac mini that sleeps gets no work: {_DESKTOP_SLEEP}",
        )
    ]
    if restart is not None:
        said = "starts" if restart == "1" else "stays off"
        todo = "sudo pmset -a autorestart 1 (System Settings > Energy: start up after a power failure)"
        found.append(Finding("power cut", restart == "1", f"{said} after a power cut", todo))
    return found


async def _login() -> Finding:
    """Look whether a session begins by itself: an agent runs in one, and nobody sits at a mini."""
    user, vault = await mac.auto_login(), await mac.file_vault()
    if user is not None:
        return Finding("login", True, f"{user} is logged in when it starts")
    said = "nobody is logged in when it starts: after a restart or a power cut no agent runs until somebody logs in"
    todo = "System Settings > Users & Groups > automatically log in as"
    if vault:
        todo += "; that needs FileVault off (Privacy & Security): decide, or log in by hand after each restart"
    return Finding("login", False, said, todo)
