"""Every command that asks a coordinator, where there is none: exit status 3, and one line that says why."""

import pytest
from typer.testing import CliRunner

from coordinator.cli import app, explain

NEVER = "01970000-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    "words",
    [
        *("status", "rejected", "jobs", "workers", "lanes", "callbacks", "publications", "watch", "watch --once"),
        *(f"{command} {NEVER}" for command in ("show", "logs", "cancel", "retry", "approve", "reject")),
        *("drain mini", "pause mini", "resume mini", "lanes pause a.b", "lanes resume a.b", f"priority {NEVER} high"),
        *(f"callbacks --again {NEVER}", f"publications --again {NEVER}", "publications --check blog"),
        "submit article --prompt A",
    ],
)
def test_without_a_server_each_ends_with_3_and_one_line(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_DATA", raising=False)
    where = {"TANDEM_URL": "http://127.0.0.1:1", "TANDEM_TOKEN": "t"}

    ended = CliRunner().invoke(app, [*words.split(), "--json"], env=where)

    assert ended.stdout == ""
    assert ended.exception is not None
    told = explain(ended.exception)
    assert told is not None
    status, line = told
    assert status == 3
    assert line.startswith("can't reach http://127.0.0.1:1: ")
    assert "\n" not in line
