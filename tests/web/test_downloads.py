"""Files of accepted results on their way out."""

import hashlib
import io
import os
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from coordinator.ledger.model import Expire
from tests.support.web import Web, artifact

CONTENT = bytes(range(256)) * 2000  # more than one chunk
SIZE = len(CONTENT)
TAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'


async def _done(site: Web, name: str = "image.png", content: bytes = CONTENT, media_type: str = "image/png") -> UUID:
    job_id = await site.submit()
    epoch = await site.claim(job_id)
    headers = site.upload_headers(job_id, epoch, content) | {"Content-Type": media_type}
    await site.call(
        "PUT", f"/v1/uploads/{job_id}/{epoch}/{name}", headers=headers, data=io.BytesIO(content), expect=None
    )
    await site.report(job_id, epoch, artifacts=[artifact(name, content, media_type)])
    return job_id


async def test_a_file_comes_whole_with_its_type_and_without_a_way_to_run(site: Web) -> None:
    job_id = await _done(site, "page.html", CONTENT, "text/html")
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/page.html") as answer:
        assert await answer.read() == CONTENT
        assert answer.content_type == "text/html"
        assert answer.headers["ETag"] == TAG
        assert answer.headers["Content-Length"] == str(SIZE)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"].startswith("sandbox")
        assert answer.headers["Content-Disposition"].startswith('attachment; filename="page.html"')


async def test_a_name_is_told_in_ascii_and_in_full(site: Web) -> None:
    name = 'Bild "ä", 1.png'
    job_id = await _done(site, name)
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/{name}") as answer:
        assert answer.status == 200
        said = answer.headers["Content-Disposition"]
    assert said == "attachment; filename=\"Bild ___, 1.png\"; filename*=UTF-8''Bild%20%22%C3%A4%22%2C%201.png"


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        (f"bytes={SIZE - 5}-", SIZE - 5, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        (f"bytes=-{SIZE + 9}", 0, SIZE),
        (f"bytes=300000-{SIZE + 99}", 300000, SIZE),
    ],
)
async def test_a_range_is_sent(site: Web, asked: str, start: int, end: int) -> None:
    job_id = await _done(site)
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/image.png", headers={"Range": asked}) as answer:
        assert await answer.read() == CONTENT[start:end]
        if (start, end) == (0, SIZE):
            assert answer.status == 200
        else:
            assert answer.status == 206
            assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", "bytes=99999999-", "bytes=-0"])
async def test_a_range_outside_is_said_to_be(site: Web, asked: str) -> None:
    job_id = await _done(site)
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/image.png", headers={"Range": asked}) as answer:
        assert answer.status == 416
        assert answer.headers["Content-Range"] == f"bytes */{SIZE}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=9-3"},
        {"Range": "lines=1-2"},
        {"Range": "bytes=0-1,5-6"},
        {"Range": "bytes=0-1", "If-Range": '"old"'},
    ],
)
async def test_a_range_that_can_not_be_used_brings_the_whole(site: Web, headers: dict[str, str]) -> None:
    job_id = await _done(site)
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/image.png", headers=headers) as answer:
        assert answer.status == 200
        assert await answer.read() == CONTENT


@pytest.mark.parametrize(("held", "status"), [(TAG, 304), (f'W/"x", {TAG}', 304), ("*", 304), ('"other"', 200)])
async def test_what_the_client_has_is_not_sent_again(site: Web, held: str, status: int) -> None:
    job_id = await _done(site)
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/image.png", headers={"If-None-Match": held}) as answer:
        assert answer.status == status
        assert await answer.read() == (CONTENT if status == 200 else b"")


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=2-5"}])  # a range is for GET only
async def test_head_tells_all_but_the_bytes(site: Web, headers: dict[str, str]) -> None:
    job_id = await _done(site)
    async with site.client.head(f"/v1/jobs/{job_id}/artifacts/image.png", headers=headers) as answer:
        assert (answer.status, answer.headers["Content-Length"], await answer.read()) == (200, str(SIZE), b"")


async def test_an_empty_file_is_a_file(site: Web) -> None:
    job_id = await _done(site, "empty.txt", b"", "text/plain")
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/empty.txt") as answer:
        assert (answer.status, await answer.read()) == (200, b"")


async def test_only_the_accepted_epochs_files_are_to_be_had(site: Web) -> None:
    job_id = await site.submit()
    first = await site.claim(job_id)
    await site.upload(job_id, first, "only-mine.png", b"old")
    await site.upload(job_id, first, "image.png", b"old")
    await site.pool.execute("UPDATE job SET lease_expires_at = tandem_now() - interval '1 s'")
    await site.ledger.do(Expire(job_id=job_id))
    second = await site.claim(job_id, "book")
    await site.upload(job_id, second, "image.png", b"new", worker="book")
    await site.report(job_id, second, "book", artifacts=[artifact("image.png", b"new")])
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/image.png") as answer:
        assert await answer.read() == b"new"
    await site.call("GET", f"/v1/jobs/{job_id}/artifacts/only-mine.png", expect=404)


async def test_a_lost_file_is_an_error_and_no_empty_answer(site: Web) -> None:
    job_id = await _done(site)
    await site.store.delete(TAG.strip('"'))
    error = await site.call("GET", f"/v1/jobs/{job_id}/artifacts/image.png", expect=500)
    assert error["error"]["code"] == "file_lost"


async def test_a_file_that_can_not_be_read_to_the_end_cuts_the_connection(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await _done(site)
    whole = type(site.store).read

    async def short(self: Any, sha256: str, start: int = 0, length: int | None = None) -> Any:
        async for chunk in whole(self, sha256, start, length):
            yield chunk
            break
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(site.store), "read", short)
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/image.png") as answer:
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_a_reader_that_goes_away_is_let_go(site: Web) -> None:
    job_id = await _done(site, "big.bin", os.urandom(6 * 1024 * 1024), "application/octet-stream")
    async with site.client.get(f"/v1/jobs/{job_id}/artifacts/big.bin") as answer:
        await answer.content.readany()
        answer.close()
    assert await site.call("GET", "/healthz") == {"alive": True}  # and the leak check finds no handler left
