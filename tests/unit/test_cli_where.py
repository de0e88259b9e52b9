"""Which coordinator a command talks to, and what is said if there is none."""

from pathlib import Path

import pytest

from coordinator.cli_where import client_of, connection_of
from shared.errors import ConfigurationError, UnreachableError


def test_without_a_folder_somebody_must_say_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="which coordinator"):
        client_of(None, None, None, "admin")


def test_in_the_folder_of_one_that_is_stopped_it_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    with pytest.raises(UnreachableError, match=r"no tandem up runs in data .* start it: tandem up"):
        client_of(None, None, None, "admin")


@pytest.mark.parametrize("text", ['{"a": 1}', "[]", "null", '{"http": 1, "tokens": {}}', '{"http": "x"}', "{", "\xff"])
def test_a_connection_that_names_nothing_is_a_fault_of_the_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "connection.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=r"connection\.json"):
        connection_of(tmp_path)
