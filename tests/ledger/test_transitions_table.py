"""The whole product: where a job can stand x what can be asked of it x which epoch asks, with what must come of it.

The table below was written by hand from DESIGN §2, not from the code. A cell is `answer:state`; the states are
`-` none, P pending, O pending and offered, H held, C completed, F failed, X canceled, R awaiting review.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from coordinator.ledger.model import (
    Action,
    Admitted,
    Announce,
    Answer,
    Approve,
    Attempt,
    Cancel,
    Claim,
    Command,
    Conflict,
    Decision,
    Denial,
    Depart,
    Dispatch,
    Done,
    Evict,
    Expire,
    Grace,
    Grant,
    Held,
    Job,
    Judged,
    Lost,
    Nothing,
    Offer,
    Offered,
    Outcome,
    Postpone,
    Prioritize,
    Refused,
    Reject,
    Relane,
    Remove,
    Retry,
    RollCall,
    SameJob,
    SetBack,
    Settle,
    Tell,
    Wake,
    Withdraw,
)
from coordinator.ledger.transitions import decide
from shared.states import AttemptOutcome, DenyReason, JobState, Lapse, LostReason, Verdict
from tests.support.ledger import POLICY, admit, beat, claim, completed, delivery, failed, released

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(seconds=600)
BASE = admit()
ID = BASE.job_id


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


# ------------------------------------------------------------------------------------------------ where a job can stand

_NEW = Job(
    id=ID,
    source="cms",
    kind="article",
    model=None,
    lane="article.any",
    state=JobState.PENDING,
    content_sha256=b"content",
    max_attempts=3,
    timeout_s=1800,
    review=False,
    run_after=LONG_AGO,
    created_at=LONG_AGO,
    excluded=("banned",),
    models=("qwen3",),  # where `relane` can take it
)
_ATTEMPT = Attempt(
    epoch=2,
    number=1,
    worker="mini",
    instance="mini-1",
    delivery=delivery(5),
    claimed_at=ago(300),
    deadline_at=ago(300) + timedelta(seconds=1800),
    heartbeats=9,
    heartbeat_at=ago(10),
)
_HELD = _NEW._replace(
    state=JobState.PROCESSING,
    epoch=2,
    offered_at=ago(310),
    offered_seq=5,
    worker="mini",
    lease_expires_at=NOW + timedelta(seconds=80),
    last=_ATTEMPT,
)


def _after(outcome: AttemptOutcome, state: JobState = JobState.PENDING, **fields: object) -> Job:
    """The held job after its attempt ended so."""
    last = _ATTEMPT._replace(outcome=outcome, ended_at=ago(5), result_sha256=b"another report")
    finished = None if state is JobState.PENDING else ago(5)
    ended = _HELD._replace(worker=None, lease_expires_at=None, offered_at=None, spent_seq=5, last=last)
    return ended._replace(state=state, finished_at=finished, **fields)


def _lapsed(lapse: Lapse, **counted: int) -> Job:
    job = _after(AttemptOutcome.LEASE_EXPIRED, **counted)
    return job._replace(last=job.last._replace(error={"code": str(lapse)}))


_LAPSED = _lapsed(Lapse.SILENT, silences=1)

SITUATIONS: dict[str, Job | None] = {
    "none": None,
    "new": _NEW,
    "offered": _NEW._replace(offered_at=ago(3), offered_seq=5),
    "lapsed": _LAPSED,
    "reoffered": _LAPSED._replace(offered_at=ago(3), offered_seq=7),
    "replaced": _lapsed(Lapse.RESTARTED, lease_losses=1),
    "backoff": _after(AttemptOutcome.FAILED, attempt=1, run_after=NOW + timedelta(seconds=10)),
    "given": _after(AttemptOutcome.RELEASED),
    "held": _HELD,
    "overdue": _HELD._replace(lease_expires_at=ago(1), last=_ATTEMPT._replace(heartbeat_at=ago(91))),
    "hung": _HELD._replace(lease_expires_at=NOW, last=_ATTEMPT._replace(claimed_at=ago(1800), deadline_at=NOW)),
    "completed": _after(AttemptOutcome.COMPLETED, JobState.COMPLETED),
    "failed": _after(AttemptOutcome.FAILED, JobState.FAILED, error={"code": "broken"}),
    "canceled": _after(AttemptOutcome.CANCELED, JobState.CANCELED),
    "review": _after(AttemptOutcome.COMPLETED, JobState.AWAITING_REVIEW, review=True),
}

# -------------------------------------------------------------------------------------------------- what can be asked

OLDER, CURRENT, NEWER = 1, 2, 3
OLD = frozenset({"mini-1"})

COMMANDS: dict[str, Command] = {
    "admit same": replace(BASE, content_sha256=b"content"),
    "admit other": replace(BASE, content_sha256=b"other"),
    "dispatch": Dispatch(job_id=ID),
    "offered": Offered(job_id=ID, seq=9),
    "withdraw": Withdraw(job_id=ID, offered_at=ago(3), reason="unclaimed"),
    "withdraw old": Withdraw(job_id=ID, offered_at=ago(4), reason="unclaimed"),
    "relane": Relane(job_id=ID, model="qwen3"),
    "relane not its own": Relane(job_id=ID, model="phi4"),
    "claim fresh": claim(ID, "book", 9),
    "claim not its own": claim(ID, "book", 11),  # not the sequence that is recorded
    "claim again": claim(ID, "mini", 5),
    "claim old": claim(ID, "book", 3),
    "claim other lane": claim(ID, "book", 9, lane="image.any"),
    "claim lane paused": claim(ID, "book", 9, paused="lane"),
    "claim worker paused": claim(ID, "book", 9, paused="worker"),
    "claim banned": claim(ID, "banned", 9),
    "claim set aside": claim(ID, "book", 9, paused="aside"),
    "beat older": beat(ID, OLDER),
    "beat current": beat(ID, CURRENT),
    "beat newer": beat(ID, NEWER),
    "beat foreign": beat(ID, CURRENT, "book"),
    "beat other process": beat(ID, CURRENT, instance="mini-2"),
    "ask older": beat(ID, OLDER, stage=None),
    "ask current": beat(ID, CURRENT, stage=None),
    "ask newer": beat(ID, NEWER, stage=None),
    "ask other process": beat(ID, CURRENT, stage=None, instance="mini-2"),
    "completed older": completed(ID, OLDER),
    "completed current": completed(ID, CURRENT),
    "completed newer": completed(ID, NEWER),
    "completed foreign": completed(ID, CURRENT, "book"),
    "transient older": failed(ID, OLDER),
    "transient current": failed(ID, CURRENT),
    "transient newer": failed(ID, NEWER),
    "elsewhere older": failed(ID, OLDER, error_class="elsewhere"),
    "elsewhere current": failed(ID, CURRENT, error_class="elsewhere"),
    "elsewhere newer": failed(ID, NEWER, error_class="elsewhere"),
    "elsewhere last": failed(ID, CURRENT, error_class="elsewhere", capable=frozenset({"mini", "banned"})),
    "permanent older": failed(ID, OLDER, error_class="permanent"),
    "permanent current": failed(ID, CURRENT, error_class="permanent"),
    "permanent newer": failed(ID, NEWER, error_class="permanent"),
    "released older": released(ID, OLDER),
    "released current": released(ID, CURRENT),
    "released newer": released(ID, NEWER),
    "roll call unlisted": RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=None),
    "roll call older": RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=OLDER),
    "roll call current": RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=CURRENT),
    "roll call restarted": RollCall(job_id=ID, worker="mini", instance="mini-2", epoch=CURRENT, retired=OLD),
    "roll call foreign": RollCall(job_id=ID, worker="book", instance="book-1", epoch=None),
    "depart": Depart(job_id=ID, worker="mini", instance="mini-1", since=ago(4.5)),
    "depart other process": Depart(job_id=ID, worker="mini", instance="mini-2", since=ago(4.5)),
    "evict": Evict(job_id=ID, worker="mini"),
    "evict other": Evict(job_id=ID, worker="book"),
    "expire": Expire(job_id=ID),
    "grace": Grace(job_id=ID),
    "set back": SetBack(job_id=ID),
    "cancel": Cancel(job_id=ID, actor="ann"),
    "retry": Retry(job_id=ID, actor="ann"),
    "approve": Approve(job_id=ID, actor="ann"),
    "reject": Reject(job_id=ID, actor="ann", again=False),
    "reject again": Reject(job_id=ID, actor="ann", again=True),
    "prioritize": Prioritize(job_id=ID, actor="ann", priority=3),
    "prioritize as it is": Prioritize(job_id=ID, actor="ann", priority=1),
}

# ------------------------------------------------------------------------------------------------- what must come of it

TABLE = """
                     | none | new | offered | lapsed | reoffered | replaced | backoff | given | held | overdue | hung | completed | failed | canceled | review
admit same           | new:P | same:P | same:O | same:P | same:O | same:P | same:P | same:P | same:H | same:H | same:H | same:C | same:F | same:X | same:R
admit other          | new:P | conflict:P | conflict:O | conflict:P | conflict:O | conflict:P | conflict:P | conflict:P | conflict:H | conflict:H | conflict:H | conflict:C | conflict:F | conflict:X | conflict:R
dispatch             | no:- | done:O | no:O | done:O | no:O | done:O | no:P | done:O | no:H | no:H | no:H | no:C | no:F | no:X | no:R
offered              | no:- | no:P | done:O | no:P | done:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
withdraw             | no:- | no:P | done:P | no:P | done:P | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
withdraw old         | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
relane               | no:- | done:P | no:O | done:P | no:O | done:P | done:P | done:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
relane not its own   | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
claim fresh          | unknown:- | settled:P | grant:H | settled:P | grant:H | settled:P | settled:P | settled:P | leased:H | grant:H | grant:H | settled:C | settled:F | settled:X | settled:R
claim not its own    | unknown:- | settled:P | settled:O | settled:P | settled:O | settled:P | settled:P | settled:P | leased:H | settled:P | settled:P | settled:C | settled:F | settled:X | settled:R
claim again          | unknown:- | settled:P | grant:H | settled:P | settled:O | settled:P | settled:P | settled:P | grant:H | settled:H | settled:H | settled:C | settled:F | settled:X | settled:R
claim old            | unknown:- | settled:P | settled:O | settled:P | settled:O | settled:P | settled:P | settled:P | leased:H | settled:H | settled:H | settled:C | settled:F | settled:X | settled:R
claim other lane     | unknown:- | unknown:P | unknown:O | unknown:P | unknown:O | unknown:P | unknown:P | unknown:P | unknown:H | unknown:H | unknown:H | unknown:C | unknown:F | unknown:X | unknown:R
claim lane paused    | unknown:- | settled:P | paused:P | settled:P | paused:P | settled:P | settled:P | settled:P | leased:H | paused:P | paused:P | settled:C | settled:F | settled:X | settled:R
claim worker paused  | unknown:- | settled:P | paused:O | settled:P | paused:O | settled:P | settled:P | settled:P | leased:H | paused:P | paused:P | settled:C | settled:F | settled:X | settled:R
claim banned         | unknown:- | settled:P | elsewhere:O | settled:P | elsewhere:O | settled:P | settled:P | settled:P | leased:H | elsewhere:P | elsewhere:P | settled:C | settled:F | settled:X | settled:R
claim set aside      | unknown:- | settled:P | elsewhere:O | settled:P | elsewhere:O | settled:P | settled:P | settled:P | leased:H | elsewhere:P | elsewhere:P | settled:C | settled:F | settled:X | settled:R
beat older           | stale:- | stale:P | stale:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
beat current         | stale:- | stale:P | stale:O | resumed:H | resumed:H | stale:P | stale:P | stale:P | held:H | held:H | deadline:H | settled:C | settled:F | canceled:X | settled:R
beat newer           | stale:- | stale:P | stale:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
beat foreign         | stale:- | stale:P | stale:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
beat other process   | stale:- | stale:P | stale:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
ask older            | stale:- | stale:P | stale:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
ask current          | stale:- | stale:P | stale:O | resumed:H | resumed:H | stale:P | stale:P | stale:P | held:H | held:H | deadline:H | settled:C | settled:F | canceled:X | settled:R
ask newer            | stale:- | stale:P | stale:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
ask other process    | stale:- | stale:P | stale:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
completed older      | rejected:- | rejected:P | rejected:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
completed current    | rejected:- | rejected:P | rejected:O | accepted:C | accepted:C | accepted:C | duplicate:P | duplicate:P | accepted:C | accepted:C | accepted:C | duplicate:C | duplicate:F | rejected:X | duplicate:R
completed newer      | rejected:- | rejected:P | rejected:O | rejected:P | rejected:O | rejected:P | rejected:P | rejected:P | rejected:H | rejected:H | rejected:H | rejected:C | rejected:F | rejected:X | rejected:R
completed foreign    | rejected:- | rejected:P | rejected:O | rejected:P | rejected:O | rejected:P | rejected:P | rejected:P | rejected:H | rejected:H | rejected:H | rejected:C | rejected:F | rejected:X | rejected:R
transient older      | rejected:- | rejected:P | rejected:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
transient current    | rejected:- | rejected:P | rejected:O | accepted:P | accepted:P | accepted:P | duplicate:P | duplicate:P | accepted:P | accepted:P | accepted:P | duplicate:C | duplicate:F | rejected:X | duplicate:R
transient newer      | rejected:- | rejected:P | rejected:O | rejected:P | rejected:O | rejected:P | rejected:P | rejected:P | rejected:H | rejected:H | rejected:H | rejected:C | rejected:F | rejected:X | rejected:R
elsewhere older      | rejected:- | rejected:P | rejected:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
elsewhere current    | rejected:- | rejected:P | rejected:O | accepted:P | accepted:P | accepted:P | duplicate:P | duplicate:P | accepted:P | accepted:P | accepted:P | duplicate:C | duplicate:F | rejected:X | duplicate:R
elsewhere newer      | rejected:- | rejected:P | rejected:O | rejected:P | rejected:O | rejected:P | rejected:P | rejected:P | rejected:H | rejected:H | rejected:H | rejected:C | rejected:F | rejected:X | rejected:R
elsewhere last       | rejected:- | rejected:P | rejected:O | accepted:F | accepted:F | accepted:F | duplicate:P | duplicate:P | accepted:F | accepted:F | accepted:F | duplicate:C | duplicate:F | rejected:X | duplicate:R
permanent older      | rejected:- | rejected:P | rejected:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
permanent current    | rejected:- | rejected:P | rejected:O | accepted:F | accepted:F | accepted:F | duplicate:P | duplicate:P | accepted:F | accepted:F | accepted:F | duplicate:C | duplicate:F | rejected:X | duplicate:R
permanent newer      | rejected:- | rejected:P | rejected:O | rejected:P | rejected:O | rejected:P | rejected:P | rejected:P | rejected:H | rejected:H | rejected:H | rejected:C | rejected:F | rejected:X | rejected:R
released older       | rejected:- | rejected:P | rejected:O | stale:P | stale:O | stale:P | stale:P | stale:P | stale:H | stale:H | stale:H | stale:C | stale:F | stale:X | stale:R
released current     | rejected:- | rejected:P | rejected:O | accepted:P | accepted:P | accepted:P | duplicate:P | duplicate:P | accepted:P | accepted:P | accepted:P | duplicate:C | duplicate:F | rejected:X | duplicate:R
released newer       | rejected:- | rejected:P | rejected:O | rejected:P | rejected:O | rejected:P | rejected:P | rejected:P | rejected:H | rejected:H | rejected:H | rejected:C | rejected:F | rejected:X | rejected:R
roll call unlisted   | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | done:P | done:P | done:P | no:C | no:F | no:X | no:R
roll call older      | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | done:P | done:P | done:P | no:C | no:F | no:X | no:R
roll call current    | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
roll call restarted  | no:- | no:P | no:O | done:P | done:O | done:P | no:P | no:P | done:H | done:H | done:H | no:C | no:F | no:X | no:R
roll call foreign    | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
depart               | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | done:P | done:P | done:P | no:C | no:F | no:X | no:R
depart other process | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
evict                | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | done:P | done:P | done:P | no:C | no:F | no:X | no:R
evict other          | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
expire               | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | done:P | done:P | no:C | no:F | no:X | no:R
grace                | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | done:H | done:H | done:H | no:C | no:F | no:X | no:R
set back             | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
cancel               | no:- | done:X | done:X | done:X | done:X | done:X | done:X | done:X | done:X | done:X | done:X | no:C | no:F | no:X | done:X
retry                | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | done:P | done:P | done:P | done:P
approve              | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | done:C
reject               | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | done:X
reject again         | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | done:P
prioritize           | no:- | done:P | done:O | done:P | done:O | done:P | done:P | done:P | done:H | done:H | done:H | no:C | no:F | no:X | no:R
prioritize as it is  | no:- | no:P | no:O | no:P | no:O | no:P | no:P | no:P | no:H | no:H | no:H | no:C | no:F | no:X | no:R
"""  # noqa: E501 - a table


def _through_this_offer(command: Command, job: Job | None) -> Command:
    """A claim through message 9 stands for one through a fresh delivery of the message that is out."""
    if not isinstance(command, Claim) or command.token.seq != 9 or job is None or not job.offered_seq:
        return command
    lane = command.token.consumer.replace("--", ".")
    return claim(ID, command.worker, job.offered_seq, count=2, lane=lane, paused=command.paused)


def _cells() -> list[tuple[str, str, str]]:
    head, *lines = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip("\n").splitlines()]
    assert head[1:] == list(SITUATIONS)
    assert [line[0] for line in lines] == list(COMMANDS)
    return [(line[0], situation, cell) for line in lines for situation, cell in zip(head[1:], line[1:], strict=True)]


@pytest.mark.parametrize(("command", "situation", "expected"), _cells(), ids=lambda v: str(v).replace(" ", "-"))
def test_every_command_in_every_situation(command: str, situation: str, expected: str) -> None:
    job = SITUATIONS[situation]
    command_now = _through_this_offer(COMMANDS[command], job)
    decision = decide(job, command_now, NOW, POLICY)
    assert f"{_word(decision.answer)}:{_letter(decision.job)}" == expected
    _well_formed(job, decision)


def _word(answer: Answer) -> str:
    match answer:
        case Denial(reason) | Lost(reason):
            return str(reason)
        case Judged(verdict):
            return str(verdict)
        case Held(_, resumed):
            return "resumed" if resumed else "held"
        case _:
            names = {
                Admitted: "new",
                SameJob: "same",
                Conflict: "conflict",
                Grant: "grant",
                Done: "done",
                Nothing: "no",
            }
            return names[type(answer)]


def _letter(job: Job | None) -> str:
    if job is None:
        return "-"
    if job.state is JobState.PENDING:
        return "O" if job.offered_at else "P"
    return {"processing": "H", "completed": "C", "failed": "F", "canceled": "X", "awaiting_review": "R"}[job.state]


def _well_formed(before: Job | None, decision: Decision) -> None:
    """What no transition may break, whatever it does; the table's CHECKs say the same."""
    job = decision.job
    if job is None:
        assert before is None
        return
    held = job.state is JobState.PROCESSING
    assert held == (job.worker is not None) == (job.lease_expires_at is not None)
    assert (job.finished_at is not None) == (_letter(job) in "CFXR")
    assert job.spent_seq <= job.offered_seq
    assert job.lease_losses >= 0
    assert job.silences >= 0
    assert job.attempt >= 0
    assert (job.last.epoch if job.last else 0) == job.epoch
    assert held == (job.last is not None and job.last.outcome is None)
    assert job.last is None or (job.last.outcome is None) == (job.last.ended_at is None)
    assert job.epoch - (before.epoch if before else 0) == (isinstance(decision.answer, Grant) and job != before)
    became_settled = _letter(job) in "CFXR" and (before is None or before.state is not job.state)
    assert any(isinstance(e, Announce) for e in decision.effects) == became_settled
    refused = isinstance(decision.answer, Judged) and decision.answer.verdict in (Verdict.STALE, Verdict.REJECTED)
    if refused:
        assert [type(record) for record in decision.records] == [Refused]
        assert job is before
    if before is not None and _letter(before) in "HO" and _letter(job) == "P" and job.run_after <= NOW:
        assert any(isinstance(e, Wake) for e in decision.effects) or isinstance(decision.answer, Denial)


# ---------------------------------------------------------------------------------------------------------- the rules


class Story:
    """One job, told command by command; time stands still unless it is moved."""

    def __init__(self, situation: str = "none") -> None:
        self.job = SITUATIONS[situation]
        self.now = NOW
        self.effects: tuple[object, ...] = ()
        self.records: tuple[object, ...] = ()
        self.closed: tuple[Attempt, ...] = ()

    def do(self, command: Command) -> Answer:
        decision = decide(self.job, command, self.now, POLICY)
        self.job, self.effects, self.records = decision.job, decision.effects, decision.records
        self.closed = decision.closed
        return decision.answer

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def lapse(self) -> None:
        """Let the lease run out, and the reaper see it."""
        assert self.job is not None
        assert self.job.lease_expires_at is not None
        self.now = self.job.lease_expires_at
        assert self.do(Expire(job_id=ID)) == Done()

    def offer(self, seq: int) -> None:
        self.do(Dispatch(job_id=ID))
        assert self.do(Offered(job_id=ID, seq=seq)) == Done()

    @property
    def last(self) -> Attempt:
        assert self.job is not None
        assert self.job.last is not None
        return self.job.last


@pytest.mark.parametrize("report", [failed(ID, 2), released(ID, 2)], ids=["failed", "released"])
def test_rule_01_the_first_outcome_closes_an_attempt(report: Command) -> None:
    story = Story("held")
    assert story.do(report) == Judged(Verdict.ACCEPTED)
    assert story.do(beat(ID, 2)) == Lost(LostReason.STALE)
    assert story.do(completed(ID, 2)).verdict is Verdict.DUPLICATE  # type: ignore[union-attr]
    assert story.do(report) == Judged(Verdict.DUPLICATE)
    assert _letter(story.job) == "P"


def test_rule_01_a_second_completed_report_of_an_epoch_does_not_replace_the_first() -> None:
    story = Story("held")
    story.do(completed(ID, 2, text="first"))
    assert story.do(completed(ID, 2, text="first")) == Judged(Verdict.DUPLICATE)
    assert story.records == (), "a repeat of the accepted report is nothing to keep"
    assert story.do(completed(ID, 2, text="second")).verdict is Verdict.DUPLICATE  # type: ignore[union-attr]
    assert [type(r) for r in story.records] == [Refused]


def test_rule_01_only_a_lapse_can_be_taken_back() -> None:
    for outcome in AttemptOutcome:
        job = _after(outcome)
        resumed = isinstance(decide(job, beat(ID, 2), NOW, POLICY).answer, Held)
        assert resumed == (outcome is AttemptOutcome.LEASE_EXPIRED), outcome


def test_rule_02_a_lapse_is_refunded_when_its_epoch_is_resumed() -> None:
    story = Story("held")
    story.lapse()
    assert (story.job.silences, story.last.error["code"]) == (1, Lapse.SILENT)
    assert story.do(beat(ID, 2)) == Held(90.0, resumed=True)
    assert (story.job.silences, story.last.error) == (0, None)


def test_rule_02_a_loss_is_refunded_when_its_epoch_is_resumed() -> None:
    story = Story()
    story.job = _HELD._replace(last=_ATTEMPT._replace(heartbeats=0, heartbeat_at=None))
    story.lapse()
    assert (story.job.lease_losses, story.last.error["code"]) == (1, Lapse.LOST)
    assert story.do(beat(ID, 2)) == Held(90.0, resumed=True)
    assert (story.job.lease_losses, story.job.silences) == (0, 0)


@pytest.mark.parametrize("report", [completed(ID, 2), failed(ID, 2), released(ID, 2)], ids=["ok", "failed", "released"])
def test_rule_02_a_lapse_is_refunded_when_its_epoch_reports_after_all(report: Command) -> None:
    story = Story("held")
    story.lapse()
    assert story.do(report) == Judged(Verdict.ACCEPTED)
    assert (story.job.lease_losses, story.job.silences) == (0, 0)
    assert story.job.attempt == (1 if story.last.outcome is AttemptOutcome.FAILED else 0)


def test_rule_02_a_claim_that_takes_over_charges_as_the_reaper_does() -> None:
    by_claim, by_reaper = Story("overdue"), Story("overdue")
    by_claim.do(claim(ID, "book", 5, count=2))
    by_reaper.do(Expire(job_id=ID))
    assert by_claim.job.silences == by_reaper.job.silences == 1
    assert by_claim.closed == (by_reaper.last,)
    assert by_claim.job.epoch == 3


def test_rule_02_a_claim_that_takes_over_ends_a_job_that_has_lost_enough_workers() -> None:
    never_heard_of = SITUATIONS["overdue"].last._replace(heartbeats=0, heartbeat_at=None)
    job = SITUATIONS["overdue"]._replace(lease_losses=POLICY.max_lease_losses - 1, last=never_heard_of)
    by_claim = decide(job, claim(ID, "book", 5, count=2), NOW, POLICY)
    by_reaper = decide(job, Expire(job_id=ID), NOW, POLICY)
    assert by_claim.answer == Denial(DenyReason.SETTLED)
    assert by_claim.job == by_reaper.job
    assert by_claim.job.state is JobState.FAILED
    assert by_claim.effects == by_reaper.effects
    assert by_claim.job.error["message"] == "worker lost × 3, last mini"  # noqa: RUF001 - the sign for times


def test_a_holder_that_falls_silent_in_the_middle_is_not_counted_as_lost() -> None:
    """A laptop that vanishes again and again must not end its job; not even that for ever."""
    job = SITUATIONS["overdue"]._replace(lease_losses=POLICY.max_lease_losses - 1)
    after = decide(job, Expire(job_id=ID), NOW, POLICY).job
    assert (after.state, after.silences, after.lease_losses) == (JobState.PENDING, 1, POLICY.max_lease_losses - 1)
    last_time = job._replace(silences=POLICY.max_silences - 1)
    ended = decide(last_time, Expire(job_id=ID), NOW, POLICY).job
    assert (ended.state, ended.error["code"]) == (JobState.FAILED, "worker_silent")


def test_a_process_that_is_gone_is_counted_as_lost_and_may_still_come_back() -> None:
    story = Story("held")
    story.do(Depart(job_id=ID, worker="mini", instance="mini-1", since=ago(4.5)))
    assert (story.job.lease_losses, story.job.silences, story.last.error["code"]) == (1, 0, Lapse.LOST)
    assert story.do(beat(ID, 2, instance="mini-1")) == Held(90.0, resumed=True)
    assert story.job.lease_losses == 0


def test_a_revoked_worker_costs_its_job_nothing_and_does_not_come_back() -> None:
    story = Story("held")
    story.do(Evict(job_id=ID, worker="mini"))
    assert (story.job.attempt, story.job.lease_losses, story.job.silences) == (0, 0, 0)
    assert story.last.error["code"] == "worker_revoked"
    assert story.do(beat(ID, 2, instance="mini-1")) == Lost(LostReason.STALE)


def test_a_process_that_was_heard_of_since_has_only_a_new_connection() -> None:
    heard = _HELD._replace(last=_ATTEMPT._replace(heartbeat_at=ago(4.4)))
    assert decide(heard, Depart(job_id=ID, worker="mini", instance="mini-1", since=ago(4.5)), NOW, POLICY).job is heard
    claimed = _HELD._replace(last=_ATTEMPT._replace(heartbeat_at=None, claimed_at=ago(4.4)))
    assert (
        decide(claimed, Depart(job_id=ID, worker="mini", instance="mini-1", since=ago(4.5)), NOW, POLICY).job is claimed
    )


def test_a_replaced_process_can_extend_nothing_but_its_result_still_counts() -> None:
    story = Story("held")
    story.do(RollCall(job_id=ID, worker="mini", instance="mini-2", epoch=None, retired=OLD))
    assert (story.job.lease_losses, story.last.error["code"]) == (1, Lapse.RESTARTED)
    assert story.do(beat(ID, 2, instance="mini-1")) == Lost(LostReason.STALE)
    assert story.do(beat(ID, 2)) == Lost(LostReason.STALE), "one that does not say which process it is"
    assert story.do(completed(ID, 2)) == Judged(Verdict.ACCEPTED)
    assert story.job.lease_losses == 0


@pytest.mark.parametrize("situation", ["held", "lapsed", "reoffered"])
def test_a_process_that_took_a_job_on_is_its_only_holder(situation: str) -> None:
    story = Story(situation)
    story.do(RollCall(job_id=ID, worker="mini", instance="mini-2", epoch=2, retired=OLD))
    assert story.do(beat(ID, 2, instance="mini-1")) == Lost(LostReason.STALE)
    assert isinstance(story.do(beat(ID, 2, instance="mini-2")), Held)


DUE_AGAIN: list[tuple[str, Command]] = [
    ("overdue", Expire(job_id=ID)),
    ("held", released(ID, 2)),
    ("held", failed(ID, 2, error_class="elsewhere")),
    ("held", RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=None)),
    ("failed", Retry(job_id=ID, actor="ann")),
    ("review", Reject(job_id=ID, actor="ann", again=True)),
]


@pytest.mark.parametrize(
    ("situation", "command"), DUE_AGAIN, ids=lambda v: v if isinstance(v, str) else type(v).__name__
)
def test_rule_03_whatever_makes_a_job_due_again_has_it_offered_anew(situation: str, command: Command) -> None:
    """Not by a nak through the old delivery: the dispatcher is woken, and its offer takes the old message away."""
    story = Story(situation)
    story.do(command)
    assert Wake("article.any") in story.effects
    assert not any(isinstance(e, Postpone) for e in story.effects)
    assert story.do(Dispatch(job_id=ID)) == Done()
    assert story.effects == (Offer(ID, "article", None, "article.any", remove_seq=5, offered_at=story.now),)


def test_rule_04_an_offer_names_the_message_that_must_be_gone_before_it() -> None:
    story = Story()
    story.do(admit(ID, offer=True))
    assert story.effects == (Offer(ID, "article", None, "article.any", remove_seq=0, offered_at=story.now),)
    story.do(Offered(job_id=ID, seq=4))
    story.do(Withdraw(job_id=ID, offered_at=NOW, reason="unclaimed"))
    story.do(Dispatch(job_id=ID))
    assert story.effects == (Offer(ID, "article", None, "article.any", remove_seq=4, offered_at=story.now),)
    assert story.do(claim(ID, "mini", 4)) == Denial(DenyReason.SETTLED), "the old message grants nothing any more"
    assert isinstance(story.do(claim(ID, "mini", 5)), Grant)


def test_rule_04_what_ended_an_attempt_spends_its_message_before_the_next_one_is_known() -> None:
    """Between the decision to offer anew and the news of where it lies, a redelivery of the old message comes."""
    for situation, command in DUE_AGAIN:
        story = Story(situation)
        story.do(command)
        assert story.do(Dispatch(job_id=ID)) == Done()
        assert story.do(claim(ID, "studio", 5, count=9)) == Denial(DenyReason.SETTLED), command


def test_rule_05_an_offer_that_lands_after_the_job_moved_on_is_removed_by_its_own_sequence() -> None:
    for situation in ("held", "completed", "canceled", "lapsed"):
        story = Story(situation)
        story.do(Offered(job_id=ID, seq=9))
        assert story.effects == (Remove(9),), situation
        assert story.job == SITUATIONS[situation]


def test_rule_05_settling_takes_both_messages_away_each_by_its_sequence() -> None:
    """The lapsed epoch reports while a newer offer lies in WORK."""
    story = Story("reoffered")
    story.do(completed(ID, 2))
    assert [e for e in story.effects if isinstance(e, Settle | Remove)] == [Settle("article.any", 5), Remove(7)]
    assert story.do(claim(ID, "book", 7)) == Denial(DenyReason.SETTLED)


def test_rule_05_a_resumed_lease_takes_the_newer_offer_back_and_it_grants_nothing() -> None:
    story = Story("reoffered")
    story.do(beat(ID, 2))
    assert story.effects == (Remove(7),)
    assert story.do(claim(ID, "book", 7)).reason is DenyReason.LEASED  # type: ignore[union-attr]
    story.lapse()
    assert story.do(claim(ID, "book", 7)) == Denial(DenyReason.SETTLED)


def test_rule_06_a_repeated_claim_gets_the_same_grant_while_the_attempt_is_open() -> None:
    story = Story("held")
    again = claim(ID, "mini", 5)
    before = story.job
    grant = story.do(again)
    assert isinstance(grant, Grant)
    assert (grant.epoch, grant.attempt, grant.deadline_s) == (2, 1, 1500.0)
    assert story.job is before
    story.do(released(ID, 2))
    assert story.do(again) == Denial(DenyReason.SETTLED), "after its end, never again"
    story.offer(8)
    assert story.do(again) == Denial(DenyReason.SETTLED)


def test_rule_06_two_processes_under_one_name_are_two() -> None:
    story = Story("held")
    other = claim(ID, "mini", 5, instance="mini-2")
    assert story.do(other).reason is DenyReason.LEASED  # type: ignore[union-attr]
    assert story.effects == (), "the message under the holder must not be delayed"


def test_rule_06_a_repeat_after_the_lease_ran_out_is_no_new_claim() -> None:
    story = Story("overdue")
    assert story.do(claim(ID, "mini", 5)) == Denial(DenyReason.SETTLED)
    assert story.job == SITUATIONS["overdue"], "the reaper's work, not a repeat's"


def test_rule_06_a_later_delivery_of_a_held_message_waits_for_the_lease() -> None:
    story = Story("held")
    later = claim(ID, "book", 5, count=2)
    assert story.do(later) == Denial(DenyReason.LEASED, 80.0)
    assert story.effects == (Postpone(later.delivery, 80.0),)


def test_rule_08_a_lease_that_its_living_worker_does_not_list_ends_as_released() -> None:
    story = Story("held")
    assert story.do(RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=None)) == Done()
    assert story.last.outcome is AttemptOutcome.RELEASED
    assert (story.job.attempt, story.job.lease_losses) == (0, 0), "nobody is charged"
    assert Tell("mini", ID, 2, LostReason.STALE) in story.effects


def test_rule_08_a_lease_younger_than_one_presence_round_stands() -> None:
    """The presence may have been on its way before the grant."""
    young = _HELD._replace(last=_ATTEMPT._replace(claimed_at=ago(POLICY.presence_s - 0.001)))
    call = RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=None)
    assert decide(young, call, NOW, POLICY).job is young
    old = _HELD._replace(last=_ATTEMPT._replace(claimed_at=ago(POLICY.presence_s)))
    assert _letter(decide(old, call, NOW, POLICY).job) == "P"


def test_rule_08_a_presence_that_may_be_older_than_the_grant_ends_nothing() -> None:
    """It lay in the buffers of a coordinator that stood still, while another granted."""
    call = RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=None, as_of=ago(301))
    assert decide(_HELD, call, NOW, POLICY).job is _HELD
    assert _letter(decide(_HELD, replace(call, as_of=ago(300)), NOW, POLICY).job) == "P"


def test_rule_08_a_new_process_that_does_not_list_it_ends_it_at_once() -> None:
    young = _HELD._replace(last=_ATTEMPT._replace(claimed_at=NOW))
    call = RollCall(job_id=ID, worker="mini", instance="mini-2", epoch=None, retired=OLD)
    assert _letter(decide(young, call, NOW, POLICY).job) == "P"


def test_rule_08_a_new_process_that_lists_it_takes_it_on() -> None:
    story = Story("held")
    story.do(RollCall(job_id=ID, worker="mini", instance="mini-2", epoch=2, retired=OLD))
    assert story.last.instance == "mini-2"
    assert story.last.outcome is None


def test_rule_08_a_presence_that_was_on_its_way_when_a_newer_process_came_means_nothing() -> None:
    """The new process has taken the job on; what the old one said arrives after it."""
    story = Story("held")
    story.do(RollCall(job_id=ID, worker="mini", instance="mini-2", epoch=2, retired=OLD))
    for listed in (None, 2):
        late = RollCall(job_id=ID, worker="mini", instance="mini-1", epoch=listed, retired=frozenset())
        assert isinstance(story.do(late), Nothing)
    assert (story.last.instance, story.last.outcome) == ("mini-2", None)


def test_rule_10_a_retry_closes_what_was_before() -> None:
    """A job failed by lapses; a person retries it; the last worker wakes up and reports."""
    job = SITUATIONS["overdue"]._replace(silences=POLICY.max_silences - 1)
    story = Story()
    story.job = job
    story.do(Expire(job_id=ID))
    assert story.job.state is JobState.FAILED
    story.do(Retry(job_id=ID, actor="ann"))
    assert story.last.outcome is AttemptOutcome.CLOSED
    assert story.do(beat(ID, 2)) == Lost(LostReason.STALE)
    assert story.do(completed(ID, 2)).verdict is Verdict.STALE  # type: ignore[union-attr]
    assert _letter(story.job) == "P"
    assert (story.job.attempt, story.job.lease_losses, story.job.excluded, story.job.error) == (0, 0, (), None)
    assert story.job.silences == 0


# ------------------------------------------------------------------------------------------- limits, charges, deadlines


def test_a_moved_job_waits_in_its_new_models_lane_and_nobody_is_excluded_there() -> None:
    decision = decide(SITUATIONS["given"], Relane(job_id=ID, model="qwen3"), NOW, POLICY)
    job = decision.job
    assert job is not None
    assert (job.model, job.lane, job.excluded) == ("qwen3", "article.qwen3", ())
    assert decision.effects == (Wake("article.qwen3"),)


def test_a_job_that_was_refused_never_goes_back_to_a_model_before() -> None:
    """It would be refused there again, and go round for ever."""
    job = SITUATIONS["given"]._replace(models=("llama3", "qwen3", "phi4"), model="llama3", excluded=("mini",))
    moved = decide(job, Relane(job_id=ID, model="qwen3"), NOW, POLICY).job
    assert moved.models == ("qwen3", "phi4")
    assert isinstance(decide(moved, Relane(job_id=ID, model="llama3"), NOW, POLICY).answer, Nothing)
    unrefused = decide(job._replace(excluded=()), Relane(job_id=ID, model="qwen3"), NOW, POLICY).job
    assert unrefused.models == job.models


def test_a_job_that_nobody_left_can_do_does_not_fail_while_another_of_its_models_is_offered() -> None:
    last = replace(COMMANDS["elsewhere last"], another_model=True)
    job = decide(SITUATIONS["held"], last, NOW, POLICY).job
    assert job is not None
    assert (_letter(job), job.excluded) == ("P", ("banned", "mini"))


def test_failures_are_counted_to_the_limit_with_growing_waits() -> None:
    story = Story("held")
    waits = []
    for epoch in (2, 3, 4):
        story.do(failed(ID, epoch))
        waits.append((story.job.run_after - story.now).total_seconds())
        if story.job.state is JobState.FAILED:
            break
        story.wait(waits[-1])
        story.offer(epoch + 10)
        story.do(claim(ID, "mini", epoch + 10))
    assert waits[:2] == [10.0, 20.0]
    assert (story.job.state, story.job.attempt, story.job.error["code"]) == (JobState.FAILED, 3, "broken")


def test_a_job_in_its_backoff_is_not_offered_before_it_is_due() -> None:
    story = Story("held")
    story.do(failed(ID, 2))
    assert Settle("article.any", 5) in story.effects
    assert story.do(Dispatch(job_id=ID)) == Nothing("not due")
    story.wait(10)
    assert story.do(Dispatch(job_id=ID)) == Done()


def test_a_lease_never_outlives_the_attempts_deadline() -> None:
    ending = _HELD._replace(last=_ATTEMPT._replace(deadline_at=NOW + timedelta(seconds=20)))
    assert decide(ending, beat(ID, 2), NOW, POLICY).answer == Held(20.0)


def test_a_job_that_hangs_with_heartbeats_alive_is_charged_as_a_failure() -> None:
    story = Story("hung")
    story.do(Expire(job_id=ID))
    assert (story.job.attempt, story.job.lease_losses) == (1, 0)
    assert story.last.error["code"] == "timeout"
    assert Tell("mini", ID, 2, LostReason.DEADLINE) in story.effects


def test_a_mac_that_slept_over_its_deadline_has_lapsed_and_not_hung() -> None:
    slept = SITUATIONS["hung"]._replace(last=SITUATIONS["hung"].last._replace(heartbeat_at=ago(91)))
    after = decide(slept, Expire(job_id=ID), NOW, POLICY).job
    assert (after.attempt, after.silences, after.last.outcome) == (0, 1, AttemptOutcome.LEASE_EXPIRED)


def test_a_claim_through_an_offer_whose_place_is_not_recorded_yet_is_granted() -> None:
    unplaced = SITUATIONS["lapsed"]._replace(offered_at=ago(1))
    after = decide(unplaced, claim(ID, "book", 8), NOW, POLICY).job
    assert (after.state, after.offered_seq, after.epoch) == (JobState.PROCESSING, 8, 3)


@pytest.mark.parametrize("situation", ["offered", "reoffered", "lapsed"])
def test_a_claim_through_an_invented_sequence_is_denied_and_leaves_no_trace(situation: str) -> None:
    job = SITUATIONS[situation]._replace(offered_at=ago(1))
    decision = decide(job, claim(ID, "book", 4_000_000_000_000_000_000 // 10), NOW, POLICY)
    assert (decision.answer, decision.job) == (Denial(DenyReason.SETTLED), job)


def test_grace_gives_an_overdue_lease_a_full_ttl() -> None:
    after = decide(SITUATIONS["overdue"], Grace(job_id=ID), NOW, POLICY).job
    assert after.lease_expires_at == NOW + timedelta(seconds=POLICY.lease_ttl_s)


def test_a_job_that_must_be_reviewed_waits_for_a_person() -> None:
    decision = decide(_HELD._replace(review=True), completed(ID, 2), NOW, POLICY)
    assert _letter(decision.job) == "R"
    assert Announce(ID) in decision.effects
    assert [r.accepted for r in decision.records if isinstance(r, Outcome)] == [True]


def test_a_canceled_attempt_is_told_to_stop_and_its_message_goes() -> None:
    story = Story("held")
    story.do(Cancel(job_id=ID, actor="ann"))
    assert story.effects == (
        Settle("article.any", 5),
        Announce(ID),
        Tell("mini", ID, 2, LostReason.CANCELED),
    )


def test_a_priority_changes_nothing_but_the_order_in_which_the_lane_is_offered() -> None:
    decision = decide(SITUATIONS["lapsed"], Prioritize(job_id=ID, actor="ann", priority=3, note="now"), NOW, POLICY)
    assert decision.job == SITUATIONS["lapsed"]._replace(priority=3)
    assert decision.effects == (Wake("article.any"),)
    assert decision.records == (Action("ann", "priority urgent", NOW, "now"),)
    for situation in ("offered", "held"):  # what is out already stays out
        after = decide(SITUATIONS[situation], Prioritize(job_id=ID, actor="ann", priority=0), NOW, POLICY)
        assert (after.job, after.effects) == (SITUATIONS[situation]._replace(priority=0), ())


@pytest.mark.parametrize(
    ("situation", "command"),
    [
        ("held", Cancel(job_id=ID, actor="ann", note="why")),
        ("failed", Retry(job_id=ID, actor="ann", note="why")),
        ("review", Approve(job_id=ID, actor="ann", note="why")),
        ("review", Reject(job_id=ID, actor="ann", again=True, note="why")),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_what_a_person_did_is_on_record_with_the_reason_given(situation: str, command: Command) -> None:
    (action,) = (r for r in decide(SITUATIONS[situation], command, NOW, POLICY).records if isinstance(r, Action))
    assert (action.actor, action.action, action.note) == ("ann", type(command).__name__.lower(), "why")


def test_what_was_due_is_due_when_the_clock_was_set_back() -> None:
    """Its admission lies in the future then; a time that its publisher named stands."""
    soon = NOW + timedelta(seconds=600)
    admitted = _NEW._replace(created_at=soon, run_after=soon)
    decision = decide(admitted, SetBack(job_id=ID), NOW, POLICY)
    assert (decision.job.run_after, decision.effects) == (NOW, (Wake("article.any"),))
    named = _NEW._replace(created_at=soon, run_after=soon + timedelta(seconds=1))
    assert decide(named, SetBack(job_id=ID), NOW, POLICY).job is named


def test_a_lapsed_job_is_due_even_when_the_clock_was_set_back() -> None:
    job = SITUATIONS["overdue"]._replace(run_after=NOW + timedelta(seconds=600))
    assert decide(job, Expire(job_id=ID), NOW, POLICY).job.run_after == NOW


def test_a_grace_is_a_full_lease_and_not_more() -> None:
    long = _HELD._replace(lease_expires_at=NOW + timedelta(seconds=700))
    after = decide(long, Grace(job_id=ID), NOW, POLICY).job
    assert after.lease_expires_at == NOW + timedelta(seconds=POLICY.lease_ttl_s)


@pytest.mark.parametrize(
    "verdict", [Approve(job_id=ID, actor="ann"), Reject(job_id=ID, actor="ann", again=True)], ids=["approve", "reject"]
)
def test_a_verdict_counts_for_the_result_that_was_seen(verdict: Approve | Reject) -> None:
    job = SITUATIONS["review"]
    for epoch in (job.epoch - 1, job.epoch + 1):
        decision = decide(job, replace(verdict, epoch=epoch), NOW, POLICY)
        assert decision == Decision(job, Nothing("the result is another one by now"))
    for epoch in (job.epoch, None):
        assert decide(job, replace(verdict, epoch=epoch), NOW, POLICY).answer == Done()
