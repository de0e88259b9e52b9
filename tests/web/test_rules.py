"""When a worker works, said over HTTP and by the form: checked field by field, asked once more, and on record."""

import re
from typing import Any

import pytest

from shared.wire import Presence
from tests.support.web import Web
from tests.web.test_login import csrf_of, log_in

PATH = "/v1/workers/mini/rules"
FOLLOWS = {"on_mains": True, "by": "settings"}


async def announce(site: Web, **facts: Any) -> None:
    said = {"instance": "i", "capabilities": [{"kind": "article"}], "facts": facts}
    await site.intake.queries.save_presence("mini", None, Presence.model_validate(said))


async def told(site: Web) -> Any:
    return await site.pool.fetchval("SELECT rules::text FROM worker WHERE name = 'mini'")


async def acts(site: Web) -> list[tuple[str, ...]]:
    rows = await site.pool.fetch("SELECT actor, action, subject, note FROM operator_action ORDER BY id")
    return [tuple(row) for row in rows]


# ---- over HTTP


async def test_rules_are_told_shown_and_taken_back(guarded: Web) -> None:
    await announce(guarded, rules=FOLLOWS, not_pulling="on_battery", forbidden=["works on mains only"])
    before = {
        "worker": "mini",
        "rules": None,
        "in_force": {"on_mains": True},
        "by": "settings",
        "fault": None,
        "forbidden": ["works on mains only"],
    }
    assert await guarded.call("GET", PATH, token="viewer") == before
    rules = {"hours": ["22:00-07:00"], "idle_s": 600.0}
    assert await guarded.call("PUT", PATH, token="admin", json=rules) == {**before, "rules": rules}
    (worker,) = (await guarded.call("GET", "/v1/workers", token="viewer"))["workers"]
    assert worker["rules"] == rules
    assert await guarded.call("DELETE", PATH, token="admin") == before
    assert await acts(guarded) == [
        ("boss", "rules", "worker mini", '{"hours":["22:00-07:00"],"idle_s":600.0}'),
        ("boss", "rules", "worker mini", "its own"),
    ]


async def test_what_is_no_rule_is_refused_field_by_field(guarded: Web) -> None:
    await announce(guarded)
    body = {"hours": ["sat", "whenever"], "battery_above": 100, "phase_of_the_moon": "full", "stops": ["lunch"]}
    refused = await guarded.call("PUT", PATH, token="admin", json=body, expect=422)
    assert [fault["field"] for fault in refused["error"]["faults"]] == [
        "hours.1",
        "battery_above",
        "stops.0",
        "phase_of_the_moon",
    ]
    await guarded.call("PUT", PATH, token="admin", json={"idle_s": "60"}, expect=422)
    await guarded.call("PUT", PATH, token="admin", data=b"", expect=400)
    assert (await told(guarded), await acts(guarded)) == (None, [])


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", {}), ("DELETE", None)])
async def test_a_worker_that_nobody_heard_of_has_no_rules(guarded: Web, method: str, body: Any) -> None:
    await guarded.call(method, PATH, token="admin", json=body, expect=404)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_only_an_admin_tells_rules(guarded: Web, method: str) -> None:
    await announce(guarded)
    for token in ("viewer", "publisher"):
        await guarded.call(method, PATH, token=token, json={}, expect=403)
    await guarded.call("GET", PATH, token="publisher", expect=403)


async def test_what_an_agent_says_of_its_rules_breaks_no_page(site: Web) -> None:
    for said in ("nonsense", {"hours": 7, "by": ["x"]}, None, [1]):
        await announce(site, rules=said, forbidden=said, rules_fault=said)
        await site.call("GET", PATH)
        for page in ("/workers", "/workers/mini/rules", "/"):
            await site.call("GET", page)


# ---- by the form


def field(page: str, name: str) -> str:
    """Return the label of a field, with all that it says."""
    found = re.search(rf'<label[^>]*>(?:(?!</label>).)*name="{name}".*?</label>', page, re.DOTALL)
    assert found is not None, name
    return found[0]


def hidden(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))


async def send(site: Web, fields: dict[str, str], *, expect: int = 200) -> str:
    page = await site.call("GET", "/workers/mini/rules")
    form = {"csrf": csrf_of(page), **fields}
    text: str = await site.call("POST", "/workers/mini/rules", data=form, expect=expect, allow_redirects=False)
    return text


async def test_the_form_begins_with_what_the_agent_follows_then_with_what_it_was_told(guarded: Web) -> None:
    await log_in(guarded, "t-admin")
    await announce(guarded, rules=FOLLOWS, forbidden=["works on mains only"])
    page = await guarded.call("GET", "/workers/mini/rules")
    assert "checked" in field(page, "on_mains")
    assert "checked" not in field(page, "no_low_power")
    assert "Now it takes nothing: works on mains only." in page
    rules = {"hours": ["sat,sun", "22:00-07:00"], "idle_s": 90.5, "stops": ["idle_s"], "thermal": "moderate"}
    await guarded.call("PUT", PATH, token="admin", json=rules)
    page = await guarded.call("GET", "/workers/mini/rules")
    assert "checked" not in field(page, "on_mains")
    assert "sat,sun\n22:00-07:00</textarea>" in field(page, "hours")
    assert 'value="90.5"' in field(page, "idle_s")
    assert "<option selected>moderate" in field(page, "thermal")
    assert re.findall(r'name="stops" value="(\w+)" checked', page) == ["idle_s"]


async def test_what_is_wrong_is_said_beside_its_field_and_nothing_typed_is_lost(guarded: Web) -> None:
    await log_in(guarded, "t-admin")
    await announce(guarded)
    wrong = {"hours": "sat\r\nwhenever", "time_zone": "Mars/Olympus", "battery_above": "many", "idle_s": "60"}
    page = await send(guarded, wrong, expect=422)
    assert "as in mon-fri or sat,sun: &#39;whenever&#39;" in field(page, "hours")
    assert "sat\nwhenever</textarea>" in field(page, "hours")
    assert "unknown time zone" in field(page, "time_zone")
    assert "valid integer" in field(page, "battery_above")
    assert 'aria-invalid="true"' in field(page, "battery_above")
    assert "fault" not in field(page, "idle_s")
    assert 'value="60"' in field(page, "idle_s")
    assert (await told(guarded), await acts(guarded)) == (None, [])


async def test_it_asks_once_more_and_then_tells(guarded: Web) -> None:
    await log_in(guarded, "t-admin")
    await announce(guarded)
    fields = {"hours": "mon-fri 22:00-07:00\r\n\r\n sat,sun ", "on_mains": "yes", "stops": "on_mains", "thermal": ""}
    page = await send(guarded, fields)
    assert "Shall mini work by these rules?" in page
    assert "<li>mon-fri 22:00-07:00; sat,sun</li><li>on mains only</li>" in page
    assert await told(guarded) is None
    async with guarded.client.post("/workers/mini/rules", data=hidden(page), allow_redirects=False) as done:
        assert (done.status, done.headers["Location"]) == (303, "/workers")
    said = '{"hours":["mon-fri 22:00-07:00","sat,sun"],"on_mains":true,"stops":["on_mains"]}'
    assert await acts(guarded) == [("boss", "rules", "worker mini", said)]
    assert "mini is told its rules; it follows them within 10 s." in await guarded.call("GET", "/workers")


async def test_its_own_rules_count_again_after_a_question(guarded: Web) -> None:
    await log_in(guarded, "t-admin")
    await announce(guarded)
    assert "/rules/clear" not in await guarded.call("GET", "/workers/mini/rules")
    await guarded.call("PUT", PATH, token="admin", json={"on_mains": True})
    assert 'action="/workers/mini/rules/clear"' in await guarded.call("GET", "/workers/mini/rules")
    page = await guarded.call("GET", "/workers/mini/rules/clear")
    assert "Its own rules for mini?" in page
    assert await told(guarded) is not None
    await guarded.call("POST", "/workers/mini/rules/clear", data={"csrf": csrf_of(page)})
    assert await told(guarded) is None


async def test_forms_of_others_and_readers_change_nothing(guarded: Web) -> None:
    await announce(guarded)
    await log_in(guarded, "t-viewer")
    page = await guarded.call("GET", "/workers")
    assert "/workers/mini/rules" not in page
    form = {"csrf": csrf_of(page), "sure": "yes", "on_mains": "yes"}
    await guarded.call("GET", "/workers/mini/rules", expect=403)
    for path in ("/workers/mini/rules", "/workers/mini/rules/clear"):
        await guarded.call("POST", path, data=form, expect=403)
    await guarded.call("POST", "/logout", data={"csrf": form["csrf"]})
    await log_in(guarded, "t-admin")
    for path in ("/workers/mini/rules", "/workers/mini/rules/clear"):
        refused = await guarded.call("POST", path, data=form, expect=403)
        assert refused["error"]["code"] == "foreign_form"
    assert (await told(guarded), await acts(guarded)) == (None, [])
