"""The repair: mends what the audit found where that is safe, and says of the rest why it was left.

Everything goes the coordinator's own way: commands to the ledger, decided under the row's lock, with their effects on
the bus; the outbox; removal of a message by its own sequence after a second look. So it may run beside coordinators,
and again. A breach counts as mended only if a second audit no longer finds it. Called by `cli_audit.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.artifacts import ArtifactStore
from coordinator.audit import Breach, Limits, audit
from coordinator.audit_streams import is_taken
from coordinator.audit_workers import ghost_leases
from coordinator.effects import Effects
from coordinator.lanes import LaneConsumers
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.model import Command, Dispatch, Done, Expire, RollCall, Withdraw
from coordinator.ledger.queries import Queries
from coordinator.ledger.views import Pool
from coordinator.results import Results
from shared import subjects
from shared.bus import Bus
from shared.lease import Policy
from shared.states import JobState
from shared.streams import REPORTS, consumer_info, last_message_seq, remove_message, work_subjects

ADVICE: Final = {
    "one_result": "which result is right, a person must say; if in doubt, run the job again (tandem retry)",
    "epochs": "rows are missing or foreign: compare them with a backup",
    "open_attempt": "how it ended is not known; nothing it sends is accepted any more",
    "counters": "what was not recorded can't be counted; a retry starts the counters anew",
    "rejected": "a record was changed or added by hand: compare it with a backup",
    "holder": "rows were changed by hand: compare them with a backup",
    "lease": "no coordinator is connected that would hear its heartbeats: start one, which gives it a full ttl first",
    "other_epoch": "the ledger is not sure which result is right, or does not know the job: see to that first",
    "bytes": "rows of files are missing or foreign; if no backup has them, run the job again (tandem retry)",
    "files": "restore the file from a backup, else run the job again (tandem retry)",
    "unpublished": "RESULTS does not take it: a coordinator's log says why",
    "offer": "it could not be taken back: run the repair again",
    "work": "it could not be removed: run the repair again",
    "lane": "it could not be removed: run the repair again",
    "results": "RESULTS forgets a message id after two hours: run the repair again then",
    "last_word": "RESULTS forgets a message id after two hours: run the repair again then",
    "untrue": "what went out can't be called back: tell its publisher",
    "superseded": "what went out can't be called back: tell its publisher which epoch counts",
    "reports": "nothing is removed that was not judged: a coordinator's log says why it does not take it",
    "submit": "nothing is removed that was not admitted: a coordinator's log says why it does not take it",
    "stuck": "it could not be offered: a coordinator's log says why",
    "unclaimed": "it could not be offered anew: a coordinator's log says why",
    "presence": "look at that worker: is it one process, with its own identity, and of this installation?",
    "ghost": "the lease could not be ended: it ends by its ttl",
}
"""Why a breach of a rule is left, and what a person can do."""

_GONE: Final = "it was gone at the last look"
_NEW: Final = "it was found by the last look only: run the audit again"


class Mend(NamedTuple):
    """What became of a breach."""

    breach: Breach
    mended: bool
    what: str  # what was done, or why it was left


class _Quiet:
    """Nobody to wake: a running coordinator looks by itself."""

    def wake(self) -> None:
        """Do nothing."""


async def repair(
    pool: Pool, bus: Bus, store: ArtifactStore, policy: Policy, base_url: str, limits: Limits | None = None
) -> list[Mend]:
    """Audit, mend what is safe to mend, audit again; return what became of each breach, in the audit's order.

    `base_url` is the HTTP side's, for the addresses of files. Raises LedgerDownError or BusError when one of the two
    fails meanwhile; what was done until then stands, and the repair can be run again.
    """
    limits = limits or Limits()
    found = await audit(pool, bus, store, limits)
    if not found:
        return []
    done: dict[Breach, str] = {}
    async with _ledger(pool, bus, policy) as ledger:
        menders = _Menders(pool, bus, ledger, Queries(pool), limits, base_url)
        for rules, mend in menders.by_rule():
            breaches = [breach for breach in found if breach.rule in rules]
            if breaches:
                done |= await mend(breaches)
    left = {breach.same: breach for breach in await audit(pool, bus, None, limits)}
    left |= {breach.same: breach for breach in found if breach.rule == "files"}
    ends = [
        Mend(left[breach.same], mended=False, what=ADVICE[breach.rule])
        if breach.same in left
        else Mend(breach, mended=True, what=done.get(breach, _GONE))
        for breach in found
    ]
    new = left.keys() - {breach.same for breach in found}
    return ends + [Mend(left[breach], mended=False, what=_NEW) for breach in sorted(new, key=str)]


@asynccontextmanager
async def _ledger(pool: Pool, bus: Bus, policy: Policy) -> AsyncIterator[Ledger]:
    """Lend a ledger whose effects go out; when the block is left, they are out."""
    async with asyncio.TaskGroup() as tasks:
        effects = Effects(bus, LaneConsumers(bus, policy.lease_ttl_s), tasks)
        async with Ledger(pool, policy, on_effects=effects.take) as ledger:
            quiet = _Quiet()
            effects.connect(ledger, dispatcher=quiet, results=quiet, reconciler=quiet)
            running = tasks.create_task(effects.run(), name="effects")
            try:
                yield ledger
                await effects.wait_idle()
            finally:
                running.cancel()


Mender = Callable[[Sequence[Breach]], Awaitable[dict[Breach, str]]]


@dataclass(slots=True)
class _Menders:
    """One way of mending per kind of breach; each returns what it did, for those with which it did something."""

    pool: Pool
    bus: Bus
    ledger: Ledger
    queries: Queries
    limits: Limits
    base_url: str

    def by_rule(self) -> tuple[tuple[frozenset[str], Mender], ...]:
        """Return who mends what, in this order: first what the ledger says, then what follows from it."""
        return (
            (frozenset({"lease"}), self._expire),
            (frozenset({"ghost"}), self._give_back),
            (frozenset({"other_epoch"}), self._unlink),
            (frozenset({"offer", "unclaimed"}), self._withdraw),
            (frozenset({"work", "lane"}), self._remove),
            (frozenset({"stuck"}), self._offer),
            (frozenset({"unpublished", "results", "last_word"}), self._publish),
        )

    async def _expire(self, breaches: Sequence[Breach]) -> dict[Breach, str]:
        """Expire leases, but only while their heartbeats are heard: else they would be lost for a fault of ours."""
        info = await consumer_info(self.bus, "REPORTS", REPORTS)
        if info is None or not is_taken(info):
            return {}
        return await self._commanded(breaches, [Expire(job_id=j) for j in _jobs(breaches)], "the lease was expired")

    async def _give_back(self, breaches: Sequence[Breach]) -> dict[Breach, str]:
        found = {breach.job_id for breach in breaches}
        calls = [
            RollCall(job_id=job_id, worker=worker, instance=instance, epoch=None)
            for job_id, worker, instance in await ghost_leases(self.pool, self.limits)
            if job_id in found
        ]
        return await self._commanded(breaches, calls, "the lease was given back, as at its worker's next presence")

    async def _unlink(self, breaches: Sequence[Breach]) -> dict[Breach, str]:
        gone = await self.queries.unlink_stray(_jobs(breaches))
        return {b: "taken out of the result" for b in breaches if (b.job_id, b.epoch) in gone}

    async def _withdraw(self, breaches: Sequence[Breach]) -> dict[Breach, str]:
        """Take offers back that have no message, to be made anew by the dispatcher; make those anew that just lie."""
        rules = {breach.job_id: breach.rule for breach in breaches}
        commands: list[Command] = []
        for offer in await self.queries.offers(self.limits.grace_s):
            rule = rules.get(offer.job_id)
            if rule == "unclaimed":
                commands.append(Withdraw(job_id=offer.job_id, offered_at=offer.offered_at, reason="unclaimed"))
                commands.append(Dispatch(job_id=offer.job_id))
            elif rule == "offer":
                subject = subjects.work(offer.lane, offer.job_id)
                if await last_message_seq(self.bus, subject) is None:
                    commands.append(Withdraw(job_id=offer.job_id, offered_at=offer.offered_at, reason="missing"))
        return await self._commanded(breaches, commands, "the offer was taken back; the next one is a new one")

    async def _offer(self, breaches: Sequence[Breach]) -> dict[Breach, str]:
        return await self._commanded(breaches, [Dispatch(job_id=j) for j in _jobs(breaches)], "offered")

    async def _commanded(self, breaches: Sequence[Breach], commands: Sequence[Command], what: str) -> dict[Breach, str]:
        """Give commands to the ledger; those that it carried out did `what`."""
        answers = await self.ledger.do_each(commands)
        done = {command.job_id for command, answer in zip(commands, answers, strict=True) if isinstance(answer, Done)}
        return {breach: what for breach in breaches if breach.job_id in done}

    async def _remove(self, breaches: Sequence[Breach]) -> dict[Breach, str]:
        """Remove messages that nobody wants, each by the sequence that it had before the ledger was asked."""
        wanted = {breach.job_id for breach in breaches}
        removed = set()
        for subject in await work_subjects(self.bus):
            job_id = _job_of(subject)
            if job_id in wanted and await self._remove_unwanted(subject, job_id):
                removed.add(job_id)
        return {breach: "the message was removed" for breach in breaches if breach.job_id in removed}

    async def _remove_unwanted(self, subject: str, job_id: UUID | None) -> bool:
        seq = await last_message_seq(self.bus, subject)
        row = (await self.queries.jobs_light([job_id])).get(job_id) if job_id is not None else None
        live = row is not None and (row.offered_at is not None or row.state is JobState.PROCESSING)
        if seq is None or (row is not None and live and subject == subjects.work(row.lane, row.id)):
            return False
        return await remove_message(self.bus, "WORK", seq)

    async def _publish(self, breaches: Sequence[Breach]) -> dict[Breach, str]:
        """Let the outbox publish: what it should have, and what is not there any more."""
        lost = _jobs(breach for breach in breaches if breach.rule != "unpublished")
        again = await self.queries.republish_jobs(lost)
        await Results(self.bus, self.queries, self.base_url).once()
        return {
            breach: "published again" if breach.job_id in again else "published"
            for breach in breaches
            if breach.job_id in again or breach.rule == "unpublished"
        }


def _jobs(breaches: Iterable[Breach]) -> list[UUID]:
    return [breach.job_id for breach in breaches if breach.job_id is not None]


def _job_of(subject: str) -> UUID | None:
    try:
        return subjects.job_of_work(subject)
    except ValueError:
        return None
