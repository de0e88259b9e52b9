"""Every way in which a job can change state. Pure: no I/O, no clock, no SQL.

`decide(job, command, now, policy)` answers what follows from a command; `coordinator.ledger.ledger` locks the row,
calls it, and writes what it says. Nothing else changes a job.

    state now            command            when                                   then
    (none)               Admit                                                     pending
    any                  Admit              same content / other content           SameJob / Conflict
    pending              Dispatch           due, not offered                       offered (the message follows)
    pending              Withdraw           still the offer that was looked at     not offered
    pending              Relane             not offered, another of its models     waits in that model's lane
    any                  Claim              through another lane's delivery        denied `unknown`
    pending              Claim              offered, due, not excluded, not spent  processing, next epoch
    pending              Claim              worker excluded, or set aside          denied `elsewhere`
    processing           Claim              same worker, same delivery, lease on   Grant again, nothing changes
    processing           Claim              lease live                             denied `leased`
    processing           Claim              lease over, later delivery             lapse charged; then as pending
    processing           Heartbeat          same epoch, before the deadline        lease extended
    pending              Heartbeat          same epoch, which lapsed*              processing again, lapse refunded
    any                  Heartbeat          of another process than the holder     lost `stale`
    processing, pending* FileReport         completed, files there                 completed or awaiting_review
    processing, pending* FileReport         completed, a file missing              as failed, transient
    processing, pending* FileReport         failed, transient                      pending after the backoff, or failed
    processing, pending* FileReport         failed, elsewhere                      pending, worker excluded, or failed
    processing, pending* FileReport         failed, permanent                      failed
    processing, pending* FileReport         released                               pending, nothing charged
    any                  FileReport         older epoch / outcome known / else     stale / duplicate / rejected
    processing           Expire             past the deadline, heartbeats alive     as failed, transient (`timeout`)
    processing           Expire             lease over                             pending, lapse charged, or failed
    processing           RollCall           not listed, by the process that has it pending, nothing charged
    processing           RollCall           not listed, by its next process        as Expire, loss charged; no way back
    processing, pending* RollCall           listed, by its next process            that process is the holder
    processing           Depart             process gone, unheard of since         as Expire, loss charged
    processing           Evict              its worker's identity was revoked      pending, nothing charged
    processing           Grace                                                     a full lease from now
    pending              SetBack            was due when admitted, is not now      due
    not settled, review  Cancel                                                    canceled
    settled              Retry                                                     pending, counters at zero
    awaiting_review      Approve / Reject                                          completed / pending or canceled
    pending, processing  Prioritize         another priority than it has           that priority, from its next offer on

(* pending, while that epoch is the newest and ended by a lapse only; for heartbeats not by its next process's word.)

What a lapse charges. A holder that was heard of and then fell silent sleeps or is out of reach: `silences`, with a
generous limit. One that is known to have died, or was never heard of after its claim, may have died of the job:
`lease_losses`, with a small one. Both are taken back when that epoch speaks again.

Why it holds. One row, one lock, one epoch that only a grant moves: two grants can't have the same epoch, and whoever
has an older one is refused for ever. The first outcome closes an attempt; only a lapse can be taken back, and only
while nobody claimed since. Each offer is a message of its own (the one before is removed by its sequence first), so
that nothing that an old delivery's holder sends can touch a newer offer.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, assert_never

from coordinator.ledger.model import (
    Action,
    Admit,
    Admitted,
    Announce,
    Answer,
    Approve,
    Attempt,
    Beat,
    Cancel,
    Claim,
    Command,
    Conflict,
    Decision,
    Denial,
    Depart,
    Dispatch,
    Done,
    Effect,
    Evict,
    Expire,
    FileReport,
    Grace,
    Grant,
    Heartbeat,
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
    Record,
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
    TellVerdict,
    Wake,
    Withdraw,
)
from shared.lease import Policy
from shared.states import (
    PRIORITY_NAME,
    SETTLED,
    AttemptOutcome,
    DenyReason,
    ErrorClass,
    JobState,
    Lapse,
    LostReason,
    ReportOutcome,
    Verdict,
)
from shared.subjects import consumer_of, lane_of, lane_of_consumer, parse_delivery


def decide(job: Job | None, command: Command, now: datetime, policy: Policy) -> Decision:
    """Return what follows from `command` for the job that it names; `job` is None if the ledger has none.

    Total: every command has an answer in every state, and what does not apply changes nothing.
    """
    if isinstance(command, Admit):
        return _admit(job, command, now)
    if isinstance(command, FileReport):
        return _report(job, command, now, policy)
    if job is None:
        return _unknown(command)
    match command:
        case Dispatch():
            return _dispatch(job, now)
        case Offered():
            return _offered(job, command)
        case Withdraw():
            return _withdraw(job, command)
        case Relane():
            return _relane(job, command)
        case Claim():
            return _claim(job, command, now, policy)
        case Heartbeat():
            return _heartbeat(job, command, now, policy)
        case Expire():
            return _expire(job, command, now, policy)
        case RollCall():
            return _roll_call(job, command, now, policy)
        case Depart():
            return _depart(job, command, now, policy)
        case Evict():
            return _evict(job, command, now)
        case Grace():
            return _grace(job, now, policy)
        case SetBack():
            return _set_back(job, now)
        case Cancel():
            return _cancel(job, command, now)
        case Retry():
            return _retry(job, command, now)
        case Approve():
            return _approve(job, command, now)
        case Reject():
            return _reject(job, command, now)
        case Prioritize():
            return _prioritize(job, command, now)
        case _:
            assert_never(command)


def _unknown(command: Command) -> Decision:
    match command:
        case Claim():
            return Decision(
                None, Denial(DenyReason.UNKNOWN), (Settle(lane_of_consumer(command.token.consumer), command.token.seq),)
            )
        case Heartbeat():
            return Decision(None, Lost(LostReason.STALE))
        case _:
            return Decision(None, Nothing("no such job"))


# ------------------------------------------------------------------------------------------- admission and offers


def _admit(job: Job | None, c: Admit, now: datetime) -> Decision:
    if job is not None:
        return Decision(job, SameJob() if job.content_sha256 == c.content_sha256 else Conflict())
    run_after = max(c.run_after, now) if c.run_after else now
    new = Job(
        id=c.job_id,
        source=c.source,
        kind=c.kind,
        model=c.model,
        lane=c.lane,
        state=JobState.PENDING,
        content_sha256=c.content_sha256,
        max_attempts=c.max_attempts,
        timeout_s=c.timeout_s,
        review=c.review,
        run_after=run_after,
        created_at=now,
        models=c.models,
        priority=c.priority,
    )
    if not c.offer or run_after > now:
        return Decision(new, Admitted(), (Wake(c.lane),))
    return Decision(new._replace(offered_at=now), Admitted(), (_offer(new, now),))


def _dispatch(job: Job, now: datetime) -> Decision:
    if job.state is not JobState.PENDING or job.offered_at is not None:
        return Decision(job, Nothing("not waiting for an offer"))
    if job.run_after > now:
        return Decision(job, Nothing("not due"))
    return Decision(job._replace(offered_at=now), Done(), (_offer(job, now),))


def _offer(job: Job, now: datetime) -> Offer:
    return Offer(job.id, job.kind, job.model, job.lane, remove_seq=job.offered_seq, offered_at=now)


def _offered(job: Job, c: Offered) -> Decision:
    """Record where the offer lies; if the job has moved on meanwhile, take the message away again (rule 5)."""
    if job.state is JobState.PENDING and job.offered_at is not None and c.seq > job.spent_seq:
        return Decision(job._replace(offered_seq=max(job.offered_seq, c.seq)), Done())
    if c.seq <= job.offered_seq:
        return Decision(job, Nothing("claimed meanwhile"))
    return Decision(job, Nothing("moved on meanwhile"), (Remove(c.seq),))


def _withdraw(job: Job, c: Withdraw) -> Decision:
    if job.state is not JobState.PENDING or job.offered_at != c.offered_at:
        return Decision(job, Nothing("offered anew, or claimed"))
    after, effects = _unoffer(job)
    if c.reason != "unsent":  # what can't be sent now waits for the dispatcher's next round
        effects = (*effects, Wake(job.lane))
    return Decision(after, Done(), effects)


def _relane(job: Job, c: Relane) -> Decision:
    """Move a job to another of its models; who was excluded said so of the model before.

    Once somebody was, there is no way back to it: else it would go round for ever.
    """
    if job.state is not JobState.PENDING or job.offered_at is not None:
        return Decision(job, Nothing("not waiting for an offer"))
    if c.model == job.model or c.model not in job.models:
        return Decision(job, Nothing("not another of its models"))
    models = job.models[job.models.index(c.model) :] if job.excluded else job.models
    after = job._replace(model=c.model, models=models, lane=lane_of(job.kind, c.model), excluded=())
    return Decision(after, Done(), (Wake(after.lane),))


def _unoffer(job: Job) -> tuple[Job, tuple[Effect, ...]]:
    """Spend the newest message: it grants nothing any more; it is removed wherever it is."""
    after = job._replace(offered_at=None, spent_seq=job.offered_seq)
    return after, (Remove(job.offered_seq),) if job.offered_seq > job.spent_seq else ()


# ----------------------------------------------------------------------------------------------------------- claim


def _claim(job: Job, c: Claim, now: datetime, policy: Policy) -> Decision:
    if c.token.consumer != consumer_of(job.lane):
        return Decision(job, Denial(DenyReason.UNKNOWN))  # no delivery of this job
    match job.state:
        case JobState.PROCESSING:
            return _claim_leased(job, c, now, policy)
        case JobState.PENDING:
            return _claim_pending(job, c, now, policy)
        case _:
            return Decision(job, Denial(DenyReason.SETTLED), (Settle(job.lane, c.token.seq),))


def _claim_leased(job: Job, c: Claim, now: datetime, policy: Policy) -> Decision:
    last, expires_at = _holder(job)
    mine = (last.worker, last.delivery, last.instance) == (c.worker, c.delivery, c.instance or last.instance)
    if expires_at > now:
        if mine:
            return Decision(job, _grant(last, now, policy))
        left_s = (expires_at - now).total_seconds()
        current = c.token.seq == job.offered_seq
        effect: Effect = Postpone(c.delivery, left_s) if current else Settle(job.lane, c.token.seq)
        # A repeat through the holder's own message must not delay the message under the holder.
        return Decision(job, Denial(DenyReason.LEASED, left_s), () if c.delivery == last.delivery else (effect,))
    if not _later(c, last):
        return Decision(job, Denial(DenyReason.SETTLED))
    lapsed = _lapse(job, _silence(last), now, policy)
    assert lapsed.job is not None
    if lapsed.job.state is JobState.FAILED:
        return Decision(lapsed.job, Denial(DenyReason.SETTLED), lapsed.effects)
    # The lapse spends the message; this delivery of it is newer than the lapsed attempt's, so it may still grant.
    open_again = lapsed.job._replace(spent_seq=job.spent_seq, offered_at=now)
    granted = _claim_pending(open_again, c, now, policy)
    if granted.job is not None and granted.job.state is JobState.PROCESSING:
        return granted._replace(closed=(_last(lapsed.job),))
    return Decision(lapsed.job, granted.answer, (*lapsed.effects, *granted.effects))


def _later(c: Claim, last: Attempt) -> bool:
    """Say whether this delivery came after the one that the attempt was granted through (rule 6)."""
    granted = parse_delivery(last.delivery)
    return granted is None or (c.token.seq, c.token.number) > (granted.seq, granted.number)


def _claim_pending(job: Job, c: Claim, now: datetime, policy: Policy) -> Decision:
    if c.token.seq <= job.spent_seq or job.offered_at is None:
        return Decision(job, Denial(DenyReason.SETTLED), (Settle(job.lane, c.token.seq),))
    recorded = job.offered_seq > job.spent_seq
    if c.token.seq != job.offered_seq if recorded else c.token.seq > _highest_seq(now):
        return Decision(job, Denial(DenyReason.SETTLED))  # not the message of this offer
    if c.paused == "lane":
        after, effects = _unoffer(job._replace(offered_seq=c.token.seq))
        return Decision(after, Denial(DenyReason.PAUSED), effects)
    if c.paused == "worker":
        return _not_here(job, c, DenyReason.PAUSED, policy)
    if job.run_after > now:
        after, effects = _unoffer(job._replace(offered_seq=c.token.seq))
        return Decision(after, Denial(DenyReason.NOT_DUE, (job.run_after - now).total_seconds()), effects)
    if c.worker in job.excluded or c.paused == "aside":
        return _not_here(job, c, DenyReason.ELSEWHERE, policy)
    attempt = Attempt(
        epoch=max(job.epoch + 1, job.epoch_floor),
        number=job.attempt + 1,
        worker=c.worker,
        instance=c.instance,
        delivery=c.delivery,
        claimed_at=now,
        deadline_at=now + timedelta(seconds=job.timeout_s),
    )
    after = job._replace(
        state=JobState.PROCESSING,
        epoch=attempt.epoch,
        offered_seq=c.token.seq,
        worker=c.worker,
        lease_expires_at=_lease_end(attempt, now, policy),
        last=attempt,
    )
    return Decision(after, _grant(attempt, now, policy))


def _highest_seq(now: datetime) -> int:
    """Return what no sequence of WORK can be above: a stream starts at the clock's microseconds (decision 9).

    Only for an offer whose place is not recorded yet; a day more than the clock says, should it have been set back.
    """
    return int((now + timedelta(days=1)).timestamp() * 1_000_000)


def _not_here(job: Job, c: Claim, reason: DenyReason, policy: Policy) -> Decision:
    delay_s = policy.elsewhere_delay_s
    return Decision(job, Denial(reason, delay_s), (Postpone(c.delivery, delay_s),))


def _grant(attempt: Attempt, now: datetime, policy: Policy) -> Grant:
    left_s = max((attempt.deadline_at - now).total_seconds(), 0.0)
    return Grant(attempt.epoch, attempt.number, policy.lease_ttl_s, left_s)


def _lease_end(attempt: Attempt, now: datetime, policy: Policy) -> datetime:
    return min(now + timedelta(seconds=policy.lease_ttl_s), attempt.deadline_at)


def _holder(job: Job) -> tuple[Attempt, datetime]:
    """Return the open attempt and its lease's end of a job that is processing (the table's CHECKs promise both)."""
    assert job.last is not None
    assert job.lease_expires_at is not None
    return job.last, job.lease_expires_at


def _last(job: Job) -> Attempt:
    assert job.last is not None
    return job.last


# ------------------------------------------------------------------------------------------------------- heartbeat


def _heartbeat(job: Job, c: Heartbeat, now: datetime, policy: Policy) -> Decision:
    last = job.last
    if last is None or c.epoch != last.epoch or c.worker != last.worker or _superseded(c.instance, last):
        return Decision(job, Lost(LostReason.STALE))
    if now >= last.deadline_at and last.outcome in (None, AttemptOutcome.LEASE_EXPIRED):
        return Decision(job, Lost(LostReason.DEADLINE))
    if job.state is JobState.PROCESSING:
        return _beat(job, last, c, now, policy)
    if job.state is JobState.PENDING and last.outcome is AttemptOutcome.LEASE_EXPIRED:
        if _lapse_of(last) is Lapse.RESTARTED:
            return Decision(job, Lost(LostReason.STALE))
        return _beat(_without_lapse(job), last._replace(outcome=None, ended_at=None, error=None), c, now, policy)
    if job.state is JobState.CANCELED:
        return Decision(job, Lost(LostReason.CANCELED))
    return Decision(job, Lost(LostReason.SETTLED if job.state in SETTLED else LostReason.STALE))


def _superseded(instance: str | None, last: Attempt) -> bool:
    """Say whether a process speaks that is not the holder's (both must be known): it can extend nothing."""
    return instance is not None and last.instance is not None and instance != last.instance


def _beat(job: Job, last: Attempt, c: Heartbeat, now: datetime, policy: Policy) -> Decision:
    resumed = job.state is JobState.PENDING
    if c.stage is None:  # only asks
        attempt = last._replace(heartbeat_at=now)
    else:
        beats = last.heartbeats + 1
        attempt = last._replace(heartbeat_at=now, stage=c.stage, progress=c.progress, heartbeats=beats)
    before, effects = _unoffer(job) if resumed else (job, ())
    lease_end = _lease_end(attempt, now, policy)
    after = before._replace(
        state=JobState.PROCESSING,
        worker=attempt.worker,
        lease_expires_at=lease_end,
        last=attempt,
    )
    answer = Held((lease_end - now).total_seconds(), resumed)
    return Decision(after, answer, effects, (Beat(c, now),) if c.stage is not None else ())


# ---------------------------------------------------------------------------------------------------------- report


def _report(job: Job | None, c: FileReport, now: datetime, policy: Policy) -> Decision:
    if job is None or job.last is None:
        return _refuse(job, c, Verdict.REJECTED, "no such job or epoch", now)
    last, epoch = job.last, c.report.epoch
    if epoch < last.epoch:
        return _refuse(job, c, Verdict.STALE, f"epoch {epoch}, current {last.epoch}", now)
    if epoch > last.epoch:
        return _refuse(job, c, Verdict.REJECTED, f"epoch {epoch} was never granted", now)
    if c.worker != last.worker:
        return _refuse(job, c, Verdict.REJECTED, f"epoch {epoch} belongs to {last.worker}", now)
    lapsed = last.outcome is AttemptOutcome.LEASE_EXPIRED
    if job.state is JobState.PROCESSING or (job.state is JobState.PENDING and lapsed):
        return _accept(_without_lapse(job) if lapsed else job, c, now, policy)
    if lapsed or last.outcome is AttemptOutcome.CANCELED:
        return _refuse(job, c, Verdict.REJECTED, f"the job is {job.state}", now)
    if last.outcome is AttemptOutcome.CLOSED:
        return _refuse(job, c, Verdict.STALE, "the job was started anew", now)
    if last.result_sha256 == c.sha256 or c.report.outcome is not ReportOutcome.COMPLETED:
        return Decision(job, Judged(Verdict.DUPLICATE), (_verdict(c, Verdict.DUPLICATE, None),))
    return _refuse(job, c, Verdict.DUPLICATE, f"this epoch has ended already: {last.outcome}", now)


def _without_lapse(job: Job) -> Job:
    """Take the last attempt's lapse back: an epoch that speaks after all is charged once, by its report (rule 2)."""
    if _lapse_of(_last(job)) is Lapse.SILENT:
        return job._replace(silences=job.silences - 1)
    return job._replace(lease_losses=job.lease_losses - 1)


def _refuse(job: Job | None, c: FileReport, verdict: Verdict, reason: str, now: datetime) -> Decision:
    refused = Refused(c, verdict, reason, job.epoch if job else 0, now)
    return Decision(job, Judged(verdict, reason), (_verdict(c, verdict, reason),), (refused,))


def _verdict(c: FileReport, verdict: Verdict, reason: str | None) -> TellVerdict:
    return TellVerdict(c.worker, c.report.job_id, c.report.epoch, verdict, reason)


def _accept(job: Job, c: FileReport, now: datetime, policy: Policy) -> Decision:
    report = c.report
    match report.outcome:
        case ReportOutcome.COMPLETED:
            return _completed(job, c, now, policy)
        case ReportOutcome.RELEASED:
            error = report.error.model_dump(by_alias=True) if report.error else None
            end = _ended(job, AttemptOutcome.RELEASED, now, error, c.sha256)
            return _accepted(_pending(end, now), c, accepted=False)
        case ReportOutcome.FAILED:
            assert report.error is not None
            error = report.error.model_dump(by_alias=True)
            return _accepted(_failed(job, error, c, now, policy), c, accepted=False)
        case _:
            assert_never(report.outcome)


def _accepted(ended: Decision, c: FileReport, *, accepted: bool) -> Decision:
    return ended._replace(
        answer=Judged(Verdict.ACCEPTED),
        effects=(*ended.effects, _verdict(c, Verdict.ACCEPTED, None)),
        records=(*ended.records, Outcome(c.report, accepted)),
    )


def _completed(job: Job, c: FileReport, now: datetime, policy: Policy) -> Decision:
    missing = [a.name for a in c.report.artifacts if (a.name, a.size, a.sha256) not in c.uploaded]
    if missing:
        message = f"not uploaded for epoch {c.report.epoch} with that size and sha256: {', '.join(missing)}"
        error = {"code": "artifact_missing", "message": message, "class": "transient", "detail": None}
        return _accepted(_failed(job, error, c, now, policy), c, accepted=False)
    end = _ended(job, AttemptOutcome.COMPLETED, now, None, c.sha256)
    state = JobState.AWAITING_REVIEW if job.review else JobState.COMPLETED
    return _accepted(_settled(end, state, now), c, accepted=True)


def _failed(job: Job, error: dict[str, Any], c: FileReport, now: datetime, policy: Policy) -> Decision:
    """End the attempt by an error that its agent reported, or that the ledger found in its report."""
    end = _ended(job, AttemptOutcome.FAILED, now, error, c.sha256)
    match ErrorClass(error["class"]):
        case ErrorClass.TRANSIENT:
            return _charged(end, error, c.jitter, now, policy)
        case ErrorClass.ELSEWHERE:
            excluded = end._replace(excluded=(*end.excluded, c.worker))
            if c.capable <= frozenset(excluded.excluded) and not c.another_model:
                return _settled(excluded._replace(error=error), JobState.FAILED, now)
            return _pending(excluded, now)
        case ErrorClass.PERMANENT:
            return _settled(end._replace(attempt=end.attempt + 1, error=error), JobState.FAILED, now)
        case other:
            assert_never(other)


def _charged(ended: Job, error: Mapping[str, Any], jitter: float, now: datetime, policy: Policy) -> Decision:
    """Charge a failure: again after the backoff, or failed for good at the limit."""
    charged = ended._replace(attempt=ended.attempt + 1)
    if charged.attempt >= charged.max_attempts:
        return _settled(charged._replace(error=dict(error)), JobState.FAILED, now)
    delay = timedelta(seconds=policy.retry_delay_s(charged.attempt, jitter))
    return _pending(charged._replace(run_after=now + delay), now)


# ------------------------------------------------------------------------------------------------ ends of a lease


def _expire(job: Job, c: Expire, now: datetime, policy: Policy) -> Decision:
    if job.state is not JobState.PROCESSING:
        return Decision(job, Nothing("not processing"))
    last, expires_at = _holder(job)
    if expires_at > now:
        return Decision(job, Nothing("lease was extended"))
    alive_until = (last.heartbeat_at or last.claimed_at) + timedelta(seconds=policy.lease_ttl_s)
    if now < last.deadline_at or alive_until < now:  # a Mac that slept over its deadline did not hang
        return _lapse(job, _silence(last), now, policy)
    message = f"no report within timeout_s = {job.timeout_s:g}"
    error = {"code": "timeout", "message": message, "class": "transient", "detail": None}
    ended = _charged(_ended(job, AttemptOutcome.FAILED, now, error, None), error, c.jitter, now, policy)
    tell = Tell(last.worker, job.id, last.epoch, LostReason.DEADLINE)
    return ended._replace(effects=(*ended.effects, tell))


def _silence(last: Attempt) -> Lapse:
    """Return what a lease that just ran out says of its holder."""
    return Lapse.SILENT if last.heartbeats else Lapse.LOST


def _lapse_of(last: Attempt) -> Lapse:
    """Return how a lapsed attempt lapsed."""
    return Lapse(last.error["code"]) if last.error else Lapse.LOST


def _lapse(job: Job, lapse: Lapse, now: datetime, policy: Policy) -> Decision:
    """Charge a lapsed lease; all that end a lease under its holder do exactly this (rule 2)."""
    worker = _last(job).worker
    why = {"code": str(lapse), "message": _LAPSES[lapse].format(worker), "class": "transient", "detail": None}
    ended = _ended(job, AttemptOutcome.LEASE_EXPIRED, now, why, None)
    if lapse is Lapse.SILENT:
        ended, what, limit = ended._replace(silences=job.silences + 1), "silent", policy.max_silences
    else:
        ended, what, limit = ended._replace(lease_losses=job.lease_losses + 1), "lost", policy.max_lease_losses
    times = ended.silences if lapse is Lapse.SILENT else ended.lease_losses
    if times < limit:
        return _pending(ended, now)
    message = f"worker {what} × {times}, last {worker}"  # noqa: RUF001 - the sign for times
    error = {"code": f"worker_{what}", "message": message, "class": "permanent", "detail": None}
    return _settled(ended._replace(error=error), JobState.FAILED, now)


_LAPSES = {
    Lapse.SILENT: "{} fell silent",
    Lapse.LOST: "{} was lost",
    Lapse.RESTARTED: "{} was started anew, without it",
}


def _roll_call(job: Job, c: RollCall, now: datetime, policy: Policy) -> Decision:
    """End a lease that its worker does not know of (rule 8); hand on one that it kept over a restart."""
    last = job.last
    lapsed = job.state is JobState.PENDING and last is not None and last.outcome is AttemptOutcome.LEASE_EXPIRED
    if last is None or last.worker != c.worker or not (lapsed or job.state is JobState.PROCESSING):
        return Decision(job, Nothing("not this worker's"))
    if _superseded(c.instance, last) and last.instance not in c.retired:
        return Decision(job, Nothing("of a newer process"))  # this presence was on its way when that one came
    if c.epoch == last.epoch:
        if last.instance == c.instance:
            return Decision(job, Nothing("held"))
        return Decision(job._replace(last=last._replace(instance=c.instance)), Done())
    if lapsed:
        return Decision(job, Nothing("lapsed already"))
    if _superseded(c.instance, last):  # it crashed: the job may have done that
        return _lapse(job, Lapse.RESTARTED, now, policy)
    if now - last.claimed_at < timedelta(seconds=policy.presence_s):
        return Decision(job, Nothing("younger than one presence round"))
    if c.as_of is not None and c.as_of < last.claimed_at:
        return Decision(job, Nothing("granted after that presence may have been sent"))
    error = {"code": "ghost_lease", "message": "its worker no longer lists it", "class": "transient", "detail": None}
    ended = _pending(_ended(job, AttemptOutcome.RELEASED, now, error, None), now)
    tell = Tell(last.worker, job.id, last.epoch, LostReason.STALE)
    return ended._replace(effects=(*ended.effects, tell))


def _depart(job: Job, c: Depart, now: datetime, policy: Policy) -> Decision:
    """End a lease whose process is gone, unless anything was heard of it since: then only its connection was new."""
    if job.state is not JobState.PROCESSING:
        return Decision(job, Nothing("not processing"))
    last, _ = _holder(job)
    if (last.worker, last.instance) != (c.worker, c.instance):
        return Decision(job, Nothing("not this process's"))
    if (last.heartbeat_at or last.claimed_at) > c.since:
        return Decision(job, Nothing("heard of since"))
    return _lapse(job, Lapse.LOST, now, policy)


def _evict(job: Job, c: Evict, now: datetime) -> Decision:
    """Take a job from a worker that was cut off; nothing is charged, since an operator did it."""
    if job.state is not JobState.PROCESSING:
        return Decision(job, Nothing("not processing"))
    last, _ = _holder(job)
    if last.worker != c.worker:
        return Decision(job, Nothing("not this worker's"))
    error = {"code": "worker_revoked", "message": "its worker was revoked", "class": "transient", "detail": None}
    return _pending(_ended(job, AttemptOutcome.RELEASED, now, error, None), now)


def _grace(job: Job, now: datetime, policy: Policy) -> Decision:
    if job.state is not JobState.PROCESSING:
        return Decision(job, Nothing("not processing"))
    last, _ = _holder(job)
    return Decision(job._replace(lease_expires_at=_lease_end(last, now, policy)), Done())


def _set_back(job: Job, now: datetime) -> Decision:
    if job.state is not JobState.PENDING or not now < job.run_after <= job.created_at:
        return Decision(job, Nothing("due, or to be run later"))
    return Decision(job._replace(run_after=now), Done(), (Wake(job.lane),))


def _ended(job: Job, outcome: AttemptOutcome, now: datetime, error: dict[str, Any] | None, sha256: bytes | None) -> Job:
    """Close the last attempt and take the lease off the job; the caller says what the job becomes."""
    last = _last(job)._replace(outcome=outcome, ended_at=now, error=error, result_sha256=sha256)
    due = min(job.run_after, now)  # it was due when it was claimed, whatever became of the clock
    return job._replace(worker=None, lease_expires_at=None, run_after=due, last=last)


def _pending(ended: Job, now: datetime) -> Decision:
    """Back to the backlog. Whatever message is out is spent and goes; the next offer is a new one."""
    effects = _message_away(ended)
    if ended.run_after <= now:
        effects = (*effects, Wake(ended.lane))
    after = ended._replace(state=JobState.PENDING, offered_at=None, spent_seq=ended.offered_seq)
    return Decision(after, Done(), effects)


def _settled(ended: Job, state: JobState, now: datetime) -> Decision:
    effects = (*_message_away(ended), Announce(ended.id))
    finished_at = ended.finished_at or now
    after = ended._replace(state=state, finished_at=finished_at, offered_at=None, spent_seq=ended.offered_seq)
    return Decision(after, Done(), effects)


def _message_away(job: Job) -> tuple[Effect, ...]:
    """Take what is out in WORK away, each by its own sequence (rule 5): the claimed message and a newer offer."""
    claimed = parse_delivery(job.last.delivery) if job.last else None
    claimed_seq = claimed.seq if claimed else 0
    effects: tuple[Effect, ...] = (Settle(job.lane, claimed_seq),) if claimed_seq else ()
    if job.offered_seq > max(job.spent_seq, claimed_seq):
        effects = (*effects, Remove(job.offered_seq))
    return effects


# ---------------------------------------------------------------------------------------------------------- people


def _cancel(job: Job, c: Cancel, now: datetime) -> Decision:
    if job.state in SETTLED and job.state is not JobState.AWAITING_REVIEW:
        return Decision(job, Nothing(f"the job is {job.state}"))
    tell: tuple[Effect, ...] = ()
    ended = job
    if job.state is JobState.PROCESSING:
        ended = _ended(job, AttemptOutcome.CANCELED, now, None, None)
        tell = (Tell(_last(job).worker, job.id, job.epoch, LostReason.CANCELED),)
    settled = _settled(ended, JobState.CANCELED, now)
    return _acted(settled._replace(effects=(*settled.effects, *tell)), c, "cancel", now)


def _retry(job: Job, c: Retry, now: datetime) -> Decision:
    if job.state not in SETTLED:
        return Decision(job, Nothing(f"the job is {job.state}"))
    return _acted(_again(job, now), c, "retry", now)


def _again(job: Job, now: datetime) -> Decision:
    """Start anew with all counters at zero; what came before can't speak any more (rule 10)."""
    last = job.last
    if last is not None and last.outcome is AttemptOutcome.LEASE_EXPIRED:
        last = last._replace(outcome=AttemptOutcome.CLOSED)
    fresh = job._replace(attempt=0, lease_losses=0, silences=0, excluded=(), error=None, finished_at=None, last=last)
    return _pending(fresh._replace(run_after=now), now)


def _no_verdict(job: Job, c: Approve | Reject) -> Nothing | None:
    """Return why there is nothing that this verdict can be about; None if there is."""
    if job.state is not JobState.AWAITING_REVIEW:
        return Nothing(f"the job is {job.state}")
    return Nothing("the result is another one by now") if c.epoch not in (None, job.epoch) else None


def _approve(job: Job, c: Approve, now: datetime) -> Decision:
    if (nothing := _no_verdict(job, c)) is not None:
        return Decision(job, nothing)
    return _acted(_settled(job, JobState.COMPLETED, now), c, "approve", now)


def _reject(job: Job, c: Reject, now: datetime) -> Decision:
    if (nothing := _no_verdict(job, c)) is not None:
        return Decision(job, nothing)
    ended = _again(job, now) if c.again else _settled(job, JobState.CANCELED, now)
    return _acted(ended, c, "reject", now)


def _prioritize(job: Job, c: Prioritize, now: datetime) -> Decision:
    """Change the order in the backlog; an offer that lies in WORK already stays, as there are only a few of them."""
    name = PRIORITY_NAME[c.priority]
    if job.state in SETTLED:
        return Decision(job, Nothing(f"the job is {job.state}"))
    if job.priority == c.priority:
        return Decision(job, Nothing(f"its priority is {name} already"))
    wake = (Wake(job.lane),) if job.state is JobState.PENDING and job.offered_at is None else ()
    return _acted(Decision(job._replace(priority=c.priority), Done(), wake), c, f"priority {name}", now)


def _acted(
    decision: Decision, c: Cancel | Retry | Approve | Reject | Prioritize, action: str, now: datetime
) -> Decision:
    answer: Answer = Done()
    records: tuple[Record, ...] = (*decision.records, Action(c.actor, action, now, c.note))
    return decision._replace(answer=answer, records=records)
