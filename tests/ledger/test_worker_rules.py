"""The rules that an operator tells a worker: kept with who said so, and handed back with its presence."""

from coordinator.ledger import views
from coordinator.ledger.views import Row
from shared.rules import Rule, Rules
from shared.wire import Presence
from tests.support.ledger import Desk

RULES = Rules(hours=("mon-fri 22:00-07:00", "sat,sun"), battery_above=60, stops=frozenset({Rule.THERMAL, Rule.HOURS}))
SAID = {"hours": ["mon-fri 22:00-07:00", "sat,sun"], "battery_above": 60, "stops": ["hours", "thermal"]}


async def announce(desk: Desk, worker: str = "mini") -> Row:
    row = await desk.queries.save_presence(worker, None, Presence(instance="i"))
    assert row is not None
    return {"rules": row.rules}


async def acts(desk: Desk) -> list[tuple[str, ...]]:
    rows = await desk.pool.fetch("SELECT actor, action, subject, note FROM operator_action ORDER BY id")
    return [tuple(row) for row in rows]


async def test_a_presence_brings_back_the_rules_that_were_told(desk: Desk) -> None:
    assert await announce(desk) == {"rules": None}
    assert await desk.queries.set_rules("mini", RULES, actor="boss")
    assert await announce(desk) == {"rules": SAID}
    assert [row.rules for row in await desk.queries.workers()] == [SAID]
    assert [row["rules"] for row in await views.workers(desk.pool, 30)] == [SAID]
    assert Rules.model_validate(SAID) == RULES


async def test_no_rules_are_something_else_than_its_own(desk: Desk) -> None:
    await announce(desk)
    await desk.queries.set_rules("mini", Rules(), actor="boss")
    assert await announce(desk) == {"rules": {}}
    await desk.queries.set_rules("mini", None, actor="boss")
    assert await announce(desk) == {"rules": None}


async def test_what_was_said_is_on_record_with_who_said_it(desk: Desk) -> None:
    await announce(desk)
    await desk.queries.set_rules("mini", Rules(on_mains=True), actor="boss")
    await desk.queries.set_rules("mini", None, actor="eve")
    assert await acts(desk) == [
        ("boss", "rules", "worker mini", '{"on_mains":true}'),
        ("eve", "rules", "worker mini", "its own"),
    ]


async def test_nobody_is_told_anything(desk: Desk) -> None:
    assert await desk.queries.set_rules("nobody", RULES, actor="boss") is False
    assert await desk.queries.workers() == []
    assert await acts(desk) == []
