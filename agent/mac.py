"""What macOS's own tools say and do: the one that calls pmset, ioreg, notifyutil, vm_stat, launchctl, caffeinate.

A tool that is missing, hangs or refuses is an answer with that status, never an exception. Parsers are pure. Apple's
tools are not subject to Local Network privacy, and none used here needs root.
"""

import asyncio
import re
from asyncio.subprocess import DEVNULL, Process
from typing import Final

from agent.tools import Said, call, find
from shared.rules import Reading, Rule, Thermal

_BOOTOUT_S: Final = 60.0
"""bootout returns when the program has ended, which may take its ExitTimeOut."""
_LOGIN_WINDOW: Final = "/Library/Preferences/com.apple.loginwindow"


def here() -> bool:
    """Say whether this is a Mac: it has pmset."""
    return find("pmset") is not None


# ---- what the machine says of itself


async def read(asked: frozenset[Rule]) -> Reading:
    """Return what these rules need to know; nothing else is asked for."""
    wants_power = asked & {Rule.ON_MAINS, Rule.BATTERY_ABOVE}
    power, settings, pressure, hid = await asyncio.gather(
        _if(bool(wants_power), "pmset", "-g", "batt"),
        _if(Rule.NO_LOW_POWER in asked, "pmset", "-g"),
        _if(Rule.THERMAL in asked, "notifyutil", "-g", "com.apple.system.thermalpressurelevel"),
        _if(Rule.IDLE_S in asked, "ioreg", "-c", "IOHIDSystem", "-d", "4", "-r", "-k", "HIDIdleTime"),
    )
    mains, battery = power_of(power)
    return Reading(
        mains=mains,
        battery=battery,
        idle_s=idle_s_of(hid),
        low_power=low_power_of(settings),
        thermal=thermal_of(pressure),
    )


async def vm_stat() -> str:
    """Return what `vm_stat` says of the memory; empty: nothing."""
    return (await call("vm_stat")).out


async def has_battery() -> bool | None:
    """Say whether it is a MacBook; None: it can't be read."""
    found = await read(frozenset({Rule.ON_MAINS}))
    return None if found.mains is None else found.battery is not None


def power_of(said: str) -> tuple[bool | None, int | None]:
    """Read `pmset -g batt`: on mains, and the charge; the least of several batteries."""
    source = re.search(r"Now drawing from '([^']+)'", said)
    charges = [int(percent) for percent in re.findall(r"^\s*-InternalBattery.*?(\d{1,3})%", said, re.MULTILINE)]
    mains = None if source is None else source[1] != "Battery Power"
    return mains, min(charges, default=None)


def low_power_of(said: str) -> bool | None:
    """Read `pmset -g`: `lowpowermode 1`, on Macs with a High Power Mode `powermode 1`; neither: it has no such mode."""
    if "powernap" not in said and "sleep" not in said:
        return None
    found = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d{1,9})", said, re.MULTILINE)
    return found is not None and found[1] == "1"


def thermal_of(said: str) -> Thermal | None:
    """Read `notifyutil -g com.apple.system.thermalpressurelevel`: a number from 0 (OSThermalNotification.h)."""
    found = re.search(r"thermalpressurelevel\s+(\d{1,9})\b", said)
    levels = list(Thermal)
    return levels[min(int(found[1]), len(levels) - 1)] if found else None


def idle_s_of(said: str) -> float | None:
    """Read ioreg's HIDIdleTime, nanoseconds; the least if there are several."""
    found = [int(ns) for ns in re.findall(r'"HIDIdleTime"\s*=\s*(\d{1,20})\b', said)]
    return min(found) / 1e9 if found else None


async def _if(wanted: bool, tool: str, *args: str) -> str:  # noqa: FBT001 - reads as a sentence
    return (await call(tool, *args)).out if wanted else ""


# ---- settings that a person has to change


async def sleep_settings() -> dict[str, dict[str, str]]:
    """Return pmset's settings by power source (`AC Power`, `Battery Power`); empty: they can't be read."""
    return sleep_settings_of((await call("pmset", "-g", "custom")).out)


def sleep_settings_of(said: str) -> dict[str, dict[str, str]]:
    """Read `pmset -g custom`: a head for each source, and lines of name and value (minutes, or 0 and 1)."""
    found: dict[str, dict[str, str]] = {}
    source: dict[str, str] = {}
    for line in said.splitlines():
        if head := re.fullmatch(r"(\S.*):", line.rstrip()):
            source = found.setdefault(head[1], {})
        elif pair := re.match(r"\s+(\S.*?)\s+(\d+)(?:\s|$)", line):
            source[pair[1]] = pair[2]
    return found


async def auto_login() -> str | None:
    """Return the user who is logged in when this Mac starts; None: nobody is."""
    said = await call("defaults", "read", _LOGIN_WINDOW, "autoLoginUser")
    return said.out.strip() or None if said.ok else None


async def file_vault() -> bool | None:
    """Say whether FileVault is on (then nobody is logged in automatically); None: it can't be read."""
    said = await call("fdesetup", "status")
    return "FileVault is On" in said.out if said.ok else None


async def default_gateway() -> str | None:
    """Return the address of the router: Local Network privacy does not keep a program from it."""
    found = re.search(r"^\s*gateway:\s*(\S+)", (await call("route", "-n", "get", "default")).out, re.MULTILINE)
    return found[1] if found else None


# ---- launchd


async def launchctl(*args: str) -> Said:
    """Call launchctl; callers know the statuses that mean something (`launchd.py`)."""
    return await call("launchctl", *args, within_s=_BOOTOUT_S)


# ---- sleep


async def caffeinate(pid: int) -> Process | None:
    """Keep the Mac from idle sleep until the returned child is ended, or the process `pid` is; None: it can't be.

    Never the display: one that is lit under GPU load was tied to panics (facts/mac.md C.5).
    """
    path = find("caffeinate")
    if path is None:
        return None
    try:
        return await asyncio.create_subprocess_exec(
            path, "-i", "-w", str(pid), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
    except OSError:
        return None
