"""CI asks about known faults in what is locked: it says what it heard, and whether it heard anything."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULT = {"id": "FAULT-1", "fix_versions": ["2.0"]}


def audit(folder: Path, script: str) -> tuple[int, str]:
    """Run CI's audit with a pip-audit that does what a script says."""
    program = folder / "pip-audit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ROOT / ".ci" / "audit"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def heard(*found: dict[str, object]) -> str:
    return f"echo '{json.dumps({'dependencies': found})}'"


def test_every_lock_is_asked_about(tmp_path: Path) -> None:
    said = heard({"name": "one", "version": "1.0", "vulns": []}, {"name": "two", "skip_reason": "not found"})
    assert audit(tmp_path, f'echo "$@" > {tmp_path}/asked\n{said}') == (
        0,
        "audit: 0 known faults in 1 of 2 locked packages\n",
    )
    asked = (tmp_path / "asked").read_text().split()
    assert {word for word in asked if word.startswith("--requirement=")} == {
        f"--requirement={path}" for path in (ROOT / "deploy" / "locks").glob("*.txt")
    }
    assert {"--disable-pip", "--require-hashes"} <= set(asked)


def test_a_known_fault_is_said(tmp_path: Path) -> None:
    status, said = audit(tmp_path, f"{heard({'name': 'one', 'version': '1.0', 'vulns': [FAULT]})}; exit 1")
    assert status == 1
    assert "KNOWN FAULT FAULT-1 in one 1.0; mended in 2.0" in said


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo 'no route to host' >&2; exit 1", heard({"name": "one", "skip_reason": "not found"}), "kill $$"],
)
def test_an_audit_without_an_answer_says_that_it_is_none(tmp_path: Path, script: str) -> None:
    status, said = audit(tmp_path, script)
    assert (status, said.count("\n"), "nobody could be asked" in said) == (0, 1, True), said


def test_ci_asks_and_holds_the_locks_against_the_project() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert any(line.startswith(".ci/audit || ") for line in lines)  # today's news do not break yesterday's main
    assert "make test" in lines
