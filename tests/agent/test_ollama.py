"""The Ollama executor against a server on a socket: what it offers, asks for, tells, believes and refuses."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from agent.executors import text_json
from agent.executors.base import BackendDown, Elsewhere, Permanent, Transient
from agent.executors.ollama import OllamaExecutor
from agent.executors.verdicts import Judge
from tests.support.fake_ollama import GIB, FakeOllama
from tests.support.fake_server import Script, running
from tests.support.servers import eventually
from tests.support.text_rig import QUICK, started


@asynccontextmanager
async def ollama(tmp_path, *, wait_up=True, prepare=lambda _: None, **settings):
    async with running(FakeOllama()) as server:
        prepare(server)
        executor = OllamaExecutor.from_settings({"url": server.url, **QUICK, **settings})
        async with started(executor, tmp_path, wait_up=wait_up) as rig:
            yield server, rig


# ---- what it offers


async def test_models_that_write_are_offered_and_latest_has_two_names(tmp_path):
    async with ollama(tmp_path) as (_, rig):
        (capability,) = rig.executor.capabilities()
        assert (capability.kind, capability.executor) == ("article", "ollama")
        assert capability.models == ["llama3.1:8b", "tiny:latest", "tiny"]
        assert rig.executor.warm() == []
        assert rig.executor.status()["version"] == "0.32.6"


async def test_an_old_server_that_names_no_capabilities_offers_all(tmp_path):
    def prepare(server):
        for model in server.installed.values():
            model.pop("capabilities")

    async with ollama(tmp_path, prepare=prepare) as (_, rig):
        assert "nomic-embed-text" in rig.executor.capabilities()[0].models


async def test_only_the_models_of_the_settings_are_offered_under_their_names_there(tmp_path):
    async with ollama(tmp_path, models={"writer": "llama3.1:8b", "gone": "mixtral:8x22b"}) as (server, rig):
        assert rig.executor.capabilities()[0].models == ["writer"]
        product = await rig.run("writer")
        assert server.last["model"] == product.model == "llama3.1:8b"


async def test_a_model_that_appears_is_offered_and_a_loaded_one_is_warm(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        changes = rig.changes
        server.installed["new:1b"] = {"digest": "bb", "size": GIB, "capabilities": ["completion"]}
        server.loaded["new:1b"] = {"context_length": 4096}
        await eventually(lambda: rig.executor.warm() == ["new:1b"])
        assert "new:1b" in rig.executor.capabilities()[0].models
        assert rig.changes > changes


# ---- what it asks for


async def test_an_article_is_streamed_told_recorded_and_written(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        spec = {"system": "Be brief.", "options": {"temperature": 0.7, "seed": 42, "max_tokens": 400, "top_p": 0.9}}
        product = await rig.run("llama3.1:8b", prompt="A harbour", **spec)
        assert server.last == {
            "model": "llama3.1:8b",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A harbour"}],
            "stream": True,
            "truncate": False,
            "options": {"num_ctx": 8192, "num_predict": 400, "seed": 42, "temperature": 0.7, "top_p": 0.9},
        }
        assert rig.told.stages == ["loading_model", "generating_text"]
        assert rig.told.details[0].startswith("1 tokens")
        assert rig.told.fractions[0] == pytest.approx(1 / 400)
        text = "The harbour wakes at dawn."
        assert product.result["text"] == text
        assert product.result["finish"] == "stop"
        assert product.result["usage"] == {"prompt_tokens": 12, "tokens": 6}
        assert product.result["timings"]["load_s"] == 4.1
        assert product.result["timings"]["tokens_per_s"] == 2.0
        assert product.model == "llama3.1:8b"
        assert product.settings["digest"] == "46e0c10c039e"
        assert {"seed": 42, "context": 8192, "max_tokens": 400, "top_p": 0.9}.items() <= product.settings.items()
        assert product.settings["executor"] == "ollama"
        assert product.settings["version"] == "0.32.6"
        assert [(f.artifact, f.media_type) for f in product.files] == [("article.md", "text/markdown")]
        assert (tmp_path / "article.md").read_text() == text


@pytest.mark.parametrize("given", [{}, {"seed": -1}])
async def test_a_seed_is_chosen_sent_and_recorded(tmp_path, given):
    async with ollama(tmp_path) as (server, rig):
        seeds = []
        for number in range(2):
            product = await rig.run("tiny", options=given, name=f"j{number}")
            assert product.settings["seed"] == server.last["options"]["seed"] >= 0
            seeds.append(product.settings["seed"])
        assert seeds[0] != seeds[1]


async def test_a_conversation_is_sent_as_it_is_and_the_context_is_the_jobs(tmp_path):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with ollama(tmp_path, keep_alive="10m") as (server, rig):
        await rig.run("tiny", messages=messages, options={"context": 32768, "num_ctx": 1, "think": False})
        assert server.last["messages"] == messages
        assert server.last["options"]["num_ctx"] == 32768
        assert server.last["think"] is False
        assert server.last["keep_alive"] == "10m"


async def test_a_model_is_found_by_its_slug_and_none_means_a_loaded_one(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        await rig.run("Llama3.1-8B")
        assert server.last["model"] == "llama3.1:8b"
        server.loaded["tiny:latest"] = {}
        await eventually(rig.executor.warm)
        await rig.run(None)
        assert server.last["model"] == "tiny:latest"


async def test_a_model_that_is_not_here_is_for_another_mac_and_never_asked_for(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        with pytest.raises(Elsewhere) as raised:
            await rig.run("mixtral:8x22b")
        assert raised.value.code == "model_missing"
        assert server.real == []


@pytest.mark.parametrize(
    "spec",
    [
        {"nonsense": 1},
        {"options": {"stop": [5]}},
        {"options": {"stop": ""}},
        {"options": {"allow_length": "yes"}},
        {"format": {"type": "no such type"}},
    ],
)
async def test_a_wrong_spec_is_permanent_and_never_sent(tmp_path, spec):
    async with ollama(tmp_path) as (server, rig):
        with pytest.raises(Permanent) as raised:
            await rig.run("tiny", **spec)
        assert raised.value.code == "bad_spec"
        assert server.real == []


async def test_another_kind_is_for_others(tmp_path):
    async with ollama(tmp_path) as (_, rig):
        with pytest.raises(Elsewhere):
            await rig.run("tiny", kind="image")


# ---- JSON

SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


@pytest.mark.parametrize("wanted", ["json", SCHEMA])
async def test_json_is_asked_for_checked_and_written(tmp_path, wanted):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(words=('```json\n{"title": ', '"Härbour"}\n```')))
        product = await rig.run("tiny", format=wanted)
        assert server.last["format"] == wanted
        assert "JSON" in server.last["messages"][0]["content"]
        assert json.loads(product.result["text"]) == {"title": "Härbour"}
        assert [(f.artifact, f.media_type) for f in product.files] == [("article.json", "application/json")]
        assert json.loads((tmp_path / "article.json").read_text()) == {"title": "Härbour"}


@pytest.mark.parametrize("words", ['{"title": 5}', '{"title": "x"', "no JSON"])
async def test_a_bad_answer_is_tried_once_more(tmp_path, words):
    async with ollama(tmp_path) as (server, rig):
        for attempt, error in ((2, Transient), (3, Permanent)):
            server.scripts.append(Script(words=(words,)))
            with pytest.raises(error) as raised:
                await rig.run("tiny", format=SCHEMA, attempt=attempt)
            assert type(raised.value) is error
            assert raised.value.code == "bad_answer"


async def test_a_schema_that_refers_to_the_web_is_never_fetched(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(words=("{}",)))
        with pytest.raises(Permanent) as raised:
            await rig.run("tiny", format={"$ref": f"{server.url}/schema.json"})
        assert raised.value.code == "bad_spec"
        assert "GET /schema.json" not in server.asked


async def test_a_pattern_is_held_against_the_answer(tmp_path):
    schema = {"type": "object", "properties": {"slug": {"type": "string", "pattern": "^[a-z-]+$"}}}
    async with ollama(tmp_path) as (server, rig):
        server.scripts += [Script(words=('{"slug": "a-b"}',)), Script(words=('{"slug": "A b"}',))]
        assert (await rig.run("tiny", format=schema)).result["text"] == '{"slug": "a-b"}'
        with pytest.raises(Transient, match=r"breaks the schema at \$.slug"):
            await rig.run("tiny", format=schema)


async def test_a_pattern_that_never_ends_stops_nothing_but_its_job(tmp_path, monkeypatch):
    """Python's `re` lets no other thread run while it matches: a heartbeat would wait for it."""
    monkeypatch.setattr(text_json, "_WORK_S", 2)
    schema = {"type": "object", "properties": {"slug": {"type": "string", "pattern": "^(a+)+$"}}}
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(words=('{"slug": "' + "a" * 60 + '!"}',)))
        work, turns = rig.begin("tiny", format=schema), 0
        while not work.done():
            turns += 1
            await asyncio.wait({work}, timeout=0.01)
        with pytest.raises(Permanent, match="format takes over 2 s of work"):
            await work
        assert turns > 10  # the loop went on, and so would heartbeats


async def test_references_that_multiply_are_stopped_like_a_pattern(tmp_path, monkeypatch):
    monkeypatch.setattr(text_json, "_WORK_S", 2)
    parts = {f"p{n}": {"allOf": [{"$ref": f"#/$defs/p{n + 1}"}] * 8} for n in range(20)}
    schema = {"type": "object", "$defs": parts | {"p20": {"type": "object"}}, "$ref": "#/$defs/p0"}
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(words=("{}",)))
        with pytest.raises(Permanent, match="format takes over 2 s of work"):
            await rig.run("tiny", format=schema)


async def test_a_schema_that_can_t_be_used_is_no_crash(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        with pytest.raises(Permanent, match="is no JSON schema: '\\(' is not a 'regex'"):
            await rig.run("tiny", format={"type": "string", "pattern": "("})
        assert server.real == []
        for endless in ({"$ref": "#"}, {"x": {"pattern": "("}, "$ref": "#/x"}):
            server.scripts.append(Script(words=('"a"',)))
            with pytest.raises(Transient, match="can't be held against the schema"):
                await rig.run("tiny", format=endless)
            rig.executor.judge = Judge("ollama")


# ---- what it does not believe


@pytest.mark.parametrize(
    ("script", "code", "first", "second"),
    [
        (Script(end=False), "no_end_marker", Transient, Elsewhere),
        (Script(words=(" ", "\n")), "empty", Transient, Elsewhere),
        (Script(words=(), thoughts=("hm", "hm")), "empty", Transient, Elsewhere),
        (Script(finish="length"), "truncated", Permanent, Permanent),
        (Script(finish="load"), "bad_answer", Transient, Permanent),
        (Script(raw=b"[1]\n"), "cut_off", Transient, Elsewhere),
        (
            Script(error_after=0, error_text="an error was encountered while running the model: unexpected EOF"),
            "cut",
            Transient,
            Elsewhere,
        ),
    ],
)
async def test_an_answer_without_proof_is_an_error(tmp_path, script, code, first, second):
    async with ollama(tmp_path, most_bytes=2000) as (server, rig):
        for attempt, error in ((1, first), (2, second)):
            await rig.up()
            server.scripts.append(script)
            with pytest.raises(error) as raised:
                await rig.run("tiny", attempt=attempt)
            assert type(raised.value) is error
            assert raised.value.code == code
            assert raised.value.detail["executor"] == "ollama"
        assert not (tmp_path / "article.md").exists()


@pytest.mark.parametrize("options", [{"max_tokens": 6}, {"allow_length": True}])
async def test_an_answer_that_was_cut_counts_if_the_job_allows_it(tmp_path, options):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(finish="length"))
        assert (await rig.run("tiny", options=options)).result["finish"] == "length"


async def test_a_cut_that_the_job_forbids_in_spite_of_its_own_limit_is_an_error(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(finish="length"))
        with pytest.raises(Permanent) as raised:
            await rig.run("tiny", options={"max_tokens": 6, "allow_length": False})
        assert raised.value.code == "truncated"


async def test_thinking_is_no_text_but_a_sign_of_life(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(thoughts=("well", "hm")))
        assert (await rig.run("tiny")).result["text"] == "The harbour wakes at dawn."


async def test_a_prompt_of_which_most_was_dropped_is_an_error(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(more={"prompt_eval_count": 500}))
        with pytest.raises(Permanent) as raised:
            await rig.run("tiny", prompt="boat " * 1000, options={"context": 512})
        assert raised.value.code == "prompt_too_long"


async def test_a_last_line_of_a_megabyte_is_read(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(more={"context": list(range(150_000))}))
        assert (await rig.run("tiny")).result["finish"] == "stop"


async def test_a_character_that_is_split_between_two_chunks_is_whole(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        line = '{"model":"tiny:latest","message":{"content":"Häfen"},"done":false}\n'.encode()
        cut = line.index("ä".encode()) + 1
        server.scripts.append(Script(waiting=(line[:cut], line[cut:]), words=()))
        assert (await rig.run("tiny")).result["text"] == "Häfen"


# ---- errors by status


@pytest.mark.parametrize(
    ("status", "text", "code", "first", "second"),
    [
        (404, "model 'tiny' not found", "model_missing", Elsewhere, Elsewhere),
        (
            500,
            "model requires more system memory (0.1 GiB) than is available (0.0 GiB)",
            "out_of_memory",
            Transient,
            Elsewhere,
        ),
        (
            500,
            "model requires more system memory (39.4 TiB) than is available (30.0 GiB)",
            "too_large",
            Elsewhere,
            Elsewhere,
        ),
    ],
)
async def test_errors_mean_what_the_table_says(tmp_path, status, text, code, first, second):
    async with ollama(tmp_path) as (server, rig):
        for attempt, error in ((1, first), (2, second)):
            server.scripts.append(Script(status=status, error={"error": text}))
            with pytest.raises(error) as raised:
                await rig.run("tiny", attempt=attempt)
            assert type(raised.value) is error
            assert raised.value.code == code
            assert raised.value.detail["status"] == status
            assert raised.value.detail["text"] == text


async def test_an_unknown_error_is_tried_again_on_another_mac_only(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.scripts.append(Script(status=500, error={"error": "odd"}))
        with pytest.raises(Transient) as raised:
            await rig.run("tiny", name="odd one")
        assert (raised.value.code, raised.value.detail["status"]) == ("unknown_error", 500)
        with pytest.raises(Elsewhere):
            await rig.run("tiny", name="odd one", attempt=2)
        assert len(server.real) == 1
        await rig.run("tiny", name="another")


async def test_a_full_queue_releases_the_job_and_stops_the_pulling(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        busy = {"error": "server busy, please try again.  maximum pending requests exceeded"}
        server.scripts.append(Script(status=503, error=busy, headers={"Retry-After": "30"}))
        with pytest.raises(BackendDown) as raised:
            await rig.run("tiny")
        assert raised.value.code == "busy"
        assert rig.executor.capabilities() == []
        assert rig.executor.known() != []
        asked = len(server.requests)
        rig.clock.moved_s += 29
        await rig.executor.once()
        assert len(server.requests) == asked
        rig.clock.moved_s += 2
        await rig.up()


# ---- clocks


@pytest.mark.parametrize(
    ("script", "settings", "code"),
    [
        (Script(hang_after=0), {"first_s": 300}, "no_output"),
        (Script(hang_after=3), {"total_s": 300, "idle_s": 9000}, "too_slow"),
    ],
)
async def test_a_hang_is_ended_by_its_clock_and_the_stream_is_dropped(tmp_path, script, settings, code):
    async with ollama(tmp_path, **settings) as (server, rig):
        server.scripts.append(script)
        work = rig.begin("tiny")
        await eventually(lambda: server.real and server.words_sent >= (script.hang_after or 0))
        if script.hang_after:
            await eventually(lambda: rig.told.details)
        request = server.real[0]
        rig.clock.moved_s += 290
        await rig.clock.looked_at()
        assert not work.done()
        rig.clock.moved_s += 20
        with pytest.raises(Transient) as raised:
            await asyncio.wait_for(work, 10)
        assert raised.value.code == code
        await asyncio.wait_for(request.closed.wait(), 10)
        assert request.dropped
        probes = len(server.probes)
        await rig.up()
        assert len(server.probes) > probes  # it had to prove itself again


async def test_a_generator_that_slept_with_the_machine_may_go_on(tmp_path):
    async with ollama(tmp_path, idle_s=60, wake_s=300) as (server, rig):
        server.scripts.append(Script(hang_after=3))
        work = rig.begin("tiny")
        await eventually(lambda: rig.told.details)
        rig.clock.moved_s += 3000
        await rig.clock.looked_at()
        assert not work.done()
        server.resume.set()
        assert (await asyncio.wait_for(work, 10)).result["text"]


# ---- health


async def test_nothing_is_offered_before_a_tiny_generation_has_succeeded(tmp_path):
    def hangs(server):
        server.usual = Script(hang_first=True)

    async with ollama(tmp_path, wait_up=False, prepare=hangs) as (server, rig):
        await asyncio.wait_for(server.arrived.wait(), 10)
        assert rig.executor.known()[0].models
        assert rig.executor.capabilities() == []
        server.usual = Script()
        server.requests[0].closed.clear()
        await rig.executor.stand_aside()
        await rig.up()


@pytest.mark.parametrize("usual", [Script(words=()), Script(end=False), Script(model="other"), Script(die_after=1)])
async def test_a_server_that_lists_its_models_but_generates_nothing_is_down(tmp_path, usual):
    async with ollama(tmp_path) as (server, rig):
        server.usual = usual
        rig.executor.hold_back("doubt")
        probes = len(server.probes)
        await eventually(lambda: len(server.probes) > probes + 1)
        assert not rig.executor.up
        assert rig.executor.status()["reason"]
        server.usual = Script()
        await rig.up()


async def test_the_probe_uses_the_smallest_model_and_leaves_memory_as_it_was(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        assert server.probes[0].body["model"] in {"tiny", "tiny:latest"}
        assert server.probes[0].body["keep_alive"] == 0
        assert server.probes[0].body["options"]["num_predict"] == 8
        until = datetime.now(UTC) + timedelta(seconds=120)
        server.loaded["llama3.1:8b"] = {"context_length": 16384, "expires_at": until.isoformat()}
        await eventually(rig.executor.warm)
        rig.executor.hold_back("doubt")
        await eventually(lambda: len(server.probes) > 1)
        body = server.probes[1].body
        assert body["model"] == "llama3.1:8b"
        assert body["options"]["num_ctx"] == 16384  # another one would load it again
        assert 60 < body["keep_alive"] <= 120


async def test_a_model_that_stays_for_ever_is_probed_for_ever(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.loaded["tiny:latest"] = {"expires_at": "2318-03-10T20:35:21.123456789+01:00"}
        await eventually(rig.executor.warm)
        rig.executor.hold_back("doubt")
        await eventually(lambda: len(server.probes) > 1)
        assert server.probes[-1].body["keep_alive"] == -1


async def test_a_probe_is_due_after_a_while_sooner_with_a_loaded_model(tmp_path):
    async with ollama(tmp_path, probe_s=300, probe_cold_s=3600) as (server, rig):
        assert len(server.probes) == 1
        rig.clock.moved_s += 301
        await rig.executor.once()
        assert len(server.probes) == 1
        server.loaded["tiny:latest"] = {}
        await rig.executor.once()
        assert len(server.probes) == 2
        server.loaded.clear()
        rig.clock.moved_s += 3601
        await eventually(lambda: len(server.probes) == 3)


async def test_a_job_that_succeeded_counts_as_a_probe(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.loaded["tiny:latest"] = {}
        rig.clock.moved_s += 301
        await rig.run("tiny")
        await rig.executor.once()
        assert len(server.probes) == 1


async def test_nothing_is_asked_while_a_job_runs_and_no_probe_while_the_gpu_is_taken(tmp_path):
    async with ollama(tmp_path, look_s=1000) as (server, rig):
        server.loaded["tiny:latest"] = {}
        server.scripts.append(Script(hang_after=1))
        work = rig.begin("tiny")
        await eventually(lambda: server.words_sent)
        asked, requests = len(server.asked), len(server.requests)
        rig.clock.moved_s += 100
        await rig.executor.once()
        assert (len(server.asked), len(server.requests)) == (asked, requests)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        rig.gpu_free = False
        rig.clock.moved_s += 1000
        await rig.executor.once()
        assert len(server.probes) == 1
        assert rig.executor.up
        rig.gpu_free = True
        await rig.executor.once()
        assert len(server.probes) == 2


async def test_a_server_elsewhere_is_probed_whatever_this_gpu_does(tmp_path):
    async with ollama(tmp_path, gpu=False) as (_, rig):
        rig.gpu_free = False
        rig.executor.hold_back("doubt")
        await rig.up()


async def test_a_job_ends_a_probe_that_runs(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        server.usual = Script(hang_first=True)
        server.loaded["tiny:latest"] = {}
        rig.clock.moved_s += 301
        await eventually(lambda: len(server.probes) == 2)
        server.usual = Script()
        assert (await rig.run("tiny")).result["text"]
        await asyncio.wait_for(server.probes[1].closed.wait(), 10)
        assert server.probes[1].dropped
        assert rig.executor.up


async def test_without_probes_a_look_is_enough(tmp_path):
    async with ollama(tmp_path, probe_s=0) as (server, rig):
        assert rig.executor.capabilities()
        rig.executor.hold_back("doubt")
        await rig.up()
        assert server.requests == []


async def test_a_server_that_goes_and_comes_is_seen(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        await server.stop()
        await rig.down()
        changes = rig.changes
        with pytest.raises(BackendDown) as raised:
            await rig.run("tiny")
        assert raised.value.code == "unreachable"
        await server.start()
        await rig.up()
        assert rig.changes > changes
        await rig.run("tiny")


async def test_a_server_that_takes_connections_and_says_nothing_is_down(tmp_path):
    async with ollama(tmp_path, answer_s=0.2) as (server, rig):
        server.silent = True
        await rig.down()
        assert "no answer" in rig.executor.status()["reason"]


async def test_a_server_that_dies_under_a_job_costs_it_nothing_once(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        for attempt, error in ((1, BackendDown), (1, Transient), (2, Elsewhere)):
            server.scripts.append(Script(hang_after=1))
            sent = server.words_sent
            work = rig.begin("tiny", attempt=attempt)
            await eventually(lambda sent=sent: server.words_sent > sent)
            await server.stop()
            with pytest.raises(error) as raised:
                await asyncio.wait_for(work, 10)
            assert type(raised.value) is error
            assert raised.value.code == "cut_off"
            await server.start()
            await rig.up()


# ---- memory


async def test_it_unloads_its_models_and_knows_what_one_needs(tmp_path):
    async with ollama(tmp_path) as (server, rig):
        assert await rig.executor.need_bytes(rig.job("llama3.1:8b")) == 5 * GIB
        assert await rig.executor.need_bytes(rig.job("nobody")) is None
        server.loaded["llama3.1:8b"] = {}
        await eventually(rig.executor.warm)
        assert await rig.executor.need_bytes(rig.job("llama3.1:8b")) == 0
        await rig.executor.unload()
        assert server.unloaded == ["llama3.1:8b"]
        assert await rig.executor.need_bytes(rig.job("llama3.1:8b")) == 5 * GIB


async def test_what_a_job_needs_is_asked_and_not_remembered(tmp_path):
    async with ollama(tmp_path, look_s=1000) as (server, rig):
        server.loaded["llama3.1:8b"] = {}
        assert await rig.executor.need_bytes(rig.job("llama3.1:8b")) == 0
        server.loaded.clear()  # its keep_alive is over
        assert await rig.executor.need_bytes(rig.job("llama3.1:8b")) == 5 * GIB
        await server.stop()
        assert await rig.executor.need_bytes(rig.job("llama3.1:8b")) is None


async def test_it_unloads_what_was_loaded_since_the_last_look_and_meanwhile(tmp_path):
    async with ollama(tmp_path, look_s=1000) as (server, rig):
        server.loaded["llama3.1:8b"] = {}
        server.loads_meanwhile.append("tiny:latest")
        await rig.executor.unload()
        assert server.unloaded == ["llama3.1:8b", "tiny:latest"]
        assert server.loaded == {}
