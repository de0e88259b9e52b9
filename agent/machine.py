"""What rules and presence ask of the machine, on macOS and Linux. Called by `rule_watch`, `presence_facts`, doctor."""

import asyncio
from pathlib import Path
from typing import Final

from agent import mac
from shared.rules import Reading, Rule

_SUPPLIES: Final = Path("/sys/class/power_supply")
_FED: Final = frozenset({"Charging", "Full", "Not charging"})
"""What a battery says that is not drawn from."""


async def read_machine(asked: frozenset[Rule]) -> Reading:
    """Return what these rules need to know, as far as it can be told."""
    if not asked - {Rule.HOURS}:
        return Reading()
    if mac.here():
        return await mac.read(asked)
    return await asyncio.to_thread(read_supplies, _SUPPLIES)


def read_supplies(folder: Path) -> Reading:
    """Read Linux's power supplies: on mains if one is online, no battery is drawn from, or there is none; per cent.

    Batteries of mice and keyboards (scope Device) don't count. Idle time and heat are not told.
    """
    charges, drawn, online = [], [], []
    for supply in sorted(folder.iterdir()) if folder.is_dir() else []:
        kind = _text(supply / "type")
        if kind == "Battery" and _text(supply / "scope") != "Device":
            charge = _text(supply / "capacity")
            charges.append(int(charge) if charge.isdigit() else None)
            drawn.append(_text(supply / "status") not in _FED)
        elif kind in ("Mains", "USB"):
            online.append(_text(supply / "online") == "1")
    known = [charge for charge in charges if charge is not None]
    return Reading(mains=any(online) or not any(drawn), battery=min(known, default=None))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
