"""The executor for OpenAI-compatible servers, against llama.cpp's and mlx_lm's ways, played on a socket."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from agent.executors.base import BackendDown, Elsewhere, Permanent, Transient
from agent.executors.openai import OpenAIExecutor
from tests.support.fake_openai import FakeMlx, FakeOpenAI
from tests.support.fake_server import Script, running
from tests.support.servers import eventually
from tests.support.text_rig import QUICK, started

TEXT = "The harbour wakes at dawn."


@asynccontextmanager
async def openai(tmp_path, kind=FakeOpenAI, *, wait_up=True, prepare=lambda _: None, **settings):
    async with running(kind()) as server:
        prepare(server)
        executor = OpenAIExecutor.from_settings({"url": server.url, **QUICK, **settings})
        async with started(executor, tmp_path, wait_up=wait_up) as rig:
            yield server, rig


# ---- what it offers


async def test_the_models_of_the_list_are_offered_and_llama_cpps_is_always_warm(tmp_path):
    async with openai(tmp_path) as (_, rig):
        assert rig.executor.capabilities()[0].models == ["gemma-3-270m"]
        assert rig.executor.warm() == ["gemma-3-270m"]
        assert rig.executor.status()["version"] == "llama.cpp"


async def test_a_model_that_is_called_by_its_file_gets_the_files_name(tmp_path):
    def prepare(server):
        server.models = ["/opt/models/gemma.Q4.gguf"]

    async with openai(tmp_path, prepare=prepare) as (server, rig):
        assert rig.executor.capabilities()[0].models == ["gemma.Q4"]
        product = await rig.run("gemma.q4")
        assert server.last["model"] == product.model == "/opt/models/gemma.Q4.gguf"


async def test_a_name_that_the_server_did_not_list_is_never_sent(tmp_path):
    async with openai(tmp_path) as (server, rig):
        with pytest.raises(Elsewhere) as raised:
            await rig.run("qwen3-8b")
        assert raised.value.code == "model_missing"
        assert server.real == []


@pytest.mark.parametrize(
    ("models", "settings", "offered"),
    [
        (["mlx-community/a"], {}, ["mlx-community/a"]),
        (["mlx-community/a", "mlx-community/b"], {}, ["default_model"]),
        (["mlx-community/a", "mlx-community/b"], {"models": ["mlx-community/b"]}, ["mlx-community/b"]),
        (["mlx-community/a", "x"], {"models": {"writer": "default_model"}}, ["writer"]),
        ([], {}, ["default_model"]),
    ],
)
async def test_mlx_is_not_told_to_load_whatever_lies_in_its_cache(tmp_path, models, settings, offered):
    def prepare(server):
        server.models = models
        server.empty_listing = not models

    async with openai(tmp_path, FakeMlx, prepare=prepare, **settings) as (_, rig):
        assert rig.executor.capabilities()[0].models == offered


class LMStudio(FakeOpenAI):
    """Lists what is on the disk, and loads what it is asked for."""

    header = "Express"

    def __init__(self):
        super().__init__()
        self.models = ["text-embedding-nomic-embed-text-v1.5", "small", "large"]

    def answers_as(self, model):
        return model


async def test_embedding_models_are_offered_only_if_they_are_named(tmp_path):
    async with openai(tmp_path, LMStudio) as (_, rig):
        assert rig.executor.capabilities()[0].models == ["small", "large"]
    chosen = ["text-embedding-nomic-embed-text-v1.5"]
    async with openai(tmp_path, LMStudio, models=chosen, wait_up=False) as (_, rig):
        await eventually(lambda: rig.executor.known() and rig.executor.known()[0].models == chosen)


@pytest.mark.parametrize(
    ("settings", "first", "then"),
    [
        ({}, "small", "large"),
        ({"default_model": "LARGE"}, "large", "large"),
        ({"probe_model": "small"}, "small", "small"),
    ],
)
async def test_the_probe_does_not_drive_out_the_model_that_works(tmp_path, settings, first, then):
    async with openai(tmp_path, LMStudio, **settings) as (server, rig):
        assert [request.body["model"] for request in server.requests] == [first]
        await rig.run("large")
        rig.executor.hold_back("doubt")
        await rig.up()
        assert [request.body["model"] for request in server.requests] == [first, "large", then]


# ---- what it asks for


async def test_a_chat_is_streamed_told_recorded_and_written(tmp_path):
    async with openai(tmp_path) as (server, rig):
        options = {"temperature": 0.5, "seed": 4, "max_tokens": 400, "top_k": 40, "stop": ["\n\n\n"]}
        product = await rig.run("gemma-3-270m", prompt="A harbour", system="Be brief.", options=options)
        assert server.real[0].path == "/v1/chat/completions"
        assert server.last == {
            "model": "gemma-3-270m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A harbour"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 400,
            "seed": 4,
            "temperature": 0.5,
            "top_k": 40,
            "stop": ["\n\n\n"],
            "cache_prompt": False,
        }
        assert rig.told.stages == ["loading_model", "generating_text"]
        assert product.result["text"] == TEXT
        assert product.result["usage"] == {"prompt_tokens": 6, "tokens": 6}
        assert product.result["timings"]["tokens_per_s"] == 100.0
        assert product.settings["seed"] == 4
        assert product.settings["system_fingerprint"] == "b0-unknown"
        assert product.settings["context"] == 16384
        assert server.real[0].headers["Connection"] == "close"  # it closes idle connections after 5 s
        assert (tmp_path / "article.md").read_text() == TEXT


async def test_max_tokens_and_a_seed_are_always_sent_and_the_seed_is_recorded(tmp_path):
    async with openai(tmp_path, FakeMlx) as (server, rig):
        product = await rig.run()
        assert server.last["max_tokens"] == 4096
        assert product.settings["seed"] == server.last["seed"] >= 0
        assert "cache_prompt" not in server.last


async def test_a_job_for_a_longer_context_goes_elsewhere(tmp_path):
    async with openai(tmp_path) as (server, rig):
        await rig.run(options={"context": 16384})
        with pytest.raises(Elsewhere) as raised:
            await rig.run(options={"context": 16385})
        assert raised.value.code == "context_too_small"
        assert len(server.real) == 1


async def test_base_models_get_completions(tmp_path):
    async with openai(tmp_path, api="completions") as (server, rig):
        product = await rig.run(prompt="Once", system="A tale.")
        assert server.real[0].path == "/v1/completions"
        assert server.last["prompt"] == "A tale.\n\nOnce"
        assert "messages" not in server.last
        assert product.result["text"] == TEXT


SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


@pytest.mark.parametrize(
    ("api", "wanted", "sent"),
    [
        ("chat", "json", {"response_format": {"type": "json_object"}}),
        (
            "chat",
            SCHEMA,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
                }
            },
        ),
        ("completions", "json", {"json_schema": {}}),  # it ignores response_format silently
        ("completions", SCHEMA, {"json_schema": SCHEMA}),
    ],
)
async def test_json_is_asked_for_as_the_interface_understands_it(tmp_path, api, wanted, sent):
    async with openai(tmp_path, api=api) as (server, rig):
        server.scripts.append(Script(words=('{"title": ', '"x"}')))
        product = await rig.run(format=wanted)
        assert sent.items() <= server.last.items()
        assert json.loads(product.result["text"]) == {"title": "x"}
        assert product.files[0].artifact == "article.json"


async def test_a_bad_answer_is_tried_once_more(tmp_path):
    async with openai(tmp_path, FakeMlx) as (server, rig):  # it checks no format
        server.scripts += [Script(), Script()]
        with pytest.raises(Transient):
            await rig.run(format=SCHEMA)
        with pytest.raises(Permanent) as raised:
            await rig.run(format=SCHEMA, attempt=2)
        assert raised.value.code == "bad_answer"


@pytest.mark.parametrize("options", [{"stream": False}, {"n": 2}, {"model": "x"}, {"stop": 5}, {"stop": [5]}])
async def test_options_that_change_what_the_answer_is_or_kill_a_server_are_refused(tmp_path, options):
    async with openai(tmp_path, FakeMlx) as (server, rig):
        with pytest.raises(Permanent) as raised:
            await rig.run(options=options)
        assert raised.value.code == "bad_spec"
        assert server.real == []


async def test_an_api_key_is_sent(tmp_path):
    def prepare(server):
        server.api_key = "sk-test-1"

    async with openai(tmp_path, prepare=prepare, api_key="sk-test-1") as (server, rig):
        await rig.run()
        server.api_key = "another"
        with pytest.raises(Elsewhere) as raised:
            await rig.run()
        assert raised.value.code == "not_allowed"
        assert "sk-test" not in str(rig.executor.status())
        assert "sk-test" not in str(raised.value.detail)


# ---- what it does not believe


@pytest.mark.parametrize(
    ("script", "code", "first", "second"),
    [
        (Script(end=False), "no_end_marker", Transient, Elsewhere),
        (Script(finish="length"), "truncated", Permanent, Permanent),
        (Script(finish="tool_calls"), "bad_answer", Transient, Permanent),
        (Script(error_after=3), "context_full", Transient, Elsewhere),
        (Script(raw=b""), "no_end_marker", Transient, Elsewhere),
        (
            Script(raw=b'{"error":{"message":"Context size has been exceeded."}}'),  # LM Studio, with status 200
            "prompt_too_long",
            Elsewhere,
            Elsewhere,
        ),
        (
            Script(raw=b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'),
            "no_end_marker",
            Transient,
            Elsewhere,
        ),
    ],
)
async def test_an_answer_without_proof_is_an_error(tmp_path, script, code, first, second):
    async with openai(tmp_path, most_bytes=2000) as (server, rig):
        for attempt, error in ((1, first), (2, second)):
            await rig.up()
            server.scripts.append(script)
            with pytest.raises(error) as raised:
                await rig.run(attempt=attempt)
            assert type(raised.value) is error
            assert raised.value.code == code
            assert raised.value.detail["server"] == "llama.cpp"
        assert not (tmp_path / "article.md").exists()


@pytest.mark.parametrize(
    ("thoughts", "raised", "code"),
    [(("hm", "hm"), Permanent, "truncated"), ((), Transient, "empty")],  # the latter is what a dead GPU does
)
async def test_thinking_that_leaves_no_tokens_for_the_text_is_the_jobs_fault_and_no_doubt(
    tmp_path, thoughts, raised, code
):
    async with openai(tmp_path) as (server, rig):
        server.scripts.append(Script(words=(), thoughts=thoughts, finish="length"))
        with pytest.raises(raised) as caught:
            await rig.run(options={"max_tokens": 2})
        assert caught.value.code == code
        assert rig.executor.up == (code == "truncated")


async def test_mlxs_echo_of_the_name_proves_nothing_and_lm_studio_numbers_its_instances(tmp_path):
    async with openai(tmp_path, FakeMlx) as (server, rig):
        server.scripts.append(Script(model="whatever"))
        await rig.run()
    async with openai(tmp_path, server="lmstudio") as (server, rig):
        server.scripts.append(Script(model="gemma-3-270m:2"))
        assert (await rig.run()).model == "gemma-3-270m:2"


async def test_events_that_share_a_chunk_or_are_torn_pings_and_null_content_are_read(tmp_path):
    events = (
        'data: {"choices":[{"delta":{"role":"assistant","content":null},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"delta":{"content":"Häfen"},"finish_reason":null}]}\r\n\r\n'
        ": keepalive 3/7\n\n:\n\n"
        'data: {"choices":[{"delta":{"reasoning_content":"hm"},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
        'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    ).encode()
    cut = events.index("ä".encode()) + 1
    async with openai(tmp_path) as (server, rig):
        server.scripts.append(Script(waiting=(events[:cut], events[cut:]), raw=b"data: [DONE]\n\n"))
        product = await rig.run()
        assert product.result["text"] == "Häfen"
        assert product.result["usage"] == {"prompt_tokens": 1, "tokens": 2}


# ---- errors by status

LLAMA = FakeOpenAI


@pytest.mark.parametrize(
    ("kind", "status", "error", "code", "first", "second"),
    [
        (LLAMA, 400, {"code": 400, "message": "'messages' is required"}, "bad_request", Permanent, Permanent),
        (
            LLAMA,
            400,
            {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_ctx": 2048},
            "prompt_too_long",
            Elsewhere,
            Elsewhere,
        ),
        (FakeMlx, 404, "'role'", "bad_request", Transient, Permanent),
    ],
)
async def test_errors_mean_what_the_table_says(tmp_path, kind, status, error, code, first, second):
    async with openai(tmp_path, kind) as (server, rig):
        for attempt, expected in ((1, first), (2, second)):
            server.scripts.append(Script(status=status, error={"error": error}))
            with pytest.raises(expected) as raised:
                await rig.run(attempt=attempt)
            assert type(raised.value) is expected
            assert raised.value.code == code
            assert raised.value.detail["status"] == status


async def test_an_unknown_error_is_charged_and_not_tried_here_again(tmp_path):
    async with openai(tmp_path) as (server, rig):
        server.scripts.append(Script(status=418, error={"error": {"message": "teapot"}}))
        for attempt, expected in ((2, Transient), (3, Elsewhere)):
            with pytest.raises(expected) as raised:
                await rig.run(attempt=attempt)
            assert raised.value.code == "unknown_error"
        assert len(server.real) == 1


async def test_what_a_server_quotes_of_the_prompt_is_not_kept(tmp_path):
    async with openai(tmp_path) as (server, rig):
        said = 'Failed to parse messages: Missing \'role\' in message: {"content":"my \\"secret\\" prompt"}'
        server.scripts.append(Script(status=500, error={"error": {"message": said}}))
        with pytest.raises(Permanent) as raised:
            await rig.run(prompt='my "secret" prompt')
        assert "Missing 'role'" in raised.value.detail["text"]
        assert "secret" not in raised.value.message + str(raised.value.detail)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_releases_the_job_and_is_left_alone_as_long_as_it_says(tmp_path, status):
    async with openai(tmp_path) as (server, rig):
        busy = {"error": {"message": "slow down"}}
        server.scripts.append(Script(status=status, error=busy, headers={"Retry-After": "20"}))
        with pytest.raises(BackendDown) as raised:
            await rig.run()
        assert raised.value.code == "busy"
        assert not rig.executor.up
        rig.clock.moved_s += 21
        await rig.up()


# ---- loading, queueing, dying


async def test_a_server_that_loads_is_down_until_it_has_loaded(tmp_path):
    def prepare(server):
        server.loading = True

    async with openai(tmp_path, wait_up=False, prepare=prepare) as (server, rig):
        await eventually(lambda: "Loading model" in rig.executor.status()["reason"])
        assert server.requests == []
        server.loading = False
        await rig.up()


async def test_a_job_waits_for_a_server_that_loads_and_is_charged_nothing(tmp_path):
    async with openai(tmp_path, first_s=300) as (server, rig):
        server.loading = True
        work = rig.begin()
        await eventually(lambda: "POST /v1/chat/completions" in server.asked)
        rig.clock.moved_s += 290
        await eventually(lambda: "the server loads its model" in rig.told.details)
        server.loading = False
        assert (await asyncio.wait_for(work, 20)).result["text"] == TEXT


async def test_a_job_behind_anothers_is_not_out_of_time_but_a_hang_is(tmp_path):
    async with openai(tmp_path, first_s=300, queue_look_s=0.02) as (server, rig):
        server.slots = 1
        server.scripts.append(Script(hang_first=True))
        work = rig.begin()
        await eventually(lambda: server.real)
        for _ in range(3):
            told = len(rig.told.details)
            rig.clock.moved_s += 200
            await eventually(lambda told=told: len(rig.told.details) > told + 1)
        assert not work.done()
        assert "free slot" in rig.told.details[-1]
        server.slots = 0  # nobody is served, and still nothing comes: that is a hang
        asked = server.asked.count("GET /slots")
        await eventually(lambda: server.asked.count("GET /slots") > asked + 1)
        rig.clock.moved_s += 301
        with pytest.raises(Transient) as raised:
            await asyncio.wait_for(work, 10)
        assert raised.value.code == "no_output"


async def test_a_job_that_has_its_slot_waits_for_nobody_any_more(tmp_path):
    async with openai(tmp_path, first_s=300, queue_look_s=0.02) as (server, rig):
        server.scripts.append(Script(waiting=(b": keepalive 1/9\n\n",), hang_after=0))
        work = rig.begin()
        await eventually(lambda: "reading the prompt" in rig.told.details)
        asked = server.asked.count("GET /slots")
        await rig.clock.looked_at(5)
        assert server.asked.count("GET /slots") <= asked + 1  # the slot that works is its own
        rig.clock.moved_s += 301
        with pytest.raises(Transient) as raised:
            await asyncio.wait_for(work, 10)
        assert raised.value.code == "no_output"


async def test_pings_are_no_sign_of_life_but_a_prompt_that_is_read_is(tmp_path):
    async with openai(tmp_path, first_s=300) as (server, rig):
        server.scripts.append(Script(waiting=(b":\n\n",), late=b":\n\n", hang_after=0))
        work = rig.begin()
        await eventually(lambda: server.real)
        rig.clock.moved_s += 290
        server.ping.set()
        await rig.clock.looked_at()
        rig.clock.moved_s += 11
        with pytest.raises(Transient):
            await asyncio.wait_for(work, 10)
        await rig.up()
        server.scripts.append(Script(waiting=(b": keepalive 2048/9000\n\n",), hang_after=0))
        work = rig.begin()
        await eventually(lambda: "reading the prompt" in rig.told.details)
        rig.clock.moved_s += 290
        await rig.clock.looked_at()
        assert not work.done()
        server.resume.set()
        assert (await asyncio.wait_for(work, 10)).result["text"] == TEXT


async def test_mlxs_dead_thread_is_a_backend_that_is_down_though_its_process_lives(tmp_path):
    async with openai(tmp_path, FakeMlx) as (server, rig):
        server.dead = True
        with pytest.raises(BackendDown) as raised:
            await rig.run()
        assert raised.value.code == "generation_thread_died"
        await eventually(lambda: "restart the server" in rig.executor.status()["reason"])
        server.dead = False
        await rig.up()


async def test_a_job_of_which_mlxs_thread_dies_again_may_be_the_reason(tmp_path):
    async with openai(tmp_path, FakeMlx) as (server, rig):
        for attempt, error in ((1, BackendDown), (1, Transient), (2, Elsewhere)):
            server.dead = True
            with pytest.raises(error) as raised:
                await rig.run(name="killer", attempt=attempt)
            assert raised.value.code == "generation_thread_died"
            assert not rig.executor.up
            server.dead = False
            await rig.up()


async def test_an_older_mlx_that_is_healthy_but_hangs_is_found_by_the_probe(tmp_path):
    async with openai(tmp_path, FakeMlx, probe_limit_s=0.2) as (server, rig):
        server.usual = Script(hang_first=True)
        rig.executor.hold_back("doubt")
        await eventually(lambda: "no tiny generation" in rig.executor.status()["reason"])
        server.usual = Script()
        await rig.up()


# ---- cancelling


async def test_a_job_ends_only_when_llama_cpp_is_idle_again(tmp_path):
    async with openai(tmp_path) as (server, rig):
        server.stubborn = True
        server.scripts.append(Script(hang_after=1))
        work = rig.begin()
        await eventually(lambda: server.words_sent)
        work.cancel()
        asked = server.asked.count("GET /slots")
        await eventually(lambda: server.asked.count("GET /slots") > asked + 2)
        assert not work.done()
        server.let_go.set()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()
        assert server.working == 0
        assert rig.executor.up


async def test_a_server_that_ignores_the_cancel_must_prove_itself_before_the_next_job(tmp_path):
    async with openai(tmp_path, settle_s=1) as (server, rig):
        server.stubborn = True
        server.scripts.append(Script(hang_after=1))
        work = rig.begin()
        await eventually(lambda: server.words_sent)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()
        assert not rig.executor.up
        server.let_go.set()
        await rig.up()
