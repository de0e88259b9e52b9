"""Failpoints: a closed list, each at one kind of place and with a test, and nothing that could arm one by accident."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.settings import load_settings
from coordinator.settings import CoordinatorSettings
from shared.errors import ConfigurationError
from shared.failpoints import Failpoint, arm, reach

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("agent", "coordinator", "shared")


def test_no_program_but_that_of_the_crash_tests_can_arm_one(monkeypatch):
    with pytest.raises(RuntimeError, match="failpoints are for"):
        arm(Failpoint.PULLED)
    monkeypatch.setenv("TANDEM_FAILPOINT", "pulled")
    with pytest.raises(ConfigurationError, match="TANDEM_FAILPOINT"):
        CoordinatorSettings.load(None)
    monkeypatch.setenv("TANDEM_AGENT_FAILPOINT", "pulled")
    with pytest.raises(ConfigurationError, match="TANDEM_AGENT_FAILPOINT"):
        load_settings(None, {"worker": "mini"})
    reach(Failpoint.PULLED)  # nothing was armed: this process lives


def test_the_programs_know_no_more_of_them_than_where_they_stand():
    for path in _sources(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "shared.failpoints":
                assert {alias.name for alias in node.names} == {"Failpoint", "reach"}, path
            elif isinstance(node, ast.Import | ast.ImportFrom):
                assert not any(alias.name.endswith("failpoints") for alias in node.names), path


def test_the_code_reaches_exactly_what_is_listed():
    calls = [call for path in _sources(*PACKAGES) for call in _calls(path, "reach")]
    for call in calls:
        assert len(call.args) == 1
        assert ast.unparse(call.args[0]).startswith("Failpoint.")
    reached = [ast.unparse(call.args[0]).removeprefix("Failpoint.") for call in calls]
    assert sorted(reached) == sorted(point.name for point in Failpoint)


@pytest.mark.parametrize("point", Failpoint)
def test_each_has_a_test_in_which_a_process_dies_there(point):
    assert any(_uses(path, f"Failpoint.{point.name}") for path in (ROOT / "tests/crash").glob("test_failpoints_*.py"))


def _sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from (ROOT / package).rglob("*.py")


def _calls(path: Path, name: str) -> list[ast.Call]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]


def _uses(path: Path, name: str) -> bool:
    return any(isinstance(n, ast.Attribute) and ast.unparse(n) == name for n in ast.walk(ast.parse(path.read_text())))
