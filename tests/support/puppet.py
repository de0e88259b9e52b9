"""An agent on strings: speaks the wire contract step by step, as the test says, and can break it at any step."""

import asyncio
import base64
import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from shared import subjects
from shared.bus import Bus, Message, NoResponders, PubAck
from tests.support.servers import TandemServers

WAIT_S = 30.0
"""Longer than anything here takes; a test that waits this long has failed."""


class Puppet:
    """One worker's connection; `heard` holds what came on its control subject."""

    def __init__(self, bus: Bus, worker: str) -> None:
        self.bus = bus
        self.worker = worker
        self.instance = str(uuid.uuid4())
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def announce(
        self, *, kinds: tuple[str, ...] = ("article",), models: tuple[str, ...] = ("*",), busy: Any = (), **more: Any
    ) -> dict[str, Any]:
        """Send a presence; `busy` = [(job_id, epoch)]."""
        body = {
            "protocol": 1,
            "version": "puppet",
            "instance": self.instance,
            "host": "here",
            "platform": "test",
            "slots": 1,
            "rank": 0,
            "state": "ready",
            "capabilities": [{"kind": kind, "models": list(models), "executor": "puppet"} for kind in kinds],
            "busy": [{"job_id": str(j), "epoch": e, "stage": "generating_text"} for j, e in busy],
            **more,
        }
        return await self._ask(subjects.presence(self.worker), body)

    async def pull(self, lane: str = "article.any", *, expires_s: float = WAIT_S) -> Message:
        """Take the next offer of a lane; AssertionError if none comes."""
        async with asyncio.timeout(expires_s):
            while True:
                try:
                    message = await self.try_pull(lane, expires_s=expires_s)
                except NoResponders:  # the lane's consumer is not there yet
                    await asyncio.sleep(0.05)
                    continue
                assert message is not None, f"nothing was offered on {lane}"
                return message

    async def try_pull(self, lane: str = "article.any", *, expires_s: float = 0.2) -> Message | None:
        """Take the next offer of a lane, None if none comes."""
        consumer = subjects.consumer_of(lane)
        return await self.bus.pull_one("WORK", consumer, expires_s=expires_s, group="workers", priority=0)

    async def claim(self, offer: Message, **more: Any) -> dict[str, Any]:
        """Claim what was pulled."""
        body = {"job_id": orjson.loads(offer.data)["job_id"], "delivery": offer.reply, **more}
        return await self.ask_claim(body)

    async def ask_claim(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a claim as it is."""
        return await self._ask(subjects.claim(self.worker), body)

    async def take(self, lane: str = "article.any") -> "Held":
        """Pull and claim; the claim must be granted."""
        offer = await self.pull(lane)
        grant = await self.claim(offer)
        assert grant["verdict"] == "granted", grant
        return Held(self, offer, grant)

    async def ask(self, job_id: str, epoch: int) -> dict[str, Any]:
        """Ask whether a lease is held."""
        return await self._ask(subjects.lease(self.worker), {"job_id": job_id, "epoch": epoch})

    async def report(self, job_id: str, epoch: int, outcome: str = "completed", **more: Any) -> PubAck:
        """Publish a report, without a message id, so that no dedupe window stands between the test and the ledger."""
        body: dict[str, Any] = {"job_id": job_id, "epoch": epoch, "outcome": outcome, "elapsed_s": 1.5}
        if outcome == "completed":
            body["result"] = {"text": "# Done"}
        body |= more
        return await self.bus.js_publish(subjects.report(self.worker, uuid.UUID(job_id)), orjson.dumps(body))

    async def hears(self, kind: str, **expected: Any) -> dict[str, Any]:
        """Return the next control message of this type that has these values."""
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await self.heard.get()
                if message["type"] == kind and expected.items() <= message.items():
                    return message

    async def _ask(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.bus.request(subject, orjson.dumps(body), timeout_s=WAIT_S)
        decoded: dict[str, Any] = orjson.loads(answer.data)
        return decoded


class Held:
    """A granted lease in a puppet's hands."""

    def __init__(self, puppet: Puppet, offer: Message, grant: dict[str, Any]) -> None:
        self.puppet = puppet
        self.offer = offer
        self.grant = grant
        self.job_id: str = grant["job"]["id"]
        self.epoch: int = grant["epoch"]

    async def beat(self, stage: str = "generating_text", **headers: str) -> None:
        """Send one heartbeat."""
        sent = {
            "Tandem-Job": self.job_id,
            "Tandem-Epoch": str(self.epoch),
            "Tandem-Worker": self.puppet.worker,
            "Tandem-Stage": stage,
            "Tandem-Elapsed": "1.5",
            **headers,
        }
        await self.puppet.bus.publish(self.offer.reply, b"+WPI", headers=sent)

    async def ask(self) -> dict[str, Any]:
        """Ask whether the lease is held."""
        return await self.puppet.ask(self.job_id, self.epoch)

    async def report(self, outcome: str = "completed", **more: Any) -> PubAck:
        """Report on this epoch."""
        return await self.puppet.report(self.job_id, self.epoch, outcome, **more)

    async def fail(self, error_class: str, code: str = "broken") -> None:
        """Report a failure and wait until it is accepted."""
        await self.report("failed", error={"code": code, "message": "it broke", "class": error_class})
        await self.verdict("accepted")

    async def verdict(self, verdict: str) -> dict[str, Any]:
        """Return the verdict on this epoch, which must be this one."""
        message = await self.puppet.hears("verdict", job_id=self.job_id, epoch=self.epoch)
        assert message["verdict"] == verdict, message
        return message

    async def upload(self, name: str, content: bytes, media_type: str = "text/markdown") -> dict[str, Any]:
        """Upload a file; return how the report names it."""
        digest = hashlib.sha256(content)
        headers = {
            "Authorization": f"Bearer {self.grant['upload']['token']}",
            "Content-Type": media_type,
            "Digest": f"sha-256={base64.b64encode(digest.digest()).decode()}",
        }
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"{self.grant['upload']['url']}/{name}", data=content, headers=headers) as answer,
        ):
            assert answer.status in (200, 201), await answer.text()
        return {"name": name, "media_type": media_type, "size": len(content), "sha256": digest.hexdigest()}


@asynccontextmanager
async def puppet(servers: TandemServers, worker: str, **options: Any) -> AsyncIterator[Puppet]:
    """Connect a puppet as this worker."""
    async with servers.open(f"agent:{worker}", **options) as bus:
        made = Puppet(bus, worker)
        await bus.subscribe(subjects.control(worker), lambda message: made.heard.put_nowait(orjson.loads(message.data)))
        yield made
