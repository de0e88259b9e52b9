"""The rows of the text executors: Ollama, and the OpenAI-compatible servers of llama.cpp and mlx_lm."""

from typing import Any, ClassVar

from agent.executors.ollama import OllamaExecutor
from agent.executors.openai import OpenAIExecutor
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
from tests.support.fake_comfyui_nodes import MPS_OOM
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_openai import FakeMlx, FakeOpenAI
from tests.support.fake_server import FakeServer, Script
from tests.support.servers import eventually
from tests.support.text_rig import QUICK

MOST_BYTES = 2000


class TextBench(Bench):
    """A text executor and its server."""

    stages = ("loading_model", "generating_text")
    double: ClassVar[type[FakeServer]]
    made: ClassVar[type[Any]]
    server: FakeServer

    async def open(self, settings: dict[str, Any]) -> None:
        self.server = self.double()
        await self.server.start()
        limits = {"first_s": FIRST_S, "idle_s": IDLE_S, "most_bytes": MOST_BYTES}
        self.executor = self.made.from_settings({"url": self.server.url, **QUICK, **limits, **settings})

    async def close(self) -> None:
        self.server.let_go.set()
        await self.server.stop()

    def idle(self) -> bool:
        return all(request.closed.is_set() for request in self.server.real)

    async def heal(self) -> None:
        self.server.scripts.clear()
        if not self.server.listening:
            await self.server.start()

    async def at(self, words: int) -> None:
        """Return when the job is at the server, and has been sent so many words; the job has seen them."""
        await eventually(lambda: self.server.real and not self.server.real[-1].closed.is_set())
        await eventually(lambda: self.server.words_sent >= words and (not words or self.told.details))


def does(**script: Any) -> Any:
    """Return a step: the server does this with the next job."""

    def arrange(bench: TextBench) -> None:
        bench.server.words_sent = 0
        bench.server.scripts.append(Script(**script))

    return arrange


async def down(bench: TextBench) -> None:
    await bench.server.stop()


async def late(bench: TextBench) -> None:
    await bench.at(0)
    await bench.passes(FIRST_S - 10)
    bench.server.resume.set()


def silence(words: int, seconds: float) -> Any:
    async def act(bench: TextBench) -> None:
        await bench.at(words)
        await bench.passes(seconds - 10)
        assert bench.task is not None
        assert not bench.task.done()
        await bench.passes(11)

    return act


def cancelled(words: int) -> Any:
    async def act(bench: TextBench) -> None:
        await bench.at(words)
        bench.cancel()

    return act


async def restarted(bench: TextBench) -> None:
    await bench.at(2)
    await bench.server.stop()


CUDA_OOM = "CUDA out of memory. Tried to allocate 20.00 MiB."


def again(code: str, **script: Any) -> Case:
    """Return a case that is tried once more, and then on another machine."""
    return Case(end=Transient, second=Elsewhere, code=code, arrange=does(**script))


TEXT: Table = {
    Scenario.SUCCESS: Case(whole=True),
    Scenario.BACKEND_DOWN: Case(end=BackendDown, code="unreachable", arrange=down),
    Scenario.REFUSED: Case(
        end=Permanent, code="bad_request", arrange=does(status=400, error={"error": "max_tokens: wrong"})
    ),
    Scenario.HUNG_UP: again("cut_off", refuse=True),
    Scenario.SLOW_FIRST_BYTE: Case(arrange=does(hang_after=0), act=late, whole=True),
    Scenario.HANG_AFTER_ACCEPT: Case(
        end=Transient, code="no_output", arrange=does(hang_first=True), act=silence(0, FIRST_S)
    ),
    Scenario.HANG_IN_THE_MIDDLE: Case(
        end=Transient, code="stalled", arrange=does(hang_after=1), act=silence(1, IDLE_S), whole=True
    ),
    Scenario.MUTE_SOCKET: NotHere("the answer itself is the stream; there is no second channel that could be mute"),
    Scenario.MALFORMED: again("cut_off", raw=b"data: {no json\n\n"),
    Scenario.ERROR_IN_200: again("server_error", error_after=2, error_text="odd"),
    Scenario.CUT_OFF: again("cut_off", die_after=2),
    Scenario.OOM_CUDA: again("out_of_memory", status=500, error={"error": CUDA_OOM}),
    Scenario.OOM_MPS: again("out_of_memory", status=500, error={"error": MPS_OOM}),
    Scenario.MODEL_MISSING: Case(end=Elsewhere, code="model_missing", model="mixtral:8x22b"),
    Scenario.EMPTY: again("empty", words=()),
    Scenario.WRONG_MODEL: Case(end=Elsewhere, code="wrong_model", arrange=does(model="qwen3:4b")),
    Scenario.FLAT_IMAGE: NotHere("it makes text"),
    Scenario.HUGE: Case(end=Permanent, code="too_much_text", arrange=does(words=("x" * (MOST_BYTES + 1),))),
    Scenario.RESTART: Case(
        end=BackendDown, code="cut_off", arrange=does(hang_after=2), act=restarted, second=Transient
    ),
    Scenario.CANCEL_WAITING: Case(end=Cancelled, arrange=does(hang_first=True), act=cancelled(0)),
    Scenario.CANCEL_LOADING: Case(end=Cancelled, arrange=does(hang_after=0), act=cancelled(0)),
    Scenario.CANCEL_GENERATING: Case(end=Cancelled, arrange=does(hang_after=2), act=cancelled(2), whole=True),
    Scenario.CANCEL_FINISHING: NotHere("the text has come when the stream ends; nothing is fetched"),
}


class OllamaBench(TextBench):
    name = "ollama"
    model = "tiny"
    double, made = FakeOllama, OllamaExecutor
    idle_at_once = False  # it says nothing of what it still does
    table: ClassVar[Table] = TEXT | {
        Scenario.ERROR_IN_200: again(
            "runner_died", error_after=2, error_text="llama runner process has terminated: exit status 2"
        ),
        Scenario.MALFORMED: again("cut_off", raw=b"<html>\n"),
    }


class LlamaBench(TextBench):
    name = "openai-llama.cpp"
    double, made = FakeOpenAI, OpenAIExecutor
    table: ClassVar[Table] = TEXT


class MlxBench(TextBench):
    name = "openai-mlx"
    double, made = FakeMlx, OpenAIExecutor
    idle_at_once = False
    table: ClassVar[Table] = TEXT | {
        # HTTP/1.0 without a length: whatever ends a stream early looks like its end
        Scenario.ERROR_IN_200: again("no_end_marker", error_after=2),
        Scenario.CUT_OFF: again("no_end_marker", die_after=2),
        Scenario.OOM_MPS: again("out_of_memory", status=404, error={"error": MPS_OOM}),
        Scenario.OOM_CUDA: NotHere("MLX runs on Metal"),
        Scenario.WRONG_MODEL: NotHere("its reply echoes whatever name was asked for, which proves nothing"),
    }
