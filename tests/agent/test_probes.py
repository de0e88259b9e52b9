"""What presence tells of the executors' probes: whether a worker that was set aside may come back hangs on it."""

from pathlib import Path

from agent.executors.ollama import OllamaExecutor
from agent.executors.registry import Registry
from agent.executors.sketch import SketchExecutor
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_server import running
from tests.support.text_rig import QUICK, started


async def test_it_is_told_how_long_ago_an_executor_last_proved_that_it_generates(tmp_path: Path) -> None:
    async with running(FakeOllama()) as fake:
        executor = OllamaExecutor.from_settings({"url": fake.url, **QUICK})
        registry = Registry([executor, SketchExecutor.from_settings({})], now=lambda: 0.0)
        assert registry.probes() == {"ollama": None}, "never so far; sketch has nothing to prove"
        async with started(executor, tmp_path) as rig:
            first = registry.probes()["ollama"]
            rig.clock.moved_s += 40
            later = registry.probes()["ollama"]
    assert first is not None
    assert later is not None
    assert later - first >= 40


async def test_one_that_never_probes_promises_no_proof(tmp_path: Path) -> None:
    async with running(FakeOllama()) as fake:
        executor = OllamaExecutor.from_settings({"url": fake.url, **QUICK, "probe_s": 0})
        async with started(executor, tmp_path):
            assert Registry([executor], now=lambda: 0.0).probes() == {}
