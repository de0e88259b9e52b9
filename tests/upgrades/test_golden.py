"""What each release said is read today, and what is said today has all that each release needs to find.

A coordinator and agents one version apart work together as long as both hold.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from shared.rules import Rules
from shared.wire import PresenceReply
from tests.support.puppet import Puppet
from tests.support.world import World
from tests.upgrades.messages import GOLDEN, RULES, reader_of, said, write

RELEASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
FILES = [
    pytest.param(path, id=f"{path.parents[1].name}-{path.parent.name}-{path.stem}")
    for path in sorted(GOLDEN.glob("*/*/*.json"))
]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def lost(old: Any, new: Any, where: str = "") -> list[str]:
    """Return every field of `old` that `new` does not have; lists are as their first element is."""
    if isinstance(old, list) and isinstance(new, list):
        return lost(old[0], new[0], f"{where}[]") if old and new else []
    if not isinstance(old, dict) or not isinstance(new, dict):
        return []
    gone = [f"{where}.{name}" for name in sorted(old.keys() - new.keys())]
    return gone + [
        one for name in sorted(old.keys() & new.keys()) for one in lost(old[name], new[name], f"{where}.{name}")
    ]


def changed(old: Any, new: Any, where: str = "") -> list[str]:
    """Return every value of `old` that is another in `new`, or is not there."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{where}.{name}" for name in sorted(old.keys() - new.keys())]
        return gone + [
            one for name in sorted(old.keys() & new.keys()) for one in changed(old[name], new[name], f"{where}.{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [one for before, after in zip(old, new, strict=True) for one in changed(before, after, f"{where}[]")]
    return [] if old == new else [f"{where}: {old!r} became {new!r}"]


@pytest.mark.parametrize("path", FILES)
def test_what_a_release_said_is_read_and_nothing_of_it_is_lost(path: Path) -> None:
    read = reader_of(name_of(path))(path.read_bytes())
    assert read is not None  # a heartbeat's headers that can't be read
    if isinstance(read, BaseModel):
        assert changed(json.loads(path.read_text()), json.loads(read.model_dump_json(by_alias=True))) == []


@pytest.mark.parametrize("path", FILES)
def test_what_is_said_today_has_every_field_that_a_release_said(path: Path) -> None:
    assert lost(json.loads(path.read_text()), said()[name_of(path)]) == []


def test_this_version_has_its_files_as_it_speaks(tmp_path: Path) -> None:
    """If not: `python -m tests.upgrades.messages`, after raising the version if this one is released."""
    write(tmp_path)
    here = GOLDEN / version("tandem")
    made, kept = ({str(p.relative_to(f)): p.read_text() for p in f.glob("*/*.json")} for f in (tmp_path, here))
    assert made == kept
    assert version("tandem") in RELEASES


def test_every_field_of_a_message_is_said() -> None:
    """So that one that is added is in the files of the next release."""
    for name, message in said().items():
        read = reader_of(name)(json.dumps(message).encode())
        if isinstance(read, BaseModel):
            known = {field.alias or key for key, field in type(read).model_fields.items()}
            assert known - message.keys() == set(), name


def test_the_reading_sees_what_is_gone() -> None:
    old = {"a": 1, "b": {"c": 2}, "d": [{"e": 3}]}
    assert lost(old, {"a": 9, "b": {}, "d": [{}]}) == [".b.c", ".d[].e"]
    assert changed(old, {"a": 1, "b": {"c": 3}, "d": [{"e": 3}], "new": 1}) == [".b.c: 2 became 3"]


def golden(name: str) -> Any:
    return json.loads((GOLDEN / version("tandem") / f"{name}.json").read_text())


async def test_a_running_coordinator_says_every_field_of_its_messages(world: World) -> None:
    mini: Puppet = await world.puppet("mini")
    async with world.http.put("/v1/workers/mini/rules", json=RULES.said()) as told:
        assert told.status == 200
    job = await world.submit(labels={"post": "812"})
    answer = await mini.announce()
    assert lost(golden("coordinator/presence-answer"), answer) == []
    assert Rules.model_validate(PresenceReply.model_validate(answer).rules) == RULES
    held = await mini.take()
    granted = golden("coordinator/granted")
    assert lost({**granted, "job": {**granted["job"], "spec": {}}}, held.grant) == []
    assert lost(golden("coordinator/offer"), json.loads(held.offer.data)) == []
    question = {"job_id": job["id"], "epoch": held.epoch, "version": "0.2.0"}
    assert lost(golden("coordinator/held"), {**await mini._ask("tandem.lease.mini", question), "reason": None}) == []
    await held.report()
    assert lost(golden("coordinator/verdict"), await held.verdict("accepted")) == []
    assert lost(golden("coordinator/lost"), {**await mini._ask("tandem.lease.mini", question), "ttl_s": None}) == []
    assert "version" not in await held.ask()
    await world.until(job["id"], "completed")
