"""The spool on its own: what is promised when `put` returns, and what `load` makes of a folder."""

import asyncio
import uuid
from contextlib import aclosing
from pathlib import Path

import pytest

from agent.spool import Parcel, Spool, StoredFile
from shared.private_file import sync
from shared.states import ReportOutcome
from shared.wire import Report, Upload


def parcel(text="words", files=(), epoch=1, job_id=None):
    report = Report(job_id=job_id or uuid.uuid4(), epoch=epoch, outcome=ReportOutcome.COMPLETED, result={"text": text})
    upload = Upload(url="http://here/up", token="secret")
    return Parcel(report=report, delivery="$JS.ACK.x", kind="article", heartbeat_s=30, upload=upload, files=list(files))


async def test_what_was_put_is_loaded_again(tmp_path):
    (tmp_path / "a").write_text("content")
    file = StoredFile(stored="000", name="a.txt", media_type="text/plain", size=7)
    small, large = parcel(), parcel(files=[file])
    spool = Spool(tmp_path / "spool")
    assert spool.load() == []
    async with aclosing(spool):
        await spool.put(small)
        entry = await spool.put(large, [tmp_path / "a"])
        assert entry.file(file).read_text() == "content"
    loaded = {entry.parcel.name: entry for entry in Spool(tmp_path / "spool").load()}
    assert {name: entry.parcel for name, entry in loaded.items()} == {small.name: small, large.name: large}
    assert not (tmp_path / "a").exists()
    for path in (tmp_path / "spool").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


async def test_everything_is_synced_before_put_returns(tmp_path, monkeypatch):
    synced = []

    def watch(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr("agent.spool.sync", watch)
    monkeypatch.setattr("shared.private_file.sync", watch)
    (tmp_path / "a").write_text("content")
    spool = Spool(tmp_path / "spool")
    spool.load()
    async with aclosing(spool):
        small, large = parcel(), parcel(files=[StoredFile(stored="000", name="a", media_type="text/plain", size=7)])
        await spool.put(small)
        root = str(tmp_path / "spool")
        assert synced == [f"{root}/.{small.name}.json", root]
        synced.clear()
        await spool.put(large, [tmp_path / "a"])
        temporary = f"{root}/.{large.name}"
        assert synced == [f"{temporary}/000", f"{temporary}/result.json", temporary, root]


async def test_many_small_entries_share_the_syncs_of_the_folder(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr("agent.spool.sync_folder", folders.append)
    spool = Spool(tmp_path / "spool")
    spool.load()
    async with aclosing(spool):
        entries = await asyncio.gather(*(spool.put(parcel(str(n))) for n in range(100)))
        assert len(folders) <= 2
        assert len({entry.path for entry in entries}) <= 2
        for entry in entries[:-1]:
            spool.discard(entry)
    again = Spool(tmp_path / "spool")
    left = {entry.parcel.report.result["text"]: entry for entry in again.load()}
    assert entries[-1].parcel.report.result["text"] in left  # with what shares its file
    async with aclosing(again):
        for entry in left.values():
            again.discard(entry)
    assert list((tmp_path / "spool").iterdir()) == []


async def test_what_is_discarded_is_gone(tmp_path):
    (tmp_path / "a").write_text("content")
    spool = Spool(tmp_path / "spool")
    spool.load()
    async with aclosing(spool):
        spool.discard(await spool.put(parcel()))
        file = StoredFile(stored="000", name="a.txt", media_type="text/plain", size=7)
        spool.discard(await spool.put(parcel(files=[file]), [tmp_path / "a"]))
    assert list((tmp_path / "spool").iterdir()) == []


async def test_a_bad_parcel_does_not_harm_its_neighbours(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.load()
    async with aclosing(spool):
        good, bad = await asyncio.gather(spool.put(parcel()), spool.put(parcel("\ud800")), return_exceptions=True)
    assert isinstance(bad, ValueError)
    assert good.path.exists()


async def test_a_failure_that_replaced_a_result_wins_over_what_a_crash_left_of_it(tmp_path):
    (tmp_path / "a").write_text("content")
    job_id = uuid.uuid4()
    file = StoredFile(stored="000", name="a.txt", media_type="text/plain", size=7)
    spool = Spool(tmp_path / "spool")
    spool.load()
    async with aclosing(spool):
        await spool.put(parcel("result", [file], job_id=job_id), [tmp_path / "a"])
        await spool.put(parcel("failure", job_id=job_id))
    (entry,) = Spool(tmp_path / "spool").load()
    assert entry.parcel.report.result == {"text": "failure"}
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [f"{job_id}.1.json"]


@pytest.mark.parametrize("harm", ["shorter", "gone"])
async def test_an_entry_whose_file_is_damaged_is_set_aside(tmp_path, harm):
    (tmp_path / "a").write_text("content")
    file = StoredFile(stored="000", name="a.txt", media_type="text/plain", size=7)
    spool = Spool(tmp_path / "spool")
    spool.load()
    async with aclosing(spool):
        entry = await spool.put(parcel(files=[file]), [tmp_path / "a"])
    if harm == "gone":
        entry.file(file).unlink()
    else:
        entry.file(file).write_text("con")
    again = Spool(tmp_path / "spool")
    assert again.load() == []
    assert again.load() == []
    names = sorted(path.name for path in (tmp_path / "spool" / "set-aside").iterdir())
    assert names == [entry.parcel.name, f"{entry.parcel.name}.reason"]


async def test_a_damaged_line_does_not_harm_its_neighbours(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.load()
    async with aclosing(spool):
        entries = await asyncio.gather(*(spool.put(parcel(str(n))) for n in range(3)))
    assert len({entry.path for entry in entries}) == 1
    lines = entries[0].path.read_bytes().splitlines(keepends=True)
    entries[0].path.write_bytes(lines[0] + lines[1][:40] + b"\n" + lines[2])
    again = Spool(tmp_path / "spool")
    assert [entry.parcel.report.result["text"] for entry in again.load()] == ["0", "2"]
    assert (tmp_path / "spool" / "set-aside" / f"{entries[0].path.name}.1").read_bytes() == lines[1][:40]
