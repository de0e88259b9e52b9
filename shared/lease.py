"""The lease protocol on one page: its times, and the inequalities between them.

A lease is a row in the ledger, good until `lease_expires_at` by Postgres's clock. The agent sends `+WPI` every
`heartbeat_s`; each one extends JetStream's ack-wait and the lease to `lease_ttl_s` from now, never past the attempt's
deadline. JetStream's ack-wait equals the ttl: it only decides when a message is handed out again. Who may deliver a
result is decided by the epoch alone.

    granted ──hb──hb──hb──────────── ttl ────────────► lapsed ──► pending, same epoch
       │                                                  │           │        │
       │                              late heartbeat: resumed ◄───────┘        ▼
       └── epoch e                                                   next claim: epoch e+1 (e is stale for ever)

Inequalities, checked at start: heartbeat_s < lease_ttl_s / 2, so that one lost heartbeat loses no lease;
presence_s <= lease_ttl_s, so that a ghost lease ends before it would lapse.
"""

from dataclasses import dataclass

from shared.backoff import retry_delay_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers that transitions decide by; durations in seconds (PROTOCOL, Defaults)."""

    lease_ttl_s: float = 90.0
    heartbeat_s: float = 30.0
    presence_s: float = 10.0
    max_attempts: int = 5
    max_lease_losses: int = 5  # holders that died, or were never heard of after their claim
    max_silences: int = 20  # holders that fell silent in the middle: asleep, out of reach
    retry_base_s: float = 10.0
    retry_max_s: float = 600.0
    elsewhere_delay_s: float = 2.0

    def __post_init__(self) -> None:
        """Refuse numbers that can't work together, naming them."""
        if not 0 < self.heartbeat_s < self.lease_ttl_s / 2:
            msg = f"heartbeat_s must be below lease_ttl_s / 2: {self.heartbeat_s} is not below {self.lease_ttl_s / 2}"
            raise ValueError(msg)
        if not 0 < self.presence_s <= self.lease_ttl_s:
            msg = f"presence_s must be at most lease_ttl_s: {self.presence_s} > {self.lease_ttl_s}"
            raise ValueError(msg)
        for limit in ("max_attempts", "max_lease_losses", "max_silences"):
            if getattr(self, limit) < 1:
                msg = f"limits start at 1: {limit} is {getattr(self, limit)}"
                raise ValueError(msg)

    def retry_delay_s(self, failures: int, jitter: float) -> float:
        """Return the wait before the attempt after the `failures`-th failure; `jitter` in [-1, 1] is ±20 %."""
        return retry_delay_s(failures, jitter, base_s=self.retry_base_s, most_s=self.retry_max_s)
