"""What presence tells of the machine beyond `host.facts`: its power and its free memory.

Each is asked of the system anew. What doesn't answer in time is not told in that round. Called by `presence`.
"""

import asyncio
from pathlib import Path
from typing import Final

from agent import host
from agent.executors.memory import read_memory
from agent.machine import read_machine
from shared.rules import Rule

_ANSWER_S: Final = 2.0
"""A presence is late by no more than this."""


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
    found = await read_machine(frozenset({Rule.ON_MAINS}))
    if found.mains is None:
        return {}
    on_battery = "battery" if found.battery is None else f"battery {found.battery} %"
    return {"power": "mains" if found.mains else on_battery}


async def _memory() -> dict[str, object]:
    reading = await read_memory()
    return {} if reading is None else {"memory_free_bytes": reading.available_bytes}
