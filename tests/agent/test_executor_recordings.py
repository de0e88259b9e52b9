"""Recorded traffic: the executor reads what real servers sent, and the doubles speak as the real servers did."""

import json
from pathlib import Path

import aiohttp
import pytest

from agent.executors.base import Transient
from agent.executors.openai import OpenAIExecutor
from agent.executors.transport import error_text
from agent.executors.verdicts import Verdict, look_up
from tests.support.fake_openai import FakeMlx, FakeOpenAI
from tests.support.fake_server import Script, running
from tests.support.text_rig import QUICK, started

FOLDER = Path(__file__).parent.parent / "recordings" / "openai"


def steps(case):
    return json.loads((FOLDER / f"{case}.json").read_text())["steps"]


def chunks(step):
    """Return the chunks of a recorded stream, verbatim."""
    stream = step.get("stream") or step.get("response", {}).get("stream")
    return [text for _, text in stream if not text.startswith("(")] if stream else None


def streams(*cases):
    """Return every recorded stream with its request."""
    found = []
    for case in cases:
        for number, step in enumerate(steps(case)):
            if chunks(step) and step["response"].get("status") == 200:
                found.append(pytest.param(case, step, id=f"{case}-{number}"))
    return found


def events(body):
    return [event.removeprefix("data: ") for event in body.split("\n\n") if event.strip()]


def text_of(body):
    said = ""
    for event in events(body):
        if event.startswith("{"):
            for choice in json.loads(event).get("choices", []):
                said += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return said


# ---- the executor reads what real servers sent


@pytest.mark.parametrize(
    ("case", "step"), streams("chat", "completions", "demo-article", "sse-ping", "mlx-completions-chat")
)
async def test_a_recorded_stream_is_read_to_its_end(tmp_path, case, step):
    body = step["request"]["body"]
    api = "chat" if step["request"]["path"].endswith("/chat/completions") else "completions"
    server = FakeMlx() if case.startswith("mlx") else FakeOpenAI()
    server.models = ["default_model" if case.startswith("mlx") else "<model>"]
    async with running(server):
        executor = OpenAIExecutor.from_settings({"url": server.url, "api": api, **QUICK})
        async with started(executor, tmp_path) as rig:
            server.scripts.append(Script(waiting=tuple(chunk.encode() for chunk in chunks(step)), raw=b""))
            product = await rig.run(options={"max_tokens": body["max_tokens"]})
    whole = "".join(chunks(step))
    assert product.result["text"] == text_of(whole) != ""
    assert f'"{product.result["finish"]}"' in whole
    if "left out" not in json.dumps(step) and '"usage"' in whole:
        assert product.result["usage"]["tokens"] <= body["max_tokens"]


@pytest.mark.parametrize(("case", "step"), streams("midstream-error"))
async def test_a_recorded_error_inside_a_stream_is_an_error(tmp_path, case, step):
    server = FakeOpenAI()
    server.models = ["<model>"]
    async with running(server):
        executor = OpenAIExecutor.from_settings({"url": server.url, **QUICK})
        async with started(executor, tmp_path) as rig:
            server.scripts.append(Script(waiting=tuple(chunk.encode() for chunk in chunks(step)), raw=b""))
            with pytest.raises(Transient) as raised:
                await rig.run()
    assert raised.value.code == "context_full"


# ---- the doubles speak as real servers did


def shape(event):
    """Return what can drift: which keys, in which order of events; not the words and numbers."""
    if event.startswith(":"):
        return "comment"
    if not event.startswith("{"):
        return event
    body = json.loads(event)
    choices = [
        (sorted(choice), sorted(choice.get("delta", {})), choice["finish_reason"] is None)
        for choice in body.get("choices", [])
    ]
    return (sorted(body), choices)


def shapes(body):
    """Return the shapes in order, repeated ones once."""
    found = []
    for event in events(body):
        if not found or shape(event) != found[-1]:
            found.append(shape(event))
    return found


@pytest.mark.parametrize(
    ("case", "step"),
    [
        found
        for found in streams("chat", "completions", "mlx-completions-chat")
        if found.values[1]["request"]["body"].get("stream_options")
    ],
)
async def test_a_double_streams_the_events_of_the_recording(case, step):
    server = FakeMlx() if case.startswith("mlx") else FakeOpenAI()
    request, recorded = step["request"], step["response"]
    async with running(server), aiohttp.ClientSession(server.url) as session:
        server.scripts.append(Script(finish="length"))
        async with session.post(request["path"], json=request["body"]) as response:
            assert response.status == recorded["status"]
            for name in ("Server", "Content-Type", "X-Accel-Buffering", "Cache-Control"):
                assert response.headers.get(name) == recorded["headers"].get(name)
            said = await response.text()
    assert shapes(said) == shapes("".join(chunks(step)))


def keys(body):
    """Return the keys of JSON, all the way down; a list counts as its first entry."""
    if isinstance(body, dict):
        return {name: keys(value) for name, value in body.items()}
    return [keys(body[0])] if isinstance(body, list) and body else type(body).__name__


@pytest.mark.parametrize("path", ["/health", "/slots"])
async def test_a_double_answers_small_questions_as_recorded(path):
    (step,) = (step for step in steps("models") if step["request"]["path"] == path)
    await check_small(FakeOpenAI(), step)


async def test_a_double_lists_models_with_keys_that_the_recording_has():
    (step,) = (step for step in steps("models") if step["request"]["path"] == "/v1/models")
    async with (
        running(FakeOpenAI()) as server,
        aiohttp.ClientSession(server.url) as session,
        session.get("/v1/models") as response,
    ):
        said = await response.json()
    assert set(said) <= set(step["response"]["body"])
    assert set(said["data"][0]) <= set(step["response"]["body"]["data"][0])


async def test_a_double_that_loads_answers_as_recorded():
    loading = [step for step in steps("startup") if step["response"].get("status") == 503]
    assert len(loading) >= 4
    for step in loading:
        server = FakeOpenAI()
        server.loading = True
        await check_small(server, step)


async def test_a_double_of_mlx_dies_as_recorded():
    for step in steps("mlx-generation-thread-dies")[1:3]:  # health, and a good request, after the bad one
        server = FakeMlx()
        server.dead = True
        await check_small(server, step)


async def check_small(server, step):
    request, recorded = step["request"], step["response"]
    async with (
        running(server),
        aiohttp.ClientSession(server.url) as session,
        session.request(request["method"], request["path"], json=request.get("body")) as response,
    ):
        assert response.status == recorded["status"]
        assert response.headers["Server"] == recorded["headers"]["Server"]
        said = await response.json()
    assert keys(said) == keys(recorded["body"])
    if response.status != 200:
        assert said == recorded["body"]


async def test_the_texts_of_recorded_errors_are_those_that_the_table_knows():
    known = 0
    for case in ("context-overflow", "bad-requests", "mlx-unknown-model"):
        server = "mlx" if case.startswith("mlx") else "llama.cpp"
        for step in steps(case):
            recorded = step.get("response", {})
            if recorded.get("status", 200) < 400:
                continue
            words = error_text(json.dumps(recorded["body"]))
            found = look_up("openai", words, status=recorded["status"], server=server)
            assert found.verdict is not Verdict.UNKNOWN
            expected = {"context-overflow": "prompt_too_long", "mlx-unknown-model": "model_missing"}.get(case)
            assert expected is None or found.code == expected
            assert found.verdict is Verdict.FAIL or case != "bad-requests" or recorded["status"] == 404
            known += 1
    assert known > 10
