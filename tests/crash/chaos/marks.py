"""Which test stands for what, read out of the sources: kinds of fault by their marks, failpoints by their names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MEMBER = re.compile(r'^    ([A-Z_]+) = "[a-z-]+"  # (.+)$', re.MULTILINE)


class Point(NamedTuple):
    """A failpoint, where it is, and the file that tests it."""

    name: str
    what: str
    test: str


def fault_tests(tests: Path) -> dict[int, list[str]]:
    """Return `file::test` for each number that a test, its class or its module is marked with as `fault(number)`."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        name = str(path.relative_to(tests.parent))
        tree = ast.parse(path.read_text())
        for number in _numbers(_module_marks(tree)):
            found[number].append(name)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for number in _numbers(node.decorator_list):
                    found[number].append(f"{name}::{node.name}")
    return dict(found)


def failpoints(root: Path) -> list[Point]:
    """Return the failpoints with what their lines say of them; KeyError for one that no test names."""
    source = root / "shared" / "failpoints.py"
    if not source.exists():
        return []
    tests = {path: path.read_text() for path in sorted((root / "tests").rglob("test_failpoints*.py"))}

    def test_of(name: str) -> str:
        for path, text in tests.items():
            if re.search(rf"\b{name}\b", text):
                return str(path.relative_to(root))
        msg = f"no test names the failpoint {name}"
        raise KeyError(msg)

    return [Point(name, what, test_of(name)) for name, what in _MEMBER.findall(source.read_text())]


def _module_marks(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what a module is marked with as a whole."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            yield node.value


def _numbers(marks: "Iterator[ast.AST] | list[ast.expr]") -> list[int]:
    """Return the numbers of all `….fault(number, …)` calls in these expressions."""
    return [
        argument.value
        for mark in marks
        for call in ast.walk(mark)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "fault"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    ]
