"""Private files and lock files: whole or not there, one holder at a time."""

import os
from pathlib import Path

import pytest

from shared.folder_lock import FolderTakenError, lock
from shared.private_file import create_private, replace_private


def test_a_file_is_replaced_whole_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text("old")
    path.chmod(0o644)
    replace_private(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_who_create_a_file_the_firsts_stands(tmp_path: Path) -> None:
    path = tmp_path / "upload.key"
    create_private(path, b"first")
    create_private(path, b"second")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"first", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_can_not_be_put_in_place_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inner").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        replace_private(tmp_path / "taken", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_lock_names_its_holder_until_it_is_let_go(tmp_path: Path) -> None:
    held = lock(tmp_path / "up.lock", "pid 1")
    with pytest.raises(FolderTakenError) as taken:
        lock(tmp_path / "up.lock", "pid 2")
    assert taken.value.owner == "pid 1"
    os.close(held)
    os.close(lock(tmp_path / "up.lock", "pid 3"))
    assert (tmp_path / "up.lock").read_text() == "pid 3\n"
