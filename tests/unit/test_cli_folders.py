"""What the command line says where no folder, file or server is named, or where what is named is not there."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli import app, explain
from coordinator.cli_audit import _count
from coordinator.cli_show_operations import status
from coordinator.ledger.database import open_pool
from shared.errors import LedgerDownError


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TANDEM_DATA", "TANDEM_POSTGRES", "TANDEM_URL", "TANDEM_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def said(*words: str, **environment: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, words, env=environment)
    assert ended.exception is not None
    told = explain(ended.exception)
    assert told is not None, ended.exception
    return told


@pytest.mark.parametrize("words", ["doctor", "migrate", "migrate --check"])
def test_without_settings_the_folder_is_named_too(words: str) -> None:
    status, line = said(*words.split())
    assert (status, "which Postgres?" in line, "--data" in line) == (2, True, True), line


@pytest.mark.parametrize("words", ["doctor", "migrate --check", "audit"])
def test_the_folder_that_is_there_is_taken(words: str) -> None:
    Path("data").mkdir()
    status, line = said(*words.split())
    assert (status, line.partition(" (")[0]) == (3, "no tandem up runs in data")
    assert line.endswith("start it: tandem up; for a coordinator with servers of its own give --config")


@pytest.mark.parametrize("words", ["migrate --check"])
def test_the_environments_settings_come_before_the_folder_that_is_there(words: str) -> None:
    Path("data").mkdir()
    status, line = said(*words.split(), TANDEM_POSTGRES="postgresql://127.0.0.1:1/tandem")
    assert (status, "Postgres is away" in line) == (3, True), line


def test_an_audit_on_a_vps_is_told_of_its_settings() -> None:
    status, line = said("audit", TANDEM_URL="https://vps.example.org", TANDEM_TOKEN="t")
    assert (status, "give --config" in line) == (2, True), line


def test_a_backup_on_a_vps_is_told_of_its_settings() -> None:
    status, line = said("backup", "one.tar", TANDEM_URL="https://vps.example.org", TANDEM_TOKEN="t")
    assert (status, "give --config" in line) == (2, True), line


@pytest.mark.parametrize("words", ["jobs", "audit", "doctor"])
def test_the_folder_that_was_given_is_in_what_to_do(words: str) -> None:
    _, line = said(words, "--data", "elsewhere")
    assert "start it: tandem up --data elsewhere" in line


def test_the_version_is_told() -> None:
    ended = CliRunner().invoke(app, ["--version"])
    assert ended.exit_code == 0
    assert ended.output.startswith("tandem ")
    assert ended.output.split()[1][0].isdigit()


def test_one_breach_is_one() -> None:
    assert [_count(number) for number in (0, 1, 2)] == ["no breach", "1 breach", "2 breaches"]


@pytest.mark.parametrize(("failures", "often"), [(1, "failed once: away"), (2, "failed 2 times: away")])
def test_a_loop_that_failed_once_did_so_once(failures: int, often: str, capsys: pytest.CaptureFixture[str]) -> None:
    loops = {"reaper": {"failures": failures, "last_error": "away"}}
    status({"ready": True, "versions": {}, "ledger": {"up": True}, "health": {"loops": loops}})
    assert often in capsys.readouterr().out


async def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerDownError, match=f"no such file: {tmp_path}/none/.s.PGSQL.5433"):
        await open_pool(f"postgresql://tandem@/tandem?host={tmp_path}/none&port=5433")
