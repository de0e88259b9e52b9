"""The catalogue: every kind of fault, what it does, to whom, and how it heals.

A fault is drawn whole (kind, target, how long, how much) before it is injected, so that one seed draws one sequence,
however fast the machine is. `strike` injects it, waits, heals it, and says whether it was injected at all.
"""

import asyncio
import random
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tests.crash.chaos.rig import AGENTS, COORDINATORS, QUICK_COORDINATOR, Rig
from tests.support.proxy import Proxy

TTL_S = float(str(QUICK_COORDINATOR["lease_ttl_s"]))
WORKSPACE_BYTES = 32 * 1024
"""Smaller than most images, larger than what the spool writes of a report without files."""

SPOOL_BYTES = 512
"""Smaller than any report in the spool, larger than the evidence of one epoch (`generator.py`)."""

_DELAY_S = (0.05, 0.8)
_BOTH = "+"
_NATS_LINKS = tuple(f"nats:{name}" for name in (*AGENTS, *COORDINATORS))
_HTTP_LINKS = tuple(f"http:{name}" for name in COORDINATORS)
_POSTGRES_LINKS = tuple(f"postgres:{name}" for name in COORDINATORS)
_LINKS = (*_NATS_LINKS, *_HTTP_LINKS, *_POSTGRES_LINKS)


@dataclass(frozen=True)
class Drawn:
    """A fault as it was drawn."""

    kind: "Kind"
    target: str
    hold_s: float
    dice: float  # in [0, 1): whatever else the kind leaves to chance

    @property
    def touches(self) -> frozenset[str]:
        """What no other fault may touch meanwhile."""
        return frozenset(self.kind.locks(self.target))


@dataclass(frozen=True)
class Kind:
    name: str
    what: str
    weight: int
    targets: tuple[str, ...]
    hold_s: tuple[float, float]
    strike: Callable[[Rig, Drawn], Awaitable[bool]]
    locks: Callable[[str], list[str]] = lambda target: target.split(_BOTH)


def draw(chance: random.Random) -> Drawn:
    """Draw the next fault."""
    kind = chance.choices(CATALOGUE, [kind.weight for kind in CATALOGUE])[0]
    return Drawn(kind, chance.choice(kind.targets), chance.uniform(*kind.hold_s), chance.random())


async def heal(rig: Rig) -> None:
    """Mend whatever may still be broken: nothing is stopped, limited, cut off or down afterwards."""
    for program in rig.programs.values():
        program.send(signal.SIGCONT)
        program.limit_files(None)
    for process in rig.postgres_processes():
        with suppress(psutil.NoSuchProcess):
            process.resume()
    for link in rig.links.values():
        _mend(link)


# ---- processes


async def _end(rig: Rig, drawn: Drawn, number: signal.Signals) -> bool:
    struck = [rig.programs[name].end(number, again_s=drawn.hold_s) for name in drawn.target.split(_BOTH)]
    await asyncio.sleep(drawn.hold_s)
    return any(struck)


async def _kill(rig: Rig, drawn: Drawn) -> bool:
    return await _end(rig, drawn, signal.SIGKILL)


async def _term(rig: Rig, drawn: Drawn) -> bool:
    return await _end(rig, drawn, signal.SIGTERM)


async def _freeze(rig: Rig, drawn: Drawn) -> bool:
    programs = [rig.programs[name] for name in drawn.target.split(_BOTH)]
    struck = [program.send(signal.SIGSTOP) for program in programs]
    try:
        await asyncio.sleep(drawn.hold_s if any(struck) else 0)
    finally:
        for program in programs:
            program.send(signal.SIGCONT)
    return any(struck)


async def _fill_disk(rig: Rig, drawn: Drawn, size: int) -> bool:
    agent = rig.agents[drawn.target]
    struck = agent.limit_files(size)
    await asyncio.sleep(drawn.hold_s if struck else 0)
    agent.limit_files(None)
    return struck


async def _fill_workspace(rig: Rig, drawn: Drawn) -> bool:
    return await _fill_disk(rig, drawn, WORKSPACE_BYTES)


async def _fill_spool(rig: Rig, drawn: Drawn) -> bool:
    return await _fill_disk(rig, drawn, SPOOL_BYTES)


# ---- servers


async def _kill_nats(rig: Rig, drawn: Drawn) -> bool:
    await rig.nats.kill()
    await asyncio.sleep(drawn.hold_s)
    await rig.start_server(rig.nats)
    return True


async def _wipe_nats(rig: Rig, drawn: Drawn) -> bool:
    await rig.nats.kill()
    shutil.rmtree(rig.folder / "nats", ignore_errors=True)
    await asyncio.sleep(drawn.hold_s)
    await rig.start_server(rig.nats)
    rig.wiped()
    return True


async def _freeze_nats(rig: Rig, drawn: Drawn) -> bool:
    return await _freeze_all([psutil.Process(rig.nats.pid)], drawn.hold_s)


async def _kill_postgres(rig: Rig, drawn: Drawn) -> bool:
    for process in rig.postgres_processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    await rig.postgres.kill()
    await asyncio.sleep(drawn.hold_s)
    await rig.start_server(rig.postgres)
    return True


async def _freeze_postgres(rig: Rig, drawn: Drawn) -> bool:
    return await _freeze_all(rig.postgres_processes(), drawn.hold_s)


async def _freeze_all(processes: list[psutil.Process], hold_s: float) -> bool:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        await asyncio.sleep(hold_s)
    finally:
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.resume()
    return bool(processes)


# ---- links


def _mend(link: Proxy) -> None:
    link.heal()
    link.refuse(refusing=False)
    link.delay_s = 0.0
    link.cut_after(None)


async def _cut(rig: Rig, drawn: Drawn) -> bool:
    link = rig.links[drawn.target]
    struck = link.connections > 0
    link.cut()
    return struck


async def _refuse(rig: Rig, drawn: Drawn) -> bool:
    link = rig.links[drawn.target]
    link.refuse()
    link.cut()
    await asyncio.sleep(drawn.hold_s)
    link.refuse(refusing=False)
    return True


async def _delay(rig: Rig, drawn: Drawn) -> bool:
    link = rig.links[drawn.target]
    least, most = _DELAY_S
    link.delay_s = least + drawn.dice * (most - least)
    await asyncio.sleep(drawn.hold_s)
    link.delay_s = 0.0
    return True


async def _black_hole(rig: Rig, drawn: Drawn) -> bool:
    link = rig.links[drawn.target]
    link.black_hole(swallow=drawn.dice < 0.5)
    await asyncio.sleep(drawn.hold_s)
    link.heal()
    return True


async def _cut_upload(rig: Rig, drawn: Drawn) -> bool:
    """Cut the first upload that gets so far; not injected if none does in time."""
    link = rig.links[drawn.target]
    before = link.cuts
    link.cut_after(int(2048 * 128**drawn.dice))
    for _ in range(int(drawn.hold_s / 0.1)):
        await asyncio.sleep(0.1)
        if link.cuts > before:
            return True
    link.cut_after(None)
    return False


_SHORT_S, _LONG_S = (0.3, 0.6 * TTL_S), (1.2 * TTL_S, 2 * TTL_S)
_AGAIN_S, _BRIEF_S = (0.2, 2.0), (0.5, 3.0)

# A full disk is rare: an agent that met one takes nothing for a minute, and chaos needs agents that work.
CATALOGUE = (
    Kind("agent_kill", "SIGKILL of an agent", 8, AGENTS, _AGAIN_S, _kill),
    Kind("agent_term", "SIGTERM of an agent: it drains", 4, AGENTS, _AGAIN_S, _term),
    Kind("agent_stop_short", "SIGSTOP of an agent, for less than its lease", 6, AGENTS, _SHORT_S, _freeze),
    Kind("agent_stop_long", "SIGSTOP of an agent, for longer than its lease", 6, AGENTS, _LONG_S, _freeze),
    Kind("disk_full_workspace", "no file of an agent can grow beyond 32 KiB", 1, AGENTS, _BRIEF_S, _fill_workspace),
    Kind("disk_full_spool", "no file of an agent can grow beyond 512 bytes", 1, AGENTS, _BRIEF_S, _fill_spool),
    Kind("coordinator_kill", "SIGKILL of a coordinator", 5, COORDINATORS, _AGAIN_S, _kill),
    Kind("coordinator_term", "SIGTERM of a coordinator", 2, COORDINATORS, _AGAIN_S, _term),
    Kind("coordinators_kill", "SIGKILL of both coordinators", 2, (_BOTH.join(COORDINATORS),), _AGAIN_S, _kill),
    Kind("coordinator_stop_short", "SIGSTOP of a coordinator, less than a lease", 4, COORDINATORS, _SHORT_S, _freeze),
    Kind("coordinator_stop_long", "SIGSTOP of a coordinator, longer than a lease", 3, COORDINATORS, _LONG_S, _freeze),
    Kind("coordinators_stop", "SIGSTOP of both coordinators", 1, (_BOTH.join(COORDINATORS),), (0.5, 6.0), _freeze),
    Kind("nats_kill", "SIGKILL of NATS", 3, ("nats",), _AGAIN_S, _kill_nats),
    Kind("nats_stop_short", "SIGSTOP of NATS, for less than a lease", 2, ("nats",), _SHORT_S, _freeze_nats),
    Kind("nats_stop_long", "SIGSTOP of NATS, for longer than a lease", 1, ("nats",), _LONG_S, _freeze_nats),
    Kind("nats_wipe", "SIGKILL of NATS, and its store removed", 2, ("nats",), _AGAIN_S, _wipe_nats),
    Kind("postgres_kill", "SIGKILL of all of Postgres", 3, ("postgres",), _AGAIN_S, _kill_postgres),
    Kind("postgres_stop", "SIGSTOP of all of Postgres", 3, ("postgres",), (0.3, 6.0), _freeze_postgres),
    Kind("link_cut", "every connection of a link reset", 12, _LINKS, (0.0, 0.0), _cut),
    Kind("link_refuse", "a link reset, and refusing for a while", 7, _LINKS, _BRIEF_S, _refuse),
    Kind("link_delay", "a link slow by up to 0.8 s each way", 8, _LINKS, (1.0, 6.0), _delay),
    Kind("link_half_open", "nothing passes a link, and nobody is told", 8, _LINKS, (0.5, 1.5 * TTL_S), _black_hole),
    Kind(
        "upload_cut", "the connection of an upload reset in the middle of a file", 9, _HTTP_LINKS, (15.0, 15.0),
        _cut_upload, lambda target: [f"upload:{target}"],
    ),
)  # fmt: skip

NAMES = tuple(kind.name for kind in CATALOGUE)
