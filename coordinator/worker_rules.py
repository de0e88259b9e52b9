"""By which rules a worker works: those that an operator has told it, and those that it says it follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shared.rules import Rules


@dataclass(frozen=True, slots=True)
class InForce:
    """What an agent said of its rules when it was last heard."""

    rules: dict[str, Any]
    by: str | None  # "coordinator", "settings"; None: it has no rules
    fault: str | None  # why it can't follow what it was told
    forbidden: list[str]  # why it takes no work, for people

    def words(self) -> list[str]:
        """Return the rules for people."""
        return words_of(self.rules)


def in_force(presence: Mapping[str, Any] | None) -> InForce:
    """Return what a presence tells; an agent may say anything there."""
    facts = (presence or {}).get("facts") or {}
    said = facts.get("rules")
    rules = dict(said) if isinstance(said, dict) else {}
    by = rules.pop("by", None)
    fault, forbidden = facts.get("rules_fault"), facts.get("forbidden")
    return InForce(
        rules=rules,
        by=str(by) if by is not None else None,
        fault=str(fault) if fault else None,
        forbidden=[str(one) for one in forbidden] if isinstance(forbidden, list) else [],
    )


def words_of(rules: Mapping[str, Any]) -> list[str]:
    """Return rules for people, each in a few words; empty: none is set."""
    try:
        return Rules.model_validate(rules).words()
    except ValidationError:
        return ["rules of another version"]
