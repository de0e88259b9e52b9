"""The doors: a coordinator that can't reach its ledger answers nobody, so that another one does.

Claims, heartbeats, lease questions and presences are shared by the coordinators' queue group. One that is cut off from
Postgres alone would go on drawing its share of them, to drop it: healthy leases would lapse. So it leaves the group,
and comes back when the reaper has seen the ledger again and given the leases their grace.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from shared.bus import Subscription

_log = structlog.get_logger()


@dataclass(slots=True)
class Doors:
    """Each round the subscriptions are open exactly while the ledger can be reached."""

    subscribe: Sequence[Callable[[], Awaitable[list[Subscription]]]]
    can_serve: Callable[[], bool]
    _open: list[Subscription] = field(default_factory=list)

    @property
    def are_open(self) -> bool:
        """Whether this coordinator answers."""
        return bool(self._open)

    async def once(self) -> None:
        """Open or close."""
        if self.can_serve() and not self._open:
            await self.open()
        elif self._open and not self.can_serve():
            _log.warning("the ledger can't be reached: answering nobody")
            await self.close()

    async def open(self) -> None:
        """Join the group."""
        opened: list[Subscription] = []
        try:
            for subscribe in self.subscribe:
                opened += await subscribe()
        except BaseException:
            for subscription in opened:
                await subscription.close()
            raise
        self._open = opened

    async def close(self) -> None:
        """Leave the group."""
        for subscription in self._open:
            await subscription.close()
        self._open.clear()
