"""The file store: what is kept is whole, what is not whole leaves no trace."""

import asyncio
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio
from pydantic import SecretStr

from coordinator.artifact_health import WatchedStore
from coordinator.artifacts import (
    CHUNK_BYTES,
    SHARDS,
    FolderStore,
    MissingContentError,
    NoRoomError,
    StoreDownError,
    WrongContentError,
    artifact_url,
)
from coordinator.upload_tokens import UploadTokens
from shared.errors import ConfigurationError

JOB = UUID("01234567-89ab-7def-8123-456789abcdef")


@pytest_asyncio.fixture(loop_scope="session")
async def store(tmp_path: Path) -> AsyncIterator[FolderStore]:
    made = await FolderStore.open(tmp_path)
    yield made
    made.close()


async def _chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


async def _read(store: FolderStore, sha256: str, *where: int) -> bytes:
    return b"".join([chunk async for chunk in store.read(sha256, *where)])


async def test_a_content_is_kept_under_its_digest_and_read_back(store: FolderStore, tmp_path: Path) -> None:
    content = os.urandom(3 * CHUNK_BYTES + 17)
    sha = _sha(content)
    stored = await store.put(_chunks(content[:100], content[100:]), sha256=sha, size=len(content))
    assert stored.new
    assert (tmp_path / "sha256" / sha[:2] / sha[2:]).read_bytes() == content
    assert await _read(store, sha) == content
    assert await _read(store, sha, 5, CHUNK_BYTES + 1) == content[5 : CHUNK_BYTES + 6]
    assert await _read(store, sha, len(content) - 3) == content[-3:]
    assert await store.size(sha) == len(content)
    assert await store.digest(sha) == sha


async def test_an_empty_content_is_a_content(store: FolderStore) -> None:
    await store.put(_chunks(), sha256=_sha(b""), size=0)
    assert await _read(store, _sha(b"")) == b""
    assert await store.size(_sha(b"")) == 0


async def test_the_same_content_is_stored_once(store: FolderStore, tmp_path: Path) -> None:
    first = await store.put(_chunks(b"same"), sha256=_sha(b"same"), size=4)
    second = await store.put(_chunks(b"sa", b"me"), sha256=_sha(b"same"), size=4)
    assert (first.new, second.new) == (True, False)
    assert len(_files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("content", "sha", "size", "says"),
    [
        (b"other", _sha(b"wanted"), 5, "sha256"),
        (b"short", _sha(b"short"), 6, "5 bytes arrived, 6 were announced"),
        (b"too long", _sha(b"too long"), 3, "longer than the 3 bytes"),
    ],
)
async def test_what_is_not_what_was_announced_leaves_no_trace(
    store: FolderStore, tmp_path: Path, content: bytes, sha: str, size: int, says: str
) -> None:
    with pytest.raises(WrongContentError, match=says):
        await store.put(_chunks(content), sha256=sha, size=size)
    assert _files(tmp_path) == []


async def test_a_source_that_breaks_leaves_no_trace(store: FolderStore, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield os.urandom(2 * CHUNK_BYTES)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await store.put(broken(), sha256=_sha(b"x"), size=4 * CHUNK_BYTES)
    assert _files(tmp_path) == []


async def test_a_cancelled_upload_leaves_no_trace(store: FolderStore, tmp_path: Path) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield os.urandom(2 * CHUNK_BYTES)
        begun.set()
        await never.wait()
        yield b""

    task = asyncio.create_task(store.put(stalled(), sha256=_sha(b"x"), size=4 * CHUNK_BYTES))
    await begun.wait()
    assert len(_files(tmp_path)) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _files(tmp_path) == []


async def test_opening_removes_what_a_dead_process_left_and_nothing_that_is_being_written(tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "dead").write_bytes(b"half")
    alive = incoming / "alive"
    with alive.open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        store = await FolderStore.open(tmp_path)
        assert list(incoming.iterdir()) == [alive]
    store.close()
    again = await FolderStore.open(tmp_path)
    assert list(incoming.iterdir()) == []
    again.close()


async def test_a_full_disk_is_told_apart_and_leaves_no_trace(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("coordinator.artifact_files.os.write", full)
    with pytest.raises(NoRoomError):
        await store.put(_chunks(b"anything"), sha256=_sha(b"anything"), size=8)
    monkeypatch.undo()
    assert _files(tmp_path) == []


async def test_a_missing_content_is_said_to_be_missing(store: FolderStore) -> None:
    assert await store.size("0" * 64) is None
    assert await store.digest("0" * 64) is None
    assert not await store.delete("0" * 64)
    with pytest.raises(MissingContentError):
        await _read(store, "0" * 64)


@pytest.mark.parametrize("sha", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
async def test_what_is_no_digest_never_becomes_a_path(store: FolderStore, sha: str) -> None:
    with pytest.raises(ValueError, match="not a SHA-256"):
        await store.size(sha)


async def test_deleting_spares_what_was_put_lately(store: FolderStore, tmp_path: Path) -> None:
    sha = _sha(b"young")
    await store.put(_chunks(b"young"), sha256=sha, size=5)
    path = tmp_path / "sha256" / sha[:2] / sha[2:]
    assert not await store.delete(sha, older_than_s=3600)
    old = path.stat().st_mtime - 7200
    os.utime(path, (old, old))
    await store.put(_chunks(b"young"), sha256=sha, size=5)  # somebody brings it again: it is young again
    assert not await store.delete(sha, older_than_s=3600)
    os.utime(path, (old, old))
    assert await store.delete(sha, older_than_s=3600)
    assert not path.exists()


async def test_a_shard_is_listed_without_what_was_put_lately(store: FolderStore, tmp_path: Path) -> None:
    for content in (b"young", b"old"):
        await store.put(_chunks(content), sha256=_sha(content), size=len(content))
    old = tmp_path / "sha256" / _sha(b"old")[:2] / _sha(b"old")[2:]
    (old.parent / "notes.txt").write_bytes(b"not ours")
    (old.parent / ("Z" * 62)).write_bytes(b"nor this")
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - 7200))
    everything = [sha for shard in range(SHARDS) for sha in await store.listed(shard)]
    assert everything == sorted([_sha(b"young"), _sha(b"old")])
    assert [sha for shard in range(SHARDS) for sha in await store.listed(shard, older_than_s=3600)] == [_sha(b"old")]


async def test_tidying_removes_what_a_dead_process_left_and_counts_it(store: FolderStore, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    for name in ("dead", "dead too", "alive"):
        (incoming / name).write_bytes(b"half")
    with (incoming / "alive").open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        assert await store.tidy(older_than_s=0.0) == 2
        assert list(incoming.iterdir()) == [incoming / "alive"]


async def test_audit_digest_sees_a_flipped_bit(store: FolderStore, tmp_path: Path) -> None:
    sha = _sha(b"bits")
    await store.put(_chunks(b"bits"), sha256=sha, size=4)
    (tmp_path / "sha256" / sha[:2] / sha[2:]).write_bytes(b"bitz")
    assert await store.digest(sha) == _sha(b"bitz")


_CONSTANT_MEMORY = """
import asyncio, hashlib, resource, sys
from pathlib import Path
from coordinator.artifacts import FolderStore

PART = bytes(range(256)) * 256
PARTS = 1600  # 100 MiB

async def parts():
    for _ in range(PARTS):
        yield PART

async def main():
    digest = hashlib.sha256()
    for _ in range(PARTS):
        digest.update(PART)
    store = await FolderStore.open(Path(sys.argv[1]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await store.put(parts(), sha256=digest.hexdigest(), size=len(PART) * PARTS)
    read = 0
    async for chunk in store.read(digest.hexdigest()):
        read += len(chunk)
    assert read == len(PART) * PARTS
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    store.close()

asyncio.run(main())
"""


def test_100_mib_pass_in_constant_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CONSTANT_MEMORY, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)  # bytes there, KiB here
    assert grown < 24 * 1024 * 1024


# ----------------------------------------------------------------------------------------------------------- tokens


def _tokens() -> UploadTokens:
    return UploadTokens(SecretStr("s" * 32))


def test_a_token_is_good_for_its_job_and_epoch_only() -> None:
    token = _tokens().issue(JOB, 3, "mini")
    assert _tokens().verify(token, JOB, 3) == "mini"
    assert _tokens().verify(token, JOB, 4) is None
    assert _tokens().verify(token, UUID(int=1), 3) is None
    assert UploadTokens(SecretStr("t" * 32)).verify(token, JOB, 3) is None


@pytest.mark.parametrize(
    "forged",
    [
        lambda t: t.replace("mini", "book"),
        lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"),
        lambda t: t.rpartition(".")[0] + ".",
        lambda t: t + ".x",
        lambda t: t.replace("tu1", "tu2"),
        lambda _: "",
        lambda _: "é.mini.x",
        lambda _: "tu1.mini." + "9" * 5000,
    ],
)
def test_a_changed_token_is_refused(forged: object) -> None:
    assert callable(forged)
    assert _tokens().verify(forged(_tokens().issue(JOB, 3, "mini")), JOB, 3) is None


def test_the_secret_survives_a_restart_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "upload.key"
    token = UploadTokens.load_or_create(path).issue(JOB, 1, "mini")
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert UploadTokens.load_or_create(path).verify(token, JOB, 1) == "mini"
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match=re.escape(str(path))):
        UploadTokens.load_or_create(path)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 32"):
        UploadTokens(SecretStr("short"))


def test_an_artifacts_address_says_its_name_for_urls() -> None:
    url = artifact_url("https://tandem.example", JOB, "Bild ä #1?.png")
    assert url == f"https://tandem.example/v1/jobs/{JOB}/artifacts/Bild%20%C3%A4%20%231%3F.png"


async def test_a_folder_that_is_gone_is_a_store_that_is_away(store: FolderStore, tmp_path: Path) -> None:
    """Such as a disk that is not mounted."""
    for name in ("incoming", "sha256"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(StoreDownError, match="No such file or directory"):
        await store.put(_chunks(b"x"), sha256=_sha(b"x"), size=1)
    with pytest.raises(StoreDownError):
        await store.tidy(older_than_s=0)


async def test_a_folder_that_cant_be_made_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"artifacts: .*file/folder can't be used"):
        await FolderStore.open(tmp_path / "file" / "folder")


async def test_a_store_is_as_it_answered_last(store: FolderStore, tmp_path: Path) -> None:
    watched = WatchedStore(store)
    assert watched.status() == {"reachable": None, "failures": 0, "last_error": None}
    await watched.put(_chunks(b"x"), sha256=_sha(b"x"), size=1)
    fine = {"reachable": True, "failures": 0, "last_error": None}
    assert watched.status() == fine
    with pytest.raises(WrongContentError):
        await watched.put(_chunks(b"y"), sha256=_sha(b"x"), size=1)
    assert watched.status() == fine, "a bad upload is no fault of the store"

    (tmp_path / "incoming").rename(tmp_path / "elsewhere")
    for failures in (1, 2):
        with pytest.raises(StoreDownError) as raised:
            await watched.tidy(older_than_s=0)
        assert watched.status() == {"reachable": False, "failures": failures, "last_error": str(raised.value)}

    (tmp_path / "elsewhere").rename(tmp_path / "incoming")
    assert b"".join([chunk async for chunk in watched.read(_sha(b"x"))]) == b"x"
    assert watched.status() == {"reachable": True, "failures": 0, "last_error": str(raised.value)}


async def test_a_full_store_is_there_and_full(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    watched = WatchedStore(store)
    with pytest.raises(NoRoomError):
        await watched.put(_chunks(b"x"), sha256=_sha(b"x"), size=1)
    assert watched.status() == {"reachable": True, "failures": 1, "last_error": "no room for 1 bytes"}
