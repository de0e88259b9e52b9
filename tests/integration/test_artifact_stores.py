"""The whole system on either store, a folder or a bucket: files survive what kills their coordinator, or are swept."""

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from pydantic import SecretStr

from coordinator import cli_audit
from coordinator.artifact_s3 import PART_BYTES
from shared.errors import UnreachableError
from tests.support.coordinator_process import coordinator_process
from tests.support.proxy import Proxy
from tests.support.puppet import Held
from tests.support.s3 import S3Server, s3_server
from tests.support.servers import own_servers
from tests.support.world import NEVER_S, World, eventually_async
from tests.support.world import world as open_world

LARGE = 3 * PART_BYTES
GRACE_S = 1e-3  # everything that is not in use is old


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running_s3() -> AsyncIterator[S3Server]:
    async with s3_server() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def s3(running_s3: S3Server) -> S3Server:
    await running_s3.empty()
    return running_s3


@pytest_asyncio.fixture(loop_scope="session")
async def line(s3: S3Server) -> AsyncIterator[Proxy]:
    """The way from the coordinators to the bucket."""
    port = urlsplit(s3.url).port
    assert port is not None
    async with Proxy("127.0.0.1", port) as made:
        yield made


@pytest.fixture(params=["folder", "bucket"])
def store_settings(request: pytest.FixtureRequest, s3: S3Server, line: Proxy) -> dict[str, Any]:
    return {} if request.param == "folder" else s3.settings(f"http://127.0.0.1:{line.port}")


@pytest_asyncio.fixture(loop_scope="session")
async def world(ledger_dsn: str, tmp_path: Path, store_settings: dict[str, Any]) -> AsyncIterator[World]:
    more = {**store_settings, "artifacts_grace_s": GRACE_S, "sweep_s": NEVER_S}
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, **more) as made:
        yield made


@asynccontextmanager
async def second(world: World, store_settings: dict[str, Any], folder: Path) -> AsyncIterator[Any]:
    """Run another coordinator on the same ledger and store, as a process."""
    plain = {k: v.get_secret_value() if isinstance(v, SecretStr) else str(v) for k, v in store_settings.items()}
    environment = {f"TANDEM_{name.upper()}": value for name, value in plain.items()}
    shared = {"TANDEM_ARTIFACTS": str(world.settings.artifacts), "TANDEM_SECRETS": str(world.settings.secrets)}
    made = coordinator_process(world.servers, world.dsn, folder, **shared, **environment)
    async with made as process:
        yield process


async def lying(world: World, s3: S3Server) -> list[str]:
    """Return all that lies in the store, whole or not."""
    in_folder = [str(path) for path in world.settings.artifacts.rglob("*") if path.is_file()]
    return [*in_folder, *await s3.keys(), *await s3.unfinished()]


def to(url: str, held: Held) -> str:
    """Return where a coordinator takes this lease's files."""
    return url + urlsplit(held.grant["upload"]["url"]).path


async def put(url: str, held: Held, content: bytes, data: Any) -> int:
    """Upload `data` as `content`; return the status."""
    headers = {
        "Authorization": f"Bearer {held.grant['upload']['token']}",
        "Content-Type": "image/png",
        "Content-Length": str(len(content)),
        "Digest": f"sha-256={base64.b64encode(hashlib.sha256(content).digest()).decode()}",
    }
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"{to(url, held)}/a.png", data=data, headers=headers) as answer,
    ):
        return answer.status


async def health(world: World) -> dict[str, Any]:
    async with world.http.get("/status") as answer:
        shown: dict[str, Any] = (await answer.json())["health"]["store"]
    return shown


async def chunks_of(content: bytes, stop_at: int | None = None) -> AsyncIterator[bytes]:
    for start in range(0, len(content) if stop_at is None else stop_at, 100_000):
        yield content[start : start + 100_000]
    if stop_at is not None:
        await asyncio.Event().wait()


async def test_a_file_goes_in_by_one_coordinator_and_out_by_another(
    world: World, store_settings: dict[str, Any], tmp_path: Path
) -> None:
    content = os.urandom(LARGE)
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    assert await put(world.coordinator.url, held, content, chunks_of(content)) == 201
    assert await put(world.coordinator.url, held, content, chunks_of(content)) == 200
    digest = hashlib.sha256(content).hexdigest()
    file = {"name": "a.png", "media_type": "image/png", "size": LARGE, "sha256": digest}
    await held.report(artifacts=[file])
    await world.until(job["id"], "completed")
    await world.coordinator.sweeper.once()
    async with second(world, store_settings, tmp_path / "second") as other, aiohttp.ClientSession(other.url) as session:
        path = f"/v1/jobs/{job['id']}/artifacts/a.png"
        async with session.get(path) as answer:
            assert (answer.status, answer.content_type) == (200, "image/png")
            assert await answer.read() == content
        async with session.get(path, headers={"Range": f"bytes={PART_BYTES - 2}-{PART_BYTES + 2}"}) as answer:
            assert (answer.status, await answer.read()) == (206, content[PART_BYTES - 2 : PART_BYTES + 3])
    assert await cli_audit.audited(world.settings, results=10, json=False)


async def test_a_coordinator_killed_in_the_middle_of_an_upload_leaves_nothing_and_it_starts_again(
    world: World, s3: S3Server, store_settings: dict[str, Any], tmp_path: Path
) -> None:
    content = os.urandom(LARGE)
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()

    async def half_there() -> bool:
        incoming = list((world.settings.artifacts / "incoming").glob("*"))
        return bool(await s3.unfinished()) or any(file.stat().st_size > PART_BYTES for file in incoming)

    async with second(world, store_settings, tmp_path / "second") as killed:
        half = chunks_of(content, stop_at=LARGE - 100_000)
        upload = asyncio.create_task(put(killed.url, held, content, half))
        await eventually_async(half_there)
        await killed.kill()
        with pytest.raises(aiohttp.ClientError):
            await upload
    assert len(await lying(world, s3)) == 1
    await world.coordinator.sweeper.once()
    assert await lying(world, s3) == []
    assert world.coordinator.status()["counts"]["swept_unfinished"] == 1
    await world.stop_coordinator()
    await world.start_coordinator()
    assert await put(world.coordinator.url, held, content, chunks_of(content)) == 201
    digest = hashlib.sha256(content).hexdigest()
    await held.report(artifacts=[{"name": "a.png", "media_type": "image/png", "size": LARGE, "sha256": digest}])
    await world.until(job["id"], "completed")
    await world.coordinator.sweeper.once()
    assert len(await lying(world, s3)) == 1


async def test_what_a_canceled_job_uploaded_is_swept_and_counted(world: World, s3: S3Server) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    await held.upload("a.md", b"# In vain")
    await world.coordinator.sweeper.once()
    assert len(await lying(world, s3)) == 1
    await world.act(job["id"], "cancel")
    sweeper = world.coordinator.sweeper

    async def swept() -> bool:
        await sweeper.once()
        return not await lying(world, s3)

    await eventually_async(swept)
    async with world.http.get("/status") as answer:
        counts = (await answer.json())["health"]["counts"]
    assert (counts["swept_files"], counts["swept_contents"]) == (1, 1)


@pytest.mark.parametrize("store_settings", ["bucket"], indirect=True)
async def test_while_the_bucket_is_away_agents_and_readers_are_told_to_come_again(world: World, line: Proxy) -> None:
    mini = await world.puppet("mini")
    job = await world.submit()
    held = await mini.take()
    named = await held.upload("a.md", b"# There")
    line.refuse()
    line.cut()
    assert (await health(world))["reachable"]
    assert await put(world.coordinator.url, held, b"more", b"more") == 503
    away = await health(world)
    assert not away["reachable"]
    assert "does not answer" in away["last_error"]
    await held.report(artifacts=[named])
    await world.until(job["id"], "completed")
    path = f"/v1/jobs/{job['id']}/artifacts/a.md"
    async with world.http.get(path) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert (await answer.json())["error"]["code"] == "store_down"
    with pytest.raises(UnreachableError, match="the artifact store does not answer"):  # `tandem audit` exits with 3
        await cli_audit.audited(world.settings, results=0, json=False)
    line.refuse(refusing=False)
    async with world.http.get(path) as answer:
        assert (answer.status, await answer.read()) == (200, b"# There")
    assert (await health(world))["reachable"]
