"""What anybody may send before it is known who they are: how much of it, and where a name may lead."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from coordinator.embedded import EmbeddedNats
from tests.support.servers import TandemServers
from tests.support.web import Web, web

MIB = 1024 * 1024
ARTICLE = {"kind": "article", "spec": {"prompt": "A story"}}
UNKNOWN = "/v1/jobs/00000000-0000-0000-0000-000000000000"


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(nats_server: EmbeddedNats, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[Web]:
    async with (
        TandemServers(nats_server).open("coordinator") as bus,
        web(bus, ledger_dsn, tmp_path, tokens=True) as made,
    ):
        yield made


async def raw(site: Web, head: bytes, body: bytes = b"") -> bytes:
    """Send bytes as they are; return the status line, empty when the connection just ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.runner.url.rpartition(":")[2]))
    try:
        writer.write(head + b"\r\n\r\n" + body)
        await writer.drain()
        async with asyncio.timeout(10):
            return (await reader.readline()).strip()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("path", ["/login", "/v1/join", "/hooks/blog", "/v1/jobs"])
async def test_a_body_of_a_stranger_is_refused_before_it_is_read(guarded: Web, path: str) -> None:
    """Announced as 1 GiB, and not a byte of it sent: the answer comes all the same."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {1024 * MIB}"
    status = await raw(guarded, head.encode())
    assert status.split()[1:2] in ([b"401"], [b"403"], [b"404"], [b"413"]), status


async def test_a_body_that_does_not_say_its_length_is_cut_off(guarded: Web) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * MIB

    headers = {"Authorization": "Bearer t-blog", "Content-Type": "application/json"}
    async with guarded.client.post("/v1/jobs", data=endless(), headers=headers) as answer:
        assert answer.status == 413


@pytest.mark.parametrize(
    "more",
    [
        b"X-Long: " + b"x" * 9000,
        b"\r\n".join(b"X-%d: x" % number for number in range(100)),
        b"Authorization: Bearer " + b"x" * 9000,
        b"Cookie: " + b"x" * 9000,
    ],
    ids=["a long one", "many", "a long token", "a long cookie"],
)
async def test_headers_are_bounded(guarded: Web, more: bytes) -> None:
    assert b" 400 " in await raw(guarded, b"GET / HTTP/1.1\r\nHost: x\r\n" + more)


async def test_a_path_is_bounded(guarded: Web) -> None:
    assert b" 400 " in await raw(guarded, b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x")


@pytest.mark.parametrize(
    "name",
    ["..", "../../secrets/session.key", "..%2F..%2Fsecrets%2Fsession.key", "%2e%2e%2ftokens.json", "/etc/passwd"],
)
async def test_a_files_name_leads_to_no_other_file(guarded: Web, name: str) -> None:
    (guarded.root.parent / "tokens.json").write_text("secret")
    for path in (f"{UNKNOWN}/artifacts/{name}", f"/static/{name}"):
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t-admin"
        assert (await raw(guarded, head.encode())).split()[1] in (b"400", b"404", b"422"), path


async def test_files_are_stored_by_their_content_whatever_they_are_called(guarded: Web) -> None:
    job_id = UUID((await guarded.call("POST", "/v1/jobs", json=ARTICLE, token="admin", expect=201))["id"])
    epoch = await guarded.claim(job_id)
    await guarded.upload(job_id, epoch, "authorized_keys", b"ssh-ed25519 AAAA", expect=201)
    files = [path.relative_to(guarded.root) for path in guarded.root.rglob("*") if path.is_file()]
    assert {path.parts[0] for path in files} == {"sha256"}
    assert not [path for path in files if "authorized" in str(path)]
