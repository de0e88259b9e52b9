"""What a submission may say, and what is said of one that is wrong."""

from typing import Any

import orjson
import pytest

from shared.submission import Submission, parse_submission
from shared.text import MOST_DEPTH, has_nul, too_deep
from shared.wire import BadMessageError

ARTICLE: dict[str, Any] = {"kind": "article", "spec": {"prompt": "A story"}}


def _parse(**more: Any) -> Submission:
    return parse_submission(orjson.dumps({**ARTICLE, **more}), frozenset({"outline"}))


def _faults(**more: Any) -> list[tuple[str, str]]:
    with pytest.raises(BadMessageError) as caught:
        _parse(**more)
    assert caught.value.code == "invalid"
    return [(fault.field, fault.message) for fault in caught.value.faults]


def _nested(levels: int) -> Any:
    value: Any = "end"
    for number in range(levels):
        value = [value] if number % 2 else {"inner": value}
    return value


@pytest.mark.parametrize("prompt", ["explain \\u0000 in JSON", "\\\\u0000", "u0000"])
def test_text_that_only_speaks_of_nul_is_taken(prompt: str) -> None:
    assert _parse(spec={"prompt": prompt}).spec["prompt"] == prompt


@pytest.mark.parametrize(
    "spec", [{"points": ["a", {"b": "\x00"}]}, {"\x00": 1}, {"prompt": "a\x00b"}, {"points": [{"a\x00": [1]}]}]
)
def test_nul_anywhere_in_a_spec_is_a_fault(spec: dict[str, Any]) -> None:
    assert _faults(kind="outline", spec=spec) == [("spec", "text must not contain NUL")]


def test_values_without_nul_are_seen_as_such() -> None:
    assert not has_nul({"a": [1, 2.5, None, True, "text", {"b": []}]})


def test_nesting_is_counted_in_levels() -> None:
    assert not too_deep(_nested(3), 3)
    assert too_deep(_nested(4), 3)
    assert not too_deep("text", 0)


@pytest.mark.parametrize("levels", [MOST_DEPTH, 300, 900])
def test_a_spec_without_an_end_is_refused_clearly(levels: int) -> None:
    body = b'{"kind": "outline", "spec": {"points": %b%b}}' % (b"[" * levels, b"]" * levels)
    with pytest.raises(BadMessageError, match="nested more than 100 levels deep"):
        parse_submission(body, frozenset({"outline"}))


def test_a_spec_of_many_levels_is_taken() -> None:
    assert _parse(kind="outline", spec={"points": _nested(MOST_DEPTH - 2)})


def test_more_than_a_thousand_messages_are_a_fault() -> None:
    message = {"role": "user", "content": "And then?"}
    assert _parse(spec={"messages": [message] * 1000})
    ((field, text),) = _faults(spec={"messages": [message] * 1001})
    assert field == "spec.messages"
    assert "1000" in text


@pytest.mark.parametrize("kind", ["Not A Kind", "", "x" * 40])
def test_a_malformed_kind_is_one_fault(kind: str) -> None:
    assert [field for field, _ in _faults(kind=kind)] == ["kind"]


def test_an_unknown_kind_is_named_with_the_known_ones() -> None:
    assert _faults(kind="video") == [("kind", "unknown kind 'video'; known here: article, image, outline")]


@pytest.mark.parametrize("run_after", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_an_instant_outside_the_years_that_utc_has_is_a_fault(run_after: str) -> None:
    assert _faults(run_after=run_after) == [("run_after", "must lie between the years 1 and 9999 in UTC")]


def test_the_last_instants_are_taken() -> None:
    assert _parse(run_after="9999-12-31T23:59:59+12:00").run_after is not None
