"""Asking for the lease of an offered job, and what to do when nobody answers.

A claim that got no answer may have been granted. So it is repeated, the same one, until it is answered or the
delivery's ack-wait has passed; then the offer is forgotten. It is never nak'ed (DESIGN §2, rules 6 and 7).
"""

import asyncio
import random
from collections.abc import Callable
from uuid import UUID

import structlog
from pydantic import ValidationError

from agent.leases import Attempt, Leases
from shared import subjects
from shared.bus import Bus, BusError
from shared.states import DenyReason
from shared.wire import Claim, ClaimReply, Denied, Granted

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_log = structlog.get_logger()


class Claims:
    """Claims for one worker and one process of it."""

    def __init__(
        self,
        bus: Bus,
        leases: Leases,
        *,
        worker: str,
        instance: str,
        now: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """`timeout_s`: how long one answer may take."""
        self._bus = bus
        self._leases = leases
        self._subject = subjects.claim(worker)
        self._instance = instance
        self._now = now
        self._timeout_s = timeout_s

    async def claim(
        self, job_id: UUID, delivery: str, *, give_up_at: float
    ) -> tuple[Attempt, Granted] | DenyReason | None:
        """Claim until answered: what was granted, why it was denied, or None when `give_up_at` passed unanswered."""
        body = Claim(job_id=job_id, delivery=delivery, instance=self._instance).model_dump_json().encode()
        tries, wait_s = 0, _FIRST_WAIT_S
        while self._now() < give_up_at:
            tries += 1
            asked_at = self._now()
            try:
                message = await self._bus.request(self._subject, body, timeout_s=self._timeout_s)
                reply = ClaimReply.validate_json(message.data)
            except (BusError, ValidationError) as error:
                if tries & (tries - 1) == 0:
                    _log.warning("claim not answered", job_id=str(job_id), tries=tries, error=str(error)[:200])
                left_s = give_up_at - self._now()
                await asyncio.sleep(max(0.0, min(wait_s * random.uniform(0.8, 1.2), left_s)))  # noqa: S311 - jitter
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
                continue
            if isinstance(reply, Denied):
                return reply.reason
            return self._leases.open(reply, delivery, asked_at), reply
        return None
