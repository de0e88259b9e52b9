"""The rows of the executor `comfyui`."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agent.executors import comfyui_graph as graphs
from agent.executors.comfyui import ComfyUIExecutor
from tests.contract.contract import (
    FIRST_S,
    IDLE_S,
    BackendDown,
    Bench,
    Cancelled,
    Case,
    Elsewhere,
    NotHere,
    Permanent,
    Scenario,
    Table,
    Transient,
)
from tests.support.comfyui_rig import FIELDS, QUICK, other_prompt
from tests.support.fake_comfyui import FILES, FakeComfyUI, raising, steps
from tests.support.fake_comfyui_nodes import RAISES, NodeError
from tests.support.servers import eventually

LOADER, SAMPLER = "CheckpointLoaderSimple", "KSampler"


class ComfyUIBench(Bench):
    """The executor and a false ComfyUI. `go` is for what a node waits."""

    name = "comfyui"
    kind = "image"
    model = "sdxl"
    stages = ("queued", "loading_model", "generating_image", "finalizing")
    comfy: FakeComfyUI

    async def open(self, settings: dict[str, Any]) -> None:
        self.comfy = FakeComfyUI(self.double_folder)
        await self.comfy.start()
        self.go = asyncio.Event()
        table = QUICK | {"url": self.comfy.url, "first_s": FIRST_S, "idle_s": IDLE_S, "wake_s": 0} | settings
        self.executor = ComfyUIExecutor.from_settings(table)

    async def close(self) -> None:
        self.comfy.answer.set()
        await self.comfy.stop()

    def idle(self) -> bool:
        return not self.comfy.running and not self.comfy.pending

    async def heal(self) -> None:
        comfy = self.comfy
        comfy.answer.set()
        comfy.before.clear()
        comfy.change, comfy.saved, comfy.mute = lambda made: made, lambda data: data, False
        comfy.files = {name: list(listed) for name, listed in FILES.items()}
        await comfy.restart()

    def spec(self) -> dict[str, Any]:
        return dict(FIELDS)

    def prompt_id(self) -> str:
        return graphs.prompt_id_of(self.job(Case()).id, 1)

    async def at(self, class_type: str) -> None:
        """Return when a node of this class waits, and the job has heard all that was told before."""
        heard = "step 2 of 4" if class_type == SAMPLER else "checkpoint"  # the loader's title
        await eventually(lambda: self._waits_in(class_type) and heard in str(self.told.details))

    def _waits_in(self, class_type: str) -> bool:
        running = self.comfy.execution if self.comfy.running else None
        if running is None or not running.waits:
            return False
        return bool(self.comfy.posts[-1]["prompt"][running.node]["class_type"] == class_type)


def node(class_type: str, *errors: NodeError, at: int | None = None) -> Any:
    """Return a step: such a node raises these, or waits for `go` after `at` steps."""

    def arrange(bench: ComfyUIBench) -> None:
        hook = raising(*errors) if at is None else steps(4, bench.go, at=at)
        bench.comfy.before[class_type] = hook

    return arrange


def changed(**fields: Any) -> Any:
    """Return a step: the pictures that are saved are changed."""

    def arrange(bench: ComfyUIBench) -> None:
        bench.comfy.change = lambda made: replace(made, **fields)

    return arrange


async def down(bench: ComfyUIBench) -> None:
    await bench.comfy.stop()


async def worker_gone(bench: ComfyUIBench) -> None:
    await bench.comfy.stop_worker()


def no_files(bench: ComfyUIBench) -> None:
    bench.comfy.files["checkpoints"] = []


def loses_its_answer(bench: ComfyUIBench) -> None:
    bench.comfy.lose_answers = 1


def mute(bench: ComfyUIBench) -> None:
    bench.comfy.mute = True


def garbage(bench: ComfyUIBench) -> None:
    bench.comfy.saved = lambda _: b"<html>"


def huge(bench: ComfyUIBench) -> None:
    bench.comfy.saved = lambda data: data + b"x" * MOST_BYTES


def stalls_when_saved(bench: ComfyUIBench) -> None:
    def saved(data: bytes) -> bytes:
        bench.comfy.answer.clear()
        return data

    bench.comfy.saved = saved


async def another_first(bench: ComfyUIBench) -> None:
    assert isinstance(bench.executor, ComfyUIExecutor)
    await other_prompt(bench.executor)
    await eventually(lambda: bench.comfy.running)


def silence(class_type: str) -> Any:
    async def act(bench: ComfyUIBench) -> None:
        await bench.at(class_type)
        await bench.passes(IDLE_S - 10)
        assert bench.task is not None
        assert not bench.task.done()
        await bench.passes(11)

    return act


async def never_begun(bench: ComfyUIBench) -> None:
    await eventually(lambda: bench.comfy.pending and "0 before it" in bench.told.details)
    await bench.passes(FIRST_S + 1)


async def late(bench: ComfyUIBench) -> None:
    await bench.at(LOADER)
    await bench.passes(IDLE_S - 10)
    bench.go.set()


async def socket_closed(bench: ComfyUIBench) -> None:
    await bench.at(SAMPLER)
    await bench.comfy.sockets[bench.prompt_id()].close()
    await eventually(lambda: bench.prompt_id() in bench.comfy.sockets)
    bench.go.set()


async def restarted(bench: ComfyUIBench) -> None:
    await bench.at(SAMPLER)
    await bench.comfy.restart()


def cancelled(when: Callable[[ComfyUIBench], Any]) -> Any:
    async def act(bench: ComfyUIBench) -> None:
        await when(bench)
        bench.cancel()

    return act


async def cancelled_behind_another(bench: ComfyUIBench) -> None:
    assert isinstance(bench.executor, ComfyUIExecutor)
    await eventually(lambda: "1 before it" in bench.told.details)
    bench.cancel()
    assert bench.task is not None
    await asyncio.wait({bench.task})
    assert not bench.comfy.pending
    assert bench.comfy.running  # the other's goes on
    bench.comfy.wake.set()
    await eventually(lambda: not bench.comfy.running)


async def cancelled_while_it_is_fetched(bench: ComfyUIBench) -> None:
    await eventually(lambda: bench.prompt_id() in bench.comfy.history)
    bench.cancel()
    bench.comfy.answer.set()


WRONG = {
    "1": {"class_type": "EmptyImage", "inputs": {}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
}
MOST_BYTES = 100_000

TABLE: Table = {
    Scenario.SUCCESS: Case(whole=True),
    Scenario.BACKEND_DOWN: Case(end=BackendDown, code="unreachable", arrange=down),
    Scenario.REFUSED: Case(end=Permanent, code="bad_workflow", spec={"workflow": WRONG}),
    Scenario.HUNG_UP: Case(arrange=loses_its_answer, whole=True),  # it is looked up: it was taken all the same
    Scenario.SLOW_FIRST_BYTE: Case(arrange=node(LOADER, at=0), act=late, whole=True),
    Scenario.HANG_AFTER_ACCEPT: Case(end=BackendDown, code="busy", arrange=worker_gone, act=never_begun),
    Scenario.HANG_IN_THE_MIDDLE: Case(
        end=Transient, code="no_progress", arrange=node(SAMPLER, at=2), act=silence(SAMPLER)
    ),
    Scenario.MUTE_SOCKET: Case(arrange=mute),
    Scenario.MALFORMED: Case(end=Transient, second=Elsewhere, code="no_image", arrange=garbage),
    Scenario.ERROR_IN_200: Case(end=Permanent, code="graph_error", arrange=node(SAMPLER, RAISES["shape"])),
    Scenario.CUT_OFF: Case(arrange=node(SAMPLER, at=2), act=socket_closed, whole=True),
    Scenario.OOM_CUDA: Case(end=Elsewhere, code="out_of_memory", arrange=node(SAMPLER, *[RAISES["torch_oom"]] * 2)),
    Scenario.OOM_MPS: Case(end=Elsewhere, code="out_of_memory", arrange=node(SAMPLER, *[RAISES["mps_oom"]] * 2)),
    Scenario.MODEL_MISSING: Case(end=Elsewhere, code="file_missing", arrange=no_files),
    Scenario.EMPTY: Case(end=Permanent, code="bad_workflow", arrange=changed(count=0)),
    Scenario.WRONG_MODEL: NotHere("the graph names the file to load; no answer names a model"),
    Scenario.FLAT_IMAGE: Case(end=Transient, second=Elsewhere, code="flat_image", arrange=changed(flat=True)),
    Scenario.HUGE: Case(end=Permanent, code="too_large", arrange=huge, settings={"most_image_bytes": MOST_BYTES}),
    Scenario.RESTART: Case(
        end=BackendDown,
        second=Transient,
        code="vanished",
        arrange=node(SAMPLER, at=2),
        act=restarted,
        settings={"refused_s": [0.2] * 50},
    ),
    Scenario.CANCEL_WAITING: Case(end=Cancelled, arrange=another_first, act=cancelled_behind_another),
    Scenario.CANCEL_LOADING: Case(
        end=Cancelled, arrange=node(LOADER, at=0), act=cancelled(lambda bench: bench.at(LOADER))
    ),
    Scenario.CANCEL_GENERATING: Case(
        end=Cancelled, arrange=node(SAMPLER, at=2), act=cancelled(lambda bench: bench.at(SAMPLER))
    ),
    Scenario.CANCEL_FINISHING: Case(end=Cancelled, arrange=stalls_when_saved, act=cancelled_while_it_is_fetched),
}

ComfyUIBench.table = TABLE
