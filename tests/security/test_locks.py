"""Dependencies are locked, each file by its hash, and the locks are those of pyproject.toml."""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy" / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])


class Locked(NamedTuple):
    """One version of one package, and the hashes of its files."""

    version: str
    hashes: list[str]


def locked(extra: str) -> dict[str, list[Locked]]:
    """Return what an extra's lock has; a package may be there more than once, for different systems."""
    found: dict[str, list[Locked]] = {}
    entries = re.split(r"\n(?=\S)", (LOCKS / f"{extra}.txt").read_text().strip())
    for entry in (one for one in entries if not one.startswith("#")):
        name, version = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry).groups()  # type: ignore[union-attr]
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        found.setdefault(canonicalize_name(name), []).append(Locked(version, hashes))
    return found


def wanted(extra: str) -> list[Requirement]:
    """Return what pyproject.toml asks for with an extra, other extras of its own included."""
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if requirement.name == PROJECT["name"]:
            found += [one for other in requirement.extras for one in wanted(other)]
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_lock_has_all_that_is_wanted_in_a_version_that_fits(extra: str) -> None:
    lock = {name: [one.version for one in found] for name, found in locked(extra).items()}
    wrong = []
    for requirement in wanted(extra):
        versions = lock.get(canonicalize_name(requirement.name), [])
        if not any(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{requirement} is not {versions}")
    assert wrong == [], "make the locks anew: docs/operations.md, Dependencies"


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_locked_file_has_its_hash(extra: str) -> None:
    lock = locked(extra)
    assert len(lock) > 10
    assert [name for name, versions in lock.items() for one in versions if not one.hashes] == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_lock_names_no_place(extra: str) -> None:
    text = (LOCKS / f"{extra}.txt").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--index|--extra-index|--find-links|--trusted)", text, re.MULTILINE)


def test_all_locks_have_the_same_versions() -> None:
    """What the agent and the coordinator share, they share in one version: they run from one installation in tests."""
    versions: dict[str, set[tuple[str, ...]]] = {}
    for extra in EXTRAS:
        for name, found in locked(extra).items():
            versions.setdefault(name, set()).add(tuple(sorted(one.version for one in found)))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
