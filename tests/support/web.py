"""The HTTP side for one test: a fresh ledger, a folder of files, the real intake, and a client on a real socket."""

import base64
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
import orjson
from pydantic import SecretStr

from coordinator.artifacts import FolderStore
from coordinator.dispatcher import Dispatcher
from coordinator.hooks.config import Source
from coordinator.hooks.hooks import Hooks
from coordinator.intake import Intake
from coordinator.ledger.database import open_pool
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Claim, FileReport, Grant, Judged, Offered
from coordinator.ledger.queries import Queries
from coordinator.settings import CoordinatorSettings
from coordinator.upload_tokens import UploadTokens
from coordinator.web.access import Access, AccessToken, Role
from coordinator.web.app import Runner, WebContext, make_app, serve
from coordinator.workers import Directory
from shared.bus import Bus
from shared.lease import Policy
from shared.states import Verdict
from shared.subjects import parse_delivery
from shared.wire import Report

TOKENS = {
    "admin": AccessToken("boss", Role.ADMIN, SecretStr("t-admin")),
    "viewer": AccessToken("wall", Role.VIEWER, SecretStr("t-viewer")),
    "publisher": AccessToken("blog", Role.PUBLISHER, SecretStr("t-blog")),
    "other": AccessToken("shop", Role.PUBLISHER, SecretStr("t-shop")),
}
MOST_BYTES = 8 * 1024 * 1024


@dataclass
class Web:
    """What a test holds: the client, the ledger behind it, and short ways through a job's life."""

    context: WebContext
    runner: Runner
    client: aiohttp.ClientSession
    ledger: Ledger
    pool: asyncpg.Pool
    store: FolderStore
    root: Path
    intake: Intake
    orders: list[tuple[Any, ...]] = field(default_factory=list)
    not_ready: list[str] = field(default_factory=list)
    _seq: Any = field(default_factory=lambda: itertools.count(1))

    async def call(
        self, method: str, path: str, *, expect: int | None = 200, token: str | None = None, **more: Any
    ) -> Any:
        """Send a request; return the parsed body after its status was what it must be."""
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {TOKENS[token].secret.get_secret_value()}"
        async with self.client.request(method, path, headers=headers, **more) as answer:
            text = await answer.text()
            assert expect is None or answer.status == expect, f"{answer.status}: {text}"
            return orjson.loads(text) if answer.content_type == "application/json" and text else text

    async def submit(self, **more: Any) -> UUID:
        """Submit an article and return its id."""
        body = {"kind": "article", "spec": {"prompt": "A story"}, **more}
        return UUID((await self.call("POST", "/v1/jobs", json=body, expect=201))["id"])

    async def claim(self, job_id: UUID, worker: str = "mini", lane: str = "article--any") -> int:
        """Offer the job and let `worker` claim it; return the epoch."""
        seq = next(self._seq)
        await self.pool.execute("UPDATE job SET offered_at = tandem_now() WHERE id = $1", job_id)
        await self.ledger.do(Offered(job_id=job_id, seq=seq))
        delivery = f"$JS.ACK.WORK.{lane}.1.{seq}.1.1.0"
        token = parse_delivery(delivery)
        assert token is not None
        answer = await self.ledger.do(Claim(job_id=job_id, worker=worker, instance="i", delivery=delivery, token=token))
        assert isinstance(answer, Grant), answer
        return answer.epoch

    async def report(self, job_id: UUID, epoch: int, worker: str = "mini", **more: Any) -> Verdict:
        """Report, by default a completed text; return the verdict."""
        said = {"outcome": "completed", "elapsed_s": 1.5, "model": "m", "result": {"text": "Once."}, **more}
        report = Report.model_validate({"job_id": job_id, "epoch": epoch, **said})
        digest = hashlib.sha256(report.model_dump_json().encode()).digest()
        answer = await self.ledger.do(
            FileReport(job_id=job_id, worker=worker, report=report, sha256=digest, capable=frozenset({"mini", "book"}))
        )
        assert isinstance(answer, Judged), answer
        return answer.verdict

    def upload_headers(self, job_id: UUID, epoch: int, content: bytes, worker: str = "mini") -> dict[str, str]:
        """Return the headers of a proper upload."""
        return {
            "Authorization": f"Bearer {self.context.tokens.issue(job_id, epoch, worker)}",
            "Content-Type": "image/png",
            "Digest": digest_of(content),
        }

    async def upload(
        self, job_id: UUID, epoch: int, name: str, content: bytes, *, expect: int = 201, worker: str = "mini"
    ) -> Any:
        """Upload a file."""
        headers = self.upload_headers(job_id, epoch, content, worker)
        path = f"/v1/uploads/{job_id}/{epoch}/{name}"
        return await self.call("PUT", path, headers=headers, data=content, expect=expect)

    def stored(self) -> list[str]:
        """Return the contents in the store, by digest."""
        return sorted(p.parent.name + p.name for p in (self.root / "sha256").glob("??/*"))

    def arriving(self) -> list[Path]:
        """Return the files that are still on their way in."""
        return list((self.root / "incoming").iterdir())


def digest_of(content: bytes) -> str:
    return "sha-256=" + base64.b64encode(hashlib.sha256(content).digest()).decode()


def artifact(name: str, content: bytes, media_type: str = "image/png") -> dict[str, Any]:
    """Return a file as a report lists it."""
    sha256 = hashlib.sha256(content).hexdigest()
    return {"name": name, "media_type": media_type, "size": len(content), "sha256": sha256}


@asynccontextmanager
async def web(
    bus: Bus,
    dsn: str,
    folder: Path,
    *,
    tokens: bool = False,
    host: str = "127.0.0.1",
    sources: Mapping[str, Source] | None = None,
) -> AsyncIterator[Web]:
    """Serve the HTTP side on a free port."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(await open_pool(dsn))
        policy = Policy()
        ledger = await stack.enter_async_context(Ledger(pool, policy, on_effects=lambda _: None))
        queries = Queries(pool)
        directory = Directory(queries, policy.presence_s)
        dispatcher = Dispatcher(ledger, queries, directory, lambda: True, 2, 15.0)
        settings = CoordinatorSettings(kinds=frozenset({"video"}))
        intake = Intake(bus, ledger, queries, directory, dispatcher, settings)
        store = await FolderStore.open(folder / "artifacts")
        stack.callback(store.close)
        hooks = Hooks(sources or {}, intake.submit, queries.record_rejected_submission, answer_s=60.0)
        await stack.enter_async_context(hooks)
        orders: list[tuple[Any, ...]] = []
        not_ready: list[str] = []

        async def note(*what: Any) -> None:
            orders.append(what)

        context = WebContext(
            ledger=ledger,
            pool=pool,
            queries=queries,
            policy=policy,
            store=store,
            tokens=UploadTokens.load_or_create(folder / "upload.key"),
            access=Access(list(TOKENS.values()) if tokens else []),
            submit=intake.submit,
            hooks=hooks,
            order=note,
            pause_lane=note,
            health=lambda: {"bus": {"connected": bus.connected}, "ledger": ledger.status(), "loops": {}},
            ready=lambda: not_ready,
            max_artifact_bytes=MOST_BYTES,
        )
        runner = await serve(make_app(context), host, 0)
        stack.push_async_callback(runner.cleanup)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(runner.url, cookie_jar=aiohttp.CookieJar(unsafe=True))
        )
        yield Web(
            context=context,
            runner=runner,
            client=client,
            ledger=ledger,
            pool=pool,
            store=store,
            root=folder / "artifacts",
            intake=intake,
            orders=orders,
            not_ready=not_ready,
        )
