"""How an event is taken: within bounds of size and time, whoever hangs up; and what a template may do, and may not."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from yarl import URL

from coordinator.hooks.config import Source, load
from coordinator.hooks.hooks import Hooks
from coordinator.hooks.mapper import MapperDownError
from coordinator.hooks.mapping import Event, map_event
from tests.hooks.conftest import Open
from tests.hooks.senders import PLAIN, WHSEC, body_of, standard
from tests.support.web import Web
from tests.support.world import eventually_async

OWN = """
[sources.own]
check = {{ kind = "bearer", secrets = ["{secret}"] }}
[sources.own.jobs.article]
kind = "article"
key = ["body.id"]
prompt = {prompt!r}
{more}
[sources.neighbour]
preset = "standard"
check.secrets = ["{whsec}"]
"""
BEARER = {"Authorization": f"Bearer {PLAIN}"}


def own(prompt: str = "{{ body.topic }}", more: str = "") -> str:
    return OWN.format(secret=PLAIN, whsec=WHSEC, prompt=prompt, more=more)


async def send(site: Web, body: Any, *, expect: int) -> Any:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return await site.call("POST", "/hooks/own", data=io.BytesIO(data), headers=BEARER, expect=expect)


async def rejected(site: Web) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await site.call("GET", "/v1/rejected", token="admin"))["submissions"]
    return found


async def the_neighbour_is_served(site: Web) -> None:
    body = body_of("standard")
    await site.call("POST", "/hooks/neighbour", data=body, headers=standard(body), expect=202)


async def test_a_source_that_is_not_configured_is_not_found(open_hooks: Open) -> None:
    async with open_hooks(own()) as site:
        await site.call("POST", "/hooks/nobody", data=b"{}", expect=404)
        await site.call("GET", "/hooks/own", expect=405)


async def test_what_rules_can_not_be_applied_to_is_refused_and_put_on_record(open_hooks: Open) -> None:
    async with open_hooks(own()) as site:
        told = await send(site, {"id": 7}, expect=422)

        assert [fault["field"] for fault in told["error"]["faults"]] == ["jobs.article.prompt"]
        (kept,) = await rejected(site)
        assert (kept["source"], kept["code"]) == ("own", "hook")
        assert kept["body"] == '{"id":7}'
        assert "'topic'" in kept["reason"]


@pytest.mark.parametrize("body", [b"", b"not JSON", b"\xff", b"event=post.saved&title=x", b"[" * 200 + b"]" * 200])
async def test_a_body_that_is_not_json_is_refused_and_put_on_record(open_hooks: Open, body: bytes) -> None:
    async with open_hooks(own()) as site:
        await send(site, body, expect=422)

        assert [kept["source"] for kept in await rejected(site)] == ["own"]


async def test_what_intake_refuses_is_refused_with_the_rule_named(open_hooks: Open) -> None:
    more = """
    fields."spec.options.temperature" = "body.heat"
    [sources.own.jobs.image]
    kind = "image"
    key = ["body.id"]
    prompt = "{{ body.topic }}"
    """
    async with open_hooks(own(more=more)) as site:
        told = await send(site, {"id": 7, "topic": "harbour", "heat": 9}, expect=422)

        assert [f["field"] for f in told["error"]["faults"]] == ["jobs.article.spec.options.temperature"]
        (kept,) = await rejected(site)
        assert kept["source"] == "own"
        (job,) = (await site.call("GET", "/v1/jobs", token="admin"))["jobs"]
        assert job["kind"] == "image"


async def test_a_key_that_is_known_is_taken_and_its_new_content_goes_on_record(open_hooks: Open) -> None:
    async with open_hooks(own(more='revision = ["body.rev"]')) as site:
        first = await send(site, {"id": 7, "rev": 1, "topic": "harbour"}, expect=202)
        again = await send(site, {"id": 7, "rev": 1, "topic": "lighthouse"}, expect=200)
        newer = await send(site, {"id": 7, "rev": 2, "topic": "lighthouse"}, expect=202)

        assert again["jobs"] == [{**first["jobs"][0], "result": "conflict"}]
        assert newer["jobs"][0]["id"] != first["jobs"][0]["id"]
        (kept,) = await rejected(site)
        assert (kept["source"], kept["code"]) == ("own", "conflict")
        assert first["jobs"][0]["id"] in kept["reason"]


async def test_a_body_of_two_mebibytes_is_too_large_announced_or_not(open_hooks: Open) -> None:
    async def in_chunks() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield b"x" * 65536

    async with open_hooks(own()) as site:
        await send(site, b"x" * (2 << 20), expect=413)
        await site.call("POST", "/hooks/own", data=in_chunks(), headers=BEARER, expect=413)
        most = orjson.dumps({"id": 7, "topic": "harbour", "html": "x" * (1 << 20)})
        assert len(most) > 1 << 20
        await send(site, most, expect=413)
        await send(site, orjson.dumps({"id": 7, "topic": "harbour", "html": "x" * 1_048_000}), expect=202)


async def test_a_bulk_edit_has_room_and_what_has_none_is_told_to_come_back(
    open_hooks: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_hooks(own()) as site:
        hooks = site.context.hooks
        assert hooks is not None
        many = [send(site, {"id": number, "topic": "harbour"}, expect=202) for number in range(200)]
        await asyncio.gather(*many)
        monkeypatch.setattr("coordinator.hooks.hooks.AT_ONCE_BYTES", 100)
        told = await send(site, {"id": 7, "topic": "x" * 100}, expect=503)
        await send(site, {"id": 7}, expect=422)
        await site.call("POST", "/hooks/own", data=b"{}", expect=401)

        assert told["error"]["code"] == "busy"
        ends = {"taken": 200, "ignored": 0, "refused": 1, "unauthorized": 1, "busy": 1, "failed": 0}
        assert hooks.status()["own"] == ends


async def test_a_sender_that_hangs_up_after_its_body_loses_nothing(open_hooks: Open) -> None:
    async with open_hooks(own()) as site:
        url, body = URL(site.runner.url), b'{"id": 7, "topic": "harbour"}'
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = ["POST /hooks/own HTTP/1.1", "Host: x", f"Authorization: Bearer {PLAIN}", f"Content-Length: {len(body)}"]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        writer.close()

        async def there() -> bool:
            return len((await site.call("GET", "/v1/jobs", token="admin"))["jobs"]) == 1

        await eventually_async(there)


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in body.many %}{% for b in body.many %}{% for c in body.many %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro again() %}{{ again() }}{{ again() }}{% endmacro %}{{ again() }}",
    "{{ 9 ** (9 ** 9) }}",
]


@pytest.mark.parametrize("prompt", ENDLESS)
async def test_a_template_without_end_is_ended_and_disturbs_nobody(open_hooks: Open, prompt: str) -> None:
    async with open_hooks(own(prompt)) as site:
        event = {"id": 7, "many": list(range(10000))}
        told = await send(site, event, expect=422)
        await the_neighbour_is_served(site)
        again = await send(site, event, expect=422)

        assert "computing time" in str(told["error"]) or "recursion" in str(told["error"])
        assert again["error"]["faults"] == told["error"]["faults"]
        assert len(await rejected(site)) == 2


LARGE = [
    "{{ 'x' * 10 ** 11 }}",
    "{{ 'x' | center(10 ** 11) }}",
    "{{ '%099999999999d' % 1 }}",
    "{% for a in range(9) %}{{ 'x' * 1000000 }}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
]


@pytest.mark.parametrize("prompt", LARGE)
async def test_a_template_that_makes_too_much_is_refused(open_hooks: Open, prompt: str) -> None:
    async with open_hooks(own(prompt)) as site:
        await send(site, {"id": 7}, expect=422)
        await the_neighbour_is_served(site)

        assert (await rejected(site))[0]["source"] == "own"


ABUSE = [
    "{{ body.__class__ }}",
    "{{ body.topic.__class__.__mro__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ body | attr('items') }}",
    "{{ body.items() }}",
    "{{ '{0.__class__}'.format(body) }}",
    "{{ body.many.append(1) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ lipsum() }}",
    "{% include '/etc/passwd' %}",
    "{{ config }}",
]


@pytest.mark.parametrize("prompt", ABUSE)
def test_a_template_reaches_nothing_but_the_event(prompt: str) -> None:
    rules = {"own": [], "when": None, "ignore": {}, "values": {}}
    rule = {
        "enabled": True,
        "when": None,
        "kind": "article",
        "key": ["body.id"],
        "revision": None,
        "prompt": prompt,
        "fields": {},
        "submission": {},
        "labels": {},
    }
    event = Event({"id": 7, "topic": "harbour", "many": [1]}, {})

    mapped = map_event("own", {**rules, "jobs": {"article": rule}}, event)

    said = str(mapped.submissions.get("article", {}).get("spec"))
    assert mapped.faults or not any(word in said for word in ("class", "built-in", "function", "object at")), said


async def test_a_field_of_the_body_is_not_taken_for_a_method(open_hooks: Open) -> None:
    async with open_hooks(
        own("{{ body.items }} {{ body['values'] }}{% for k, v in body.keys | items %} {{ k }}{% endfor %}")
    ) as site:
        told = await send(site, {"id": 7, "items": "A", "values": "B", "keys": {"c": 1}}, expect=202)

        job = await site.call("GET", f"/v1/jobs/{told['jobs'][0]['id']}", token="admin")
        assert job["spec"]["prompt"] == "A B c"


async def test_what_proves_the_sender_is_not_shown_to_rules(open_hooks: Open) -> None:
    async with open_hooks(own("{{ headers | dictsort }}")) as site:
        told = await send(site, {"id": 7}, expect=202)

        job = await site.call("GET", f"/v1/jobs/{told['jobs'][0]['id']}", token="admin")
        assert "content-length" in job["spec"]["prompt"]
        assert PLAIN not in job["spec"]["prompt"]


async def test_a_mapper_that_was_killed_is_there_again_for_the_next_event(open_hooks: Open) -> None:
    async with open_hooks(own()) as site:
        assert site.context.hooks is not None
        mapper = site.context.hooks._mappers["own"]
        await send(site, {"id": 7, "topic": "harbour"}, expect=202)
        assert mapper._process is not None
        mapper._process.kill()

        await send(site, {"id": 8, "topic": "harbour"}, expect=202)


async def test_a_machine_without_room_for_a_mapper_has_events_sent_again(
    open_hooks: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_hooks(own()) as site:
        assert site.context.hooks is not None
        mapper = site.context.hooks._mappers["own"]
        assert mapper._process is not None
        with monkeypatch.context() as starts_nothing:
            starts_nothing.setattr("coordinator.hooks.mapper.sys.executable", "/nowhere/python")
            mapper._process.kill()
            told = await send(site, {"id": 7, "topic": "harbour"}, expect=503)
            assert "can't be started" in told["error"]["message"]

        await send(site, {"id": 7, "topic": "harbour"}, expect=202)


async def test_no_mapper_stays_when_another_can_not_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sources.toml"
    file.write_text(own())
    monkeypatch.setattr(Source, "rules", _only_once(monkeypatch, Source.rules))
    hooks = Hooks(load(file), submit=_nobody, record=_nobody)
    with pytest.raises(MapperDownError):
        async with hooks:
            pass
    (first,) = hooks._mappers.values()
    assert first._process is None


def _only_once(monkeypatch: pytest.MonkeyPatch, rules: Any) -> Any:
    """Return the rules; the second time, no process can be started any more."""
    seen: list[Source] = []

    def asked(source: Source) -> Any:
        if seen:
            monkeypatch.setattr("coordinator.hooks.mapper.sys.executable", "/nowhere/python")
        seen.append(source)
        return rules(source)

    return asked


async def _nobody(*_: Any) -> Any:
    raise AssertionError
