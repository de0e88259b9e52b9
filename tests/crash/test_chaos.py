"""Chaos's own tools: the verdict finds a planted breach of each rule, one seed draws one sequence, a proxy cuts."""

import asyncio
import copy
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shared.submission import parse_submission
from shared.wire import BadMessageError
from tests.crash.chaos import report
from tests.crash.chaos.counts import Injected, summary, takeovers
from tests.crash.chaos.evidence import Evidence, Line, Published, StoredFile
from tests.crash.chaos.faults import NAMES, draw
from tests.crash.chaos.generator import PLAN, Plan, sha256_of, text_of
from tests.crash.chaos.marks import failpoints, fault_tests
from tests.crash.chaos.measure import Measure
from tests.crash.chaos.orders import bad_order, conflicting, order
from tests.crash.chaos.program import ROOT, Program
from tests.crash.chaos.verdict import COUNTED, RULES, judge
from tests.support.proxy import Proxy
from tests.support.servers import eventually

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DONE, FAILED, LATER, STRANGE = (UUID(int=number) for number in (1, 2, 3, 4))
TEXT = text_of(str(DONE), 2)
FILES = {"own.txt": sha256(TEXT.encode()).hexdigest(), "image-1.bin": sha256_of(0)}


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(state: str, epoch: int, **more: Any) -> dict[str, Any]:
    settled = state not in ("pending", "processing")
    return {
        "kind": "render",
        "lane": "render.any",
        "state": state,
        "epoch": epoch,
        "attempt": 0,
        "max_attempts": 5,
        "excluded": [],
        "run_after": ago(60),
        "created_at": ago(60),
        "finished_at": ago(30) if settled else None,
        "offered_at": None,
        "worker": None,
        "lease_expires_at": None,
        "result_epoch": None,
        "result": None,
        "labels": {PLAN: Plan(files=[0]).model_dump_json()},
        "unpublished": False,
        **more,
    }


def attempt(job_id: UUID, epoch: int, worker: str, outcome: str, claimed_s: float) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "epoch": epoch,
        "worker": worker,
        "instance": "i",
        "outcome": outcome,
        "error": None,
        "claimed_at": ago(claimed_s),
        "deadline_at": ago(claimed_s - 600),
        "ended_at": ago(claimed_s - 5),
        "heartbeat_at": ago(claimed_s - 1),
    }


def line(word: str, job_id: UUID, epoch: int, worker: str) -> Line:
    return Line(word, job_id, epoch, worker, "i", 1, 100, 1.0)


def healthy() -> Evidence:
    """A job done at its second epoch, after birch's lease lapsed; one that failed; one whose time has not come."""
    e = Evidence(NOW)
    e.jobs = {
        DONE: job("completed", 2, result_epoch=2, result={"text": TEXT}),
        FAILED: job("failed", 1),
        LATER: job("pending", 0, run_after=ago(-60)),
    }
    e.attempts = {
        (DONE, 1): attempt(DONE, 1, "birch", "lease_expired", 50),
        (DONE, 2): attempt(DONE, 2, "amber", "completed", 40),
        (FAILED, 1): attempt(FAILED, 1, "cedar", "failed", 50),
    }
    e.files = [StoredFile(DONE, 2, name, 10, digest, (10, digest)) for name, digest in FILES.items()]
    e.rejected = Counter({(DONE, 1, "birch", "stale"): 1})
    e.refused = [b'{"key": "bad-7"}']
    e.workers = [
        {
            "name": "amber",
            "age_s": 1.0,
            "wanted": "ready",
            "presence": {"state": "ready", "slots": 1, "capabilities": [{"kind": "render", "models": ["*"]}]},
        }
    ]
    e.results = [
        Published(1, FAILED, 1, "failed", None, frozenset()),
        Published(2, DONE, 2, "completed", {"text": TEXT}, frozenset((n, 10, d) for n, d in FILES.items())),
    ]
    e.work = [f"tandem.work.render.any.{LATER}"]
    e.waiting = {"SUBMIT": 0, "REPORTS": 0}
    e.journal = [{"event": "tried", "job_id": str(job_id)} for job_id in e.jobs]
    e.journal += [{"event": "acknowledged", "job_id": str(job_id), "how": "nats"} for job_id in e.jobs]
    e.journal += [{"event": "bad", "mark": "bad-7"}]
    e.lines = [line("start", DONE, 1, "birch"), line("start", DONE, 2, "amber"), line("end", DONE, 2, "amber")]
    e.lines += [line("start", FAILED, 1, "cedar")]
    e.judged = [{"job_id": str(DONE), "epoch": 1, "worker": "birch", "verdict": "stale", "reason": "epoch 1"}]
    return e


Plant = Callable[[Evidence], Any]

PLANTED: list[tuple[str, Plant]] = [
    ("lost", lambda e: e.jobs.pop(LATER)),
    ("unknown", lambda e: e.jobs.update({STRANGE: job("pending", 0, run_after=ago(-60))})),
    ("door", lambda e: e.refused.clear()),
    ("door", lambda e: e.refused.__setitem__(0, b'{"key": "bad-77"}')),
    ("door", lambda e: e.journal.append({"event": "accepted_bad", "mark": "bad-8", "status": 201})),
    ("door", lambda e: e.journal.append({"event": "refused_good", "job_id": str(DONE), "status": 422})),
    ("door", lambda e: e.journal.append({"event": "action", "job_id": str(DONE), "action": "retry", "status": 200})),
    ("door", lambda e: e.journal.append({"event": "unanswered", "count": 2})),
    ("unsettled", lambda e: e.jobs[LATER].update(run_after=ago(10))),
    ("unsettled", lambda e: e.jobs[LATER].update(state="processing", worker="amber", lease_expires_at=ago(-5))),
    ("overdue", lambda e: e.jobs[LATER].update(state="processing", worker="amber", lease_expires_at=ago(10))),
    ("one_result", lambda e: e.attempts[DONE, 1].update(outcome="completed")),
    ("one_result", lambda e: e.jobs[DONE].update(result_epoch=1)),
    ("one_result", lambda e: e.attempts[DONE, 2].update(outcome="failed")),
    ("files", lambda e: e.files.append(StoredFile(DONE, 1, "own.txt", 1, "aa", (1, "aa")))),
    ("files", lambda e: e.files.__setitem__(0, e.files[0]._replace(found=None))),
    ("files", lambda e: e.files.__setitem__(0, e.files[0]._replace(found=(9, e.files[0].sha256)))),
    ("files", lambda e: e.files.pop()),
    ("files", lambda e: e.jobs[DONE].update(result={"text": text_of(str(DONE), 1)})),
    ("published", lambda e: e.results.pop()),
    ("published", lambda e: e.results.append(e.results[-1]._replace(epoch=1, seq=3))),
    ("published", lambda e: e.results.insert(0, e.results[-1]._replace(epoch=1, seq=0))),
    ("published", lambda e: e.results.append(e.results[-1]._replace(state="failed", seq=3))),
    ("published", lambda e: e.results.append(e.results[-1]._replace(files=frozenset(), seq=3))),
    ("published", lambda e: e.results.append(e.results[-1]._replace(result={"text": text_of(str(DONE), 1)}, seq=3))),
    ("work", lambda e: e.work.append(f"tandem.work.render.any.{DONE}")),
    ("work", lambda e: e.work.append(f"tandem.work.render.other.{LATER}")),
    ("waiting", lambda e: e.waiting.update(REPORTS=1)),
    ("refusals", lambda e: e.rejected.clear()),
    ("executed", lambda e: e.lines.append(line("start", DONE, 2, "amber"))),
    ("executed", lambda e: e.lines.append(line("start", DONE, 3, "amber"))),
    ("executed", lambda e: e.lines.append(line("start", FAILED, 1, "birch"))),
    ("unexecuted", lambda e: e.lines.remove(line("end", DONE, 2, "amber"))),
    ("audit", lambda e: e.audited.append("a breach")),
]


def test_healthy_evidence_has_no_breach():
    assert judge(healthy()) == []


@pytest.mark.parametrize(("rule", "plant"), PLANTED, ids=[f"{n}-{rule}" for n, (rule, _) in enumerate(PLANTED)])
def test_a_planted_breach_is_found(rule: str, plant: Plant):
    evidence = copy.deepcopy(healthy())
    plant(evidence)
    assert rule in {breach.rule for breach in judge(evidence)}


def test_every_rule_has_a_planted_breach():
    assert {rule for rule, _ in PLANTED} == set(RULES)
    assert {rule for rules in COUNTED.values() for rule in rules} <= set(RULES)


def test_a_busy_excluded_or_absent_worker_is_not_free():
    for change in (
        lambda e: e.workers[0].update(age_s=60.0),
        lambda e: e.workers[0].update(wanted="paused"),
        lambda e: e.jobs[LATER].update(excluded=["amber"]),
        lambda e: e.workers[0]["presence"].update(capabilities=[]),
    ):
        evidence = copy.deepcopy(healthy())
        evidence.jobs[LATER].update(run_after=ago(10))
        change(evidence)
        assert judge(evidence) == []


def test_a_run_is_counted():
    evidence = healthy()
    evidence.jobs.pop(LATER)
    evidence.work.clear()
    injected = [Injected("agent_kill", "birch", ago(49).timestamp(), ago(45).timestamp())]
    injected += [Injected("agent_term", "cedar", ago(49).timestamp(), ago(45).timestamp())]
    told = summary(evidence, judge(evidence), injected, {"seed": 1})
    assert [one.seconds for one in takeovers(evidence)] == [9.0]
    assert (told["faults"], told["lost"], told["doubled"], told["stuck"]) == (2, 1, 0, 0)
    assert told["kinds"]["agent_kill"]["takeovers"] == [9.0]
    assert told["kinds"]["agent_term"]["takeovers"] == []
    assert told["kinds"]["nats_kill"]["injected"] == told["kinds"]["nats_kill"]["lost"] == 0


def test_one_seed_draws_one_sequence():
    first, second = (random.Random("7:faults") for _ in range(2))
    drawn = [draw(first) for _ in range(2000)]
    assert drawn == [draw(second) for _ in range(2000)]
    assert {one.kind.name for one in drawn} == set(NAMES)


def test_orders_are_what_they_are_meant_to_be():
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance, kinds = random.Random(seed), frozenset({"render"})
    for number in range(300):
        good = order(chance, number)
        assert parse_submission(good.body, kinds).key == good.key
        assert parse_submission(conflicting(good), kinds) != parse_submission(good.body, kinds)
        bad = bad_order(chance, number)
        assert f'"{bad.mark}"'.encode() in bad.body
        with pytest.raises(BadMessageError):
            parse_submission(bad.body, kinds)


async def test_a_proxy_cuts_a_connection_in_the_middle():
    arrived = bytearray()
    gone = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                arrived.extend(data)
        except ConnectionError:
            pass
        writer.transport.abort()
        gone.set()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server, Proxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"a" * 5000)
        await eventually(lambda: len(arrived) == 5000)
        proxy.cut_after(100_000)
        writer.write(b"b" * 300_000)
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                assert await reader.read() == b""
            await gone.wait()
        writer.transport.abort()
        assert 5000 < len(arrived) < 105_000
        assert proxy.cuts == 1


async def test_a_program_is_started_again_and_its_output_kept(tmp_path: Path):
    heard: list[bytes] = []
    script = "import time; print('up', flush=True); time.sleep(600)"
    program = Program("one", (sys.executable, "-c", script), {}, tmp_path, lambda _, text: heard.append(text))
    program.start()
    try:
        await eventually(lambda: len(heard) == 1)
        first = program.pid
        program.end(signal.SIGKILL, again_s=0.0)
        await eventually(lambda: len(heard) == 2)
        assert program.pid not in (None, first)
        assert program.ends == {-signal.SIGKILL: 1}
    finally:
        await program.stop()
    assert (tmp_path / "one.log").read_text() == "up\nup\n"
    assert program.lines == program.starts == 2


def test_marks_are_read_from_tests(tmp_path: Path):
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text("import pytest\npytestmark = [pytest.mark.fault(3), pytest.mark.timeout(9)]\n")
    (tests / "test_b.py").write_text("@pytest.mark.fault(4, 5)\ndef test_it():\n    fault(6)\n")
    assert fault_tests(tests) == {
        3: ["tests/test_a.py"],
        4: ["tests/test_b.py::test_it"],
        5: ["tests/test_b.py::test_it"],
    }


def test_every_failpoint_has_its_test():
    points = failpoints(ROOT)
    assert points
    assert all(point.what and point.test for point in points)


def test_the_page_is_made_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    evidence = healthy()
    injected = [Injected("agent_kill", "birch", ago(49).timestamp(), ago(45).timestamp())]
    ran = {"seed": 77, "seconds": 90, "log_lines": {"north": 5}, "machine": {"system": "Linux"}}
    measured = Measure("one thing to another", "2 s", [1.0, 3.0, None]).told()
    (tmp_path / "chaos.json").write_text(json.dumps(summary(evidence, judge(evidence), injected, ran)))
    (tmp_path / "measure.json").write_text(json.dumps({"measures": {"m": measured}, "machine": {"system": "Linux"}}))
    assert report.main([tmp_path / "chaos.json", tmp_path / "measure.json"], write=False) == 0
    page = capsys.readouterr().out
    assert "| 77 | 1 | 1.5 | completed 1, failed 1, pending 1 |" in page
    assert "| `agent_kill` | SIGKILL of an agent | 1 | 3 | 0 | 0 | 0 | 1: 9.0 / 9.0 / 9.0 |" in page
    assert "| one thing to another | 2 s | 2 | 1 | 1.0 | 2.0 | 3.0 |" in page


def test_a_kind_without_a_test_stops_the_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(report.MUST_HOLD, 99, "something new")
    assert report.main([], write=False) == 1
