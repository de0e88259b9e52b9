"""`tandem-agent` as a user meets it: exit statuses, and what doctor says."""

import asyncio
import os
import sys
from importlib.metadata import version

from agent.workspace import data_folder
from tests.support.agent_world import WAIT_S


async def _call(*args, **env):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from agent.cli import main; main()",
        *args,
        env={"PATH": os.environ["PATH"], "COLUMNS": "200", **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(4 * WAIT_S):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_doctor_finds_nothing_wrong_with_a_good_agent(servers, far, tmp_path):
    far.answer_lease = lambda _: {"lease": "lost", "reason": "stale"}
    seed = tmp_path / "mini.seed"
    seed.write_text(servers.nats.identities.add_agent("mini"))
    seed.chmod(0o600)
    args = ("--worker", "mini", "--nats", servers.nats.url, "--seed-file", str(seed), "--data", str(tmp_path / "d"))
    status, output = await _call("doctor", *args, "--executor", "sketch")
    assert status == 0, output
    assert "FAULT" not in output
    assert output.count("ok   ") == 10
    assert "article (*), image (*)" in output


async def test_doctor_names_what_is_wrong_and_what_to_do(servers, far, tmp_path):
    data = tmp_path / "file"
    data.write_text("not a folder")
    status, output = await _call(
        "doctor",
        *("--worker", "mini", "--nats", "nats://127.0.0.1:1", "--data", str(data)),
        TANDEM_AGENT_SEED="SUNONSENSE",
    )
    assert status == 1
    assert output.count("FAULT") == 3
    for hint in ("no nkey seed", "data folder", "--executor sketch"):
        assert hint in output


async def test_doctor_sees_a_server_that_is_away_and_one_that_refuses(servers, far, tmp_path):
    seed = servers.nats.identities.add_agent("mini")
    common = ("--executor", "sketch", "--data", str(tmp_path))
    status, output = await _call(
        "doctor", "--worker", "mini", "--nats", "nats://127.0.0.1:1", *common, TANDEM_AGENT_SEED=seed
    )
    assert (status, "TCP: 127.0.0.1 port 1: Connection refused" in output) == (1, True)
    status, output = await _call(
        "doctor", "--worker", "other", "--nats", servers.nats.url, *common, TANDEM_AGENT_SEED=seed
    )
    assert (status, "not the one of worker other" in output) == (1, True)


async def test_wrong_settings_end_with_status_2(tmp_path):
    for args, env in (
        (("run",), {}),
        (("run", "--worker", "mini", "--data", str(tmp_path)), {}),  # no executor
        (("run", "--worker", "mini", "--executor", "sketch"), {"TANDEM_AGENT_TYPO": "1"}),
        (("run", "--nonsense"), {}),
    ):
        status, output = await _call(*args, **env)
        assert status == 2, output
        assert "Traceback" not in output


async def test_who_has_not_joined_is_told_to(tmp_path):
    for command in ("run", "doctor"):
        status, output = await _call(command, HOME=str(tmp_path))
        assert (status, "run `tandem-agent join LINE` first" in output) == (2, True), output


async def test_the_version_is_said():
    status, output = await _call("--version")
    assert (status, output) == (0, f"tandem {version('tandem')}\n")


async def test_what_is_no_setting_is_said_so(tmp_path):
    config = tmp_path / "agent.toml"
    config.write_text('worker = "mini"\nrnk = 1\n[rules]\nhurs = []\n')
    status, output = await _call("doctor", "--config", str(config))
    assert (status, "rnk is not a setting" in output, "rules.hurs is not a setting" in output) == (2, True, True), (
        output
    )
    config.write_text('worker = "mini"\n[executors.ollama]\nurrl = "x"\n')
    status, output = await _call("run", "--config", str(config), "--data", str(tmp_path / "d"))
    assert (status, "executors.ollama.urrl is not a setting" in output) == (2, True), output


async def test_the_coordinators_variables_are_not_obeyed(servers, far, tmp_path):
    """TANDEM_DATA names the folder of `tandem up`, TANDEM_LOG_* its log; what both mean alike counts."""
    strangers = tmp_path / "strangers"
    config = tmp_path / "agent.toml"
    config.write_text(f'worker = "mini"\ndata = "{tmp_path / "own"}"\nslots = 1\n[executors.sketch]\n')
    environment = {
        "TANDEM_DATA": str(strangers),
        "TANDEM_LOG_FILE": str(strangers / "log"),
        "TANDEM_LOG_LEVEL": "warn",
        "TANDEM_SLOTS": "2",
    }
    _, output = await _call("doctor", "--config", str(config), "--nats", servers.nats.url, **environment)
    assert f"ok     data folder: {tmp_path / 'own'}," in output, output
    assert not strangers.exists()
    _, output = await _call("doctor", "--config", str(config), **environment, TANDEM_AGENT_DATA=str(tmp_path / "mine"))
    assert f"ok     data folder: {tmp_path / 'mine'}," in output, output


async def test_the_doctor_beside_a_running_agent_does_not_say_to_stop_it(servers, far, tmp_path):
    seed = servers.nats.identities.add_agent("mini")
    with data_folder(tmp_path / "d", "one"):
        args = ("--worker", "mini", "--nats", servers.nats.url, "--data", str(tmp_path / "d"), "--executor", "sketch")
        _, output = await _call("doctor", *args, TANDEM_AGENT_SEED=seed)
    assert f"an agent runs there (pid {os.getpid()}" in output, output
    assert "stop it" not in output
    assert "worker mini, 1 slot, rank 0" in output
