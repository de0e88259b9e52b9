"""Small parts of the agent on their own: watchdog, gate, lanes, registry, folder."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from agent.executors.registry import Registry, load_executors
from agent.gate import Gate
from agent.puller import FAIR_RUN, Lanes
from agent.slots import Slots
from agent.watchdog import EXIT_HUNG, Watchdog
from agent.workspace import data_folder
from shared.errors import ConfigurationError
from shared.states import WorkerState
from shared.wire import LaneOffer
from tests.support.agent_executor import StringExecutor

HUNG = """
import asyncio, time
from agent.watchdog import Watchdog
async def main():
    async with Watchdog(0.3):
        await asyncio.sleep(0)
        time.sleep(60)
asyncio.run(main())
"""


def test_the_watchdog_ends_a_process_whose_loop_hangs():
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, timeout=30, check=False)
    assert done.returncode == EXIT_HUNG
    assert b"event loop has not run" in done.stderr


async def test_the_watchdog_leaves_a_loop_alone_that_runs_and_ends_one_that_overstays():
    ended, said = threading.Event(), []

    def end(reason):
        said.append(reason)
        ended.set()

    async with Watchdog(0.2, end=end) as watchdog:
        for _ in range(10):
            await asyncio.sleep(0.05)
        assert said == []
        watchdog.end_in(0.0)
        assert await asyncio.to_thread(ended.wait, 10)
    assert said == ["the process was to have ended by now"]


def gate_of(*, able=True):
    gate = Gate(lambda: 0.0, lambda: able)
    gate.connected = gate.answered = True
    return gate


def test_a_gate_names_the_first_reason_that_counts():
    gate = gate_of()
    assert gate.why_not() is None
    gate.checks.append(lambda: "spool_full")
    assert gate.why_not() == "spool_full"
    gate.hold("disk_full", 60)
    assert gate.why_not() == "disk_full"
    gate.answered = False
    assert gate.why_not() == "no_coordinator"
    gate.order(WorkerState.PAUSED)
    assert (gate.why_not(), gate.state) == ("paused", WorkerState.PAUSED)
    gate.stop()
    assert (gate.why_not(), gate.state) == ("drain", WorkerState.DRAINING)
    gate.connected = False
    assert gate.why_not() == "not_connected"
    assert gate_of(able=False).state is WorkerState.UNHEALTHY


def test_a_pause_by_control_is_not_undone_by_a_presence_answer():
    gate = gate_of()
    gate.order(WorkerState.PAUSED)
    gate.wanted = WorkerState.READY
    gate.changed()
    assert gate.why_not() == "paused"
    gate.order(WorkerState.READY)
    assert gate.why_not() is None


def test_the_lane_that_gave_work_comes_first_for_a_while():
    offers = [LaneOffer(kind=kind, slug="any", consumer=kind) for kind in ("a", "b", "c")]
    lanes = Lanes(offers)
    assert lanes.ordered() == ["a", "b", "c"]
    lanes.gave("b")
    for _ in range(FAIR_RUN - 1):
        assert lanes.ordered() == ["b", "c", "a"]
        lanes.gave("b")
    assert lanes.ordered() == ["c", "a", "b"]
    lanes.gave("b")
    assert lanes.ordered() == ["b", "c", "a"]
    assert {lanes.next_linger() for _ in range(3)} == {"a", "b", "c"}
    lanes.offers = []
    assert (lanes.ordered(), lanes.next_linger()) == ([], None)


async def test_a_slot_given_back_twice_counts_once():
    slots = Slots(1)
    slot = slots.take()
    with pytest.raises(RuntimeError):
        slots.take()
    slot.release()
    slot.release()
    assert slots.free == 1
    await slots.wait_free()


async def test_an_executor_that_is_down_is_left_alone_for_a_while():
    now = [0.0]
    one, other = StringExecutor(("article",)), StringExecutor(("image",))
    other.name = "other"
    async with Registry([one, other], lambda: now[0], retry_s=10) as registry:
        assert registry.find("article", "any-model") is one
        assert registry.find("video", None) is None
        assert registry.serves("article", "any")
        registry.hold_back(one)
        assert not registry.serves("article", "any")
        assert [capability.kind for capability in registry.capabilities()] == ["image"]
        now[0] = 10.0
        assert registry.serves("article", "any")


@pytest.mark.parametrize(
    ("tables", "named"),
    [({}, "no executor"), ({"nonsense": {}}, "nonsense"), ({"sketch": {"kinds": ["video"]}}, "executors.sketch.kinds")],
)
def test_wrong_executors_are_named(tables, named):
    with pytest.raises(ConfigurationError, match=named):
        load_executors(tables)


def test_a_folder_is_free_again_when_its_process_is_gone(tmp_path):
    script = (
        "import os, sys, pathlib\nfrom agent.workspace import data_folder\n"
        "held = data_folder(pathlib.Path(sys.argv[1]), 'other'); held.__enter__(); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError, match=f"pid {child.pid}, instance other"), data_folder(tmp_path, "me"):
            pass
        child.kill()
    with data_folder(tmp_path, "me"):
        assert (tmp_path / "agent.lock").read_text() == f"pid {os.getpid()}, instance me\n"
