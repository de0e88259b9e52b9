"""What presence tells of the machine beyond `host.facts`: its power and its free memory.

Each is asked of the system anew, in a child process or a thread: a Mac says it by `pmset` and `vm_stat` only. What
doesn't answer in time is not told in that round. Called by `presence`.
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import Final

from agent import host
from agent.executors.memory import read_memory

_ANSWER_S: Final = 2.0
"""A presence is late by no more than this."""

_SUPPLIES: Final = Path("/sys/class/power_supply")
_PMSET: Final = "/usr/bin/pmset"


async def facts(data: Path) -> dict[str, object]:
    """Return all that is known now; `power` ("mains", "battery 73 %") and `memory_free_bytes` only if they are."""
    asked = {asyncio.create_task(_power(), name="power"), asyncio.create_task(_memory(), name="memory")}
    try:
        await asyncio.wait(asked, timeout=_ANSWER_S)
    finally:
        for one in asked:
            one.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    found = host.facts(data)
    for answer in answers:
        if isinstance(answer, dict):
            found |= answer
    return found


async def _power() -> dict[str, object]:
    said = pmset(await _batt()) if sys.platform == "darwin" else await asyncio.to_thread(supplies, _SUPPLIES)
    return {} if said is None else {"power": said}


async def _memory() -> dict[str, object]:
    reading = await read_memory()
    return {} if reading is None else {"memory_free_bytes": reading.available_bytes}


async def _batt() -> str:
    child = await asyncio.create_subprocess_exec(
        _PMSET, "-g", "batt",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        said, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    return said.decode("utf-8", "replace")


def pmset(said: str) -> str | None:
    """Read macOS's `pmset -g batt`; None if it names no source of power that is known here."""
    source = re.search(r"^Now drawing from '([^']*)'", said, re.MULTILINE)
    if source is None:
        return None
    if source[1] == "AC Power":
        return "mains"
    charge = re.search(r"\bInternalBattery\S*.*?(\d+)%", said)
    return _battery(charge[1] if charge else "") if source[1] == "Battery Power" else None


def supplies(folder: Path) -> str | None:
    """Read Linux's /sys/class/power_supply; None if it lists neither a battery of the machine nor a plug in use."""
    is_plugged, battery = False, None
    for supply in sorted(folder.glob("*")):
        if _line(supply / "scope") == "Device":  # a mouse's, a headset's
            continue
        if _line(supply / "type") == "Battery":
            battery = battery or supply
        else:
            is_plugged = is_plugged or _line(supply / "online") == "1"
    if battery is not None and not is_plugged and _line(battery / "status") == "Discharging":
        return _battery(_line(battery / "capacity"))
    return "mains" if is_plugged or battery is not None else None


def _battery(charge: str) -> str:
    return f"battery {int(charge)} %" if charge.isdigit() else "battery"


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
