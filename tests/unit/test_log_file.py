"""The log file: whole lines, for their owner alone, begun anew when it is full, and never waited for."""

import json
import os
import stat
from pathlib import Path

import pytest

from shared import log_file
from shared.errors import ConfigurationError
from shared.log_file import LogFile


def _opened(path: Path, **options: int) -> LogFile:
    return LogFile(path, **{"most_bytes": 1_000_000, "files": 3, **options})


def test_lines_are_there_after_a_close_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "log.jsonl"
    file = _opened(path)
    for number in range(1000):
        file.write(str(number))
    file.close()
    assert path.read_text().split() == [str(number) for number in range(1000)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_a_later_start_goes_on_and_shuts_out_others(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("before\n")
    path.chmod(0o644)
    file = _opened(path)
    file.write("after")
    file.close()
    assert path.read_text() == "before\nafter\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_file_is_begun_anew_and_only_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    file = _opened(path, most_bytes=1000, files=3)
    for number in range(1000):
        file.write(f"{number:099}")
    file.close()
    found = sorted(tmp_path.iterdir())
    assert [one.name for one in found] == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    assert all(one.stat().st_size <= 1000 and stat.S_IMODE(one.stat().st_mode) == 0o600 for one in found)
    assert path.read_text().split()[-1] == f"{999:099}"


def test_a_line_that_a_kill_cut_short_spoils_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"n": 1}\n{"n": 2, "tex')
    for number in (3, 4):
        file = _opened(path)
        file.write(json.dumps({"n": number}))
        file.close()
    assert path.read_text() == '{"n": 1}\n{"n": 2, "tex\n{"n": 3}\n{"n": 4}\n'


@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_a_kill_while_files_are_moved_on_loses_none_of_them(tmp_path: Path, moved: int) -> None:
    names = ["log.jsonl", "log.jsonl.1", "log.jsonl.2", "log.jsonl.3"]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(f"{number}\n".rjust(100))
    for name, following in list(zip(names[-2::-1], names[:0:-1], strict=True))[:moved]:
        (tmp_path / name).replace(tmp_path / following)
    left = {one.read_text() for one in tmp_path.iterdir()}
    file = _opened(tmp_path / "log.jsonl", most_bytes=100, files=4)
    file.write("new")
    file.close()
    now = {one.read_text() for one in tmp_path.iterdir()}
    assert (tmp_path / "log.jsonl").read_text() == "new\n"
    assert now == (left if moved else left - {"3\n".rjust(100)}) | {"new\n"}


def test_what_the_disk_does_not_take_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "WAITING_MOST", 10)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = _opened(path)
    written = 0
    while not file._dropped:  # the pipe is full, then the queue
        file.write("x" * 1000)
        written += 1
    os.set_blocking(reader, True)
    got = b""
    while b"end\n" not in got:
        file.write("end")
        got += os.read(reader, 1_000_000)
    lost = [json.loads(line) for line in got.split(b"\n") if line.startswith(b"{")]
    assert lost[0]["event"] == "log lines dropped"
    assert lost[0]["lines"] >= 1
    os.close(reader)
    file.close()


def test_a_disk_that_refuses_is_said_and_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _opened(Path("/dev/full"))
    for _ in range(8):
        file.write("lost")
    file.close()
    said = capsys.readouterr().err.splitlines()
    assert len(said) in (4, 5)  # the 1st, 2nd, 4th and 8th, and what was left when it was closed
    assert "No space left on device" in said[0]


def test_a_place_where_nothing_can_be_written_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="log_file "):
        _opened(tmp_path / "file" / "log.jsonl")
