"""The audit's rules about streams: WORK, RESULTS, REPORTS and SUBMIT held against the ledger.

Both sides move while they are read, so `once` finds suspects; `audit.py` looks twice. Rights: those of the running
coordinator (STREAM.INFO, STREAM.MSG.GET, CONSUMER.INFO).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.audit_rules import Breach, Limits, Suspects
from coordinator.ledger.database import sql
from coordinator.ledger.queries import Queries
from coordinator.ledger.views import Pool, snapshot
from shared import subjects
from shared.bus import Bus
from shared.states import SETTLED, AttemptOutcome, JobState
from shared.streams import (
    INTAKE,
    REPORTS,
    StoredMessage,
    consumer_info,
    last_message_seq,
    standing,
    stored_message,
    subject_pages,
    work_subjects,
)
from shared.wire import ResultMessage

KEPT_MARGIN_S: Final = 3600.0
"""Results this close to the age at which RESULTS drops them are not looked for."""

_LISTED: Final = 10
"""How many of the messages that stand in one stream are named."""

_ACTIVE_S: Final = 10.0
"""A consumer that handed something out this lately has a coordinator that takes it."""

_MOST: Final = 2**31
"""An epoch that the ledger can't have: a larger one, out of a message, counts as this."""

_WITH_RESULT: Final = frozenset({JobState.COMPLETED, JobState.AWAITING_REVIEW})


class Published(NamedTuple):
    """A message of RESULTS, as far as the audit reads it."""

    seq: int
    job_id: UUID
    epoch: int
    state: str


@dataclass(slots=True)
class StreamsLook:
    """Looks at the streams; the second look reads RESULTS from where the first one began."""

    pool: Pool
    bus: Bus
    limits: Limits
    covered: list[str] = field(default_factory=list)  # what was looked at, for people
    _from_seq: int = 0

    async def once(self) -> Suspects:
        """Look at every stream once."""
        self.covered.clear()
        return {
            **await self._work(),
            **await self._missing_results(),
            **await self._newest_results(),
            **await self._standing("REPORTS", REPORTS),
            **await self._standing("SUBMIT", INTAKE),
        }

    # ---- WORK

    async def _work(self) -> Suspects:
        """Hold offers against messages: what is offered has one, and what has one is live."""
        there = await work_subjects(self.bus)
        found: list[Breach] = []
        messages: dict[UUID, list[str]] = {}
        for subject in sorted(there):
            try:
                messages.setdefault(subjects.job_of_work(subject), []).append(subject)
            except ValueError:
                found.append(Breach("work", None, None, f"{subject} names no job"))
        async with snapshot(self.pool) as ledger:
            offered = await ledger.fetch(sql("view_audit_offered"), self.limits.grace_s)
            named = await ledger.fetch(sql("view_audit_named"), list(messages), self.limits.grace_s)
        found += [
            Breach("offer", row["job_id"], row["epoch"], "offered, but WORK has no message for it")
            for row in offered
            if subjects.work(row["lane"], row["job_id"]) not in there
        ]
        listed_only = 0
        for row in named:
            for breach in _unexplained(row, messages[row["job_id"]]):
                if breach.rule == "lane" or await self._is_there(messages[row["job_id"]]):
                    found.append(breach)
                else:
                    listed_only += 1
        without = f", {listed_only} of them without a message" if listed_only else ""
        self.covered.append(f"{len(there)} messages of WORK listed{without}")
        return {breach: breach for breach in found}

    async def _is_there(self, listed: list[str]) -> bool:
        """Say whether one of these subjects has a message: replicas may list one for a while that has none any more."""
        return any([await last_message_seq(self.bus, subject) is not None for subject in listed])

    # ---- RESULTS

    async def _missing_results(self) -> Suspects:
        """Find jobs whose result went out, settled before this began, without a message under their subject."""
        before = await Queries(self.pool).now() - timedelta(seconds=self.limits.unpublished_s)
        there: set[bytes] = set()
        async for page in subject_pages(self.bus, "RESULTS"):
            there |= _job_ids(page)
        self.covered.append(f"{len(there)} jobs of RESULTS listed")
        found: Suspects = {}
        after = UUID(int=0)
        while True:
            async with snapshot(self.pool) as ledger:
                arguments = (after, before, max(self.limits.kept_s - KEPT_MARGIN_S, 0.0))
                rows = await ledger.fetch(sql("view_audit_published"), *arguments, timeout=120.0)
            if not rows:
                return found
            for row in rows:
                if row["id"].bytes not in there:
                    text = f"its result ({row['state']}) went out, but RESULTS has no message for it"
                    breach = Breach("results", row["id"], row["epoch"], text)
                    found[breach] = breach
            after = rows[-1]["id"]

    async def _newest_results(self) -> Suspects:
        """Read the newest messages, and hold what they say against the ledger."""
        state = await standing(self.bus, "RESULTS")
        first = max(state.first_seq, self._from_seq or state.last_seq - self.limits.results + 1)
        self._from_seq = first
        found: Suspects = {}
        read: list[Published] = []
        for seq in range(first, state.last_seq + 1):
            message = await stored_message(self.bus, "RESULTS", seq=seq)
            if message is None:
                continue
            try:
                read.append(_published(message))
            except ValueError as error:
                text = f"RESULTS' message {seq} on {message.subject} is no result: {type(error).__name__}"
                found["unreadable", seq] = Breach("untrue", _job_of(message), None, text)
        self.covered.append(f"{len(read)} of RESULTS' {state.messages} messages read, the newest")
        async with snapshot(self.pool) as ledger:
            arguments = [one.job_id for one in read], [one.epoch for one in read]
            rows = await ledger.fetch(sql("view_audit_outcomes"), *arguments)
        known = {(row["job_id"], row["epoch"]): row for row in rows}
        return found | _untrue(read, known) | _superseded(read) | _not_the_last_word(read, known)

    # ---- REPORTS and SUBMIT

    async def _standing(self, stream: str, consumer: str) -> Suspects:
        """Find messages that stand in a stream though a coordinator takes them; one in a line that moves is none."""
        state = await standing(self.bus, stream)
        info = await consumer_info(self.bus, stream, consumer)
        out = info["num_ack_pending"] if info else 0
        self.covered.append(f"{stream}: {state.messages} messages, {out} handed out and not acknowledged")
        if info is None or not is_taken(info):
            return {}
        found: Suspects = {}
        seq = state.first_seq
        while len(found) < _LISTED:
            message = await stored_message(self.bus, stream, seq=seq, next_by_subj=">")
            if message is None or (state.now - message.at).total_seconds() < self.limits.standing_s:
                return found
            if message.seq > info["delivered"]["stream_seq"] and not info["num_waiting"]:
                return found  # its turn has not come
            age_s = (state.now - message.at).total_seconds()
            text = f"message {message.seq} ({message.subject}) stands in {stream} though a coordinator takes them"
            detail = f"since {age_s:.0f} s; {state.messages} stand there, {out} handed out and not acknowledged"
            found[stream, message.seq] = Breach(stream.lower(), _job_of(message), None, text, detail)
            seq = message.seq + 1
        return found


def _unexplained(row: Any, there: list[str]) -> Iterator[Breach]:
    """Say what is wrong with a job's messages in WORK."""
    job_id, epoch = row["job_id"], row["epoch"]
    if row["state"] is None:
        yield Breach("work", job_id, None, "WORK has a message for a job that the ledger does not know")
    elif row["state"] in SETTLED:
        if row["long_settled"]:
            yield Breach("work", job_id, epoch, f"WORK has a message for it, but it is {row['state']}")
    elif there != [subjects.work(row["lane"], job_id)]:
        yield Breach("lane", job_id, epoch, f"WORK has messages in other lanes than its own: {', '.join(there)}")


def _published(message: StoredMessage) -> Published:
    """Read a message of RESULTS; ValueError if it can't be read, or speaks of another job than its subject."""
    said = ResultMessage.model_validate_json(message.data)
    if said.job_id != _job_of(message):
        msg = f"it speaks of job {said.job_id}"
        raise ValueError(msg)
    return Published(message.seq, said.job_id, max(min(said.epoch, _MOST), -1), said.state)


def _untrue(read: Iterable[Published], known: dict[tuple[UUID, int], Any]) -> Suspects:
    """Find messages that say what the ledger, read later, never knew: a message is made from what was committed."""
    found: Suspects = {}
    for one in read:
        row = known[one.job_id, one.epoch]
        if row["newest"] is None:
            wrong = "is of a job that the ledger does not know"
        elif not 0 <= one.epoch <= row["newest"]:
            wrong = f"says epoch {one.epoch}, the newest is {row['newest']}"
        elif one.state in _WITH_RESULT and row["outcome"] != AttemptOutcome.COMPLETED:
            wrong = f"says {one.state} of an attempt that ended {row['outcome']}"
        else:
            continue
        found["untrue", one.seq] = Breach("untrue", one.job_id, one.epoch, f"RESULTS' message {one.seq} {wrong}")
    return found


def _superseded(read: Iterable[Published]) -> Suspects:
    """Find completed results that came out after a word of a newer epoch."""
    found: Suspects = {}
    newest: dict[UUID, int] = {}
    for one in read:
        before = newest.get(one.job_id, 0)
        if one.state == JobState.COMPLETED and one.epoch < before:
            text = f"RESULTS' message {one.seq} has a result of epoch {one.epoch}, after one of epoch {before}"
            found["superseded", one.seq] = Breach("superseded", one.job_id, one.epoch, text)
        newest[one.job_id] = max(before, one.epoch)
    return found


def _not_the_last_word(read: Iterable[Published], known: dict[tuple[UUID, int], Any]) -> Suspects:
    """Find jobs that are settled and out, whose last message says something else than the ledger."""
    found: Suspects = {}
    for one in {one.job_id: one for one in read}.values():
        row = known[one.job_id, one.epoch]
        if row["newest"] is None or row["state"] not in SETTLED or row["unpublished"]:
            continue
        if (one.epoch, one.state) != (row["newest"], row["state"]):
            text = (
                f"the last word on RESULTS is epoch {one.epoch}, {one.state} (message {one.seq});"
                f" the ledger says epoch {row['newest']}, {row['state']}"
            )
            breach = Breach("last_word", one.job_id, row["newest"], text)
            found[breach] = breach
    return found


def is_taken(info: dict[str, Any]) -> bool:
    """Say whether a coordinator takes messages from a consumer: a pull is open, or something was handed out lately."""
    active = info["delivered"].get("last_active")
    now = datetime.fromisoformat(info["ts"])
    return info["num_waiting"] > 0 or (
        active is not None and (now - datetime.fromisoformat(active)).total_seconds() < _ACTIVE_S
    )


def _job_ids(page: Iterable[str]) -> set[bytes]:
    found = set()
    for subject in page:
        with suppress(ValueError):  # no job's: nobody looks for it
            found.add(UUID(subject.rpartition(".")[2]).bytes)
    return found


def _job_of(message: StoredMessage) -> UUID | None:
    try:
        return UUID(message.subject.rpartition(".")[2])
    except ValueError:
        return None
