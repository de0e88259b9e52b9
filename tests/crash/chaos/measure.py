"""How long until another takes over: seconds from each way of going away to the next start of the job.

Measured where it happens: generators write the moment of their start (the machine's monotonic clock), the ledger has
the moment of each claim. It prints, and asserts nothing about time; every wait is bounded.
"""

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.crash.chaos.counts import spread
from tests.crash.chaos.driver import say
from tests.crash.chaos.generator import PLAN, Plan
from tests.crash.chaos.machine import machine
from tests.crash.chaos.program import Program
from tests.crash.chaos.rig import COORDINATORS, PLANNED, Rig, rig

DEFAULT_TTL_S, SHORT_TTL_S = 90.0, 6.0
PATIENCE_S = DEFAULT_TTL_S + 10.0
QUICK_ROUND_S = 60.0
"""A round that took longer says that nobody heard of the death, and the lease had to lapse: two are enough then."""

_SHORT = {"lease_ttl_s": SHORT_TTL_S, "heartbeat_s": 2, "presence_s": 2}
_AGENT: dict[str, object] = {"drain_limit_s": 0, "reconnect_s": [0.1, 0.3, 1, 2]}
_LONG_S = 600.0
_TINY, _TINY_S = 150, 0.1
_AFTER_S = 5.0
_CLAIMS = """
SELECT extract(epoch FROM claimed_at)::float8 AS at FROM attempt WHERE claimed_at >= to_timestamp($1) ORDER BY 1
"""


@dataclass
class Measure:
    """Something that was measured; `seconds` has None where nothing happened within `PATIENCE_S`."""

    what: str
    aim: str
    seconds: list[float | None] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        known = [value for value in self.seconds if value is not None]
        return {"what": self.what, "aim": self.aim, "missing": len(self.seconds) - len(known), **(spread(known) or {})}


class Stage:
    """A rig with agents that can be taken away one at a time."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._numbers = itertools.count()

    async def submit(self, plan: Plan) -> str:
        """Submit a job; return its id."""
        number = next(self._numbers)
        labels = {PLAN: plan.model_dump_json(exclude_defaults=True)}
        body = orjson.dumps({"key": f"measure-{number}", "kind": "render", "spec": {"n": number}, "labels": labels})
        answer = await _until(lambda: self.rig.post(COORDINATORS[number % 2], "/v1/jobs", body))
        return str(answer["id"])

    async def line(self, job_id: str, epoch: int, word: str) -> tuple[str, float] | None:
        """Wait for a generator's line; return its worker and moment, None if it does not come."""
        path = self.rig.side / f"{job_id}.{epoch}"
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if path.exists():
                for found in (text.split(" ") for text in path.read_text().splitlines()):
                    if found[0] == word:
                        return found[3], float(found[7])
            await asyncio.sleep(0.02)
        return None

    async def running(self) -> tuple[str, Program]:
        """Have a long job run; return its id and the agent that has it."""
        await self.all_able()
        job_id = await self.submit(Plan(seconds=_LONG_S))
        started = await self.line(job_id, 1, "start")
        assert started is not None, f"job {job_id} was never started"
        return job_id, self.rig.agents[started[0]]

    async def taken_over(self, job_id: str, since: float) -> float | None:
        """Return the seconds from `since` to the job's second start, and call the job off."""
        again = await self.line(job_id, 2, "start")
        await _until(lambda: self.rig.post(COORDINATORS[0], f"/v1/jobs/{job_id}/cancel"))
        return None if again is None else round(again[1] - since, 3)

    async def all_able(self) -> None:
        """Wait until every agent is there, idle, and can run something."""

        async def look() -> bool:
            answer = await self.rig.get(COORDINATORS[0], "/v1/workers")
            present = [w["presence"] for w in (answer or {"workers": []})["workers"] if w["present"]]
            able = [p for p in present if p["capabilities"] and not p["busy"] and p["state"] == "ready"]
            return len(able) == len(self.rig.agents)

        await _until(look)


async def run(rounds: int) -> dict[str, Any]:
    """Measure everything; return it as JSON."""
    found: dict[str, Measure] = {}
    async with _stage({}) as stage:
        await _rounds(found, "kill_default", rounds, lambda: _killed(stage))
    async with _stage(_SHORT) as stage:
        await _rounds(found, "stop_short", rounds, lambda: _stopped(stage))
        await _rounds(found, "drain", rounds, lambda: _drained(stage))
        await _rounds(found, "release", rounds, lambda: _released(stage))
        victims = itertools.cycle(COORDINATORS)
        await _rounds(found, "coordinator", rounds, lambda: _bereft(stage, next(victims), found["claim_gap"].seconds))
    return {"measures": {name: one.told() for name, one in found.items()}, "rounds": rounds, "machine": machine()}


_MEASURES = {
    "kill_default": ("an agent's SIGKILL, default lease of 90 s, to the next start on another agent", "6 s"),
    "stop_short": ("an agent's SIGSTOP, lease of 6 s, to the next start on another agent", "ttl + 1 s: 7 s"),
    "drain": ("an agent's SIGTERM (it drains at once) to the next start on another agent", "under 1 s"),
    "release": ("the end of a generation whose backend went down to the next start on another agent", "under 1 s"),
    "coordinator": ("a coordinator's SIGKILL, a second one running, to the first new claim granted", "2 s"),
    "claim_gap": ("the longest pause between claims in the 5 s after that SIGKILL, under load", "2 s"),
}


async def _rounds(
    found: dict[str, Measure], name: str, rounds: int, one: Callable[[], Awaitable[float | None]]
) -> None:
    names = (name, "claim_gap") if name == "coordinator" else (name,)
    found.update({each: Measure(*_MEASURES[each]) for each in names})
    for number in range(rounds):
        seconds = await one()
        found[name].seconds.append(seconds)
        say(f"{name} {number + 1} of {rounds}: {seconds} s")
        if number and (seconds is None or seconds > QUICK_ROUND_S):
            break


@asynccontextmanager
async def _stage(coordinator: dict[str, object]) -> AsyncIterator[Stage]:
    async with rig(coordinator=coordinator, agent=_AGENT, agents=PLANNED) as made:
        yield Stage(made)


async def _killed(stage: Stage) -> float | None:
    job_id, agent = await stage.running()
    agent.hold()
    since = time.monotonic()
    agent.end(signal.SIGKILL, again_s=0.0)
    seconds = await stage.taken_over(job_id, since)
    agent.release()
    return seconds


async def _stopped(stage: Stage) -> float | None:
    job_id, agent = await stage.running()
    since = time.monotonic()
    agent.send(signal.SIGSTOP)
    seconds = await stage.taken_over(job_id, since)
    agent.send(signal.SIGCONT)
    return seconds


async def _drained(stage: Stage) -> float | None:
    job_id, agent = await stage.running()
    agent.hold()
    since = time.monotonic()
    agent.end(signal.SIGTERM, again_s=0.0)
    seconds = await stage.taken_over(job_id, since)
    agent.release()
    return seconds


async def _released(stage: Stage) -> float | None:
    await stage.all_able()
    job_id = await stage.submit(Plan(seconds=0.3, release=1))
    ended = await stage.line(job_id, 1, "end")
    again = await stage.line(job_id, 2, "start")
    return None if ended is None or again is None else round(again[1] - ended[1], 3)


async def _bereft(stage: Stage, victim: str, gaps: list[float | None]) -> float | None:
    """Kill a coordinator under a backlog of tiny jobs; return the seconds to the next claim that is granted."""
    await stage.rig.until_ready()
    await stage.all_able()
    await asyncio.gather(*(stage.submit(Plan(seconds=_TINY_S)) for _ in range(_TINY)))
    at = time.time()
    stage.rig.coordinators[victim].end(signal.SIGKILL, again_s=_AFTER_S)
    await asyncio.sleep(_AFTER_S)
    claims = [row["at"] for row in await stage.rig.sql(_CLAIMS, at)]
    if not claims:
        return None
    gaps.append(round(max(after - before for before, after in itertools.pairwise([at, *claims])), 3))
    return round(claims[0] - at, 3)


async def _until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer; TimeoutError after `PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        while not (answer := await ask()):  # noqa: ASYNC110 - other processes' state
            await asyncio.sleep(0.1)
    return answer
