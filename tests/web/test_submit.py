"""What a publisher is answered: yes, the same again, not like this (and why), later."""

import asyncio
import gzip
import io
import json
from typing import Any
from uuid import UUID

import pytest

from coordinator.ledger.model import Admit
from shared.errors import LedgerDownError
from shared.ids import job_id_of
from tests.support.servers import TandemServers
from tests.support.web import Web

ARTICLE: dict[str, Any] = {"kind": "article", "spec": {"prompt": "A story"}}


async def _post(site: Web, body: Any, expect: int) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body)
    return await site.call("POST", "/v1/jobs", data=data, expect=expect)


async def test_a_new_job_is_created_and_shown(site: Web) -> None:
    async with site.client.post("/v1/jobs", json={**ARTICLE, "key": "post-1", "labels": {"post": "1"}}) as answer:
        assert answer.status == 201
        job = await answer.json()
        assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert job["id"] == str(job_id_of("local", "post-1"))
    assert (job["state"], job["source"], job["kind"], job["priority"]) == ("pending", "local", "article", "normal")
    assert job["labels"] == {"post": "1"}
    assert (job["attempts"], job["artifacts"]) == ([], [])
    assert await site.call("GET", f"/v1/jobs/{job['id']}") == {**job, "age_s": pytest.approx(job["age_s"], abs=30)}


async def test_the_same_submission_again_is_the_same_job(site: Web) -> None:
    first = await _post(site, {**ARTICLE, "key": "post-1"}, 201)
    async with site.client.post("/v1/jobs", json={**ARTICLE, "key": "post-1"}) as answer:
        assert answer.status == 200
        assert (await answer.json())["id"] == first["id"]
        assert answer.headers["Location"] == f"/v1/jobs/{first['id']}"
    assert len((await site.call("GET", "/v1/jobs"))["jobs"]) == 1


async def test_without_a_key_each_submission_is_a_job(site: Web) -> None:
    first, second = await _post(site, ARTICLE, 201), await _post(site, ARTICLE, 201)
    assert first["id"] != second["id"]


async def test_a_key_used_again_for_other_content_is_a_conflict(site: Web) -> None:
    first = await _post(site, {**ARTICLE, "key": "post-1"}, 201)
    error = (await _post(site, {**ARTICLE, "key": "post-1", "priority": "high"}, 409))["error"]
    assert error["code"] == "conflict"
    assert error["faults"][0]["field"] == "key"
    assert first["id"] in error["faults"][0]["message"]
    assert (await site.call("GET", f"/v1/jobs/{first['id']}"))["priority"] == "normal"


async def test_a_conflict_is_on_record(site: Web) -> None:
    first = await _post(site, {**ARTICLE, "key": "post-1"}, 201)
    await _post(site, {**ARTICLE, "key": "post-1", "priority": "high"}, 409)
    [refused] = (await site.call("GET", "/v1/rejected"))["submissions"]
    assert (refused["source"], refused["code"], refused["faults"][0]["field"]) == ("local", "conflict", "key")
    assert first["id"] in refused["reason"]
    assert '"high"' in refused["body"]


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({"spec": {"prompt": "x"}}, {"kind"}),
        ({"kind": "article"}, {"spec"}),
        ({"kind": "sculpture", "spec": {"prompt": "x"}}, {"kind"}),
        ({"kind": "image", "spec": {"prompt": "x", "width": 1023, "height": 9000}}, {"spec.width", "spec.height"}),
        ({**ARTICLE, "prio": "high"}, {"prio"}),
        ({"kind": "article", "spec": {"promt": "x"}}, {"spec.promt"}),
        ({"kind": "article", "spec": {"prompt": "a\0b"}}, {"spec.prompt"}),
        ({"kind": "video", "spec": {"deep": [{"in": "a\0b"}]}}, {"spec"}),
        ({**ARTICLE, "key": "a\0b"}, {"key"}),
        ({**ARTICLE, "labels": {"a": "b\0"}}, {"labels.a"}),
        ({"kind": 7, "spec": "no", "max_attempts": "many"}, {"kind", "spec", "max_attempts"}),
        (
            {**ARTICLE, "max_attempts": 0, "timeout_s": -1, "callback_url": "ftp:x"},
            {"max_attempts", "timeout_s", "callback_url"},
        ),
        ([ARTICLE], {""}),
        ("text", {""}),
        (None, {""}),
    ],
)
async def test_bad_input_is_refused_with_every_fault(site: Web, body: Any, faults: set[str]) -> None:
    error = (await _post(site, body, 422))["error"]
    assert error["code"] == "invalid"
    assert {fault["field"] for fault in error["faults"]} == faults
    assert all(fault["message"] for fault in error["faults"])
    assert (await site.call("GET", "/v1/jobs"))["jobs"] == []


@pytest.mark.parametrize("body", [b"{", b"", b"kind=article", b'{"kind": NaN}', b"\xff\xfe{}"])
async def test_what_is_not_json_is_said_to_be_none(site: Web, body: bytes) -> None:
    error = (await _post(site, body, 400))["error"]
    assert error["code"] == "not_json"
    assert "not JSON" in error["faults"][0]["message"]


async def test_an_announced_2_mib_body_is_refused(site: Web) -> None:
    error = (await site.call("POST", "/v1/jobs", data=io.BytesIO(b" " * (2 * 1024 * 1024)), expect=413))["error"]
    assert error["code"] == "too_large"
    assert "1048576" in error["message"]


async def test_a_chunked_2_mib_body_is_refused_while_it_comes(site: Web) -> None:
    async def parts() -> Any:
        for _ in range(32):
            yield b" " * 65536

    error = (await site.call("POST", "/v1/jobs", data=parts(), expect=413))["error"]
    assert error["code"] == "too_large"


async def test_a_small_body_that_unpacks_to_a_big_one_is_refused(site: Web) -> None:
    packed = gzip.compress(b" " * (2 * 1024 * 1024))
    await site.call("POST", "/v1/jobs", data=packed, headers={"Content-Encoding": "gzip"}, expect=413)


async def test_exactly_1_mib_is_taken(site: Web) -> None:
    body = json.dumps(ARTICLE).encode()
    await _post(site, body + b" " * (1024 * 1024 - len(body)), 201)


async def test_a_body_that_never_comes_is_given_up(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.web.body.BODY_S", 0.05)
    host, port = site.runner.addresses[0][:2]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n\r\n".encode())
    async with asyncio.timeout(10):
        assert b"408" in await reader.readline()
    writer.close()


async def test_a_bad_submission_disturbs_no_neighbour(site: Web) -> None:
    bodies = [ARTICLE if n % 2 else {"kind": "image", "spec": {"width": 1}} for n in range(40)]
    answers = await asyncio.gather(*(_post(site, body, 201 if body is ARTICLE else 422) for body in bodies))
    assert len({a["id"] for a in answers if "id" in a}) == 20


async def test_while_the_ledger_is_away_a_submission_is_queued(
    site: Web, servers: TandemServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _take_the_ledger_away(site, monkeypatch)
    await site.intake.bus.api("STREAM.INFO.SUBMIT")
    async with site.client.post("/v1/jobs", json={**ARTICLE, "key": "k"}) as answer:
        assert answer.status == 202
        body = await answer.json()
    assert body == {"id": str(job_id_of("local", "k")), "state": "queued"}
    info = await site.intake.bus.api("STREAM.INFO.SUBMIT")
    assert info["state"]["messages"] == 1


async def test_while_ledger_and_nats_are_away_the_answer_is_try_again(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _take_the_ledger_away(site, monkeypatch)

    async def down(*_: Any) -> Any:
        msg = "both"
        raise LedgerDownError(msg)

    monkeypatch.setattr(type(site.intake), "_queue", down)
    async with site.client.post("/v1/jobs", json=ARTICLE) as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "5"
        assert (await answer.json())["error"]["code"] == "ledger_down"


async def test_a_job_that_was_admitted_is_answered_though_it_can_not_be_shown(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: Any) -> Any:
        msg = "just now"
        raise LedgerDownError(msg)

    monkeypatch.setattr("coordinator.ledger.views.job", down)
    job = await _post(site, ARTICLE, 201)
    assert set(job) == {"id"}
    assert await site.pool.fetchval("SELECT count(*) FROM job WHERE id = $1", UUID(job["id"])) == 1


async def _take_the_ledger_away(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make its connections fail: the pool is closed under it."""

    async def down(command: Admit) -> Any:
        assert isinstance(command, Admit)
        msg = "Postgres is away"
        raise LedgerDownError(msg)

    monkeypatch.setattr(site.ledger, "do", down)
