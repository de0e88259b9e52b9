"""What a check of a doctor found: the agent's (`agent.doctor`), or the coordinator's (`coordinator.doctor`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, how it is, and what to do if that is a fault."""

    what: str
    ok: bool
    said: str
    todo: str = ""
