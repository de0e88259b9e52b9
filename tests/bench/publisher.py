"""A publisher in a process of its own: `python -m tests.bench.publisher '{"nats":…, "seed":…, "count":…}'`.

Submits `count` no-op jobs over SUBMIT with at most `in_flight` unacknowledged, or with `pause_s` between them one by
one, and prints when each was sent (or the first, when it is many) by the wall clock.
"""

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import orjson
import uvloop

from coordinator.identities import OUTSIDE_JS_PREFIX
from shared import log
from shared.bus import Bus

LIMIT_S = 300.0
SPEC = {"prompt": "An article about the harbour in spring, for people who have never been there.", "n": 1}


async def publish(order: dict[str, Any]) -> dict[str, Any]:
    bus = Bus(
        order["nats"],
        name="bench publisher",
        seed=order["seed"],
        inbox_prefix="_INBOX.bench",
        js_prefix=OUTSIDE_JS_PREFIX,
    )
    async with asyncio.timeout(LIMIT_S), bus:
        await bus.wait_connected(10)
        if order.get("pause_s"):
            return {"sent": await _one_by_one(bus, order)}
        first = time.time()
        began = time.process_time()
        numbers = iter(range(order["count"]))
        await asyncio.gather(*(_submit_all(bus, order["prefix"], numbers) for _ in range(order["in_flight"])))
        return {"first": first, "last": time.time(), "cpu_s": time.process_time() - began}


async def _submit_all(bus: Bus, prefix: str, numbers: Iterator[int]) -> None:
    for number in numbers:
        await _submit(bus, f"{prefix}-{number}")


async def _one_by_one(bus: Bus, order: dict[str, Any]) -> dict[str, float]:
    sent = {}
    for number in itertools.islice(itertools.count(), order["count"]):
        await asyncio.sleep(order["pause_s"] * random.uniform(0.5, 1.5))
        key = f"{order['prefix']}-{number}"
        sent[key] = time.time()
        await _submit(bus, key)
    return sent


async def _submit(bus: Bus, key: str) -> None:
    body = orjson.dumps({"key": key, "kind": "noop", "spec": SPEC, "labels": {"of": "bench", "post": key}})
    await bus.js_publish("tandem.submit.bench", body, msg_id=f"bench:{key}", timeout_s=30.0)


def main() -> None:
    log.configure(json=True, level="warning")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(publish(json.loads(sys.argv[1])))))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
