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
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
FILES = ("agent", "build", "embedded")
"""By extra: what a Mac and a server install (the server's includes the coordinator's); and what builds Tandem there."""
OF_NKEYS = "setuptools>=68"
"""What builds nkeys, the one dependency that comes as source alone."""


class Locked(NamedTuple):
    """One version of one package, and the hashes of its files."""

    version: str
    hashes: list[str]


def locked(name: str) -> dict[str, list[Locked]]:
    """Return what a lock has; a package may be there more than once, for different systems."""
    found: dict[str, list[Locked]] = {}
    entries = re.split(r"\n(?=\S)", (LOCKS / f"{name}.txt").read_text().strip())
    for entry in (one for one in entries if not one.startswith("#")):
        package, version = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry).groups()  # type: ignore[union-attr]
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        found.setdefault(canonicalize_name(package), []).append(Locked(version, hashes))
    return found


def wanted(name: str) -> list[Requirement]:
    """Return what pyproject.toml asks for: to build Tandem, or with an extra, other extras of its own included."""
    if name == "build":
        return [Requirement(text) for text in (*PYPROJECT["build-system"]["requires"], OF_NKEYS)]
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    for requirement in map(Requirement, PROJECT["optional-dependencies"][name]):
        if requirement.name == PROJECT["name"]:
            found += [one for other in requirement.extras for one in wanted(other)]
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize("name", FILES)
def test_the_lock_has_all_that_is_wanted_in_a_version_that_fits(name: str) -> None:
    lock = {package: [one.version for one in found] for package, found in locked(name).items()}
    wrong = []
    for requirement in wanted(name):
        versions = lock.get(canonicalize_name(requirement.name), [])
        if not any(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{requirement} is not {versions}")
    assert wrong == [], "make the locks anew: docs/operations.md, Dependencies"


@pytest.mark.parametrize("name", FILES)
def test_each_locked_file_has_its_hash(name: str) -> None:
    lock = locked(name)
    assert lock
    assert [package for package, versions in lock.items() for one in versions if not one.hashes] == []


@pytest.mark.parametrize("name", FILES)
def test_a_lock_names_no_place(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--index|--extra-index|--find-links|--trusted)", text, re.MULTILINE)


def test_all_locks_have_the_same_versions() -> None:
    """What the agent and the coordinator share, they share in one version: they run from one installation in tests."""
    versions: dict[str, set[tuple[str, ...]]] = {}
    for name in FILES:
        for package, found in locked(name).items():
            versions.setdefault(package, set()).add(tuple(sorted(one.version for one in found)))
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


def test_every_lock_is_one_that_somebody_installs() -> None:
    assert {path.stem for path in LOCKS.iterdir()} == set(FILES)
    for page in ("deploy/README.md", "docs/operations.md", "deploy/compose.yaml"):
        text = (ROOT / page).read_text()
        installs = [line for line in re.findall(r"^.*\bpip install .*$", text, re.MULTILINE) if "`" not in line]
        assert installs
        for line in installs:
            assert ("--require-hashes" in line) != ("--no-deps" in line), f"{page}: {line}"
            is_isolated = "--no-build-isolation" not in line  # which fetches unlocked what builds
            assert ("build.txt" in line) == is_isolated, f"{page}: {line}"
        used = set(re.findall(r"locks/(\w+)\.txt", "\n".join(installs)))
        assert used == ({"build", "embedded"} if page.endswith("yaml") else set(FILES)), page
