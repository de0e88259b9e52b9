"""What the audit's parts share: a breach, what is suspect until it was seen twice, and the times they go by."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from coordinator.quarantine import Rules
from shared.streams import RESULTS_KEPT_S


class Breach(NamedTuple):
    """A promise that does not hold; `job_id` None = of no one job."""

    rule: str
    job_id: UUID | None
    epoch: int | None
    text: str
    detail: str = ""  # what changes from one look to the next: ages and counts

    @property
    def same(self) -> "Breach":
        """Return it as any look would find it, to tell whether two looks found the same."""
        return self._replace(detail="")


Suspects: TypeAlias = dict[Hashable, Breach]
"""What one look at things that move found; the key says what must still be so for it to be a breach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long the loops may take to mend what they meet, in seconds, and how much is read."""

    grace_s: float = 5.0  # a reaper's round, and the way from a commit to its message
    unpublished_s: float = 60.0  # a settled job in the outbox
    standing_s: float = 120.0  # a report or submission in its stream
    stuck_s: float = 60.0  # a job that a free worker may take; longer than a worker counts as present
    presence_s: float = 10.0  # the workers' round, as the coordinators' setting says
    quarantine: Rules = field(default_factory=Rules)  # when a worker is set aside, as the coordinators' settings say
    kept_s: float = RESULTS_KEPT_S  # what RESULTS keeps
    again_s: float = 3.0  # from the first look at what moves to the second: a dispatcher's round and more
    results: int = 1000  # how many of RESULTS' newest messages are read
