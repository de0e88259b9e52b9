"""The other side of an agent: a foreign coordinator that speaks the wire contract, and can break it at any step.

It has no ledger. It offers, grants, records what it hears, and answers what the test says.
"""

import asyncio
import contextlib
import hashlib
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from agent.executors.base import Executor
from agent.host import Clock
from agent.runner import RunEnd
from agent.service import run_agent
from agent.settings import AgentSettings
from shared import subjects
from shared.bus import Bus, BusError, Message, NoResponders
from shared.streams import ensure_lane_consumer
from tests.support.servers import TandemServers, eventually

WAIT_S = 30.0
TTL_S = 4.0
QUICK: dict[str, Any] = {
    "presence_s": 0.5,
    "linger_s": 1.0,
    "linger_many_s": 0.2,
    "claim_timeout_s": 0.3,
    "lease_timeout_s": 0.5,
    "verdict_timeout_s": 0.3,
    "resend_s": (0.05, 0.1),
    "reconnect_s": (0.02, 0.05),
    "heartbeat_tick_s": 0.02,
    "drain_limit_s": 0.2,
    "release_limit_s": 1.0,
    "wake_grace_s": 0.0,
    "hang_s": 0.0,
}


class ManualClock(Clock):
    """Time that the test moves; it starts with the real one and runs on with it."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_s = 0.0
        self.asleep_s = 0.0

    def now(self) -> float:
        return super().now() + self.moved_s

    def awake(self) -> float:
        return super().awake() + self.moved_s - self.asleep_s


class Coordinator:
    """What the agent hears, and all that was heard of it."""

    def __init__(self, bus: Bus, worker: str) -> None:
        self.bus = bus
        self.worker = worker
        self.kinds: tuple[str, ...] = ("article",)
        self.state = "ready"
        self.rules: dict[str, Any] | None = None
        self.heartbeat_s = 1.0
        self.deadline_s = 60.0
        self.failures: list[dict[str, Any]] = []  # what each grant says is charged to its job
        self.jobs: dict[str, dict[str, Any]] = {}
        self.grants: dict[str, dict[str, Any]] = {}  # by delivery
        self.presences: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []
        self.heartbeats: list[Message] = []
        self.acks: list[tuple[str, bytes]] = []
        self.questions: list[dict[str, Any]] = []
        self.reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.all_reports: list[dict[str, Any]] = []
        self.uploads: dict[str, bytes] = {}
        self.upload_requests: list[dict[str, Any]] = []
        self.upload_statuses: list[int] = []  # answers for the next uploads, before the ordinary ones
        self.uploads_go = asyncio.Event()
        self.uploads_go.set()
        self.upload_started = asyncio.Event()
        self.answer_presence = True
        self.answer_claim: Callable[[dict[str, Any]], dict[str, Any] | None] = self.grant
        self.answer_lease: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _: {
            "lease": "held",
            "ttl_s": TTL_S,
        }
        self.answer_report: Callable[[dict[str, Any]], str | None] = lambda _: "accepted"
        self.url = ""

    # ---- what the test does

    async def offer(self, *, kind: str = "article", job_id: str | None = None, **spec: Any) -> str:
        """Offer a job; return its id."""
        job_id = job_id or str(uuid.uuid4())
        self.jobs.setdefault(job_id, {"id": job_id, "kind": kind, "model": None, "spec": spec or {"prompt": "A tale"}})
        body = orjson.dumps({"job_id": job_id, "kind": kind, "model": None})
        await self.bus.js_publish(f"tandem.work.{kind}.any.{job_id}", body)
        return job_id

    async def say(self, **message: Any) -> None:
        """Send a control message."""
        await self.bus.publish(subjects.control(self.worker), orjson.dumps(message))

    async def report(self) -> dict[str, Any]:
        """Return the next report."""
        async with asyncio.timeout(WAIT_S):
            return await self.reports.get()

    def grant(self, claim: dict[str, Any]) -> dict[str, Any]:
        """Grant, the same for the same delivery."""
        job = self.jobs[claim["job_id"]]
        known = self.grants.get(claim["delivery"])
        if known is None:
            job["epoch"] = job.get("epoch", 0) + 1
            known = self.grants[claim["delivery"]] = {
                "verdict": "granted",
                "epoch": job["epoch"],
                "attempt": 1,
                "lease_ttl_s": TTL_S,
                "heartbeat_s": self.heartbeat_s,
                "deadline_s": self.deadline_s,
                "failures": self.failures,
                "upload": {"url": f"{self.url}/up/{job['id']}/{job['epoch']}", "token": f"token-{job['epoch']}"},
                "job": {name: job[name] for name in ("id", "kind", "model", "spec")},
            }
        return known

    def beats_of(self, job_id: str) -> list[Message]:
        """Return the heartbeats of a job."""
        return [beat for beat in self.heartbeats if (beat.headers or {}).get("Tandem-Job") == job_id]

    def alien_acks(self) -> list[bytes]:
        """Return every ack of the agent that is no heartbeat."""
        return [data for _, data in self.acks if data != b"+WPI"]

    # ---- what the agent asks

    async def presence(self, message: Message) -> None:
        self.presences.append(orjson.loads(message.data))
        if self.answer_presence:
            lanes = [{"kind": k, "slug": "any", "consumer": f"{k}--any", "pending": 0} for k in self.kinds]
            await self._answer(
                message,
                {
                    "lanes": lanes,
                    "lease_ttl_s": TTL_S,
                    "heartbeat_s": self.heartbeat_s,
                    "presence_s": 0.5,
                    "state": self.state,
                    "rules": self.rules,
                },
            )

    async def claim(self, message: Message) -> None:
        claim = orjson.loads(message.data)
        self.claims.append(claim)
        await self._answer(message, self.answer_claim(claim))

    async def lease(self, message: Message) -> None:
        question = orjson.loads(message.data)
        self.questions.append(question)
        await self._answer(message, self.answer_lease(question))

    def ack(self, message: Message) -> None:
        if (message.headers or {}).get("Tandem-Worker") != self.worker and message.data == b"+ACK":
            return  # settling reports is the coordinator's own
        self.acks.append((message.subject, message.data))
        if message.data == b"+WPI":
            self.heartbeats.append(message)

    async def _answer(self, message: Message, body: dict[str, Any] | None) -> None:
        if body is not None:
            await self.bus.respond(message, orjson.dumps(body))

    async def take_reports(self) -> None:
        async with self.bus.consume("REPORTS", "reports", batch=10, queue_max=10) as messages:
            async for message in messages:
                report = orjson.loads(message.data)
                self.all_reports.append(report)
                verdict = self.answer_report(report)
                self.reports.put_nowait(report)
                with contextlib.suppress(BusError):  # the test may have taken the server away
                    await self.bus.ack(message)
                    if verdict is not None:
                        await self.say(type="verdict", job_id=report["job_id"], epoch=report["epoch"], verdict=verdict)

    async def upload(self, request: web.Request) -> web.Response:
        self.upload_started.set()
        self.upload_requests.append({"path": request.path, "headers": dict(request.headers)})
        await self.uploads_go.wait()
        body = await request.read()
        if self.upload_statuses:
            return web.Response(status=self.upload_statuses.pop(0), text="as the test says")
        digest = "sha-256=" + b64encode(hashlib.sha256(body).digest()).decode()
        if request.headers["Digest"] != digest:
            return web.Response(status=422)
        known = request.match_info["name"] in self.uploads
        self.uploads[request.match_info["name"]] = body
        return web.Response(status=200 if known else 201)


@asynccontextmanager
async def coordinator(servers: TandemServers, worker: str = "mini") -> AsyncIterator[Coordinator]:
    """Run a foreign coordinator for one worker."""
    async with AsyncExitStack() as stack:
        async with servers.open(f"agent:{worker}"):
            pass  # the server knows the identity by now
        bus = await stack.enter_async_context(servers.open("coordinator"))
        made = Coordinator(bus, worker)
        for kind in ("article", "image", "noop"):
            await _ensure_lane(bus, kind)
        app = web.Application(client_max_size=2**28)
        app.router.add_put("/up/{job}/{epoch}/{name}", made.upload)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        await bus.subscribe(subjects.PRESENCE, made.presence)
        await bus.subscribe(subjects.CLAIM, made.claim)
        await bus.subscribe(subjects.LEASE, made.lease)
        await bus.subscribe(subjects.HEARTBEATS, made.ack)
        taking = asyncio.create_task(made.take_reports())
        try:
            yield made
        finally:
            made.uploads_go.set()
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)


async def _ensure_lane(bus: Bus, kind: str) -> None:
    """Make a lane's consumer; a server that just took a new identity answers nothing for some milliseconds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await ensure_lane_consumer(bus, subjects.lane_of(kind, None), ack_wait_s=TTL_S)
            except NoResponders:
                await asyncio.sleep(0.01)


def settings_for(servers: TandemServers, worker: str, data: Path, **more: Any) -> AgentSettings:
    """Return the settings of an agent that hurries."""
    seed = servers.nats.identities.add_agent(worker)
    return AgentSettings(**{"worker": worker, "nats": servers.nats.url, "seed": seed, "data": data, **QUICK, **more})


class RunningAgent:
    """An agent in this process."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.ready = asyncio.Event()
        self.ends: asyncio.Queue[RunEnd] = asyncio.Queue()
        self.task: asyncio.Task[None]

    @property
    def spool(self) -> list[str]:
        """What lies in the spool."""
        return sorted(path.name for path in (self.settings.data / "spool").iterdir() if not path.name.startswith("."))

    @property
    def workspaces(self) -> list[str]:
        """What lies in the work folder."""
        return sorted(path.name for path in (self.settings.data / "work").iterdir())

    async def end(self) -> RunEnd:
        """Return how the next run ended."""
        async with asyncio.timeout(WAIT_S):
            return await self.ends.get()

    async def stopped(self) -> None:
        """Stop it, and return when it has ended."""
        self.stop.set()
        async with asyncio.timeout(WAIT_S):
            await self.task

    async def spool_is_empty(self) -> None:
        await eventually(lambda: not self.spool)


@asynccontextmanager
async def agent(
    settings: AgentSettings, *executors: Executor, clock: Clock | None = None, wait_ready: bool = True
) -> AsyncIterator[RunningAgent]:
    """Run an agent until the block is left."""
    made = RunningAgent(settings)
    made.task = asyncio.create_task(
        run_agent(
            settings,
            stop=made.stop,
            hurry=made.hurry,
            ready=made.ready,
            executors=executors or None,
            clock=clock,
            on_end=made.ends.put_nowait,
        )
    )
    try:
        if wait_ready:
            waiting = asyncio.create_task(made.ready.wait())
            await asyncio.wait({waiting, made.task}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if made.task.done():
                made.task.result()
            assert made.ready.is_set(), "the agent did not get ready"
        yield made
    finally:
        made.stop.set()
        made.hurry.set()
        await asyncio.wait({made.task}, timeout=WAIT_S)
        made.task.cancel()
        await asyncio.gather(made.task, return_exceptions=True)
