"""What is submitted: mixed kinds, lengths and outcomes, and what must be refused. All from one seeded Random."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from tests.crash.chaos.generator import KINDS, PLAN, VARIANTS, Plan
from tests.crash.chaos.rig import PLANNED

_SHORT_S, _MEDIUM_S, _LONG_S = (0.05, 0.5), (0.5, 3.0), (3.0, 6.0)

_OUTCOMES: tuple[tuple[int, Callable[[random.Random], dict[str, Any]]], ...] = (
    (72, lambda _: {}),
    (10, lambda r: {"fail": r.randint(1, 3)}),
    (4, lambda _: {"permanent": True}),
    (4, lambda r: {"elsewhere": r.choice(PLANNED)}),
    (2, lambda _: {"release": 1}),
    (4, lambda r: {"block": round(r.uniform(0.3, 2.5), 2)}),
    (4, lambda r: {"kill": r.randint(1, 2)}),
)
"""Weight, and what the plan says; beside these a few have so low a limit that they fail by it."""


@dataclass(frozen=True)
class Order:
    """A submission: its key, and the body as it is sent each time."""

    key: str
    body: bytes
    kind: str


@dataclass(frozen=True)
class BadOrder:
    """A body that must be refused, and the mark by which it is found on record."""

    mark: str
    body: bytes


def order(chance: random.Random, number: int) -> Order:
    key, kind = f"job-{number}", chance.choice(KINDS)
    plan = _plan(chance, kind)
    body: dict[str, Any] = {
        "key": key,
        "kind": kind,
        "spec": _spec(kind, plan, number),
        "labels": {PLAN: plan.model_dump_json(exclude_defaults=True)},
        "priority": chance.choices(("low", "normal", "high", "urgent"), (1, 17, 1, 1))[0],
        "review": chance.random() < 0.04,
    }
    if kind != "render" and chance.random() < 0.3:
        body["model"] = "small:1b"
    if chance.random() < 0.05:
        body["run_after"] = (datetime.now(UTC) + timedelta(seconds=chance.uniform(0.5, 3))).isoformat()
    if plan.fail and chance.random() < 0.3:
        body["max_attempts"] = 2
    return Order(key, orjson.dumps(body), kind)


def bad_order(chance: random.Random, number: int) -> BadOrder:
    mark = f"bad-{number}"
    good: dict[str, Any] = {"key": mark, "kind": "image", "spec": {"prompt": mark, "width": 64, "height": 64}}
    wrong: tuple[Any, ...] = (
        {**good, "spec": {**good["spec"], "width": 65}},
        {**good, "spec": {}},
        {**good, "kind": "sculpture"},
        {**good, "prioritty": "high"},
        {**good, "max_attempts": 0},
    )
    if chance.random() < 0.2:
        return BadOrder(mark, f'{{"key": "{mark}", "kind": '.encode())
    return BadOrder(mark, orjson.dumps(chance.choice(wrong)))


def conflicting(known: Order) -> bytes:
    """Return a body under a key that is in use, with other content."""
    body: dict[str, Any] = orjson.loads(known.body)
    return orjson.dumps({**body, "labels": {**body["labels"], "other": "content"}})


def _plan(chance: random.Random, kind: str) -> Plan:
    length = chance.choices((_SHORT_S, _MEDIUM_S, _LONG_S), (4, 4, 2))[0]
    outcome = chance.choices([make for _, make in _OUTCOMES], [weight for weight, _ in _OUTCOMES])[0]
    files = [chance.randrange(VARIANTS) for _ in range(chance.randint(1, 3))] if kind == "image" else []
    seconds = round(chance.uniform(*length), 2)
    return Plan(seconds=seconds, files=files, **outcome(chance))


def _spec(kind: str, plan: Plan, number: int) -> dict[str, Any]:
    """Return the spec; to the sketch executor it says what the plan says, as far as that can be told."""
    if kind == "render":
        return {"number": number}
    simulate: dict[str, Any] = {"seconds": plan.seconds}
    if plan.permanent:
        simulate["fail"] = "permanent"
    elif plan.fail:
        simulate |= {"fail": "transient", "fail_attempts": plan.fail}
    spec: dict[str, Any] = {"prompt": f"number {number}", "simulate": simulate}
    if kind == "image":
        simulate["pad_bytes"] = 40_000 * (number % VARIANTS)
        spec |= {"width": 128, "height": 128, "n": len(plan.files), "seed": number % VARIANTS}
    return spec
