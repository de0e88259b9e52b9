"""The audit: silent on a ledger that is as it should be, and each rule sees the breach that is made by hand."""

import hashlib
from uuid import UUID

import pytest
import pytest_asyncio

from coordinator.audit import Breach, audit
from coordinator.ledger.model import Cancel, Expire, Heartbeat, Reject, Retry
from shared.states import Verdict
from tests.support.web import Web, artifact

PNG = b"picture"
SHA = hashlib.sha256(PNG).hexdigest()


@pytest_asyncio.fixture(loop_scope="session")
async def lived(site: Web) -> Web:
    """A ledger in which everything has happened that may happen, and nothing is wrong."""
    await _completed(site)
    await site.submit()

    held = await site.submit(key="held")
    await site.claim(held, "book")

    resumed = await site.submit()
    await site.claim(resumed)
    await _lapse(site, resumed)
    await site.ledger.do(Heartbeat(job_id=resumed, worker="mini", epoch=1, stage="s"))

    taken_over = await site.submit()
    first = await site.claim(taken_over)
    await site.upload(taken_over, first, "image.png", b"late")
    await _lapse(site, taken_over)
    second = await site.claim(taken_over, "book")
    await site.report(taken_over, second, "book")
    assert await site.report(taken_over, first) is Verdict.STALE
    assert await site.report(taken_over, second, "mini") is Verdict.REJECTED

    elsewhere = await site.submit()
    await _fail(site, elsewhere, "elsewhere")
    await _fail(site, elsewhere, "transient", "book")
    await _fail(site, elsewhere, "permanent", "book")

    released = await site.submit()
    await site.report(released, await site.claim(released), outcome="released")

    again = await _completed(site)
    await site.ledger.do(Retry(job_id=again, actor="boss"))
    await site.report(again, await site.claim(again), result={"text": "Twice."})

    lapsed_and_retried = await site.submit()
    await site.claim(lapsed_and_retried)
    await _lapse(site, lapsed_and_retried)
    await site.ledger.do(Cancel(job_id=lapsed_and_retried, actor="boss"))
    await site.ledger.do(Retry(job_id=lapsed_and_retried, actor="boss"))
    await site.claim(lapsed_and_retried)
    await _lapse(site, lapsed_and_retried)

    reviewed = await site.submit(review=True)
    await site.report(reviewed, await site.claim(reviewed))
    await site.ledger.do(Reject(job_id=reviewed, actor="boss", again=True))
    await site.report(reviewed, await site.claim(reviewed))
    await site.ledger.do(Reject(job_id=reviewed, actor="boss", again=False))

    canceled = await site.submit()
    epoch = await site.claim(canceled)
    await site.ledger.do(Cancel(job_id=canceled, actor="boss"))
    assert await site.report(canceled, epoch) is Verdict.REJECTED
    return site


async def test_a_ledger_that_has_lived_has_no_breach(lived: Web) -> None:
    assert await _audit(lived) == []


_SECOND_COMPLETED = """
    INSERT INTO attempt (job_id, epoch, number, worker, delivery, claimed_at, deadline_at, outcome, ended_at)
    SELECT job_id, 2, 1, 'book', '', claimed_at, deadline_at, outcome, ended_at FROM attempt WHERE job_id = $1
"""
_FILE_OF_NO_JOB = """
    INSERT INTO artifact
    SELECT gen_random_uuid(), epoch, name, worker, media_type, size, sha256, stored_at, linked
    FROM artifact WHERE job_id = $1
"""
_REFUSED_AND_ACCEPTED = """
    INSERT INTO rejected_result (job_id, epoch, worker, verdict, reason, current_epoch, at, report)
    VALUES ($1, 1, 'mini', 'stale', 'why', 1, tandem_now(), '{}')
"""
_REFUSED_TOO_EARLY = _REFUSED_AND_ACCEPTED.replace("1, 'mini', 'stale', 'why', 1", "5, 'book', 'stale', 'why', 9")
_STALE_OF_LATER = _REFUSED_AND_ACCEPTED.replace("1, 'mini', 'stale', 'why', 1", "2, 'book', 'stale', 'why', 1")
_SECOND_LINKED = """
    INSERT INTO artifact
    SELECT job_id, 2, name, worker, media_type, size, sha256, stored_at, linked FROM artifact WHERE job_id = $1
"""
_SECOND_FILE = """
    INSERT INTO artifact
    SELECT job_id, epoch, 'b', worker, media_type, size, sha256, stored_at, linked FROM artifact WHERE job_id = $1
"""
_OPEN = "UPDATE attempt SET outcome = NULL, ended_at = NULL"
_ENDED = "UPDATE attempt SET outcome = 'released', ended_at = tandem_now()"
_UNHELD = "UPDATE job SET state = 'pending', worker = NULL, lease_expires_at = NULL"
_OLD = "tandem_now() - interval '61 s'"


@pytest.mark.parametrize(
    ("rule", "breach", "says"),
    [
        ("one_result", "UPDATE attempt SET outcome = 'failed' WHERE job_id = $1", "completed epochs {}"),
        ("one_result", "UPDATE job SET result_epoch = 7 WHERE id = $1", "result_epoch 7, completed epochs {1}"),
        ("one_result", _SECOND_COMPLETED, "completed epochs {1,2}"),
        ("epochs", _SECOND_COMPLETED, "2 of them, from 1 to 2"),
        ("epochs", "UPDATE attempt SET epoch = 3 WHERE job_id = $1", "1 of them, from 3 to 3"),
        ("epochs", "DELETE FROM attempt WHERE job_id = $1", "0 of them, from none to none"),
        ("other_epoch", "UPDATE artifact SET epoch = 2 WHERE job_id = $1", "epoch 2, the result is of epoch 1"),
        ("other_epoch", _FILE_OF_NO_JOB, "the result is of epoch none"),
        ("open_attempt", f"{_OPEN} WHERE job_id = $1", "the job is completed"),
        ("open_attempt", f"{_OPEN}, job_id = gen_random_uuid() WHERE job_id = $1", "the job is unknown"),
        ("counters", "UPDATE job SET attempt = 2 WHERE id = $1", "attempt is 2, on record 0 to 0"),
        ("counters", "UPDATE job SET lease_losses = 1 WHERE id = $1", "lease_losses is 1, on record 0 to 0"),
        (
            "counters",
            "UPDATE attempt SET outcome = 'lease_expired' WHERE job_id = $1",
            "lease_losses is 0, on record 1",
        ),
        ("unpublished", f"UPDATE job SET unpublished = true, finished_at = {_OLD} WHERE id = $1", "not on RESULTS yet"),
        ("rejected", _REFUSED_AND_ACCEPTED, "on record as stale: why"),
        ("rejected", _REFUSED_TOO_EARLY, "refused while epoch 9 was current, but the newest is 1"),
        ("rejected", _STALE_OF_LATER, "refused as stale, though epoch 1 was current"),
        ("other_epoch", _SECOND_LINKED, "epoch 2, the result is of epoch 1"),
        ("bytes", "DELETE FROM artifact WHERE job_id = $1", "0 bytes together, its report said 7"),
        ("bytes", _SECOND_FILE, "14 bytes together, its report said 7"),
        ("files", "UPDATE artifact SET size = 8 WHERE job_id = $1", "the file has 7 bytes, the ledger says 8"),
        ("files", f"UPDATE artifact SET sha256 = '{'0' * 64}' WHERE job_id = $1", "not in the store"),
    ],
)
async def test_a_breach_of_a_completed_job_is_seen(site: Web, rule: str, breach: str, says: str) -> None:
    await _completed(site)
    job_id = await _completed(site)
    assert await _audit(site) == []
    await site.pool.execute(breach, job_id)
    found = [b for b in await _audit(site) if b.rule == rule]
    assert len(found) == 1, found
    assert says in found[0].text
    if "gen_random_uuid" not in breach:
        assert found[0].job_id == job_id


@pytest.mark.parametrize(
    ("rule", "breach", "says"),
    [
        ("lease", "UPDATE job SET lease_expires_at = tandem_now() - interval '6 s' WHERE id = $1", "its lease is over"),
        (
            "holder",
            "UPDATE job SET lease_expires_at = lease_expires_at + interval '1 h' WHERE id = $1",
            "its deadline is",
        ),
        ("holder", "UPDATE job SET worker = 'book' WHERE id = $1", "held by book, but its attempt is of mini"),
        ("holder", f"{_ENDED} WHERE job_id = $1", "has ended: released"),
        ("holder", "UPDATE job SET epoch = 2 WHERE id = $1", "without an attempt of its epoch"),
        ("open_attempt", "UPDATE job SET epoch = 2 WHERE id = $1", "the job is processing epoch 2"),
        ("open_attempt", f"{_UNHELD} WHERE id = $1", "the job is pending"),
    ],
)
async def test_a_breach_of_a_running_job_is_seen(site: Web, rule: str, breach: str, says: str) -> None:
    job_id = await site.submit()
    await site.claim(job_id)
    assert await _audit(site) == []
    await site.pool.execute(breach, job_id)
    found = [b for b in await _audit(site) if b.rule == rule]
    assert [(b.job_id, says in b.text) for b in found] == [(job_id, True)], found


async def test_a_lease_just_over_is_the_reapers_and_no_breach(site: Web) -> None:
    job_id = await site.submit()
    await site.claim(job_id)
    await site.pool.execute("UPDATE job SET lease_expires_at = tandem_now() - interval '2 s' WHERE id = $1", job_id)
    assert await _audit(site) == []


async def test_a_flipped_bit_is_seen(site: Web) -> None:
    job_id = await _completed(site)
    (site.root / "sha256" / SHA[:2] / SHA[2:]).write_bytes(PNG[:-1] + b"E")
    (found,) = await _audit(site)
    assert (found.rule, found.job_id) == ("files", job_id)
    assert "the file's sha256 is" in found.text


async def test_every_file_of_thousands_is_looked_at(site: Web) -> None:
    job_id = await _completed(site)
    await site.pool.execute(
        "INSERT INTO artifact SELECT job_id, epoch, 'f' || n, worker, media_type, size, sha256, stored_at, true"
        " FROM artifact, generate_series(1, 2500) AS n WHERE job_id = $1",
        job_id,
    )
    await site.pool.execute("UPDATE attempt SET bytes = 2501 * bytes")
    assert await _audit(site) == []
    await site.pool.execute("UPDATE artifact SET size = 1 WHERE name IN ('f1', 'f1700', 'image.png', 'f999')")
    assert len([b for b in await _audit(site) if b.rule == "files"]) == 4


async def _audit(site: Web) -> list[Breach]:
    return await audit(site.pool, None, site.store)


async def _completed(site: Web) -> UUID:
    """A job with a result and one file, and with its message out."""
    job_id = await site.submit()
    epoch = await site.claim(job_id)
    await site.upload(job_id, epoch, "image.png", PNG)
    assert await site.report(job_id, epoch, artifacts=[artifact("image.png", PNG)]) is Verdict.ACCEPTED
    await site.pool.execute("UPDATE job SET unpublished = false WHERE id = $1", job_id)
    return job_id


async def _fail(site: Web, job_id: UUID, error_class: str, worker: str = "mini") -> None:
    await site.pool.execute("UPDATE job SET run_after = tandem_now() WHERE id = $1", job_id)
    epoch = await site.claim(job_id, worker)
    error = {"code": "x", "message": "", "class": error_class}
    assert await site.report(job_id, epoch, worker, outcome="failed", error=error) is Verdict.ACCEPTED


async def _lapse(site: Web, job_id: UUID) -> None:
    await site.pool.execute("UPDATE job SET lease_expires_at = tandem_now() - interval '1 s' WHERE id = $1", job_id)
    await site.ledger.do(Expire(job_id=job_id))
