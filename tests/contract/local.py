"""The rows of the executors without a server: `sketch`, and `command` with real programs."""

import asyncio
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from agent.executors import drawing as drawing_code
from agent.executors.command import CommandExecutor
from agent.executors.sketch import SketchExecutor
from tests.contract.contract import (
    BackendDown,
    Bench,
    Cancelled,
    Case,
    Elsewhere,
    NotHere,
    Permanent,
    Scenario,
    Transient,
)
from tests.support.servers import eventually

NO_BACKEND = NotHere("it has no backend")
HUGE_BYTES = 5_000_000
LONG_S = 3000


def cancelled(stage: str) -> Any:
    async def act(bench: Bench) -> None:
        await eventually(lambda: bench.told.stages[-1:] == [stage] and (bench.told.fractions or bench.told.details))
        bench.cancel()

    return act


# ---- sketch


class SketchBench(Bench):
    """It draws by itself."""

    name = "sketch"
    kind = "image"
    stages = ("loading_model", "generating_image")

    async def open(self, settings: dict[str, Any]) -> None:
        self.executor = SketchExecutor.from_settings({"models": ["*"], **settings})

    async def close(self) -> None:
        pass

    def idle(self) -> bool:
        """Whether no thread draws."""
        return not any(
            frame.f_code.co_filename == drawing_code.__file__
            for top in sys._current_frames().values()
            for frame, _ in traceback.walk_stack(top)
        )

    def spec(self) -> dict[str, Any]:
        return drawing()


def drawing(size: int = 64, **simulate: Any) -> dict[str, Any]:
    return {"prompt": "A harbour", "width": size, "height": size, "simulate": {"seconds": 0.01, **simulate}}


SketchBench.table = dict.fromkeys(Scenario, NO_BACKEND) | {
    Scenario.SUCCESS: Case(whole=True),
    Scenario.REFUSED: Case(end=Permanent, code="bad_spec", spec={"prompt": "x", "width": 7}),
    Scenario.ERROR_IN_200: Case(
        end=Transient, code="simulated", spec=drawing(fail="transient", fail_attempts=1), whole=True
    ),
    Scenario.OOM_CUDA: NotHere("it loads no model"),
    Scenario.OOM_MPS: NotHere("it loads no model"),
    Scenario.MODEL_MISSING: NotHere("it stands for every model"),
    Scenario.EMPTY: NotHere("it always makes something"),
    Scenario.WRONG_MODEL: NotHere("it stands for every model"),
    Scenario.FLAT_IMAGE: NotHere("it draws hills under a sky"),
    Scenario.HUGE: Case(spec=drawing(pad_bytes=HUGE_BYTES), whole=True),  # it is asked for, and written in blocks
    Scenario.CANCEL_LOADING: Case(end=Cancelled, spec=drawing(seconds=LONG_S), act=cancelled("loading_model")),
    Scenario.CANCEL_GENERATING: Case(
        end=Cancelled, spec=drawing(seconds=LONG_S, stages=["generating_image"]), act=cancelled("generating_image")
    ),
    Scenario.CANCEL_FINISHING: Case(  # while the thread draws
        end=Cancelled, spec={"prompt": "A harbour", "width": 2048, "height": 2048}, act=cancelled("generating_image")
    ),
}


# ---- command

PROGRAM = """#!/bin/sh
echo $$ >> "{folder}/pids"
echo '{{"stage": "loading_model", "detail": "begun"}}'
. "{folder}/what"
"""
GOOD = """
echo '{"stage": "generating_text", "detail": "writing"}'
echo "words" > out/article.md
echo '{"result": {"text": "words"}, "model": "tiny"}'
"""
WAIT = 'read go < "$GATE"\n'
"""A fifo that nobody has opened for writing."""
STAGE = """echo '{"stage": "generating_text", "detail": "writing"}'\n"""


class CommandBench(Bench):
    """A real program: a shell script, which does what a file says that it reads."""

    name = "command"
    model = "tiny"
    stages = ("loading_model", "generating_text")

    async def open(self, settings: dict[str, Any]) -> None:
        self.double_folder.mkdir()
        script, self.gate = self.double_folder / "program", self.double_folder / "gate"
        script.write_text(PROGRAM.format(folder=self.double_folder))
        script.chmod(0o700)
        os.mkfifo(self.gate)
        self.does(GOOD)
        program = {"program": script, "kind": "article", "models": ["tiny"], "grace_s": 0.2}
        program |= {"env": {"GATE": str(self.gate)}, **settings}
        self.executor = CommandExecutor.from_settings({"programs": {"writer": program}})

    async def close(self) -> None:
        shutil.rmtree(self.double_folder)

    async def heal(self) -> None:
        self.does(GOOD)

    def idle(self) -> bool:
        pids = self.double_folder / "pids"
        return not any(_alive(int(pid)) for pid in (pids.read_text().split() if pids.exists() else ()))

    def does(self, what: str) -> None:
        (self.double_folder / "what").write_text(what)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def does(what: str) -> Any:
    def arrange(bench: CommandBench) -> None:
        bench.does(what)

    return arrange


async def late(bench: CommandBench) -> None:
    await eventually(lambda: bench.told.details == ["begun"])
    await asyncio.to_thread(bench.gate.write_text, "go\n")


def fails(error: Any, status: int, what: str = "") -> Case:
    return Case(end=error, code=f"exit_{status}", arrange=does(f"{what}exit {status}\n"))


STUBBORN = f"""trap '' TERM
(echo $$ >> "$(dirname "$GATE")/pids"; {WAIT.strip()}) &
{STAGE}{WAIT}{WAIT}"""

CommandBench.table = {
    Scenario.SUCCESS: Case(whole=True),
    Scenario.BACKEND_DOWN: fails(BackendDown, 69),
    Scenario.REFUSED: fails(Permanent, 65),
    Scenario.HUNG_UP: Case(end=Transient, code="signal_9", arrange=does("kill -9 $$\n")),
    Scenario.SLOW_FIRST_BYTE: Case(arrange=does(WAIT + GOOD), act=late, whole=True),
    Scenario.HANG_AFTER_ACCEPT: Case(end=Transient, code="timeout", arrange=does(WAIT), settings={"timeout_s": 0.5}),
    Scenario.HANG_IN_THE_MIDDLE: Case(
        end=Transient, code="timeout", arrange=does(STAGE + WAIT), settings={"timeout_s": 0.5}
    ),
    Scenario.MUTE_SOCKET: NotHere("a program has no second channel"),
    Scenario.MALFORMED: Case(end=Permanent, code="bad_output", arrange=does("echo '{no json'; mkdir out/folder\n")),
    Scenario.ERROR_IN_200: fails(Transient, 75, STAGE),
    Scenario.CUT_OFF: Case(end=Transient, code="signal_15", arrange=does(f"{STAGE}kill $$\n"), whole=True),
    Scenario.OOM_CUDA: fails(Transient, 1, "echo 'CUDA out of memory. Tried to allocate 20 MiB' >&2\n"),
    Scenario.OOM_MPS: fails(Transient, 1, "echo 'MPS backend out of memory' >&2\n"),
    Scenario.MODEL_MISSING: Case(end=Elsewhere, code="no_program", model="mixtral:8x22b"),
    Scenario.EMPTY: Case(arrange=does("exit 0\n")),  # what a program has to make is between it and its owner
    Scenario.WRONG_MODEL: NotHere("a program is trusted with the name of what it ran"),
    Scenario.FLAT_IMAGE: NotHere("its files are its owner's business"),
    Scenario.HUGE: Case(
        arrange=does(f"head -c {HUGE_BYTES} /dev/zero; echo; {GOOD}"), whole=True
    ),  # kept: a short tail
    Scenario.RESTART: NotHere("each job is a process of its own"),
    Scenario.CANCEL_WAITING: NotHere("a program begins at once"),
    Scenario.CANCEL_LOADING: Case(end=Cancelled, arrange=does(WAIT), act=cancelled("loading_model")),
    Scenario.CANCEL_GENERATING: Case(  # with a child, both deaf to TERM
        end=Cancelled, arrange=does(STUBBORN), act=cancelled("generating_text"), whole=True
    ),
    Scenario.CANCEL_FINISHING: NotHere("its files are there when it ends"),
}
