"""The command executor, with real programs: what they may say, how they end, and that nothing of them is left."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import pytest

from agent.executors.base import BackendDown, Elsewhere, Permanent, RunnableJob, Transient
from agent.executors.children import LINE_MOST_BYTES, TAIL_BYTES
from agent.executors.command import CommandExecutor
from tests.support.servers import eventually
from tests.unit.test_agent_sketch import Told

SCRIPTS = []


def job(tmp_path, model=None, kind="outline", **spec):
    return RunnableJob(
        id="j-1",
        epoch=3,
        attempt=1,
        kind=kind,
        model=model,
        spec=spec,
        labels={"a": "b"},
        open_workspace=lambda: tmp_path,
    )


def command(script, *args, **more):
    """Return an executor whose one program is this Python script."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(script)
    SCRIPTS.append(Path(file.name))
    program = {"program": sys.executable, "args": [file.name, *args], "kind": "outline", "grace_s": 0.3, **more}
    return CommandExecutor.from_settings({"programs": {"outline": program}})


@pytest.fixture(autouse=True)
def no_scripts_left():
    yield
    while SCRIPTS:
        SCRIPTS.pop().unlink()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_program_gets_the_job_and_its_words_and_files_come_back(tmp_path):
    script = """
import json, os, sys
job = json.load(sys.stdin)
assert job == json.load(open("job.json"))
print("chatter")
print(json.dumps({"stage": "generating_text", "progress": 0.5, "detail": "half"}), flush=True)
open("out/b.md", "w").write(sys.argv[1]); open("out/a.bin", "wb").write(b"1")
print(json.dumps({"result": {"args": sys.argv[1:], "spec": job["spec"], "env": dict(os.environ)}}))
print(json.dumps({"model": "m2", "settings": {"x": 1}}), end="")
"""
    executor = command(script, "{topic}", "--n={count}", "{{x}}", "{job_id}.{epoch}", "{out}", env={"EXTRA": "1"})
    os.environ["TANDEM_SECRET"] = "s"
    try:
        told = Told()
        product = await executor.run(job(tmp_path, topic="a; rm -rf $HOME", count=2), told)
    finally:
        del os.environ["TANDEM_SECRET"]
    assert product.result["args"] == ["a; rm -rf $HOME", "--n=2", "{x}", "j-1.3", str(tmp_path / "out")]
    assert product.result["spec"] == {"topic": "a; rm -rf $HOME", "count": 2}
    assert product.result["env"]["EXTRA"] == "1"
    assert "TANDEM_SECRET" not in product.result["env"]
    assert (product.model, product.settings) == ("m2", {"x": 1})
    assert [(f.artifact, f.media_type) for f in product.files] == [
        ("a.bin", "application/octet-stream"),
        ("b.md", "text/markdown"),
    ]
    assert (told.stages, told.fractions, told.details) == (["generating_text"], [0.5], ["half"])


@pytest.mark.parametrize(
    ("status", "error"),
    [(75, Transient), (69, BackendDown), (65, Permanent), (78, Elsewhere), (1, Transient), (126, Elsewhere)],
)
async def test_exit_statuses_mean_what_the_page_says(tmp_path, status, error):
    script = f"import sys; print('last words', file=sys.stderr); sys.exit({status})"
    with pytest.raises(error) as raised:
        await command(script).run(job(tmp_path), Told())
    assert type(raised.value) is error
    assert raised.value.code == f"exit_{status}"
    assert "last words" in raised.value.detail["log"]


async def test_a_signal_is_transient(tmp_path):
    with pytest.raises(Transient) as raised:
        await command("import os; os.kill(os.getpid(), 9)").run(job(tmp_path), Told())
    assert raised.value.code == "signal_9"


FAMILY = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
print('{"detail": "%d %d"}' % (os.getpid(), child.pid), flush=True)
"""


async def test_cancelling_ends_grandchildren_that_ignore_term(tmp_path):
    told = Told()
    work = asyncio.create_task(command(FAMILY + "time.sleep(600)").run(job(tmp_path), told))
    await eventually(lambda: told.details)
    pids = [int(pid) for pid in told.details[0].split()]
    assert all(alive(pid) for pid in pids)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert work.cancelled()
    assert not any(alive(pid) for pid in pids)


async def test_a_grandchild_does_not_outlive_a_program_that_ended_well(tmp_path):
    told = Told()
    product = await command(FAMILY + "print('{\"result\": {}}')").run(job(tmp_path), told)
    assert product.result == {}
    assert not any(alive(int(pid)) for pid in told.details[0].split())


async def test_its_own_time_limit_is_transient(tmp_path):
    told = Told()
    with pytest.raises(Transient) as raised:
        await command(FAMILY + "time.sleep(600)", timeout_s=1.0).run(job(tmp_path), told)
    assert raised.value.code == "timeout"
    assert not any(alive(int(pid)) for pid in told.details[0].split())


async def test_lines_that_are_no_json_or_too_long_are_only_kept_as_a_tail(tmp_path):
    script = f"""
import sys
print('{{"stage": 1, "progress": "x", "result": 3, "model": []}}')
print('{{not json')
print('[1]')
print('{{"detail": "' + 'x' * {LINE_MOST_BYTES * 2} + '"}}')
print('{{"detail": "after"}}')
sys.exit(1)
"""
    told = Told()
    with pytest.raises(Transient) as raised:
        await command(script).run(job(tmp_path), told)
    assert (told.stages, told.details) == ([], ["after"])
    assert len(raised.value.detail["log"]) <= TAIL_BYTES


async def test_a_program_that_never_reads_its_input_does_no_harm(tmp_path):
    product = await command("print('{\"result\": {}}')").run(job(tmp_path, text="x" * 1_000_000), Told())
    assert product.result == {}


@pytest.mark.parametrize(
    "mischief",
    [
        "os.symlink('/etc/passwd', 'out/passwd')",
        "os.mkdir('out/folder')",
        "os.mkfifo('out/pipe')",
        "open('out/.hidden', 'w')",
        "[open(f'out/{n}', 'w') for n in range(101)]",
    ],
)
async def test_output_that_is_no_plain_file_is_refused(tmp_path, mischief):
    with pytest.raises(Permanent) as raised:
        await command(f"import os; {mischief}").run(job(tmp_path), Told())
    assert raised.value.code == "bad_output"


@pytest.mark.parametrize("spec", [{}, {"topic": ["a"]}, {"topic": True}, {"topic": "-rf"}, {"topic": "x" * 200_000}])
async def test_a_spec_that_cannot_fill_an_argument_is_permanent(tmp_path, spec):
    with pytest.raises(Permanent) as raised:
        await command("pass", "{topic}").run(job(tmp_path, **spec), Told())
    assert raised.value.code == "bad_spec"


async def test_a_value_that_looks_like_an_option_is_fine_behind_an_equals_sign(tmp_path):
    script = "import json, sys; print(json.dumps({'result': {'args': sys.argv[1:]}}))"
    product = await command(script, "--topic={topic}").run(job(tmp_path, topic="-rf"), Told())
    assert product.result["args"] == ["--topic=-rf"]


async def test_the_program_that_names_the_model_comes_first(tmp_path):
    says = 'print(\'{"result": {"by": "%s"}}\')'
    programs = {
        name: {
            "program": sys.executable,
            "args": ["-c", (says % name).replace("{", "{{").replace("}", "}}")],
            "kind": "outline",
            "models": models,
        }
        for name, models in (("any", ["*"]), ("big", ["Big:1"]))
    }
    executor = CommandExecutor.from_settings({"programs": programs})
    assert (await executor.run(job(tmp_path, model="big-1"), Told())).result == {"by": "big"}
    assert (await executor.run(job(tmp_path), Told())).result == {"by": "any"}
    with pytest.raises(Elsewhere):
        await executor.run(job(tmp_path, kind="other"), Told())


async def test_a_program_that_is_missing_is_not_offered(tmp_path):
    executor = CommandExecutor.from_settings({"programs": {"x": {"program": "/nowhere/x", "kind": "outline"}}})
    assert executor.capabilities() == []
    await executor.start()
    with pytest.raises(Elsewhere):
        await executor.run(job(tmp_path), Told())


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"programs": {}},
        {"programs": {"x": {"program": "relative", "kind": "o"}}},
        {"programs": {"x": {"kind": "o"}}},
    ],
)
def test_a_wrong_table_is_refused(table):
    with pytest.raises(ValueError, match="programs"):
        CommandExecutor.from_settings(table)
