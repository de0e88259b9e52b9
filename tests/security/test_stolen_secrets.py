"""What the secret of a CMS, an upload's token and a callback's secret are no good for (docs/security.md)."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from coordinator.embedded import EmbeddedNats
from coordinator.hooks.config import load
from tests.hooks.senders import LONG, PLAIN, SOURCES, WHSEC, body_of, ghost
from tests.support.servers import TandemServers
from tests.support.web import Web, web

READABLE = ("/v1/jobs", "/v1/workers", "/v1/lanes", "/v1/rejected", "/v1/tokens", "/status", "/metrics", "/v1/events")


@pytest_asyncio.fixture(loop_scope="session")
async def hooked(nats_server: EmbeddedNats, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[Web]:
    """Tokens, and the sources `ghost` and `strapi`, whose secret is the same text."""
    file = tmp_path / "sources.toml"
    file.write_text("\n".join(part for part in SOURCES.split("\n\n") if "ghost]" in part or "strapi]" in part))
    async with (
        TandemServers(nats_server).open("coordinator") as bus,
        web(bus, ledger_dsn, tmp_path, tokens=True, sources=load(file)) as made,
    ):
        yield made


@pytest.mark.parametrize("path", READABLE)
async def test_a_cmss_secret_reads_nothing(hooked: Web, path: str) -> None:
    for secret in (PLAIN, WHSEC, LONG):
        headers = {"Authorization": f"Bearer {secret}"}
        told = await hooked.call("GET", path, headers=headers, expect=401)
        assert told["error"]["code"] == "unauthorized"


async def test_a_cmss_secret_makes_jobs_of_its_source_only(hooked: Web) -> None:
    body = body_of("ghost")
    await hooked.call("POST", "/hooks/ghost", data=body, headers=ghost(body), expect=None)
    jobs = (await hooked.call("GET", "/v1/jobs", token="admin"))["jobs"]
    assert {job["source"] for job in jobs} == {"ghost"}
    await hooked.call("POST", "/hooks/strapi", data=body, headers=ghost(body), expect=401)
    assert len((await hooked.call("GET", "/v1/jobs", token="admin"))["jobs"]) == len(jobs)


async def test_an_uploads_token_is_good_for_its_upload_only(hooked: Web) -> None:
    article = {"kind": "article", "spec": {"prompt": "A story"}}
    one, other = [
        UUID((await hooked.call("POST", "/v1/jobs", json=article, token="admin", expect=201))["id"]) for _ in range(2)
    ]
    epoch = await hooked.claim(one)
    await hooked.claim(other)
    headers = hooked.upload_headers(one, epoch, b"x")
    for path in (*READABLE, f"/v1/jobs/{one}"):
        await hooked.call("GET", path, headers=headers, expect=401)
    await hooked.call("PUT", f"/v1/uploads/{other}/{epoch}/a.png", headers=headers, data=b"x", expect=401)
    await hooked.call("PUT", f"/v1/uploads/{one}/{epoch}/a.png", headers=headers, data=b"x", expect=201)
