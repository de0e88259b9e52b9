"""The store in a bucket, against a real S3 API on a socket: what is kept is whole, what is not leaves no trace."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
import pytest_asyncio
from aiohttp import web
from yarl import URL

from coordinator.artifact_s3 import PART_BYTES, S3Store
from coordinator.artifact_s3_unfinished import Unfinished
from coordinator.artifacts import MissingContentError, NoRoomError, StoreDownError, WrongContentError
from shared.errors import ConfigurationError
from tests.support.ledger import seeded
from tests.support.proxy import Proxy
from tests.support.s3 import KEYS, PREFIX, S3Server, s3_server

LARGE = 2 * PART_BYTES + 12345


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running_s3() -> AsyncIterator[S3Server]:
    async with s3_server() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def s3(running_s3: S3Server) -> S3Server:
    """The module's server with its bucket empty."""
    await running_s3.empty()
    return running_s3


@pytest.fixture
def store(s3: S3Server) -> S3Store:
    return S3Store(s3.place())


def sha_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def key_of(content: bytes) -> str:
    return f"{PREFIX}/sha256/{sha_of(content)[:2]}/{sha_of(content)[2:]}"


def port_of(s3: S3Server) -> int:
    port = URL(s3.url).port
    assert port is not None
    return port


async def chunks_of(content: bytes, size: int = 200_000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def read(store: S3Store, content: bytes, *where: int) -> bytes:
    return b"".join([chunk async for chunk in store.read(sha_of(content), *where)])


async def put(store: S3Store, content: bytes, chunk: int = 200_000) -> bool:
    return (await store.put(chunks_of(content, chunk), sha256=sha_of(content), size=len(content))).new


# ------------------------------------------------------------------------------------------------ what is kept


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, LARGE])
async def test_a_content_is_kept_under_its_digest_and_read_back(s3: S3Server, store: S3Store, size: int) -> None:
    content = os.urandom(size)
    assert await put(store, content)
    assert await s3.keys() == [key_of(content)]
    assert await s3.unfinished() == []
    assert await read(store, content) == content
    assert await store.size(sha_of(content)) == size
    assert await store.digest(sha_of(content)) == sha_of(content)


@pytest.mark.parametrize(
    ("start", "length"), [(0, 1), (5, 7), (PART_BYTES - 3, 6), (LARGE - 4, 4), (LARGE - 4, 99), (3, PART_BYTES), (9, 0)]
)
async def test_a_range_is_read(store: S3Store, start: int, length: int) -> None:
    content = os.urandom(LARGE)
    await put(store, content)
    assert await read(store, content, start, length) == content[start : start + length]


async def test_chunks_of_any_size_are_taken(store: S3Store) -> None:
    content = os.urandom(LARGE)
    for chunk in (65_536, 999_999, LARGE):
        assert await put(store, content, chunk) is (chunk == 65_536)  # new the first time only
        assert await read(store, content) == content


async def test_what_one_coordinator_stored_another_one_reads(s3: S3Server, store: S3Store) -> None:
    await put(store, b"shared")
    assert await read(S3Store(s3.place()), b"shared") == b"shared"


async def test_a_missing_content_is_said_to_be_missing(store: S3Store) -> None:
    assert await store.size("0" * 64) is None
    assert await store.digest("0" * 64) is None
    assert not await store.delete("0" * 64)
    with pytest.raises(MissingContentError):
        await anext(store.read("0" * 64))


@pytest.mark.parametrize("sha", ["", "../../etc/passwd", "A" * 64, "0" * 63])
async def test_what_is_no_digest_never_becomes_a_key(store: S3Store, sha: str) -> None:
    with pytest.raises(ValueError, match="not a SHA-256"):
        await store.size(sha)


async def test_deleting_and_listing_spare_what_was_put_lately(s3: S3Server, store: S3Store) -> None:
    await put(store, b"young")
    sha = sha_of(b"young")
    shard = int(sha[:2], 16)
    assert not await store.delete(sha, older_than_s=3600)
    assert await store.listed(shard, older_than_s=3600) == []
    assert await store.listed(shard, older_than_s=-60) == [sha]
    assert await store.listed((shard + 1) % 256, older_than_s=-60) == []
    for name in ("notes.txt", "Z" * 62):
        await s3.put(f"{PREFIX}/sha256/{sha[:2]}/{name}", b"not ours")
    assert await store.listed(shard, older_than_s=-60) == [sha]
    assert await store.delete(sha)
    assert not await store.delete(sha)


async def test_the_audit_sees_a_changed_content(s3: S3Server, store: S3Store) -> None:
    await put(store, b"bits")
    await s3.put(key_of(b"bits"), b"bitz")
    assert await store.digest(sha_of(b"bits")) == sha_of(b"bitz")


# ------------------------------------------------------------------------------------- what leaves no trace


@pytest.mark.parametrize("size", [5, LARGE])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [("digest", "sha256 of what arrived"), ("short", "bytes arrived"), ("long", "longer than the")],
)
async def test_what_is_not_what_was_announced_leaves_no_trace(
    s3: S3Server, store: S3Store, size: int, wrong: str, says: str
) -> None:
    content = os.urandom(size)
    announced = {"digest": size, "short": size + 1, "long": size - 1}[wrong]
    sha = sha_of(b"other") if wrong == "digest" else sha_of(content)
    with pytest.raises(WrongContentError, match=says):
        await store.put(chunks_of(content), sha256=sha, size=announced)
    assert await s3.keys() == await s3.unfinished() == []


async def test_an_upload_that_breaks_anywhere_leaves_no_trace_and_starts_again(s3: S3Server, store: S3Store) -> None:
    content = os.urandom(LARGE)
    with seeded() as random:
        offsets = [random.randrange(LARGE) for _ in range(6)]

    async def broken(offset: int) -> AsyncIterator[bytes]:
        async for chunk in chunks_of(content[:offset]):
            yield chunk
        raise ConnectionResetError

    for offset in offsets:
        with pytest.raises(ConnectionResetError):
            await store.put(broken(offset), sha256=sha_of(content), size=LARGE)
        assert await s3.keys() == await s3.unfinished() == []
    assert await put(store, content)
    assert await read(store, content) == content


@pytest.mark.parametrize("size", [5, LARGE])
@pytest.mark.parametrize("when", ["begins", "goes on", "ends"])
async def test_an_upload_that_is_cancelled_during_a_request_leaves_nothing_unfinished(
    s3: S3Server, when: str, size: int
) -> None:
    content, now = os.urandom(size), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        at_most = PART_BYTES + 1
        for start in range(0, size, at_most):
            if when == ("goes on" if start else "begins"):
                now.set()  # and the next thing is the request that the chunk causes
            yield content[start : start + at_most]
        now.set()  # the next thing is the request that ends it

    async with Proxy("127.0.0.1", port_of(s3), delay_s=0.05) as slow:
        store = S3Store(s3.place(endpoint=f"http://127.0.0.1:{slow.port}"))
        task = asyncio.create_task(store.put(chunks(), sha256=sha_of(content), size=size))
        await now.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await s3.unfinished() == []
    assert await s3.keys() in ([], [key_of(content)])  # all or nothing
    store = S3Store(s3.place())
    await put(store, content)
    assert await read(store, content) == content


async def test_a_stalled_upload_that_is_cancelled_leaves_no_trace(s3: S3Server, store: S3Store) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield os.urandom(PART_BYTES + 1)
        yield b"x"
        begun.set()
        await never.wait()

    task = asyncio.create_task(store.put(stalled(), sha256=sha_of(b"x"), size=LARGE))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await s3.keys() == await s3.unfinished() == []


# -------------------------------------------------------------------------------------- unfinished uploads


async def test_unfinished_uploads_are_aborted_and_only_ours(s3: S3Server, store: S3Store) -> None:
    ours, others = f"{PREFIX}/sha256/ab/{'c' * 62}", f"{PREFIX}/another/ü&=+ file"
    for _ in range(3):
        await s3.begin(ours)
    await s3.begin(others)
    assert await store.tidy(older_than_s=3600) == 3  # moto has them all begin in 2010
    assert await s3.unfinished() == [others]


async def test_old_ones_are_aborted_page_by_page() -> None:
    young, old = (datetime.now(UTC) - timedelta(seconds=ago) for ago in (86_300, 86_500))
    pages = {
        "": "<IsTruncated>true</IsTruncated><NextKeyMarker>k&amp;1</NextKeyMarker><NextUploadIdMarker>u/1"
        "</NextUploadIdMarker>" + _listed("sha256/1", "u/1", old),
        "k&1 u/1": "<IsTruncated>false</IsTruncated>"
        + _listed("sha256/2", "u+2", old)
        + _listed("sha256/3", "u3", young),
    }
    aborted: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            aborted.append((request.path, request.query["uploadId"]))
            return web.Response(status=204)
        assert request.query["prefix"] == "sha256/"
        marker = " ".join(request.query.get(name, "") for name in ("key-marker", "upload-id-marker")).strip()
        text = f'<R xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{pages[marker]}</R>'
        return web.Response(text=text, content_type="application/xml")

    async with served(answer) as url:
        assert await Unfinished(f"{url}/b", "", "r", "k", KEYS["secret_key"]).abort(3600) == 2
    assert aborted == [("/b/sha256/1", "u/1"), ("/b/sha256/2", "u+2")]


def _listed(key: str, upload: str, begun_at: datetime) -> str:
    begun = f"<Initiated>{begun_at:%Y-%m-%dT%H:%M:%S}.000Z</Initiated>"
    return f"<Upload><Key>{key}</Key><UploadId>{upload}</UploadId>{begun}</Upload>"


@pytest.mark.parametrize(
    "url",
    [
        "https://s3.eu-central-1.amazonaws.com/b?prefix=team%2Fsha256%2F&uploads=",
        "https://store.example:9000/b/sha256/ab/cd?uploadId=x%2B%2F%3D~",
    ],
)
def test_requests_are_signed_as_aws_signs_them(url: str) -> None:
    now = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    ours = Unfinished("", "", "eu-central-1", "AKIATEST", KEYS["secret_key"])._signed(
        "GET", URL(url, encoded=True), now
    )
    request = botocore.awsrequest.AWSRequest("GET", url, headers=dict(ours))
    request.context["timestamp"] = ours["x-amz-date"]
    secret = KEYS["secret_key"].get_secret_value()
    signer = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials("AKIATEST", secret), "s3", "eu-central-1")
    del request.headers["Authorization"]
    canonical = signer.canonical_request(request)
    theirs = signer.signature(signer.string_to_sign(request, canonical), request)
    assert ours["Authorization"].endswith(
        f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(request))}, Signature={theirs}"
    )


# -------------------------------------------------------------------------------------- the machine's own role


async def test_credentials_of_the_machines_role_are_not_kept_past_their_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore asks the machine (here: EC2's metadata service) again before they end; nothing of ours keeps them."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    used: list[str] = []
    issued = iter((("KEY1", -1), ("KEY2", 3600)))  # and how many seconds each lives

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/latest/api/token":
            return web.Response(text="token")
        if request.path == "/latest/meta-data/iam/security-credentials/":
            return web.Response(text="role")
        if request.path.startswith("/latest/meta-data/"):
            key, lives_s = next(issued)
            ends_at = datetime.now(UTC) + timedelta(seconds=lives_s)
            secret = {"AccessKeyId": key, "SecretAccessKey": "s", "Token": "t"}
            return web.json_response({**secret, "Expiration": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}"})
        used.append(request.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
        return web.Response(status=404)

    async with served(answer) as url:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", url)
        store = S3Store(S3Server(None, url).place(key_id=None, secret_key=None))  # type: ignore[arg-type]
        for _ in range(3):
            assert await store.size("0" * 64) is None
    assert used == ["KEY1", "KEY2", "KEY2"], "the first were over by the second request"


# ------------------------------------------------------------------------------------------- when it is away


async def test_a_store_that_is_away_is_said_to_be_and_no_reason_not_to_start() -> None:
    async with s3_server() as server:
        store = S3Store(server.place())
        await put(store, b"there")
    with pytest.raises(StoreDownError, match="does not answer"):
        await put(store, b"more")
    with pytest.raises(StoreDownError):
        await store.size(sha_of(b"there"))
    with pytest.raises(StoreDownError):
        await anext(store.read(sha_of(b"there")))
    with pytest.raises(StoreDownError):
        await store.listed(0)
    with pytest.raises(StoreDownError):
        await store.tidy(older_than_s=1)
    await store.prepare()


async def test_a_line_that_is_cut_in_the_middle_of_a_large_upload_is_an_error_and_leaves_nothing(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(LARGE)
    async with Proxy("127.0.0.1", port_of(s3)) as line:
        store = S3Store(s3.place(endpoint=f"http://127.0.0.1:{line.port}"))

        async def chunks() -> AsyncIterator[bytes]:
            yield content[: PART_BYTES + 1]
            line.refuse()
            line.cut()
            yield content[PART_BYTES + 1 :]

        with pytest.raises(StoreDownError):
            await store.put(chunks(), sha256=sha_of(content), size=LARGE)
        assert await s3.keys() == []  # an unfinished upload may be left: it could not be aborted
        line.refuse(refusing=False)
        assert await put(store, content)
        monkeypatch.setattr("coordinator.artifact_s3_unfinished._LIVE_S", -60)
        assert await store.tidy(older_than_s=-60) <= 1
        assert await s3.unfinished() == []
        assert await read(store, content) == content


async def test_a_bucket_that_is_not_there_is_a_fault_of_the_settings(s3: S3Server) -> None:
    store = S3Store(s3.place(url="s3://no-such-bucket/x"))
    with pytest.raises(ConfigurationError, match="s3://no-such-bucket/x can't be used"):
        await store.prepare()
    with pytest.raises(StoreDownError):
        await put(store, b"x")


@pytest.mark.parametrize(("status", "code"), [(507, "XMinioStorageFull"), (403, "QuotaExceeded")])
async def test_a_full_store_is_told_apart(status: int, code: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.method == "HEAD":
            return web.Response(status=404)
        await request.read()
        return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type="application/xml")

    async with served(answer) as url:
        store = S3Store(S3Server(None, url).place())  # type: ignore[arg-type]
        with pytest.raises(NoRoomError, match="no room for 4 bytes"):
            await put(store, b"much")


@asynccontextmanager
async def served(answer: Any) -> AsyncIterator[str]:
    """Answer every request so, on a socket; yields the address."""
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# ------------------------------------------------------------------------------------------------- memory

_CONSTANT_MEMORY = """
import asyncio, hashlib, os, resource, sys
from coordinator.artifact_s3 import Place, S3Store
from pydantic import SecretStr

PART = bytes(range(256)) * 256
PARTS = 1600  # 100 MiB

async def parts():
    for _ in range(PARTS):
        yield PART

async def main():
    digest = hashlib.sha256()
    for _ in range(PARTS):
        digest.update(PART)
    store = S3Store(Place(url="s3://tandem-test/m", endpoint=sys.argv[1], allow_http=True, key_id="x",
                          secret_key=SecretStr("x")))
    await store.prepare()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await store.put(parts(), sha256=digest.hexdigest(), size=len(PART) * PARTS)
    read = 0
    async for chunk in store.read(digest.hexdigest()):
        read += len(chunk)
    assert read == len(PART) * PARTS
    await store.delete(digest.hexdigest())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
    os._exit(0)  # an interpreter that ends while obstore's threads (0.12) let go of a request may be aborted by them

asyncio.run(main())
"""


async def test_100_mib_pass_in_bounded_memory(s3: S3Server) -> None:
    command = [sys.executable, "-c", _CONSTANT_MEMORY, s3.url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=100)
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)  # bytes there, KiB here
    assert grown < 48 * 1024 * 1024
