"""What the pages say can be done: their commands exist with these options, their files and tests are there, and run.

Here they are read, by a shell and by our command lines; `test_docs_run.py` carries out those that are marked.
"""

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from agent.cli import app as agent_app
from coordinator.cli import app as tandem_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MINE = [ROOT / "deploy" / "README.md", ROOT / "docs" / "operations.md"]
BLOCK = re.compile(r"^```sh (\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = {"tandem": tandem_app, "tandem-agent": agent_app}
UsageError: Any = typer.BadParameter.__mro__[1]
MissingParameter: Any = next(one for one in typer.BadParameter.__subclasses__() if one.__name__ == "MissingParameter")
BadOptionUsage: Any = next(one for one in UsageError.__subclasses__() if one.__name__ == "BadOptionUsage")
"""Typer brings its own click."""

JOB = "018f7d3e-5a5c-7000-8000-000000000002"


def commands(text: str) -> Iterator[list[str]]:
    """Yield each command of ours in a page's blocks: fenced, or indented by four spaces."""
    fenced = [line for _, block in BLOCK.findall(text) for line in block.splitlines()]
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    for line in [*fenced, *indented]:
        words = shlex.split(line.strip(), comments=True) if line.count("'") % 2 == 0 else []
        for number, word in enumerate(words):
            before = words[:number]
            named = word.removeprefix("/opt/tandem/bin/")
            if named in PROGRAMS and before[-1:] != ["-u"] and all(is_prefix(one) for one in before):
                yield [named, *words[number + 1 :]]
                break


def is_prefix(word: str) -> bool:
    """Whether a word may stand before a command: sudo and docker, their options, and variables."""
    known = ("sudo", "-u", "tandem", "docker", "compose", "exec", "coordinator", "run", "--rm")
    return word in known or bool(re.fullmatch(r"[A-Z_]+=\S*", word))


def parsed(words: list[str]) -> None:
    """Read a command as its program would, without carrying it out; UsageError if it would refuse it."""
    command: Any = typer.main.get_command(PROGRAMS[words[0]])
    name, rest, context = words[0], words[1:], None
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not isinstance(command, TyperGroup):
            context.close()  # files that are arguments were opened
            return
        left = [*context._protected_args, *context.args]
        if not left:
            return
        name, command, rest = command.resolve_command(context, left)


SHOWN = [
    pytest.param(words, id=f"{page.parent.name}/{page.name}: {' '.join(words)[:70]}")
    for page in PAGES
    for words in commands(page.read_text())
    if not any(word in ("…", "...") or word.startswith(("[", "|")) for word in words)
]


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_that_is_shown_is_understood(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "event.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TANDEM_")]:
        monkeypatch.delenv(name)
    until = next((n for n, word in enumerate(words) if word in ("|", ">", "&&", ";")), len(words))
    parsed([JOB if word == "ID" else word for word in words[:until]])


NAMED = [
    pytest.param(shlex.split(span), id=f"{page.parent.name}/{page.name}: {span}")
    for page in PAGES
    for span in sorted(set(re.findall(r"`(tandem(?:-agent)? [^`|<…]+)`", page.read_text().replace("\n", " "))))
]


@pytest.mark.parametrize("words", NAMED)
def test_a_command_that_a_sentence_names_is_there(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments may be left out."""
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(BadOptionUsage, MissingParameter):
        parsed(words)


def test_the_reading_refuses_what_the_program_would() -> None:
    assert len(SHOWN) > 60
    with pytest.raises(UsageError):
        parsed(["tandem", "jobs", "--no-such-option"])
    with pytest.raises(UsageError):
        parsed(["tandem", "workers", "no-such-command"])


@pytest.mark.parametrize("page", MINE, ids=lambda page: page.name)
def test_a_shell_can_read_every_block(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    assert {kind for kind, _ in blocks} <= {"run", "system", "mac"}
    for _, block in blocks:
        said = subprocess.run(["bash", "-n"], input=block.encode(), capture_output=True, check=False, timeout=20)
        assert said.returncode == 0, said.stderr.decode() + block


@pytest.mark.parametrize("page", MINE, ids=lambda page: page.name)
def test_nothing_is_written_into_the_services_folder_by_another_user(page: Path) -> None:
    lines = [line for _, block in BLOCK.findall(page.read_text()) for line in block.splitlines()]
    ours = [line for line in lines if re.search(r"\btandem (backup|doctor|init|migrate|restore) .*/var/lib/", line)]
    assert ours
    assert [one for one in ours if not one.startswith(("sudo -u tandem tandem ", "docker compose exec "))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    linked = [one for one in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in one]
    named = re.findall(r"`((?:agent|coordinator|shared|tests|deploy|docs)/[\w./-]+\.\w+)(?:::\w+)?`", text)
    missing = [one for one in linked if not (page.parent / one).exists()]
    missing += [one for one in named if not (ROOT / one).exists()]
    assert missing == []


def test_the_tests_that_security_names_are_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text()))
    assert len(named) > 25
    gone = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not re.search(rf"^(async )?def {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_targets_that_a_page_names_are_in_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^    |`)make (?:[A-Z]+=\S+ )?([a-z-]+)", page.read_text(), re.MULTILINE)
    assert [target for target in named if target not in targets] == []
