"""What rules make of an event: conditions, fields, labels, keys, and each fault with the place where it is."""

from typing import Any

import pytest

from coordinator.hooks.mapping import Event, Mapped, compile_template, map_event

RULE: dict[str, Any] = {
    "enabled": True,
    "when": None,
    "kind": "article",
    "key": ["body.id"],
    "revision": None,
    "prompt": "{{ body.topic }}",
    "fields": {},
    "submission": {},
    "labels": {},
}
RULES: dict[str, Any] = {"own": ["tandem"], "when": None, "ignore": {}, "values": {}, "jobs": {"article": RULE}}
BODY: dict[str, Any] = {"id": 7, "topic": "harbour", "tags": ["a"], "none": None, "zero": 0, "empty": ""}


def mapped(body: Any = BODY, headers: dict[str, str] | None = None, **rule: Any) -> Mapped:
    rules = {**RULES, "jobs": {"article": {**RULE, **rule}}}
    return map_event("blog", rules, Event(body, headers or {}))


def test_fields_go_on_top_of_what_every_job_has() -> None:
    base = {"model": "m", "spec": {"options": {"temperature": 0.5}}, "labels": {"team": "a"}}
    fields = {"spec.options.seed": "body.id", "priority": "body.none", "timeout_s": 'headers."x-limit"'}

    made = mapped(
        headers={"x-limit": "60"}, submission=base, fields=fields, labels={"post": "body.id", "x": "body.none"}
    )

    assert made.submissions["article"] | {"key": ""} == {
        "kind": "article",
        "model": "m",
        "spec": {"options": {"temperature": 0.5, "seed": 7}, "prompt": "harbour"},
        "timeout_s": "60",
        "labels": {"team": "a", "post": "7"},
        "key": "",
    }
    assert base["spec"] == {"options": {"temperature": 0.5}}


def test_a_key_names_the_document_and_changes_with_what_is_asked_for() -> None:
    key = mapped().submissions["article"]["key"]

    assert key.startswith("article:7:")
    assert len(key) < 200
    assert mapped().submissions["article"]["key"] == key
    assert mapped({**BODY, "zero": 1}, labels={"zero": "body.zero"}).submissions["article"]["key"] == key
    assert mapped({**BODY, "topic": "x"}).submissions["article"]["key"] != key
    assert mapped({**BODY, "id": "7"}, key=["body.id", "body.id"]).submissions["article"]["key"] != key
    assert mapped(submission={"model": "m"}).submissions["article"]["key"] != key


def test_a_long_name_of_a_document_is_told_apart_by_the_digest() -> None:
    first, second = ({**BODY, "id": "x" * 5000 + end} for end in "ab")

    assert len(mapped(first).submissions["article"]["key"]) < 200
    assert mapped(first).submissions["article"]["key"] != mapped(second).submissions["article"]["key"]


def test_without_a_revision_that_changes_it_is_one_job_for_ever() -> None:
    first, second = mapped(revision=[]), mapped({**BODY, "topic": "x"}, revision=[])

    assert first.submissions["article"]["key"] == second.submissions["article"]["key"]


@pytest.mark.parametrize(
    ("when", "counts"),
    [
        (None, True),
        ("body.topic == 'harbour'", True),
        ("body.zero", True),
        ("body.empty", False),
        ("body.none", False),
        ("body.nothing.at.all", False),
        ("contains(own, 'tandem')", True),
        ("headers.\"x-event\" == 'publish'", True),
        ("source == 'blog'", True),
        ("`[]`", False),
        ("`{}`", False),
        ("`false`", False),
    ],
)
def test_a_condition_is_true_as_jmespath_has_it(when: str | None, *, counts: bool) -> None:
    made = map_event("blog", {**RULES, "when": when}, Event(BODY, {"x-event": "publish"}))

    assert bool(made.submissions) == counts
    assert (made.ignored is None) == counts


@pytest.mark.parametrize(
    ("rule", "where"),
    [
        ({"when": "contains(body.none, 'x')"}, "jobs.article.when"),
        ({"key": ["body.none"]}, "jobs.article.key"),
        ({"key": ["body.tags"]}, "jobs.article.key"),
        ({"labels": {"t": "body.tags"}}, "jobs.article.labels.t"),
        ({"prompt": "{{ body.nothing }}"}, "jobs.article.prompt"),
        ({"prompt": "{{ body.id.nothing }}"}, "jobs.article.prompt"),
        ({"prompt": "{{ 1 / 0 }}"}, "jobs.article.prompt"),
        ({"submission": {"spec": {"options": 3}}, "fields": {"spec.options.seed": "body.id"}}, "spec.options.seed"),
        ({"revision": ["sum(body.tags)"]}, "jobs.article.revision"),
    ],
)
def test_what_can_not_be_applied_is_a_fault_with_its_place(rule: dict[str, Any], where: str) -> None:
    made = mapped(**rule)

    assert made.submissions == {}
    assert [fault[0] for fault in made.faults] == [where]
    assert made.faults[0][1]


@pytest.mark.parametrize("body", [None, 3, "text", [], [1], True])
def test_a_body_that_is_no_object_is_a_fault_or_ignored(body: Any) -> None:
    made = mapped(body)

    assert made.faults
    assert made.submissions == {}


def test_nothing_is_worked_out_when_a_template_is_compiled() -> None:
    compile_template("{{ 9 ** (9 ** 9) }}{{ 'x' | center(99999999999) }}{% if 9 ** (9 ** 9) %}{% endif %}")
