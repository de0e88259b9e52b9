"""One contract for all executors: each scenario ends as the table says, leaves nothing, and hurts no later job."""

import asyncio
import tempfile

import pytest

from agent.executors.base import ExecutorError, Product
from tests.contract.comfyui import ComfyUIBench
from tests.contract.contract import Bench, Cancelled, Case, NotHere, Scenario, in_order
from tests.contract.local import CommandBench, SketchBench
from tests.contract.text import LlamaBench, MlxBench, OllamaBench
from tests.support.servers import eventually

BENCHES: tuple[type[Bench], ...] = (SketchBench, CommandBench, OllamaBench, LlamaBench, MlxBench, ComfyUIBench)
KEPT = ("backend:", "probe:")
"""Tasks of an executor that outlive its jobs."""

CASES = [
    pytest.param(bench, case, id=f"{bench.name}-{scenario}".replace(" ", "_"))
    for bench in BENCHES
    for scenario, case in bench.table.items()
    if isinstance(case, Case)
]


@pytest.mark.parametrize("bench_class", BENCHES, ids=lambda bench: bench.name)
def test_an_executor_says_something_of_each_scenario(bench_class):
    assert set(bench_class.table) == set(Scenario)
    absent = [row for row in bench_class.table.values() if isinstance(row, NotHere)]
    assert all(len(row.why) > 10 for row in absent)


@pytest.mark.parametrize("scenario", Scenario)
def test_each_scenario_is_met_by_some_executor(scenario):
    assert any(isinstance(bench.table[scenario], Case) for bench in BENCHES)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Folders that must stay empty: what is temporary, and the one in which the process runs."""
    made = [tmp_path / "tmp", tmp_path / "here"]
    for folder in made:
        folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made[0]))
    monkeypatch.setenv("TMPDIR", str(made[0]))
    monkeypatch.chdir(made[1])
    return made


@pytest.mark.parametrize(("bench_class", "case"), CASES)
async def test_every_executor_keeps_the_contract(bench_class, case, tmp_path, places):
    bench = bench_class(tmp_path)
    await bench.open(case.settings)
    try:
        await bench.start_executor()
        await ends_as_told(bench, case, 1)
        if case.second is not None:
            await recovers(bench)
            await ends_as_told(bench, case, 2)
        await recovers(bench)
        good = Case(whole=True)
        await ends_as_told(bench, good, 3)
    finally:
        await bench.executor.aclose()
        await bench.close()
    assert [list(folder.iterdir()) for folder in places] == [[], []]
    assert {path.name for path in tmp_path.iterdir()} <= {"tmp", "here", "work", "double"}


async def recovers(bench):
    await bench.heal()
    await bench.up()


async def ends_as_told(bench, case, number):
    """Play a case, and look at what it ended with, what was told, and what is left."""
    attempt = number if case.second is not None else 1
    ended = await outcome(bench, case, epoch=number, attempt=attempt)
    how = case.how(attempt)
    assert type(ended) is (Product if how is None else how), ended
    if isinstance(ended, Product):
        proven(bench, ended)
    elif how is not Cancelled and case.code and how is case.end:
        assert ended.code == case.code
    if bench.idle_at_once:
        assert bench.idle()
    await eventually(bench.idle)
    await eventually(lambda: not tasks_left())
    assert in_order(bench.told.stages, bench.stages)
    if case.whole:
        assert tuple(dict.fromkeys(bench.told.stages)) == bench.stages


async def outcome(bench, case, **which):
    """Return the product, or the error."""
    try:
        return await bench.play(case, **which)
    except ExecutorError as error:
        return error


def proven(bench, product):
    """Hold a product to what a report may carry: real files of the workspace, a model, plain settings."""
    for file in product.files:
        assert file.path.parent.is_relative_to(bench.workspace)
        assert file.path.is_file()
        assert not file.path.is_symlink()
        assert file.path.stat().st_size > 0
    assert product.model or bench.name == "command"


def tasks_left():
    """Return what the executor began for a job and did not end."""
    return [
        task
        for task in asyncio.all_tasks()
        if "/agent/" in getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", "")
        and "/tests/" not in task.get_coro().cr_code.co_filename
        and not task.get_name().startswith(KEPT)
    ]
