"""Lines about a job are found from the newest backwards, over files, whatever else stands in them."""

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from coordinator import log_lines
from coordinator.log_lines import LogLines

JOB = uuid.UUID("01970000-0000-7000-8000-000000000001")
OTHER = uuid.UUID("01970000-0000-7000-8000-000000000002")


def _line(number: int, job_id: uuid.UUID = JOB, **more: Any) -> bytes:
    at = f"2026-11-30T00:{number // 60 % 60:02}:{number % 60:02}.{number:06}Z"
    return orjson.dumps({"job_id": str(job_id), "n": number, "timestamp": at} | more) + b"\n"


def _numbers(found: list[dict[str, Any]]) -> list[int]:
    return [line["n"] for line in found]


@pytest.mark.parametrize("block", [64, 200, 1024 * 1024])
def test_the_newest_lines_are_found_newest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK", block)
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(_line(n, JOB if n % 7 == 0 else OTHER, text="x" * (n % 90)) for n in range(500)))
    expected = list(range(0, 500, 7))
    assert _numbers(LogLines(path).find(JOB, 1000)) == expected
    assert _numbers(LogLines(path).find(JOB, 5)) == expected[-5:]


def test_older_files_are_searched_too_each_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for number, name in enumerate(("log.jsonl.2", "log.jsonl.1", "log.jsonl")):
        (tmp_path / name).write_bytes(_line(number))
    (tmp_path / "log.jsonl.3").hardlink_to(path)
    assert _numbers(LogLines(path).find(JOB, 10)) == [0, 1, 2]
    path.unlink()  # it is being renamed
    (tmp_path / "log.jsonl.3").unlink()
    assert _numbers(LogLines(path).find(JOB, 10)) == [0, 1]


def test_a_number_that_is_missing_ends_no_search(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for number, name in enumerate(("log.jsonl.10", "log.jsonl.3", "log.jsonl.2", "log.jsonl")):
        (tmp_path / name).write_bytes(_line(number))
    (tmp_path / "log.jsonl.old").write_bytes(_line(9))
    assert _numbers(LogLines(path).find(JOB, 10)) == [0, 1, 2, 3]


def test_what_is_no_line_of_the_job_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    mention = orjson.dumps({"event": "event taken", "jobs": [str(JOB)]}) + b"\n"
    broken = _line(3)[:-20] + b"\n"
    path.write_bytes(b"\x00\xff\n" + _line(1) + mention + broken + b"[]\n" + f'"{JOB}"\n'.encode() + _line(2)[:-1])
    assert _numbers(LogLines(path).find(JOB, 10)) == [1, 2]


def test_agents_lines_are_sorted_in_and_say_so(tmp_path: Path) -> None:
    path, agents = tmp_path / "log.jsonl", tmp_path / "agents"
    path.write_bytes(_line(1) + _line(3))
    for worker, number in (("mini", 2), ("macbook", 4)):
        (agents / worker / "logs").mkdir(parents=True)
        (agents / worker / "logs" / "agent.jsonl").write_bytes(_line(number))
    found = LogLines(path, agents).find(JOB, 10)
    assert _numbers(found) == [1, 2, 3, 4]
    assert [line["program"] for line in found] == ["coordinator", "agent"] * 2


def test_a_search_reads_only_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK", 1000)
    monkeypatch.setattr(log_lines, "SEARCH_BYTES", 10_000)
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(_line(n) for n in range(1000)))
    assert 0 < len(LogLines(path).find(JOB, 1000)) < 200


def test_without_a_file_there_are_no_lines(tmp_path: Path) -> None:
    assert LogLines(None).find(JOB, 10) == LogLines(tmp_path / "none").find(JOB, 10) == []


def test_what_is_from_well_before_the_job_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK", 1000)
    path = tmp_path / "log.jsonl"
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    lines = [_line(n, timestamp=(begin + timedelta(minutes=n)).isoformat()) for n in range(1000)]
    path.write_bytes(b"".join(lines[500:]) + lines[999][:20])
    (tmp_path / "log.jsonl.1").write_bytes(b"".join(lines[:500]))
    found = _numbers(LogLines(path).find(JOB, 2000, begin + timedelta(minutes=700)))
    assert found[-1] == 999
    assert 600 < found[0] <= 640, "by clocks that are an hour apart, and a block"
    path.write_bytes(b"".join(lines[500:]))
    found = _numbers(LogLines(path).find(JOB, 2000, datetime(9999, 1, 1, tzinfo=UTC)))
    assert found == [], "all of it is older than an hour"
