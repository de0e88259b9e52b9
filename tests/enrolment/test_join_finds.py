"""What `tandem-agent join LINE` finds on a machine becomes settings that the agent accepts and that offer something."""

import asyncio
import contextlib
import os
import pty
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent import join as agent_join
from agent.cli import app
from agent.executors.registry import load_executors
from agent.settings import load_settings
from tests.enrolment.test_join import inviting
from tests.support.fake_comfyui import FakeComfyUI
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_openai import FakeOpenAI
from tests.support.fake_server import running as serving
from tests.support.processes import clean_environment

CHECKPOINTS = ["sd_xl_base_1.0.safetensors", "old/v1-5.ckpt", "mac\\v1-5.safetensors", "sd_xl_base_1.0.ckpt"]
MODELS = {
    "sd_xl_base_1.0": {"template": "checkpoint", "checkpoint": CHECKPOINTS[0]},
    "v1-5": {"template": "checkpoint", "checkpoint": CHECKPOINTS[1]},
}
ON_A_TERMINAL = "import agent.join as join; join._BACKENDS = {backends!r}; from agent.cli import main; main()"


@dataclass
class Machine:
    """What is sought, at the ports of the fakes; and the tables that are to come of it."""

    backends: tuple[tuple[str, dict[str, Any], str], ...]
    tables: dict[str, dict[str, Any]]
    comfy: FakeComfyUI


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    """Run an Ollama, a llama.cpp and a ComfyUI; LM Studio is sought and not there."""
    async with AsyncExitStack() as stack:
        ollama = await stack.enter_async_context(serving(FakeOllama()))
        llama = await stack.enter_async_context(serving(FakeOpenAI()))
        comfy = await stack.enter_async_context(FakeComfyUI(folder / "comfy"))
        comfy.files["checkpoints"] = list(CHECKPOINTS)
        urls = {"ollama": ollama.url, "llama": llama.url, "comfyui": comfy.url}
        places = (urls["ollama"], "http://127.0.0.1:1", urls["llama"], urls["comfyui"], "http://127.0.0.1:1")
        backends = tuple(
            (name, {**table, "url": url}, called)
            for (name, table, called), url in zip(agent_join._BACKENDS, places, strict=True)
        )
        tables = {
            "ollama": {"url": urls["ollama"]},
            "openai": {"url": urls["llama"]},
            "comfyui": {"url": urls["comfyui"], "workflows": False, "models": MODELS},
        }
        yield Machine(backends, tables, comfy)


async def join(line: str, folder: Path, *flags: str) -> tuple[int, str]:
    """Call it as the README does, without a terminal."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["join", line, "--folder", str(folder), *flags])
    return done.exit_code, done.output


def tables_in(folder: Path) -> Mapping[str, Any]:
    """Return the executors of the settings, which an agent has to accept."""
    executors = load_settings(folder / "agent.toml", environment=False).executors
    assert len(load_executors(executors)) == len(executors)
    table: Mapping[str, Any] = tomllib.loads((folder / "agent.toml").read_text())["executors"]
    return table


async def on_a_terminal(line: str, folder: Path, backends: object, answers: Mapping[str, str]) -> tuple[int, str]:
    """Answer its questions on a pty; return its exit status and what was on the screen."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ON_A_TERMINAL.format(backends=backends), "join", line, "--folder", str(folder)),
        env=clean_environment() | {"COLUMNS": "200", "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said, left = "", dict(answers)

    def read() -> str:
        try:
            return os.read(ours, 65536).decode()
        except OSError:  # it has ended
            return ""

    with contextlib.closing(os.fdopen(ours, "wb", buffering=0)):
        async with asyncio.timeout(60):
            while more := await asyncio.to_thread(read):
                said += more
                for question in [one for one in left if one in said]:
                    os.write(ours, f"{left.pop(question)}\n".encode())
            status = await process.wait()
    assert not left, said
    return status, said


async def test_yes_takes_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine(tmp_path) as here, inviting() as coordinator:
        monkeypatch.setattr(agent_join, "_BACKENDS", here.backends)
        status, said = await join(coordinator.line, tmp_path / "mac", "--yes")
    assert (status, "next: tandem-agent doctor" in said) == (0, True), said
    assert tables_in(tmp_path / "mac") == here.tables


async def test_a_person_is_asked_for_each_that_is_found(tmp_path: Path) -> None:
    answers = {"Ollama was found": "n", "llama.cpp or mlx_lm was found": "", "ComfyUI was found": "y", "When may": ""}
    async with machine(tmp_path) as here, inviting() as coordinator:
        status, said = await on_a_terminal(coordinator.line, tmp_path / "mac", here.backends, answers)
    assert (status, "LM Studio" in said, "Desktop" in said) == (0, False, False), said
    assert tables_in(tmp_path / "mac") == {name: here.tables[name] for name in ("openai", "comfyui")}


async def test_one_that_is_named_gets_the_settings_of_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine(tmp_path) as here, inviting() as coordinator:
        monkeypatch.setattr(agent_join, "_BACKENDS", here.backends)
        here.comfy.files["checkpoints"] = []
        status, said = await join(coordinator.line, tmp_path / "mac", "--executor", "comfyui", "--executor", "sketch")
    assert status == 0, said
    assert tables_in(tmp_path / "mac") == {
        "comfyui": {"url": here.tables["comfyui"]["url"], "workflows": True},
        "sketch": {},
    }


async def test_where_nothing_is_found_the_line_stays_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = tuple((name, {**table, "url": "http://127.0.0.1:1"}, called) for name, table, called in agent_join._BACKENDS)
    monkeypatch.setattr(agent_join, "_BACKENDS", away)
    async with inviting() as coordinator:
        status, said = await join(coordinator.line, tmp_path / "mac", "--yes")
        assert (status, "no Ollama, LM Studio, llama.cpp or ComfyUI answers here" in said) == (2, True), said
        assert coordinator.known == ""
        status, said = await join(coordinator.line, tmp_path / "mac", "--executor", "sketch", "--set", "rnk=1")
        assert (status, "rnk is not a setting" in said, coordinator.known) == (2, True, ""), said


async def test_a_coordinator_that_is_away_is_said_without_what_python_makes_of_it(tmp_path: Path) -> None:
    status, said = await join("https://127.0.0.1:1/join/mini#" + "s" * 32, tmp_path, "--executor", "sketch")
    assert (status, "can't reach https://127.0.0.1:1: Cannot connect to host 127.0.0.1:1 [" in said) == (3, True), said
    assert "SSLContext" not in said
