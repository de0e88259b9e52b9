"""`tandem up` is there when work can be taken and given, whatever waits to be tidied up."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import up
from shared.errors import UnreachableError
from shared.loops import Loop


async def _never() -> None:
    await asyncio.Event().wait()


def coordinator(*loops: Loop) -> Any:
    return SimpleNamespace(unready=list, loops=loops)


async def test_a_round_of_trimming_that_lasts_holds_up_no_start() -> None:
    dispatcher = Loop("dispatcher", _never, every_s=1.0, max_failures=3, rounds=1)
    await up._settled(coordinator(dispatcher, Loop("retention", _never, every_s=60.0)))


async def test_what_work_depends_on_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "_READY_S", 0.05)
    with pytest.raises(UnreachableError, match="dispatcher"):
        await up._settled(coordinator(Loop("dispatcher", _never, every_s=1.0, max_failures=3)))
