"""`tandem demo`, as `make demo` runs it: it ends well, and says what it promises."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import tandem


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.timeout(180)
async def test_the_demo_shows_every_job_done_exactly_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.processes.PATIENCE_S", 150.0)

    status, out, error = await tandem("demo", cwd=folder)

    assert status == 0, out + error
    record = {
        name: value.strip()
        for name, value in re.findall(
            r"^([a-z][^:\n]*?)  +(\d+ of \d+|1: .*|none)$", re.sub(r" +\n", "\n", out), re.MULTILINE
        )
    }
    assert record["jobs completed, each exactly once"] == "12 of 12"
    assert re.match(r"1: .* macbook \(epoch 1, lease_expired\) -> mini \(epoch 2\)", record["taken over after SIGKILL"])
    assert re.match(r"1: .* mini \(epoch \d, lease_expired\) -> macbook", record["taken over after SIGSTOP"])
    assert record["late results rejected as stale"].startswith("1: mini, epoch ")
    assert record["submissions collapsed by their key"] == "1: post-802-text"
    assert record["submissions refused, with the reason"] == "1: spec.width: Input should be a multiple of 8"
    assert record["files on disk, checksums verified"] == "13 of 13"
    assert record["breaches found by the audit"] == "none"
    assert "Every job was done exactly once." in out
    assert list((folder / "demo-data").glob("**/*.pid")) == []


async def test_a_folder_that_is_no_demos_is_left_alone(folder: Path) -> None:
    theirs = folder / "demo-data" / "precious"
    theirs.parent.mkdir()
    theirs.touch()

    status, _, error = await tandem("demo", cwd=folder)

    assert status == 2
    assert "was not made by tandem demo" in error
    assert theirs.exists()
