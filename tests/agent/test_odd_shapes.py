"""Backends whose answers are JSON, but not of the shape that their protocol has: an error of theirs, never a crash."""

from contextlib import asynccontextmanager

import orjson
import pytest

from agent.executors.base import BackendDown, Transient
from agent.executors.comfyui_client import NoAnswer
from agent.executors.ollama import OllamaExecutor
from agent.executors.openai import OpenAIExecutor
from tests.support.comfyui_rig import running as running_comfyui
from tests.support.fake_comfyui import FakeComfyUI
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_openai import FakeOpenAI
from tests.support.fake_server import Script, running
from tests.support.text_rig import QUICK, started


@asynccontextmanager
async def executor(kind, server, folder):
    async with running(server), started(kind.from_settings({"url": server.url, **QUICK}), folder) as rig:
        yield rig


@pytest.mark.parametrize(
    "line",
    [
        {"message": "words"},
        {"message": {"content": ["words"]}},
        {"message": {"content": "", "thinking": 1}},
        {"model": ["tiny"]},
        {"message": {"content": "w"}, "done": True, "done_reason": {"a": 1}},
    ],
)
async def test_a_line_of_ollama_s_is_a_broken_answer(tmp_path, line):
    server = FakeOllama()
    async with executor(OllamaExecutor, server, tmp_path) as rig:
        server.scripts.append(Script(raw=orjson.dumps(line) + b"\n"))
        with pytest.raises(Transient, match="cut_off"):
            await rig.run("tiny")


@pytest.mark.parametrize(
    "event",
    [
        {"choices": 5},
        {"choices": ["words"]},
        {"choices": [{"delta": "words"}]},
        {"choices": [{"delta": {"content": ["words"]}}]},
        {"choices": [{"text": {"words": 1}}]},
        {"choices": [{"delta": {}, "finish_reason": ["stop"]}]},
        {"usage": "much"},
        {"model": 5},
    ],
)
async def test_an_event_of_an_openai_server_is_a_broken_answer(tmp_path, event):
    server = FakeOpenAI()
    async with executor(OpenAIExecutor, server, tmp_path) as rig:
        server.scripts.append(Script(raw=b"data: " + orjson.dumps(event) + b"\n\n"))
        with pytest.raises(Transient, match="cut_off"):
            await rig.run()


async def test_ollama_s_odd_counts_and_empty_errors_harm_no_answer(tmp_path):
    server = FakeOllama()
    odd = {"eval_count": "many", "prompt_eval_count": -1, "eval_duration": [], "load_duration": 1e300, "error": None}
    async with executor(OllamaExecutor, server, tmp_path) as rig:
        server.scripts.append(Script(words=("Har", "bour"), more=odd))
        product = await rig.run("tiny")
    assert (product.result["text"], product.result["usage"]) == ("Harbour", {"tokens": 2})


async def test_an_openai_server_s_odd_counts_and_empty_errors_harm_no_answer(tmp_path):
    server = FakeOpenAI()
    events = [
        {"choices": [{"delta": {"content": "Harbour"}}], "error": None},
        {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {"completion_tokens": "many"},
            "timings": {"predicted_ms": "long", "prompt_ms": True},
        },
    ]
    raw = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    async with executor(OpenAIExecutor, server, tmp_path) as rig:
        server.scripts.append(Script(raw=raw))
        product = await rig.run()
    assert (product.result["text"], product.result["usage"]) == ("Harbour", {"tokens": 1})


@pytest.mark.parametrize("said", ["99999999999", "9" * 400])
async def test_a_server_that_wants_to_be_left_alone_for_years_is_asked_again_after_minutes(tmp_path, said):
    server = FakeOllama()
    async with executor(OllamaExecutor, server, tmp_path) as rig:
        busy = {"error": "server busy, please try again"}
        server.scripts.append(Script(status=503, error=busy, headers={"Retry-After": said}))
        with pytest.raises(BackendDown):
            await rig.run("tiny")
        assert not rig.executor.up
        rig.clock.moved_s += 601
        await rig.up()


@pytest.mark.parametrize("entry", ["x", [1], [1, None], ["first", "id"]])
async def test_a_queue_of_comfyui_s_that_lists_no_prompts_is_no_answer(tmp_path, entry):
    async with FakeComfyUI(tmp_path) as comfy, running_comfyui(comfy) as made:
        comfy.running["odd"] = entry
        with pytest.raises(NoAnswer):
            await made.client.queue()
