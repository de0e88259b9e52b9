"""Random lives of jobs on the real ledger, held against DESIGN §7 after each step.

Commands come twice, late, from the wrong worker, for old and future epochs, several in one commit, and the clock jumps.
A failure prints its seed; run it again with TANDEM_SEED=<seed>.
"""

import asyncio
import os
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from coordinator.ledger.database import open_pool
from coordinator.ledger.model import (
    Admitted,
    Answer,
    Approve,
    Cancel,
    Claim,
    Command,
    Conflict,
    Depart,
    Dispatch,
    Done,
    Evict,
    Expire,
    FileReport,
    Grace,
    Grant,
    Heartbeat,
    Held,
    Judged,
    Offer,
    Offered,
    Prioritize,
    Reject,
    Relane,
    Retry,
    RollCall,
    SameJob,
    Withdraw,
)
from shared.states import SETTLED, JobState, Verdict
from shared.subjects import consumer_of, lane_of, parse_delivery
from tests.support.ledger import (
    Desk,
    admit,
    artifact,
    beat,
    claim,
    completed,
    failed,
    open_desk,
    released,
    set_clock_offset,
    store,
)

EXAMPLES = 25
STEPS = 30
LIVES = 8
LIFE_STEPS = 150

WORKERS = ("mini", "book")
MODELS = ("llama3", "qwen3", "phi4")
JOBS = 2

KINDS = ("transient", "transient", "released", "elsewhere", "next model", "completed", "files", "permanent")

job_no = st.integers(0, JOBS - 1)
workers = st.sampled_from(WORKERS)
epochs_back = st.sampled_from((0, 1, 0, 2, 0, -1))  # from the current one; -1 = one that never was

_LEDGER: list[tuple[asyncio.Runner, Desk]] = []
_clock = [0.0]  # only ever forward, for all examples on this database


@dataclass
class Life:
    """What the model knows of a job."""

    id: uuid.UUID
    model: str = MODELS[0]
    models: tuple[str, ...] = MODELS  # it may still move to
    seqs: list[int] = field(default_factory=list)  # every message that it ever had
    lanes: dict[int, str] = field(default_factory=dict)  # where each of them lies
    unpublished: list[str] = field(default_factory=list)  # lanes of offers whose message is not in WORK yet
    epoch: int = 0
    restarted_at: int = 0  # the epoch at the last retry
    grants: dict[int, tuple[str, str]] = field(default_factory=dict)
    process: str | None = None  # that has the newest epoch
    replaced: bool = False  # its next process said that it has not
    accepted: FileReport | None = None  # since the last retry
    files: frozenset[str] = frozenset()  # uploaded for the newest epoch
    banned: set[str] = field(default_factory=set)
    spent: int = 0  # no message up to this sequence may grant any more
    refused: int = 0
    beats: int = 0
    actions: int = 0
    priority: int = 1

    @property
    def lane(self) -> str:
        return lane_of("article", self.model)

    def lands(self, seq: int) -> None:
        """The message of its oldest offer gets a place in WORK."""
        self.seqs.append(seq)
        self.lanes[seq] = self.unpublished.pop(0)

    def claim(self, worker: str, seq: int, count: int, **more: Any) -> Claim:
        return claim(self.id, worker, seq, count, lane=self.lanes.get(seq, self.lane), **more)


class Ledgers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner, self.desk = _LEDGER[0]
        self.lives: list[Life] = []
        self.next_seq = 1
        self.said: list[Command] = []

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    # ------------------------------------------------------------------------------------------------------- the model

    def do(self, *commands: Command) -> list[Answer]:
        """Carry commands out in one commit, and take what they answer into the model."""
        self.desk.effects.clear()
        answers = self.run(self.desk.ledger.do_many(commands))
        for command, answer in zip(commands, answers, strict=True):
            life = next(life for life in self.lives if life.id == command.job_id)
            self.said.append(command)
            self.took(life, command, answer)
        for effect in self.desk.took(Offer):
            next(life for life in self.lives if life.id == effect.job_id).unpublished.append(effect.lane)
        return answers

    def took(self, life: Life, command: Command, answer: Answer) -> None:
        match command, answer:
            case Claim(), Grant(epoch=epoch):
                self.granted(life, command, epoch)
            case Heartbeat(), Held():
                assert life.grants[command.epoch][0] == command.worker
                assert command.epoch == life.epoch
                assert command.instance in (None, life.process), "extended by another process"
                assert not life.replaced, "extended after its process was replaced"
                life.beats += command.stage is not None
            case FileReport(), Judged(verdict, reason):
                self.judged(life, command, verdict, reason)
            case ((Retry() | Reject(again=True)), Done()):
                life.restarted_at, life.accepted, life.files = life.epoch, None, frozenset()
                life.banned.clear()
                life.actions += 1
                self.spend(life)
            case Relane(model=model), Done():
                assert model in life.models, "moved back to a model before one that refused it"
                if life.banned:
                    life.models = life.models[life.models.index(model) :]
                life.model = model
                life.banned.clear()
            case RollCall(epoch=listed), Done():
                if listed == life.epoch:
                    life.process = command.instance
                else:
                    self.spend(life)
                    life.replaced = command.instance != life.process
            case Depart(instance=instance), Done():
                assert instance == life.process
                self.spend(life)
            case Evict(worker=worker), Done():
                assert worker == life.grants[life.epoch][0]
                self.spend(life)
            case ((Cancel() | Approve() | Reject()), Done()):
                life.actions += 1
            case Prioritize(priority=priority), Done():
                life.priority = priority
                life.actions += 1

    def spend(self, life: Life) -> None:
        """The newest attempt is over for good: nothing comes of its message any more."""
        if life.epoch:
            token = parse_delivery(life.grants[life.epoch][1])
            assert token is not None
            life.spent = max(life.spent, token.seq)

    def granted(self, life: Life, command: Claim, epoch: int) -> None:
        holder = (command.worker, command.delivery)
        if epoch in life.grants:
            assert life.grants[epoch] == holder, "an epoch was granted to two"
            assert epoch == life.epoch, "an old epoch was granted again"
            return
        assert epoch == life.epoch + 1, "epochs grow by one"
        assert command.token.consumer == consumer_of(life.lane), "granted out of another model's lane"
        assert command.worker not in life.banned, "granted to a worker that can't"
        assert holder not in life.grants.values(), "one delivery was granted twice"
        assert life.accepted is None, "granted after its result was accepted"
        assert command.token.seq > life.spent, "granted through a message whose attempt has ended"
        life.grants[epoch], life.epoch, life.files = holder, epoch, frozenset()
        life.process, life.replaced = command.instance, False

    def judged(self, life: Life, command: FileReport, verdict: Verdict, reason: str | None) -> None:
        if verdict is not Verdict.ACCEPTED:
            life.refused += reason is not None
            assert reason is not None or verdict is Verdict.DUPLICATE
            return
        report = command.report
        assert report.epoch == life.epoch, "accepted from an epoch that is not the newest"
        assert report.epoch > life.restarted_at, "accepted from before a retry"
        assert life.grants[report.epoch][0] == command.worker, "accepted from another worker"
        assert life.accepted is None, "accepted after a result"
        self.spend(life)
        if report.error is not None and report.error.error_class == "elsewhere":
            life.banned.add(command.worker)
        if report.outcome == "completed" and {a.name for a in report.artifacts} <= life.files:
            life.accepted = command

    # -------------------------------------------------------------------------------------------------------- the steps

    @initialize(review=st.lists(st.booleans(), min_size=JOBS, max_size=JOBS), offer=st.booleans())
    def begin(self, review: list[bool], offer: bool) -> None:  # noqa: FBT001
        commands = [
            admit(
                uuid.uuid4(),  # hypothesis seeds random
                review=r,
                offer=offer,
                timeout_s=600.0,
                model=MODELS[0],
                models=MODELS,
                lane=lane_of("article", MODELS[0]),
            )
            for r in review
        ]
        self.lives = [Life(c.job_id) for c in commands]
        assert self.do(*commands) == [Admitted()] * JOBS

    @rule(n=job_no, same=st.booleans())
    def submit_again(self, n: int, same: bool) -> None:  # noqa: FBT001
        command = admit(self.lives[n].id, content_sha256=b"content" if same else b"other")
        assert self.do(command) == [SameJob() if same else Conflict()]

    @rule(n=job_no)
    def dispatch(self, n: int) -> None:
        self.do(Dispatch(job_id=self.lives[n].id))

    @rule(n=job_no)
    def publish(self, n: int) -> None:
        """The message of an offer lands in WORK; the offer may long have been taken back."""
        life = self.lives[n]
        if life.unpublished:
            life.lands(self.next_seq)
            self.next_seq += 1
            self.do(Offered(job_id=life.id, seq=life.seqs[-1]))

    @rule(
        turns=st.lists(
            st.tuples(job_no, workers, st.sampled_from(("beat", *KINDS, None)), st.booleans()), min_size=1, max_size=5
        )
    )
    def work(self, turns: list[tuple[int, str, str | None, bool]]) -> None:
        """The usual way, so that lives get somewhere; a report may come after the lease was over."""
        for turn in turns:
            self.turn(*turn)

    def turn(self, n: int, worker: str, end: str | None, lapse: bool) -> None:  # noqa: FBT001
        life = self.lives[n]
        if self.row(n)["run_after"] > self.run(self.desk.queries.now()):
            self.time_passes(60)
        self.dispatch(n)
        self.publish(n)
        if life.seqs:
            self.do(life.claim(worker, life.seqs[-1], 10 + life.epoch))
        if life.epoch and end is not None:
            if lapse:
                self.time_passes(91)
                self.reap(n)
            if end == "beat":
                self.do(beat(life.id, life.epoch, life.grants[life.epoch][0]))
                return
            self.do(report_of(life.id, life.epoch, life.grants[life.epoch][0], end, "a"))

    @rule(
        n=job_no,
        worker=workers,
        back=st.integers(0, 2),
        count=st.integers(1, 3),
        second=st.booleans(),
        paused=st.sampled_from((None, None, None, "lane", "worker")),
    )
    def claim(self, n: int, worker: str, back: int, count: int, second: bool, paused: Any) -> None:  # noqa: FBT001
        life = self.lives[n]
        seq = life.seqs[-1 - back] if back < len(life.seqs) else self.next_seq
        if seq == self.next_seq:  # claimed before the coordinator heard where it lies
            if not life.unpublished:
                return
            life.lands(seq)
            self.next_seq += 1
        instance = f"{worker}-{1 + second}"
        self.do(life.claim(worker, seq, count, instance=instance, paused=paused))

    @rule(
        n=job_no,
        worker=workers,
        back=epochs_back,
        ask=st.booleans(),
        holder=st.booleans(),
        process=st.sampled_from((None, None, 1, 2)),
    )
    def beat(self, n: int, worker: str, back: int, ask: bool, holder: bool, process: int | None) -> None:  # noqa: FBT001
        life = self.lives[n]
        worker = life.grants[life.epoch][0] if holder and life.epoch else worker
        instance = f"{worker}-{process}" if process else None
        stage = None if ask else "generating_text"
        self.do(beat(life.id, life.epoch - back, worker, stage=stage, instance=instance))

    @rule(
        n=job_no,
        worker=workers,
        back=epochs_back,
        holder=st.sampled_from((True, True, True, False)),
        kind=st.sampled_from(KINDS),
        text=st.sampled_from("ab"),
    )
    def report(self, n: int, worker: str, back: int, holder: bool, kind: str, text: str) -> None:  # noqa: FBT001
        life = self.lives[n]
        epoch = life.epoch - back
        worker = life.grants[epoch][0] if holder and epoch in life.grants else worker
        self.do(report_of(life.id, epoch, worker, kind, text))

    @rule(n=job_no, kind=st.sampled_from(KINDS))
    def old_reports_come_late(self, n: int, kind: str) -> None:
        """Each epoch but the newest reports, by the worker that had it: Macs that slept."""
        life = self.lives[n]
        old = [(e, holder[0]) for e, holder in life.grants.items() if e < life.epoch]
        self.do(*(report_of(life.id, epoch, worker, kind, "late") for epoch, worker in old))

    @rule(n=job_no, worker=workers, count=st.integers(20, 10**6), offer=st.booleans())
    def old_messages_come_again(self, n: int, worker: str, count: int, offer: bool) -> None:  # noqa: FBT001
        """Each message that there ever was is delivered once more, maybe while a newer offer is being published."""
        life = self.lives[n]
        if offer:
            self.dispatch(n)
        self.do(*(life.claim(worker, seq, count) for seq in life.seqs[:-1] + life.seqs[-1:] * (not offer)))

    @rule(n=job_no, worker=workers, back=epochs_back)
    def upload(self, n: int, worker: str, back: int) -> None:
        life = self.lives[n]
        epoch = life.epoch - back
        file = artifact()
        (taken,) = self.run(store(self.desk.queries, life.id, file, epoch=epoch, worker=worker))
        if taken:
            assert epoch == life.epoch
            assert life.grants[epoch][0] == worker
            assert life.accepted is None
            life.files = frozenset({file["name"]})

    @rule(n=job_no)
    def reap(self, n: int) -> None:
        ids = self.run(self.desk.queries.expired(1000))
        mine = [life.id for life in self.lives if life.id in ids]
        self.do(*(Expire(job_id=i) for i in mine), Expire(job_id=self.lives[n].id))

    @rule(n=job_no, worker=workers, second=st.booleans(), listed=st.booleans())
    def roll_call(self, n: int, worker: str, second: bool, listed: bool) -> None:  # noqa: FBT001
        life = self.lives[n]
        epoch = life.epoch if listed else None
        retired = frozenset({f"{worker}-1"} if second else ())
        instance = f"{worker}-{1 + second}"
        self.do(RollCall(job_id=life.id, worker=worker, instance=instance, epoch=epoch, retired=retired))

    @rule(n=job_no, worker=workers, second=st.booleans())
    def depart(self, n: int, worker: str, second: bool) -> None:  # noqa: FBT001
        instance = f"{worker}-{1 + second}"
        since = self.run(self.desk.queries.now()) - timedelta(seconds=4.5)
        self.do(Depart(job_id=self.lives[n].id, worker=worker, instance=instance, since=since))

    @rule(n=job_no, worker=workers)
    def evict(self, n: int, worker: str) -> None:
        self.do(Evict(job_id=self.lives[n].id, worker=worker))

    @rule(n=job_no)
    def grace(self, n: int) -> None:
        self.do(Grace(job_id=self.lives[n].id))

    @rule(n=job_no, unclaimed=st.booleans())
    def withdraw(self, n: int, unclaimed: bool) -> None:  # noqa: FBT001
        at = self.row(n)["offered_at"] if unclaimed else datetime(2020, 1, 1, tzinfo=UTC)
        if at is not None:
            self.do(Withdraw(job_id=self.lives[n].id, offered_at=at, reason="unclaimed"))

    @rule(n=job_no, model=st.sampled_from(MODELS), free=st.booleans())
    def relane(self, n: int, model: str, free: bool) -> None:  # noqa: FBT001
        """Placement moves it on; with `free` it takes the offer back first, as it does, in the same commit."""
        at = self.row(n)["offered_at"]
        moves = Relane(job_id=self.lives[n].id, model=model)
        if free and at is not None:
            self.do(Withdraw(job_id=moves.job_id, offered_at=at, reason="another model"), moves)
        else:
            self.do(moves)

    @rule(n=job_no, what=st.sampled_from((Cancel, Retry, Retry, Retry, Approve, Reject)), again=st.booleans())
    def operate(self, n: int, what: Any, again: bool) -> None:  # noqa: FBT001
        self.do(what(job_id=self.lives[n].id, actor="ann", **({"again": again} if what is Reject else {})))

    @rule(n=job_no, priority=st.integers(0, 3))
    def prioritize(self, n: int, priority: int) -> None:
        self.do(Prioritize(job_id=self.lives[n].id, actor="ann", priority=priority))

    @rule(seconds=st.sampled_from((1, 15, 60, 91, 700)))
    def time_passes(self, seconds: float) -> None:
        _clock[0] += seconds
        self.run(set_clock_offset(self.desk.pool, _clock[0]))

    @rule(back=st.integers(0, 10), n=st.integers(1, 4))
    def again(self, back: int, n: int) -> None:
        """Messages that come a second time, late, together in one commit. Offers are never published twice."""
        end = len(self.said) - back
        repeated = [c for c in self.said[max(end - n, 0) : end] if not isinstance(c, Offered)]
        self.do(*repeated)

    # ---------------------------------------------------------------------------------------------------- the promises

    def row(self, n: int) -> asyncpg.Record:
        return self.run(self.desk.row(self.lives[n].id))

    @invariant()
    def promises_hold(self) -> None:
        if self.lives:
            self.run(self._check())

    async def _check(self) -> None:
        ids = [life.id for life in self.lives]
        found = {row["id"]: row for row in await self.desk.pool.fetch("SELECT * FROM job WHERE id = ANY ($1)", ids)}
        attempts: dict[uuid.UUID, list[asyncpg.Record]] = defaultdict(list)
        for row in await self.desk.pool.fetch("SELECT * FROM attempt WHERE job_id = ANY ($1) ORDER BY epoch", ids):
            attempts[row["job_id"]].append(row)
        counts = await self.desk.pool.fetch(
            "SELECT (SELECT count(*) FROM rejected_result WHERE job_id = wanted) AS refused,"
            " (SELECT count(*) FROM heartbeat WHERE job_id = wanted) AS beats,"
            " (SELECT count(*) FROM operator_action WHERE job_id = wanted) AS actions,"
            " ARRAY(SELECT epoch FROM artifact WHERE job_id = wanted AND linked) AS linked"
            " FROM unnest($1::uuid[]) AS wanted",
            ids,
        )
        assert set(found) == set(ids), "a job was lost"
        for life, count in zip(self.lives, counts, strict=True):
            _check_row(life, found[life.id], attempts[life.id])
            assert (count["refused"], count["beats"], count["actions"]) == (life.refused, life.beats, life.actions)
            named = life.accepted.report.artifacts if life.accepted else []
            assert count["linked"] == [life.epoch] * len(named), "files of another epoch"
        unpublished = {row.id: row for row in await self.desk.queries.unpublished(100_000)}
        for life in self.lives:
            assert (life.id in unpublished) == (JobState(found[life.id]["state"]) in SETTLED)

    def teardown(self) -> None:
        """No job is stuck: whatever happened, a worker that does its work brings each to an end."""
        if not self.lives:
            return
        for n, life in enumerate(self.lives):
            for _ in range(20):
                if JobState(self.row(n)["state"]) in SETTLED:
                    break
                self.time_passes(700)
                self.do(Expire(job_id=life.id))
                self.dispatch(n)
                for _ in range(len(life.unpublished)):
                    self.publish(n)
                self.do(life.claim("fresh", life.seqs[-1] if life.seqs else 1, 99))
                self.do(completed(life.id, life.epoch, "fresh"))
            assert JobState(self.row(n)["state"]) in SETTLED, "a job is stuck"
        self.run(self._check())


def report_of(job_id: uuid.UUID, epoch: int, worker: str, kind: str, text: str) -> FileReport:
    epoch = max(epoch, 1)  # a report of none is no report
    match kind:
        case "completed":
            return completed(job_id, epoch, worker, text)
        case "files":
            return completed(job_id, epoch, worker, text, artifacts=[artifact()])
        case "released":
            return released(job_id, epoch, worker)
        case "next model":
            return replace(failed(job_id, epoch, worker, "elsewhere", frozenset(WORKERS)), another_model=True)
        case _:
            return failed(job_id, epoch, worker, kind, frozenset(WORKERS))


def _check_row(life: Life, job: asyncpg.Record, attempts: list[asyncpg.Record]) -> None:
    assert job["epoch"] == life.epoch, "an epoch that nobody was granted, or that was taken back"
    assert {a["epoch"]: (a["worker"], a["delivery"]) for a in attempts} == life.grants
    assert (job["model"], job["lane"], tuple(job["models"])) == (life.model, life.lane, life.models)
    still_open = [a["epoch"] for a in attempts if a["outcome"] is None]
    assert still_open == ([life.epoch] if job["state"] == "processing" else [])
    if job["state"] == "processing":
        assert job["worker"] == life.grants[life.epoch][0]
        assert job["lease_expires_at"] <= attempts[-1]["deadline_at"]
    counted = [a for a in attempts if a["epoch"] > life.restarted_at]
    failures = [a for a in counted if a["outcome"] == "failed" and a["error"]["class"] != "elsewhere"]
    assert job["attempt"] == len(failures), "charged for what was not a failure, or not charged"
    lapses = [a["error"]["code"] for a in counted if a["outcome"] == "lease_expired"]
    assert job["silences"] == lapses.count("worker_silent")
    assert job["lease_losses"] == len(lapses) - job["silences"]
    assert set(job["excluded"]) == life.banned
    assert job["priority"] == life.priority, "a priority that nobody gave it"
    results = [a for a in counted if a["outcome"] == "completed"]
    if life.accepted is None:
        assert results == []
        assert (job["result"], job["result_epoch"]) == (None, None)
        assert job["state"] not in ("completed", "awaiting_review")
    else:
        assert [a["epoch"] for a in results] == [life.accepted.report.epoch]
        assert (job["result"], job["result_epoch"]) == (life.accepted.report.result, life.accepted.report.epoch)
        assert job["state"] in ("completed", "awaiting_review", "canceled")


def test_promises_hold_whatever_comes_in_whatever_order(ledger_dsn: str) -> None:
    """Hypothesis: short lives, shrunk to the shortest when one breaks."""
    with a_ledger(ledger_dsn) as seed:
        run_state_machine_as_test(
            hypothesis.seed(seed)(Ledgers),
            settings=settings(
                max_examples=int(os.environ.get("TANDEM_EXAMPLES", EXAMPLES)),
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_promises_hold_over_long_lives(ledger_dsn: str) -> None:
    """The same steps, evenly drawn: jobs that change hands many times."""
    with a_ledger(ledger_dsn) as seed:
        rng = random.Random(seed)
        for _ in range(int(os.environ.get("TANDEM_LIVES", LIVES))):
            machine = Ledgers()
            machine.begin([rng.random() < 0.3 for _ in range(JOBS)], rng.random() < 0.5)
            for step in range(LIFE_STEPS):
                a_step(machine, rng)
                if step % 4 == 0:
                    machine.promises_hold()
            machine.teardown()
        desk = machine.desk
        ends = machine.run(desk.pool.fetch("SELECT outcome, count(*), max(epoch) AS epoch FROM attempt GROUP BY 1"))
        print({row["outcome"]: row["count"] for row in ends}, desk.ledger.status()["commands"])  # noqa: T201
        assert {row["outcome"] for row in ends} >= {"completed", "failed", "released", "lease_expired"}, "too tame"
        assert max(row["epoch"] for row in ends) >= 3, "too tame"
        assert len({job.lane for _, job in desk.changes}) == len(MODELS), "too tame"


def a_step(machine: Ledgers, rng: random.Random) -> None:
    """Take one random step; those that bring a life forward come more often."""
    n, worker, back = rng.randrange(JOBS), rng.choice(WORKERS), rng.choice((0, 0, 0, 1, 2, -1))
    yes = rng.random() < 0.5
    kind, count = rng.choice(KINDS), rng.randrange(20, 10**6)
    turn = (n, worker, rng.choice(("beat", *KINDS, None, None, None)), yes)
    steps: list[Callable[[], None]] = [
        lambda: machine.work([turn]),
        lambda: machine.work([turn]),
        lambda: machine.work([turn]),
        lambda: machine.report(n, worker, back, rng.random() < 0.8, kind, rng.choice("ab")),
        lambda: machine.report(n, worker, back, rng.random() < 0.8, kind, rng.choice("ab")),
        lambda: machine.beat(n, worker, back, rng.random() < 0.2, yes, rng.choice((None, None, 1, 2))),
        lambda: machine.depart(n, worker, rng.random() < 0.3),
        lambda: machine.old_reports_come_late(n, kind),
        lambda: machine.old_messages_come_again(n, worker, count, yes),
        lambda: machine.claim(
            n, worker, rng.randrange(3), 1 + rng.randrange(3), yes, rng.choice((None, "lane", "worker"))
        ),
        lambda: machine.submit_again(n, yes),
        lambda: machine.dispatch(n),
        lambda: machine.publish(n),
        lambda: machine.upload(n, worker, back),
        lambda: machine.reap(n),
        lambda: machine.roll_call(n, worker, rng.random() < 0.3, yes),
        lambda: machine.grace(n),
        lambda: machine.withdraw(n, rng.random() < 0.8),
        lambda: machine.relane(n, rng.choice(MODELS), yes),
        lambda: machine.operate(n, rng.choice((Cancel, Retry, Retry, Retry, Approve, Reject)), yes),
        lambda: machine.prioritize(n, rng.randrange(4)),
        lambda: machine.time_passes(rng.choice((1, 15, 60, 91, 700))),
        lambda: machine.again(rng.randrange(10), 1 + rng.randrange(4)),
    ]
    rng.choice(steps)()


@contextmanager
def a_ledger(dsn: str) -> Iterator[int]:
    """Open the ledger that the machines work on, on a loop of its own; yields the seed."""
    seed = int(os.environ.get("TANDEM_SEED", random.randrange(2**32)))
    print(f"TANDEM_SEED={seed}")  # noqa: T201 - pytest shows it with a failure

    async def opened() -> tuple[asyncpg.Pool, Any, Desk]:
        pool = await open_pool(dsn)
        opening = open_desk(pool)
        return pool, opening, await opening.__aenter__()

    _clock[0] = 0.0
    with asyncio.Runner() as runner:
        pool, opening, desk = runner.run(opened())
        _LEDGER[:] = [(runner, desk)]
        try:
            yield seed
        finally:
            _LEDGER.clear()
            runner.run(opening.__aexit__(None, None, None))
            runner.run(pool.close())
