"""Files on their way in: whole and from the lease's holder, or not at all."""

import asyncio
import errno
import hashlib
import io
import os
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from yarl import URL

from coordinator.artifact_files import Incoming
from coordinator.artifacts import CHUNK_BYTES
from coordinator.ledger.model import Expire
from shared.states import Verdict
from tests.support.ledger import seeded
from tests.support.servers import eventually
from tests.support.web import MOST_BYTES, Web, artifact, digest_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


async def _held(site: Web) -> tuple[UUID, int]:
    job_id = await site.submit(kind="image")
    return job_id, await site.claim(job_id, lane="image--any")


async def test_a_file_is_stored_and_linked_by_the_report(site: Web) -> None:
    job_id, epoch = await _held(site)
    stored = await site.upload(job_id, epoch, "image-1.png", PNG)
    assert stored == {"name": "image-1.png", "size": len(PNG), "sha256": hashlib.sha256(PNG).hexdigest()}
    assert (await site.call("GET", f"/v1/jobs/{job_id}"))["artifacts"] == []
    await site.call("GET", f"/v1/jobs/{job_id}/artifacts/image-1.png", expect=404)
    assert await site.report(job_id, epoch, artifacts=[artifact("image-1.png", PNG)]) is Verdict.ACCEPTED
    assert len((await site.call("GET", f"/v1/jobs/{job_id}"))["artifacts"]) == 1


async def test_a_repeat_is_harmless_and_costs_no_bytes(site: Web) -> None:
    job_id, epoch = await _held(site)
    await site.upload(job_id, epoch, "a.png", PNG)
    await site.upload(job_id, epoch, "a.png", PNG, expect=200)
    headers = site.upload_headers(job_id, epoch, PNG) | {"Expect": "100-continue", "Content-Length": str(len(PNG))}
    head = await _raw(site, f"/v1/uploads/{job_id}/{epoch}/a.png", headers)
    assert b" 200 " in head  # not 100: nothing of the body was asked for
    assert len(site.stored()) == 1


async def test_other_content_under_a_name_takes_its_place_while_the_lease_is_open(site: Web) -> None:
    job_id, epoch = await _held(site)
    await site.upload(job_id, epoch, "a.png", b"first")
    await site.upload(job_id, epoch, "a.png", b"second")
    await site.report(job_id, epoch, artifacts=[artifact("a.png", b"second")])
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/a.png") as answer:
        assert await answer.read() == b"second"


async def test_the_same_content_from_two_jobs_is_stored_once(site: Web) -> None:
    for _ in range(2):
        job_id, epoch = await _held(site)
        await site.upload(job_id, epoch, "a.png", PNG)
        await site.report(job_id, epoch, artifacts=[artifact("a.png", PNG)])
        async with site.client.get(f"/v1/jobs/{job_id}/artifacts/a.png") as answer:
            assert await answer.read() == PNG
    assert site.stored() == [hashlib.sha256(PNG).hexdigest()]


async def test_hex_digests_are_taken_too(site: Web) -> None:
    job_id, epoch = await _held(site)
    headers = site.upload_headers(job_id, epoch, PNG)
    headers["Digest"] = f"md5=x, SHA-256={hashlib.sha256(PNG).hexdigest().upper()}"
    await site.call("PUT", f"/v1/uploads/{job_id}/{epoch}/a.png", headers=headers, data=PNG, expect=201)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"Digest": digest_of(b"something else")}, 422, "digest_mismatch"),
        ({"Digest": ""}, 422, "invalid"),
        ({"Digest": "sha-256=c2hvcnQ="}, 422, "invalid"),
        ({"Digest": "sha-256=***"}, 422, "invalid"),
        ({"Digest": "md5=1B2M2Y8AsgTpgAmY7PhCfg=="}, 422, "invalid"),
        ({"Content-Encoding": "gzip"}, 422, "invalid"),
        ({"Authorization": "Bearer nonsense"}, 401, "unauthorized"),
        ({"Authorization": ""}, 401, "unauthorized"),
        ({"Authorization": "Bearer t-admin"}, 401, "unauthorized"),
        ({"Expect": "something"}, 417, "expectation_failed"),
    ],
)
async def test_a_wrong_head_is_refused(site: Web, change: dict[str, str], status: int, code: str) -> None:
    job_id, epoch = await _held(site)
    headers = site.upload_headers(job_id, epoch, PNG) | change
    answer = await site.call("PUT", f"/v1/uploads/{job_id}/{epoch}/a", headers=headers, data=PNG, expect=status)
    assert answer["error"]["code"] == code
    assert site.stored() == []
    assert site.arriving() == []


@pytest.mark.parametrize(
    "name", ["..", ".hidden", "%2e%2e", "a%2Fb", "..%2F..%2Fetc%2Fpasswd", "a%5Cb", "a%00b", "a%0Ab", "x" * 121]
)
async def test_a_name_that_plays_tricks_is_refused(site: Web, name: str) -> None:
    job_id, epoch = await _held(site)
    headers = site.upload_headers(job_id, epoch, PNG) | {"Content-Length": "0"}
    assert b" 422 " in await _raw(site, f"/v1/uploads/{job_id}/{epoch}/{name}", headers)


@pytest.mark.parametrize("name", ["x" * 120, "Bild%20%C3%A4%20%231.png", "a%3Fb", "100%25.txt"])
async def test_an_odd_but_honest_name_is_taken(site: Web, name: str) -> None:
    job_id, epoch = await _held(site)
    url = URL(f"{site.runner.url}/v1/uploads/{job_id}/{epoch}/{name}", encoded=True)
    async with site.client.put(url, data=PNG, headers=site.upload_headers(job_id, epoch, PNG)) as answer:
        assert answer.status == 201
        stored = (await answer.json())["name"]
    await site.report(job_id, epoch, artifacts=[artifact(stored, PNG)])
    (file,) = (await site.call("GET", f"/v1/jobs/{job_id}"))["artifacts"]
    async with site.client.get(URL(file["url"], encoded=True)) as answer:
        assert await answer.read() == PNG


async def test_too_large_is_said_before_a_byte_is_read(site: Web) -> None:
    job_id, epoch = await _held(site)
    headers = site.upload_headers(job_id, epoch, PNG) | {"Content-Length": str(MOST_BYTES + 1)}
    assert b" 413 " in await _raw(site, f"/v1/uploads/{job_id}/{epoch}/a.png", headers)


async def test_the_length_must_be_announced(site: Web) -> None:
    async def parts() -> Any:
        yield PNG

    job_id, epoch = await _held(site)
    headers = site.upload_headers(job_id, epoch, PNG)
    await site.call("PUT", f"/v1/uploads/{job_id}/{epoch}/a.png", headers=headers, data=parts(), expect=411)


async def test_a_stale_lease_is_refused_before_a_byte_is_read(site: Web) -> None:
    job_id, epoch = await _held(site)
    await _lapse(site, job_id)
    newer = await site.claim(job_id, "book", lane="image--any")
    headers = site.upload_headers(job_id, epoch, PNG) | {"Content-Length": str(len(PNG)), "Expect": "100-continue"}
    assert b" 409 " in await _raw(site, f"/v1/uploads/{job_id}/{epoch}/a.png", headers)
    await site.upload(job_id, newer, "a.png", PNG, worker="book")


async def test_a_lapsed_lease_that_nobody_took_still_takes_files(site: Web) -> None:
    job_id, epoch = await _held(site)
    await _lapse(site, job_id)
    await site.upload(job_id, epoch, "a.png", PNG)
    assert await site.report(job_id, epoch, artifacts=[artifact("a.png", PNG)]) is Verdict.ACCEPTED


async def test_a_lease_lost_while_the_bytes_come_records_nothing(site: Web) -> None:
    job_id, epoch = await _held(site)
    content = os.urandom(2 * CHUNK_BYTES)
    half, rest = asyncio.Event(), asyncio.Event()

    async def parts() -> Any:
        yield content[: CHUNK_BYTES + 1]
        half.set()
        await rest.wait()
        yield content[CHUNK_BYTES + 1 :]

    headers = site.upload_headers(job_id, epoch, content) | {"Content-Length": str(len(content))}
    path = f"/v1/uploads/{job_id}/{epoch}/a.png"
    upload = asyncio.create_task(site.call("PUT", path, headers=headers, data=parts(), expect=409))
    await half.wait()
    await eventually(site.arriving)
    await _lapse(site, job_id)
    await site.claim(job_id, "book", lane="image--any")
    rest.set()
    assert (await upload)["error"]["code"] == "stale_lease"
    assert await site.pool.fetchval("SELECT count(*) FROM artifact") == 0


async def test_another_workers_token_is_no_right_to_this_lease(site: Web) -> None:
    job_id, epoch = await _held(site)
    await site.upload(job_id, epoch, "a.png", PNG, worker="book", expect=409)


async def test_an_unknown_job_takes_no_files(site: Web) -> None:
    await site.upload(uuid4(), 1, "a.png", PNG, expect=409)


async def test_a_client_that_goes_away_mid_body_leaves_no_trace(site: Web) -> None:
    job_id, epoch = await _held(site)
    host, port = site.runner.addresses[0][:2]
    _, writer = await asyncio.open_connection(host, port)
    headers = site.upload_headers(job_id, epoch, PNG) | {"Content-Length": str(4 * 1024 * 1024)}
    writer.write(_head(f"/v1/uploads/{job_id}/{epoch}/a.png", headers) + os.urandom(1024 * 1024))
    await writer.drain()
    await eventually(site.arriving)
    writer.transport.abort()
    await eventually(lambda: not site.arriving())
    assert site.stored() == []
    assert await site.pool.fetchval("SELECT count(*) FROM artifact") == 0
    await site.upload(job_id, epoch, "a.png", PNG)


async def test_uploads_that_are_cut_anywhere_leave_no_trace_and_start_again(site: Web) -> None:
    job_id, epoch = await _held(site)
    content = os.urandom(1_000_000)
    path = f"/v1/uploads/{job_id}/{epoch}/a.png"
    headers = site.upload_headers(job_id, epoch, content) | {"Content-Length": str(len(content))}
    with seeded() as random:
        offsets = [0, 1, len(content) - 1, *(random.randrange(len(content)) for _ in range(8))]
    for number, offset in enumerate(offsets):
        reader, writer = await asyncio.open_connection(*site.runner.addresses[0][:2])
        writer.write(_head(path, headers) + content[:offset])
        await writer.drain()
        if offset > CHUNK_BYTES:
            await eventually(site.arriving)
        if number % 2:
            writer.transport.abort()  # as a machine that loses its network
        else:
            writer.write_eof()  # as a process that ends
            async with asyncio.timeout(10):
                await reader.read()
            writer.close()
        await eventually(lambda: not site.arriving())
        assert site.stored() == []
    assert await site.pool.fetchval("SELECT count(*) FROM artifact") == 0
    await site.upload(job_id, epoch, "a.png", content)
    assert await site.report(job_id, epoch, artifacts=[artifact("a.png", content)]) is Verdict.ACCEPTED
    assert site.stored() == [hashlib.sha256(content).hexdigest()]


@pytest.mark.parametrize("wrong", ["never uploaded", "size", "sha256", "name", "epoch", "one of two"])
async def test_a_report_is_no_result_unless_each_file_was_uploaded_as_it_says(site: Web, wrong: str) -> None:
    job_id, epoch = await _held(site)
    named = artifact("a.png", PNG)
    match wrong:
        case "size":
            named["size"] += 1
        case "sha256":
            named["sha256"] = "0" * 64
        case "name":
            named["name"] = "b.png"
    if wrong != "never uploaded":
        await site.upload(job_id, epoch, "a.png", PNG)
    files = [named] if wrong != "one of two" else [named, artifact("b.png", PNG)]
    if wrong == "epoch":
        await _lapse(site, job_id)
        epoch = await site.claim(job_id, "book", lane="image--any")
    await site.report(job_id, epoch, "book" if wrong == "epoch" else "mini", artifacts=files)
    job = await site.call("GET", f"/v1/jobs/{job_id}")
    assert (job["state"], job["result"], job["artifacts"]) == ("pending", None, [])
    error = job["attempts"][-1]["error"]
    assert (error["code"], error["class"]) == ("artifact_missing", "transient")
    await site.call("GET", f"/v1/jobs/{job_id}/artifacts/a.png", expect=404)


async def test_an_upload_that_stalls_is_given_up(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.web.uploads._STALL_S", 0.05)
    job_id, epoch = await _held(site)
    headers = site.upload_headers(job_id, epoch, PNG) | {"Content-Length": str(len(PNG))}
    assert b" 408 " in await _raw(site, f"/v1/uploads/{job_id}/{epoch}/a.png", headers)
    await eventually(lambda: not site.arriving())


async def test_a_full_disk_is_507(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    job_id, epoch = await _held(site)
    monkeypatch.setattr("coordinator.artifact_files.os.write", full)
    error = await site.upload(job_id, epoch, "a.png", PNG, expect=507)
    assert error["error"]["code"] == "insufficient_storage"
    monkeypatch.undo()
    assert site.arriving() == []
    await site.upload(job_id, epoch, "a.png", PNG)


async def test_files_are_hashed_and_written_on_other_threads(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    write = Incoming.write

    def noted(self: Incoming, chunks: list[bytes]) -> None:
        threads.add(threading.current_thread().name)
        write(self, chunks)

    monkeypatch.setattr(Incoming, "write", noted)
    job_id, epoch = await _held(site)
    content = os.urandom(MOST_BYTES)
    headers = site.upload_headers(job_id, epoch, content)
    path = f"/v1/uploads/{job_id}/{epoch}/a"
    await site.call("PUT", path, headers=headers, data=io.BytesIO(content), expect=201)
    assert threads
    assert all(name.startswith("artifacts") for name in threads)
    assert site.stored() == [hashlib.sha256(content).hexdigest()]


async def _lapse(site: Web, job_id: UUID) -> None:
    await site.pool.execute("UPDATE job SET lease_expires_at = tandem_now() - interval '1 s' WHERE id = $1", job_id)
    await site.ledger.do(Expire(job_id=job_id))


def _head(path: str, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode()


async def _raw(site: Web, path: str, headers: dict[str, str]) -> bytes:
    """Send nothing but the head of an upload; return the first line of the answer."""
    reader, writer = await asyncio.open_connection(*site.runner.addresses[0][:2])
    writer.write(_head(path, headers))
    async with asyncio.timeout(10):
        line = await reader.readline()
    writer.close()
    return line
