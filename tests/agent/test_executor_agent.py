"""Executors with backends inside a running agent: what it announces, takes, releases and reports."""

import asyncio
import re

import pytest

from agent.doctor import examine
from agent.executors.ollama import OllamaExecutor
from agent.executors.openai import OpenAIExecutor
from agent.executors.registry import load_executors
from agent.runner import How
from agent.workspace import data_folder
from shared.errors import ConfigurationError
from tests.support.agent_world import agent, settings_for
from tests.support.comfyui_rig import SDXL
from tests.support.fake_comfyui import FakeComfyUI
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_openai import FakeOpenAI
from tests.support.fake_server import Script, running
from tests.support.servers import eventually
from tests.support.text_rig import QUICK


def ollama_of(server):
    return OllamaExecutor.from_settings({"url": server.url, **QUICK})


async def test_an_article_goes_through_the_agent(servers, far, tmp_path):
    async with running(FakeOllama()) as server:
        server.loaded["tiny:latest"] = {}
        async with agent(settings_for(servers, "mini", tmp_path), ollama_of(server)) as mini:
            await eventually(lambda: far.presences[-1]["warm"] == ["tiny", "tiny:latest"])
            (capability,) = far.presences[-1]["capabilities"]
            assert capability["executor"] == "ollama"
            assert "llama3.1:8b" in capability["models"]
            await far.offer(prompt="A harbour", options={"seed": 7})
            report = await far.report()
            assert (await mini.end()).how is How.COMPLETED
        assert report["result"]["text"] == "The harbour wakes at dawn."
        assert report["model"] == "tiny:latest"
        assert report["settings"]["seed"] == 7
        assert report["settings"]["digest"] == "aa11"
        assert [stage["stage"] for stage in report["stages"]][:2] == ["loading_model", "generating_text"]
        assert far.uploads == {"article.md": b"The harbour wakes at dawn."}


async def test_nothing_is_taken_for_a_backend_that_is_down_and_all_when_it_is_back(servers, far, tmp_path):
    async with running(FakeOllama()) as server:
        executor = ollama_of(server)
        await server.stop()
        async with agent(settings_for(servers, "mini", tmp_path), executor) as mini:
            await eventually(lambda: far.presences[-1]["state"] == "unhealthy")
            assert far.presences[-1]["capabilities"] == []
            await far.offer()
            rounds = len(far.presences)
            await eventually(lambda: len(far.presences) > rounds + 2)
            assert far.claims == []
            await server.start()
            assert (await far.report())["outcome"] == "completed"
            assert (await mini.end()).how is How.COMPLETED
            await server.stop()
            await eventually(lambda: far.presences[-1]["state"] == "unhealthy")
            (down,) = far.presences[-1]["down"]
            assert (down["kind"], far.presences[-1]["capabilities"]) == ("article", [])
            assert "tiny" in down["models"]


async def test_what_the_settings_name_is_announced_as_down_before_its_backend_was_ever_seen(servers, far, tmp_path):
    nowhere = {"url": "http://127.0.0.1:9", **QUICK}
    executors = load_executors(
        {"ollama": {**nowhere, "models": ["tiny"]}, "openai": nowhere, "comfyui": {**nowhere, "models": {"sdxl": SDXL}}}
    )
    async with agent(settings_for(servers, "mini", tmp_path), *executors):
        await eventually(lambda: far.presences and far.presences[-1]["state"] == "unhealthy")
        said = far.presences[-1]
        assert said["capabilities"] == []
        assert [(one["executor"], one["models"]) for one in said["down"]] == [
            ("ollama", ["tiny"]),
            ("comfyui", ["sdxl"]),
        ]


async def test_a_job_whose_backend_dies_is_released_uncharged(servers, far, tmp_path):
    async with (
        running(FakeOllama()) as server,
        agent(settings_for(servers, "mini", tmp_path), ollama_of(server)) as mini,
    ):
        server.scripts.append(Script(hang_after=1))
        await far.offer()
        await eventually(lambda: server.words_sent)
        await server.stop()
        report = await far.report()
        assert report["outcome"] == "released"
        assert report["error"]["code"] == "cut_off"
        assert (await mini.end()).how is How.RELEASED
        await server.start()


async def test_a_lease_that_is_lost_drops_the_stream_and_frees_the_slot(servers, far, tmp_path):
    async with running(FakeOpenAI()) as server:
        executor = OpenAIExecutor.from_settings({"url": server.url, **QUICK})
        async with agent(settings_for(servers, "mini", tmp_path), executor) as mini:
            server.scripts.append(Script(hang_after=2))
            job_id = await far.offer()
            await eventually(lambda: server.words_sent)
            await far.say(type="revoke", job_id=job_id, epoch=1, reason="stale")
            assert (await mini.end()).how is How.LOST
            await asyncio.wait_for(server.real[0].closed.wait(), 10)
            assert server.real[0].dropped
            await far.offer()
            assert (await far.report())["outcome"] == "completed"
            await mini.end()


async def test_an_error_is_reported_with_its_class_and_without_the_prompt(servers, far, tmp_path):
    async with (
        running(FakeOllama()) as server,
        agent(settings_for(servers, "mini", tmp_path), ollama_of(server)) as mini,
    ):
        server.scripts.append(Script(status=404, error={"error": "model 'tiny' not found"}))
        await far.offer(prompt="a secret prompt")
        report = await far.report()
        assert report["error"]["class"] == "elsewhere"
        assert report["error"]["code"] == "model_missing"
        assert report["error"]["detail"]["status"] == 404
        assert report["error"]["detail"]["version"] == "0.32.6"
        assert "secret" not in str(report)
        await mini.end()


async def test_the_doctor_says_what_was_found_and_what_is_wrong(servers, tmp_path):
    async with running(FakeOllama()) as server:
        settings = settings_for(servers, "mini", tmp_path, executors={"ollama": {"url": server.url, "retry_s": 0.05}})
        server.loaded["tiny:latest"] = {}
        found = {finding.what: finding for finding in await examine(settings)}
        assert re.fullmatch(r"\d+\.\d GiB free of \d+\.\d GiB", found["memory"].said)
        assert found["executor ollama"].ok
        assert re.fullmatch(
            r"article \(llama3.1:8b, tiny:latest, tiny\); version 0.32.6; loaded tiny:latest, tiny; "
            r"a tiny generation took [\d.]+ s",
            found["executor ollama"].said,
        )
        server.usual = Script(words=())
        ill = {finding.what: finding for finding in await examine(settings)}["executor ollama"]
        assert not ill.ok
        assert server.url in ill.todo
        assert "a tiny generation was empty" in ill.todo
        await server.stop()
        away = {finding.what: finding for finding in await examine(settings)}["executor ollama"]
        assert not away.ok
        assert "ollama serve" in away.todo


async def test_the_doctor_lets_nothing_be_generated_beside_a_running_agent(servers, tmp_path):
    async with running(FakeOllama()) as server:
        executors = {"ollama": {"url": server.url}, "sketch": {}}
        settings = settings_for(servers, "mini", tmp_path, executors=executors)
        with data_folder(tmp_path, "mini"):
            found = {finding.what: finding for finding in await examine(settings)}
        assert found["data folder"].ok
        assert "an agent runs there" in found["data folder"].said
        assert found["executor ollama"].ok
        assert found["executor ollama"].said.endswith("not made to generate now")
        assert server.requests == []


async def test_the_doctor_says_what_to_do_for_each_thing_that_is_missing(servers, tmp_path):
    flux = {"template": "flux", "unet": "u.safetensors", "clip": "c.safetensors", "clip2": "clip_l.safetensors"}
    models = {"sdxl": SDXL, "flux": flux | {"vae": "ae.safetensors"}}
    async with (
        running(FakeOllama()) as ollama,
        running(FakeOpenAI()) as openai,
        FakeComfyUI(tmp_path / "comfy") as comfy,
    ):
        executors = {
            "ollama": {"url": ollama.url, "models": {"writer": "tiny", "big": "mixtral:8x22b"}},
            "openai": {"url": openai.url, "default_model": "qwen3-8b"},
            "comfyui": {"url": comfy.url, "models": models},
            "command": {"programs": {"outline": {"program": "/nowhere/outline", "kind": "outline"}}},
        }
        found = await examine(settings_for(servers, "mini", tmp_path / "data", executors=executors))
    missing = {finding.said: finding.todo for finding in found if finding.said.endswith("is missing")}
    assert missing == {
        "model mixtral:8x22b is missing": "run: ollama pull mixtral:8x22b; or correct executors.ollama",
        "model qwen3-8b is missing": "load or install qwen3-8b there, or correct executors.openai",
        "model flux is missing": "put u.safetensors into models/diffusion_models, c.safetensors into "
        "models/text_encoders of ComfyUI, or correct unet, clip in executors.comfyui.models.flux",
        "program outline is missing": "install /nowhere/outline and make it executable, or correct executors.command",
    }
    fine = [finding.what for finding in found if finding.ok and finding.what.startswith("executor")]
    assert fine == ["executor ollama", "executor openai", "executor comfyui"]


def test_executors_are_found_by_their_names():
    found = load_executors({"ollama": {}, "openai": {"models": {"writer": "default_model"}}})
    assert [type(executor) for executor in found] == [OllamaExecutor, OpenAIExecutor]
    assert found[0].status()["url"] == "http://127.0.0.1:11434"


@pytest.mark.parametrize(
    ("name", "table", "fault"),
    [
        ("ollama", {"url": "127.0.0.1:11434"}, "executors.ollama.url"),
        ("ollama", {"idle_s": 0}, "executors.ollama.idle_s"),
        ("ollama", {"modles": ["x"]}, "executors.ollama.modles"),
        ("openai", {"api": "responses"}, "executors.openai.api"),
        ("openai", {"probe_s": -1}, "executors.openai.probe_s"),
    ],
)
def test_a_wrong_table_is_refused_by_the_name_of_its_setting(name, table, fault):
    with pytest.raises(ConfigurationError, match=fault):
        load_executors({name: table})
