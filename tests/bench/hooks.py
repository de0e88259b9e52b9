"""How long a CMS waits for the answer to its event, one at a time on an idle system, on one kept connection."""

import asyncio
import base64
import time
from datetime import UTC, datetime

import aiohttp
import orjson
from standardwebhooks import Webhook

from tests.bench.findings import Finding, percentile
from tests.bench.rig import Rig

EVENTS = 400
WARM_UP = 50
PAUSE_S = 0.03
_SECRET = "whsec_" + base64.b64encode(b"nobody else posts to this bench.").decode()


async def measure(rig: Rig) -> list[Finding]:
    """Fire events of the WordPress preset, each of them new: two jobs of a lane that nobody serves."""
    sources = rig.folder / "sources.toml"
    sources.write_text(f'[sources.bench]\npreset = "wordpress"\ncheck.secrets = ["{_SECRET}"]\n')
    took: list[float] = []
    async with (
        rig.coordinator(sources_file=sources) as coordinator,
        aiohttp.ClientSession(coordinator.url) as client,
    ):
        for number in range(EVENTS + WARM_UP):
            body, headers = _event(number)
            began = time.perf_counter()
            async with client.post("/hooks/bench", data=body, headers=headers) as answer:
                if answer.status != 202:
                    msg = f"answered {answer.status}: {await answer.text()}"
                    raise RuntimeError(msg)
                await answer.read()
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(PAUSE_S)
    await rig.clear()
    took = took[WARM_UP:]
    return [
        Finding("hooks", "event to answer, p50", round(percentile(took, 0.5), 1), "ms", "", f"{EVENTS} events"),
        Finding("hooks", "event to answer, p99", round(percentile(took, 0.99), 1), "ms", "< 50"),
    ]


def _event(number: int) -> tuple[bytes, dict[str, str]]:
    data = {
        "site": "https://blog.example",
        "post_id": number,
        "want": ["article", "hero_image"],
        "title": f"A walk along the harbour, {number}",
        "excerpt": "Boats, gulls, and a lighthouse",
        "keywords": ["harbours", "walks"],
        "language": "en_GB",
        "user": "author1",
    }
    body = orjson.dumps({"type": "content.requested", "timestamp": "2026-11-29T20:50:40Z", "data": data})
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": f"msg_{number}",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(_SECRET).sign(f"msg_{number}", now, body.decode()),
    }
    return body, headers
