"""`tandem init` that is killed (SIGKILL) is simply run again; what it left goes, and init.json is checked."""

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.init import Answers, answers_of
from shared.errors import ConfigurationError
from shared.private_file import create_private, replace_private, sweep_drafts
from tests.support.processes import TANDEM, clean_environment

ME = pwd.getpwuid(os.geteuid()).pw_name
KILLED_AFTER = """
import os, signal, sys
from shared import private_file
left, write = [int(sys.argv.pop(1))], private_file.write_synced
def write_synced(path, content):
    write(path, content)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
private_file.write_synced = write_synced
from coordinator.cli import main
main()
"""
"""Runs `tandem`, and ends by SIGKILL when so many drafts are written, before the last one becomes a file."""


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def drafts_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("writes", [1, 2, 9, 12, 16, 20])
def test_an_init_that_was_killed_is_run_again(tmp_path: Path, writes: int) -> None:
    folder = tmp_path / "t"
    words = ("init", str(folder), "--host", "vps.example.org", "--user", ME)
    status, _ = run(sys.executable, "-c", KILLED_AFTER, str(writes), *words)
    assert (status, len(drafts_in(folder))) == (-signal.SIGKILL, 1)

    status, error = run(*TANDEM, *words)

    assert status == 0, error
    assert drafts_in(folder) == []
    assert run(*TANDEM, *words)[0] == 0


@pytest.mark.parametrize("name", [".bashrc", ".init.json.0123", "init.json.0123456789abcdef", ".x.0123456789ABCDEF"])
def test_what_is_no_draft_is_somebody_elses(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")

    status, error = run(*TANDEM, "init", str(tmp_path), "--host", "vps.example.org", "--user", ME)

    assert (status, "is not empty" in error) == (2, True)
    assert (tmp_path / name).read_text() == "mine"


def test_whoever_writes_while_drafts_are_swept_does_so_again(tmp_path: Path) -> None:
    ended = threading.Event()

    def sweep() -> None:
        while not ended.is_set():
            sweep_drafts(tmp_path)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for n in range(100):
            replace_private(tmp_path / "replaced", str(n).encode())
            create_private(tmp_path / f"created-{n}", b"x")
    finally:
        ended.set()
        sweeper.join()

    assert (tmp_path / "replaced").read_text() == "99"
    assert {path.name for path in tmp_path.iterdir()} == {"replaced", *(f"created-{n}" for n in range(100))}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"host": 1}, "host"),
        ({"user": None}, "user"),
        ({"http_port": "8420"}, "http_port"),
        ({"nats_port": -1}, "nats_port"),
        ({"nats_port": 0}, "nats_port"),
        ({"websocket_port": 65536}, "websocket_port"),
        ({"http_port": 8420.5}, "http_port"),
        ({"http_port": True}, "http_port"),
        ({"later": 1}, "later"),
    ],
)
def test_an_init_json_that_makes_no_sense_is_refused_in_one_line(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    (tmp_path / "init.json").write_text(json.dumps({"host": "vps.example.org", "user": ME, **changed}))

    with pytest.raises(ConfigurationError, match=rf"init.json can't be read: {said}: ") as refused:
        answers_of(tmp_path)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff"])
def test_an_init_json_that_is_no_json_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "init.json").write_text(text, encoding="latin-1")

    with pytest.raises(ConfigurationError, match=r"init.json can't be read: [^:]") as refused:
        answers_of(tmp_path)

    assert "\n" not in str(refused.value)


def test_an_init_json_is_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "init.json").write_text('{"host": "vps.example.org", "user": "tandem", "http_port": 9000}')

    assert answers_of(tmp_path) == Answers(host="vps.example.org", user="tandem", http_port=9000)
