"""The agent as a service: installed, restarted, asked about and removed, by launchd's and systemd's own words.

launchctl and systemctl are programs of the tests that start the real agent as the real ones would.
"""

import asyncio
import os
import plistlib
import pwd
import sys
from contextlib import closing
from pathlib import Path

import orjson
import psutil
import pytest
from structlog.testing import capture_logs

from agent.executors.sketch import SketchExecutor
from agent.launchd import LABEL, Launchd, plist_of
from agent.log_lines import follow, line_for_people
from agent.settings import load_settings
from agent.supervised import Plan, plan_for
from agent.systemd_user import unit_of
from tests.support.agent_world import WAIT_S, agent, settings_for
from tests.support.fake_mac import FakeMac
from tests.support.fake_systemctl import install as install_systemctl
from tests.support.servers import eventually

SETTINGS = """worker = "mini"
nats = "{nats}"
seed_file = "{seed}"
data = "{data}"
time_server = ""
drain_limit_s = 0.2
release_limit_s = 1
[executors.sketch]
"""


class Home:
    """A user's home with joined settings, and `tandem-agent` run in it."""

    def __init__(self, folder, path, servers):
        self.folder = folder
        self.path = path
        self.config = folder / ".config/tandem-agent/agent.toml"
        self.config.parent.mkdir(parents=True)
        self.data = folder / "tandem data"  # a blank: nothing goes through a shell
        seed = folder / "mini.seed"
        seed.write_text(servers.nats.identities.add_agent("mini"))
        seed.chmod(0o600)
        self.seed = seed.read_text()
        self.config.write_text(SETTINGS.format(nats=servers.nats.url, seed=seed, data=self.data))

    async def call(self, *args, **environment):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "agent", *args),
            env={"PATH": self.path, "HOME": str(self.folder), "COLUMNS": "300", **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(4 * WAIT_S):
            output, _ = await process.communicate()
        return process.returncode, output.decode()

    async def good(self, *args):
        status, output = await self.call(*args)
        assert status == 0, output
        return output

    async def running(self):
        """Return the process that runs, by the service's own word."""
        return psutil.Process(orjson.loads(await self.good("status", "--json"))["pid"])


def ended(process):
    """Whether it ended; as a zombie it waits for a parent that may be anybody."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture(name="mac")
def mac_tools(tmp_path):
    return FakeMac(tmp_path / "mac")


@pytest.fixture(name="home")
async def home_of_a_mac(tmp_path, mac, servers, far):  # by which the server knows the worker
    home = Home(tmp_path / "home", mac.path, servers)
    yield home
    await home.call("uninstall")


@pytest.fixture(name="linux")
async def home_on_linux(tmp_path, servers, far):  # by which the server knows the worker
    home = Home(tmp_path / "home", install_systemctl(tmp_path / "systemd"), servers)
    yield home
    await home.call("uninstall")


# ---- launchd


async def test_the_launch_agent_is_what_a_mac_needs_and_holds_no_secret(far, mac, home):
    await home.good("install")
    file = home.folder / "Library/LaunchAgents" / f"{LABEL}.plist"
    plist = plistlib.loads(file.read_bytes())
    assert plist.pop("ProgramArguments") == [
        *(sys.executable, "-P", "-m", "agent", "run", "--config", str(home.config), "--in-service")
    ]
    logs = home.folder / "Library/Logs/Tandem"
    assert plist == {
        "Label": LABEL,
        "EnvironmentVariables": {
            "PATH": "/opt/homebrew/bin:/opt/homebrew/sbin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "TANDEM_AGENT_LOG_FILE": str(logs / "agent.jsonl"),
        },
        "WorkingDirectory": str(home.data),
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": 15,
        "ExitTimeOut": 30,
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "StandardOutPath": str(logs / "launchd.log"),
        "StandardErrorPath": str(logs / "launchd.log"),
    }
    assert home.seed not in file.read_text()
    process = await home.running()
    assert home.seed not in " ".join([*process.cmdline(), *process.environ().values()])


async def test_it_runs_logs_restarts_and_goes(far, mac, home):
    said = await home.good("install")
    process = await home.running()
    assert f"runs (pid {process.pid})" in said
    await eventually(lambda: far.presences)
    assert "agent starts" in await home.good("logs")
    logs = home.folder / "Library/Logs/Tandem"
    assert (logs / "launchd.log").read_bytes() == b""  # every line is in the agent's own file
    assert {path.stat().st_mode & 0o777 for path in (logs / "agent.jsonl", logs)} == {0o600, 0o700}

    assert "runs (pid" in await home.good("restart")
    again = await home.running()
    assert again.pid != process.pid
    assert ended(process)
    assert await home.good("status") == f"runs (pid {again.pid}) by launchd\n"  # that it was told to end is no news
    assert "agent ends" in await home.good("logs", "-n", "1000")  # it drained

    assert "removed" in await home.good("uninstall")
    assert ended(again)
    assert not (home.folder / "Library/LaunchAgents" / f"{LABEL}.plist").exists()
    assert await home.call("status") == (1, "not installed: tandem-agent install\n")
    assert "was not installed" in await home.good("uninstall")


async def test_installing_again_takes_the_old_one_out_waits_and_tries_until_launchd_takes_it(far, mac, home):
    await home.good("install")
    first = await home.running()
    (mac.folder / "lingers").write_text("2")
    (mac.folder / "refusals").write_text("5 37")
    (mac.folder / "sits").touch()
    before = len(mac.calls)
    await home.good("install")
    assert ended(first)
    assert (await home.running()).pid != first.pid
    gui = f"gui/{os.getuid()}"
    target, file = f"{gui}/{LABEL}", home.folder / "Library/LaunchAgents" / f"{LABEL}.plist"
    calls = [call.removeprefix("launchctl ") for call in mac.calls[before:]]
    assert calls[: calls.index(f"kickstart {target}") + 2] == [
        f"print {gui}",
        f"print {target}",
        f"bootout {target}",
        *[f"print {target}"] * 3,
        f"enable {target}",
        *[f"bootstrap {gui} {file}"] * 3,
        f"kickstart {target}",
        f"print {target}",
    ]


async def test_what_launchd_refuses_for_good_is_said_with_its_word(mac, home):
    (mac.folder / "refusals").write_text("125")
    status, output = await home.call("install")
    assert (status, "Bootstrap failed: 125" in output, "Traceback" in output) == (1, True, False)
    file = home.folder / "Library/LaunchAgents" / f"{LABEL}.plist"
    assert not file.exists()
    file.write_bytes(plistlib.dumps({"Label": LABEL}))
    (mac.folder / "refusals").write_text("125")
    assert ((await home.call("install"))[0], file.exists()) == (1, True)
    file.unlink()
    status, output = await home.call("install", SUDO_USER="anna")
    assert (status, "not by sudo" in output) == (1, True)
    (mac.folder / "no_session").touch()
    status, output = await home.call("install")
    assert (status, "log in at this Mac's screen" in output, "tandem-agent run" in output) == (1, True, True)


@pytest.mark.parametrize("command", ["uninstall", "status", "restart"])
async def test_sudo_and_root_touch_nothing_of_the_users(mac, home, command):
    """Sudo keeps HOME on a Mac, but launchd's domain is root's: there is no such job in it."""
    file = home.folder / "Library/LaunchAgents" / f"{LABEL}.plist"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"the user's")
    status, output = await home.call(command, SUDO_USER="anna")
    assert (status, "not by sudo" in output, "removed" in output, mac.calls) == (1, True, False, [])
    if os.geteuid() == 0:  # only root can give files away
        os.chown(file, 501, 20)
        status, output = await home.call(command)
        assert (status, "belongs to the user" in output, mac.calls) == (1, True, [])
        os.chown(file, 0, 0)
    assert file.read_bytes() == b"the user's"
    file.unlink()


@pytest.mark.parametrize("command", ["uninstall", "status", "restart"])
async def test_a_launchd_that_does_not_say_is_not_taken_for_one_without_the_job(mac, home, command):
    file = home.folder / "Library/LaunchAgents" / f"{LABEL}.plist"
    file.parent.mkdir(parents=True)
    file.touch()
    (mac.folder / "no_session").touch()
    status, output = await home.call(command)
    assert (status, "log in at this Mac's screen" in output, file.exists()) == (1, True, True)
    file.unlink()
    (mac.folder / "no_session").unlink()


async def test_an_agent_that_does_not_end_is_killed_at_a_restart(tmp_path, mac, monkeypatch):
    monkeypatch.setenv("PATH", mac.path)
    monkeypatch.setenv("HOME", str(tmp_path))
    deaf = "import os, signal, time; signal.signal(15, signal.SIG_IGN)"
    works = "open('agent.lock', 'w').write(f'pid {os.getpid()}, x'); time.sleep(600)"
    plan = Plan([sys.executable, "-c", f"{deaf}; {works}"], {}, tmp_path / "data", tmp_path / "log")
    launchd = Launchd(look_s=0.05, exit_s=0.3)
    first = psutil.Process(await launchd.install(plan))
    second = psutil.Process(await launchd.restart(plan))
    try:
        assert (second.pid != first.pid, ended(first), ended(second)) == (True, True, False)
    finally:
        second.kill()


async def test_settings_that_are_wrong_never_reach_launchd(mac, home):
    home.config.write_text('worker = "mini"\ntypo = 1\n')
    status, output = await home.call("install")
    assert (status, "typo" in output, mac.calls) == (2, True, [])
    status, output = await home.call("install", "--config", str(home.folder / "none.toml"))
    assert (status, "tandem-agent join" in output) == (2, True)


async def test_an_agent_that_dies_at_once_is_no_success(mac, home):
    (mac.folder / "exit_code").write_text("2")
    with home.config.open("a") as settings:
        settings.write("\n[executors.nonsense]\n")
    status, output = await home.call("install")
    assert status == 1, output
    assert "does not get to work: it ended with status 2" in output
    assert "unknown executor 'nonsense'" in (await home.call("status"))[1]  # what launchd caught


async def test_what_launchd_catches_is_begun_anew_at_a_start_when_it_has_grown(far, mac, home):
    stray = home.folder / "Library/Logs/Tandem/launchd.log"
    stray.parent.mkdir(parents=True)
    stray.write_text("kept: it is short\n")
    await home.good("install")
    assert stray.read_text() == "kept: it is short\n"
    inode = stray.stat().st_ino
    stray.write_text("x" * 2 * 1024 * 1024)
    await home.good("restart")
    assert (stray.stat().st_size, stray.stat().st_ino) == (0, inode)


async def test_wrong_settings_do_not_let_what_launchd_catches_grow_for_ever(tmp_path, mac, home):
    """Launchd starts it every 15 s, and each time it says what is wrong and ends."""
    home.config.write_text('worker = "mini"\ntypo = 1\n')
    stray = tmp_path / "launchd.log"
    stray.write_text("x" * 2 * 1024 * 1024)
    with stray.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "agent", "run", "--config", str(home.config), "--in-service"),
            env={"PATH": mac.path, "HOME": str(home.folder)},
            stdout=out,
            stderr=out,
        )
        assert await process.wait() == 2
    assert stray.read_text().startswith("tandem-agent: typo")


async def test_the_settings_that_join_wrote_are_taken_unless_a_worker_is_named(far, mac, home):
    far.answer_lease = lambda _: {"lease": "lost", "reason": "stale"}
    assert "settings: worker mini" in (await home.call("doctor"))[1]
    status, output = await home.call("doctor", "--worker", "other", "--executor", "sketch")
    assert (status, "no nkey seed" in output) == (1, True)
    status, output = await home.call("doctor", "--executor", "sketch", TANDEM_WORKER="other")
    assert (status, "no nkey seed" in output) == (1, True)
    assert "those of `join`" in await home.good("run", "--help")
    home.config.unlink()
    status, output = await home.call("doctor")
    assert (status, "no worker is named: run `tandem-agent join LINE` first" in output) == (2, True)


async def test_the_service_is_judged_without_the_shells_variables_and_with_paths_from_the_settings_folder(
    far, mac, home, servers
):
    (home.config.parent / "own.seed").write_text(home.seed)
    (home.config.parent / "own.seed").chmod(0o600)
    settings = SETTINGS.format(nats=servers.nats.url, seed="own.seed", data="work")
    home.config.write_text(settings)
    status, output = await home.call("install", TANDEM_AGENT_DATA="/nowhere", TANDEM_SLOTS="x", TANDEM_AGENT_TYPO="1")
    assert status == 0, output
    assert (await home.running()).cwd() == str(home.config.parent / "work")
    assert (home.config.parent / "work/agent.lock").exists()
    home.config.write_text(settings.replace('worker = "mini"', ""))
    status, output = await home.call("install", TANDEM_AGENT_WORKER="mini")
    assert (status, "no worker is named: run `tandem-agent join LINE` first" in output) == (2, True)


@pytest.mark.parametrize("flags", [("--nats", "nats://x"), ("--worker", "x"), ("--executor", "sketch")])
async def test_the_doctor_in_the_service_refuses_what_the_service_is_not_given(mac, home, flags):
    status, output = await home.call("doctor", "--in-service", *flags)
    assert (status, "only --config" in output, mac.calls) == (2, True, [])


async def test_the_doctor_looks_from_launchds_context_and_leaves_nothing_behind(far, mac, home):
    far.answer_lease = lambda _: {"lease": "lost", "reason": "stale"}
    output = await home.good("doctor", "--in-service")
    assert output.startswith("ok     context: as launchd runs it\n"), output
    assert "ok     coordinator: answers this worker" in output
    findings = orjson.loads(await home.good("doctor", "--in-service", "--json"))
    assert {"what": "executor sketch", "ok": True}.items() <= next(
        one for one in findings if one["what"] == "executor sketch"
    ).items()
    assert sorted(path.name for path in home.data.iterdir()) == ["agent.lock"]
    assert (await home.call("status"))[0] == 1  # looking installs nothing
    assert f"launchctl bootout gui/{os.getuid()}/{LABEL}.doctor" in mac.calls


async def test_a_seed_of_another_worker_is_said_plainly_and_once(servers, far, tmp_path):
    settings = settings_for(servers, "mini", tmp_path, presence_s=0.05).model_copy(update={"worker": "other"})
    with capture_logs() as logged:
        async with agent(settings, SketchExecutor.from_settings({}), wait_ready=False):
            await eventually(lambda: sum(line["event"] == "bus denied" for line in logged) > 6)
    said = [line for line in logged if line["event"] == "the seed is not this worker's"]
    assert [(line["log_level"], line["worker"]) for line in said] == [("error", "other")]


# ---- systemd


def refusing(linux, tool, verb, said):
    """Let a tool refuse what has this word among its arguments."""
    program = linux.folder.parent / "systemd/bin" / tool
    program.rename(program.with_suffix(".real"))
    program.write_text(
        f'#!/bin/sh\ncase " $* " in *" {verb} "*) echo "{said}" >&2; exit 1;; esac\nexec "$0.real" "$@"\n'
    )
    program.chmod(0o755)


async def test_on_linux_the_same_commands_make_a_user_unit(far, linux):
    output = await linux.good("install")
    first = await linux.running()
    assert f"runs (pid {first.pid})" in output
    await eventually(lambda: far.presences)
    assert "agent starts" in await linux.good("logs")
    await linux.good("restart")
    second = await linux.running()
    assert (second.pid != first.pid, ended(first)) == (True, True)
    await linux.good("uninstall")
    assert ended(second)
    assert await linux.call("status") == (1, "not installed: tandem-agent install\n")
    calls = (linux.folder.parent / "systemd/calls").read_text()
    assert {"systemctl --user enable tandem-agent.service", "loginctl enable-linger"} <= set(calls.splitlines())


async def test_the_doctor_looks_from_systemds_context(far, linux):
    far.answer_lease = lambda _: {"lease": "lost", "reason": "stale"}
    output = await linux.good("doctor", "--in-service")
    assert "context: as systemd runs it" in output


async def test_a_missing_user_manager_is_named(linux):
    (linux.folder.parent / "systemd/no_manager").touch()
    refusing(linux, "systemd-run", "--user", "Failed to connect to bus: No medium found")
    for words in (("install",), ("doctor", "--in-service"), ("status",)):
        status, output = await linux.call(*words)
        assert (status, "loginctl enable-linger" in output, "tandem-agent run" in output) == (1, True, True), output
    (linux.folder.parent / "systemd/no_manager").unlink()


@pytest.mark.parametrize("verb", ["daemon-reload", "enable", "restart"])
async def test_an_install_that_fails_leaves_no_unit_but_one_that_was_there(linux, verb):
    unit = linux.folder / ".config/systemd/user/tandem-agent.service"
    refusing(linux, "systemctl", verb, "refused")
    status, output = await linux.call("install")
    assert (status, f"systemctl --user {verb}: refused" in output, unit.exists()) == (1, True, False), output
    unit.write_text("[Unit]")
    assert ((await linux.call("install"))[0], unit.exists()) == (1, True)


async def test_who_may_not_linger_is_told_what_root_must_do_and_gets_no_unit(linux):
    unit = linux.folder / ".config/systemd/user/tandem-agent.service"
    refusing(linux, "loginctl", "enable-linger", "Could not enable linger: Access denied")
    status, output = await linux.call("install")
    assert (status, unit.exists()) == (1, False), output
    assert "Access denied; the agent would end when you log out" in output
    assert f"have root run `loginctl enable-linger {pwd.getpwuid(os.getuid()).pw_name}`" in output


async def test_who_lingers_already_need_not_be_allowed_to(far, linux):
    refusing(linux, "loginctl", "enable-linger", "Could not enable linger: Access denied")
    (linux.folder.parent / "systemd/lingers").touch()
    assert "runs (pid" in await linux.good("install")


def test_a_unit_keeps_odd_paths_whole():
    program = ["/usr/bin/python", "-m", "agent", "--config", '/home/a b/100 % "$x".toml']
    text = unit_of(Plan(program, {"PATH": "/a b"}, Path("/d 50%"), Path("/l")))
    assert r'ExecStart="/usr/bin/python" "-m" "agent" "--config" "/home/a b/100 %% \"$$x\".toml"' in text.splitlines()
    assert {'Environment="PATH=/a b"', "WorkingDirectory=/d 50%%", "Restart=always", "UMask=0077"} <= set(
        text.splitlines()
    )


# ---- parts


def test_a_log_file_that_the_settings_name_stays(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text('worker = "mini"\nlog_file = "mine.jsonl"\ndata = "/srv/tandem"\n')
    plan = plan_for(load_settings(file), file, mac=True)
    assert (plan.log, set(plan.environment)) == (Path("/srv/tandem/mine.jsonl"), {"PATH"})
    assert plistlib.loads(plistlib.dumps(plist_of(plan, tmp_path)))["WorkingDirectory"] == "/srv/tandem"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            '{"job_id":"j","epoch":3,"event":"run ended","level":"info","timestamp":"2026-11-30T09:41:07.5Z"}',
            "2026-11-30 09:41:07 info    run ended  job_id=j epoch=3",
        ),
        ('{"event":"x","level":"warning","why":["a"]}', ' warning x  why=["a"]'),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("[1]", "[1]"),
    ],
)
def test_log_lines_for_people(line, shown):
    assert line_for_people(line) == shown


def test_what_is_written_while_the_last_lines_are_shown_is_shown_too(tmp_path):
    path = tmp_path / "agent.jsonl"
    path.write_text("1\n2\n3\nha")
    with closing(follow(path, 2)) as shown:
        assert next(shown) == "2"
        with path.open("a") as file:
            file.write("lf\n4\n")
        assert [next(shown) for _ in range(3)] == ["3", "half", "4"]
    with closing(follow(path, 9)) as shown:
        assert next(shown) == "1"


def test_half_a_line_at_the_end_of_a_log_is_shown_when_the_next_file_begins(tmp_path):
    path = tmp_path / "agent.jsonl"
    path.write_text("1\nha")
    with closing(follow(path, 9)) as shown:
        assert next(shown) == "1"
        with path.open("a") as file:
            file.write("lf\n2")
        path.rename(tmp_path / "agent.jsonl.1")
        path.write_text("3\n")
        assert [next(shown) for _ in range(3)] == ["half", "2", "3"]


async def test_logs_are_followed_over_a_rotation(tmp_path, mac, home):
    path = home.folder / "Library/Logs/Tandem/agent.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"event":"old"}\n')
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-P", "-m", "agent", "logs", "--follow", "--raw"),
        env={"PATH": mac.path, "HOME": str(home.folder)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            assert await process.stdout.readline() == b'{"event":"old"}\n'
            for number in (1, 2, 3):
                if number == 2:
                    path.rename(path.with_suffix(".jsonl.1"))
                with path.open("a") as file:
                    file.write(f"{number}\n")
                assert await process.stdout.readline() == f"{number}\n".encode()
    finally:
        process.kill()
        await process.wait()
