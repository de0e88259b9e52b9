"""A backup that was meddled with is refused in one line, whatever was done to it."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.backup import restore_settings
from coordinator.backup_files import BrokenBackupError

Member = tuple[str, bytes]
HELLO = b"hello"


def backup(*found: Member, after: bytes = b"", **changed: Any) -> bytes:
    """A backup with these members, the manifest as it should be but for what is changed; and bytes after its end."""
    said: dict[str, Any] = {
        "format": 2,
        "tandem": "0.1.0",
        "schema": "0009",
        "made_at": "2026-11-30T09:00:00Z",
        "jobs": 0,
        "sha256": {name: hashlib.sha256(body).hexdigest() for name, body in found if not name.startswith("artifacts/")},
    }
    contents = sum(name.startswith("artifacts/") for name, _ in found)
    end = ("end.json", json.dumps({"artifacts": contents}).encode())
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, body in (("manifest.json", json.dumps(said | changed).encode()), *found, end):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return made.getvalue() + after


def setting(name: str) -> Member:
    return f"settings/{name}", HELLO


def content() -> Member:
    digest = hashlib.sha256(HELLO).hexdigest()
    return f"artifacts/sha256/{digest[:2]}/{digest[2:]}", HELLO


def test_a_good_one_is_restored(tmp_path: Path) -> None:
    (tmp_path / "good.tar").write_bytes(backup(setting("secrets/a"), content()))

    restore_settings(tmp_path / "good.tar", tmp_path / "out")

    assert (tmp_path / "out" / "secrets" / "a").read_bytes() == HELLO


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: backup(setting("secrets/a"), setting("secrets/a")), "twice"),
        (lambda: backup(content(), content()), "twice"),
        (lambda: backup(setting("up.lock")), "does not have 'settings/up.lock'"),
        (lambda: backup(setting("restore.unfinished")), "does not have"),
        (lambda: backup(setting("postgres/PG_VERSION")), "does not have"),
        (lambda: backup(setting("secrets"), setting("secrets/a")), "something else"),
        (lambda: backup(setting("secrets/a"), setting("secrets")), "something else"),
        (lambda: backup(setting("secrets/a"), sha256=[1]), "can't be read: sha256"),
        (lambda: backup(setting("secrets/a"), sha256={"settings/secrets/a": 1}), "can't be read: sha256"),
        (lambda: backup(jobs="x"), "can't be read: jobs"),
        (lambda: backup(jobs=-1), "can't be read: jobs"),
        (lambda: backup(jobs=True), "can't be read: jobs"),
        (lambda: backup(made_at="9999-12-31T23:59:59Z"), "this machine's clock is behind"),
        (lambda: backup(made_at="2026-11-30T09:00:00"), "can't be read: made_at"),
        (lambda: backup(made_at=[]), "can't be read: made_at"),
        (lambda: backup(schema=9), "can't be read: schema"),
        (lambda: backup(after=b"garbage"), "after its end"),
        (lambda: backup(after=bytes(100_000) + b"x"), "after its end"),
        (lambda: backup() + backup(), "after its end"),
        (lambda: backup().replace(bytes(1024), b"x" * 1024), "after its end"),
    ],
)
def test_what_was_meddled_with_is_refused_in_one_line(tmp_path: Path, made: Callable[[], bytes], said: str) -> None:
    (tmp_path / "bad.tar").write_bytes(made())

    with pytest.raises(BrokenBackupError, match=said) as refused:
        restore_settings(tmp_path / "bad.tar", tmp_path / "out")

    assert "\n" not in str(refused.value)
    assert list((tmp_path / "out").iterdir()) == []
