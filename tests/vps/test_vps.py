"""deploy/README.md, and parts of docs/operations.md and docs/agent-service.md, held against a real systemd.

The VPS, and one Mac's place taken by the user `me` of the same machine. What differs from a VPS on the internet: its
name is in /etc/hosts, Caddy signs its certificate itself, apt and pip read from a folder (`machine.py`).
"""

import re
from pathlib import Path

import pytest

from tests.deploy.test_docs_run import OPERATIONS, blocks
from tests.deploy.test_units import MOST_EXPOSED
from tests.support.vps import unit_of
from tests.vps.conftest import Typed
from tests.vps.machine import HOST, ROOT, Machine

pytestmark = [pytest.mark.vps, pytest.mark.timeout(2400), pytest.mark.usefixtures("typed")]

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
SERVICES = ("tandem-coordinator", "tandem-nats")
JOB = 'tandem submit image --prompt "A red boat in the harbour" --wait'
AUDIT = "sudo -u tandem tandem audit --config /var/lib/tandem/tandem.toml"
DOCTOR = "sudo -u tandem tandem doctor --config /var/lib/tandem/tandem.toml"

SHOWN = (
    "User", "Restart", "UMask", "MemoryHigh", "MemoryMax", "TasksMax", "LimitNOFILE", "NoNewPrivileges",
    "CapabilityBoundingSet", "ProtectSystem", "ReadWritePaths", "ProtectHome", "PrivateTmp", "PrivateDevices",
    "ProtectClock", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
    "ProtectKernelTunables", "ProtectProc", "RestrictRealtime", "RestrictSUIDSGID", "RemoveIPC", "LockPersonality",
    "MemoryDenyWriteExecute", "SystemCallArchitectures",
)  # fmt: skip
"""What `systemctl show` says of a unit by the same words, but for sizes."""


def completes_a_job(machine: Machine) -> None:
    said = machine.type("root", JOB)
    assert re.search(r"^state +completed", said, re.MULTILINE), said
    assert re.search(r"^worker +mini, epoch 1", said, re.MULTILINE), said


def is_kept(machine: Machine) -> None:
    """The ledger, the streams and the artifacts keep what Tandem promises."""
    assert "no breach" in machine.type("root", AUDIT)


def main_pid(machine: Machine, unit: str, user: str = "root") -> int:
    return int(machine.show(unit, "MainPID", user=user)["MainPID"])


def comes_back(machine: Machine, unit: str, before: int, user: str = "root") -> None:
    manager = "--system" if user == "root" else "--user"
    again = f'pid=$(systemctl {manager} show -P MainPID {unit}); test "$pid" != 0 -a "$pid" != {before}'
    machine.until(user, f"{again} && systemctl {manager} is-active {unit}")


def said_by_systemd(value: str) -> str:
    """Return a unit's value as `systemctl show` has it: sizes in bytes."""
    unit = {"M": 1024**2, "G": 1024**3}.get(value[-1:])
    return str(int(value[:-1]) * unit) if unit and value[:-1].isdigit() else value


def test_the_fifteen_minutes_of_the_readme(typed: Typed) -> None:
    assert set(typed.lines) == {"mini", "book"}
    assert typed.said.count("ok     coordinator: ") == 3  # by the doctors of VPS, agent and service
    assert f"ok     public_url: https://{HOST}: answers" in typed.said
    assert "ok     context: as systemd runs it" in typed.said
    assert re.search(r"^state +completed", typed.said, re.MULTILINE)


def test_an_agent_that_would_end_with_its_login_is_not_installed(typed: Typed) -> None:
    """A small Debian has no polkit: only root may grant what `install` asks for."""
    assert "Access denied; the agent would end when you log out" in typed.refused
    assert "have root run `loginctl enable-linger me`" in typed.refused


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_has_each_unit_as_it_is_written(machine: Machine, path: Path) -> None:
    written = unit_of(path)["Service"]
    names = [name for name in SHOWN if name in written]
    wanted = {name: said_by_systemd(written[name]) for name in names}
    assert machine.show(path.name, *names) == wanted
    assert len(names) > 20
    machine.type("root", f"systemd-analyze security --no-pager --threshold={MOST_EXPOSED} {path.name}")


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_runs_and_may_do_little(machine: Machine, unit: str) -> None:
    assert machine.show(unit, "ActiveState", "UnitFileState") == {"ActiveState": "active", "UnitFileState": "enabled"}
    pid = main_pid(machine, unit)
    status = machine.type("root", f"grep -E '^(NoNewPrivs|Seccomp|Cap[A-Z][a-z]+):' /proc/{pid}/status")
    found = dict(line.split(":\t") for line in status.splitlines())
    assert (found.pop("NoNewPrivs"), found.pop("Seccomp")) == ("1", "2")
    assert set(found.values()) == {"0" * 16}
    inside = f"nsenter --target={pid} --mount"
    for place in ("/usr/x", "/etc/x", "/opt/tandem/x"):
        assert "Read-only file system" in machine.type("root", f"{inside} touch {place}", fails=True)
    assert machine.type("root", f"{inside} ls -A /home /root /tmp") == "/home:\n\n/root:\n\n/tmp:\n"
    machine.type("root", f"{inside} touch /var/lib/tandem/x\nrm /var/lib/tandem/x")


@pytest.mark.parametrize("unit", SERVICES)
def test_what_is_killed_comes_back_and_nothing_is_lost(machine: Machine, unit: str) -> None:
    before = main_pid(machine, unit)
    machine.type("root", f"systemctl kill --signal=KILL {unit}")
    comes_back(machine, unit, before)
    machine.until("root", DOCTOR)
    completes_a_job(machine)
    is_kept(machine)


def test_a_backup_is_written_by_its_unit(machine: Machine) -> None:
    folder = "/var/lib/tandem/backups"
    machine.type("root", f"sudo -u tandem touch --date='20 days ago' {folder}/tandem-old.tar")
    machine.type("root", "systemctl start tandem-backup")
    assert machine.show("tandem-backup", "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    (line,) = machine.type("root", f"stat --format='%U %a %n' {folder}/*").splitlines()
    owner, mode, path = line.split()
    assert (owner, mode) == ("tandem", "600")
    assert "tandem.toml" in machine.type("root", f"tar --list --file={path}")
    assert machine.show("tandem-backup.timer", "ActiveState")["ActiveState"] == "active"


def test_the_commands_of_a_service_of_a_users_own(machine: Machine) -> None:
    before = main_pid(machine, "tandem-agent", "me")
    assert f"runs (pid {before}) by systemd" in machine.type("me", "tandem-agent status")
    again = re.search(r"runs \(pid (\d+)\)", machine.type("me", "tandem-agent restart"))
    assert again is not None
    assert main_pid(machine, "tandem-agent", "me") == int(again[1]) != before
    assert "agent starts" in machine.type("me", "tandem-agent logs")
    assert "ok     coordinator: answers this worker" in machine.type("me", "tandem-agent doctor --in-service")
    written = {"ActiveState": "active", "UMask": "0077", "NoNewPrivileges": "yes", "KillMode": "mixed"}
    assert machine.show("tandem-agent", *written, user="me") == written


def test_an_agent_that_is_killed_comes_back(machine: Machine) -> None:
    before = main_pid(machine, "tandem-agent", "me")
    machine.type("me", f"kill -9 {before}")
    comes_back(machine, "tandem-agent", before, "me")
    completes_a_job(machine)


def test_a_worker_that_is_revoked_is_cut_off(machine: Machine, typed: Typed) -> None:
    """nats-server has read its configuration anew, at a signal of the coordinator in its sandbox."""
    flags = "--folder book --executor sketch --set time_server= --set data=$HOME/book/data --yes"
    machine.type("me", f"tandem-agent join '{typed.lines['book']}' {flags}")
    machine.type("me", "systemd-run --user --unit=book $(which tandem-agent) run --config ~/book/agent.toml")
    try:
        machine.until("root", "tandem workers | grep -E '^book +ready'")
        machine.type("root", "tandem workers revoke book")
        said = machine.until("me", "journalctl --user --unit=book | grep 'Authorization Violation'")
        assert "its key was revoked or replaced" in said
        assert not re.search(r"^book", machine.type("root", "tandem workers"), re.MULTILINE)
    finally:
        machine.type("me", "systemctl --user stop book")
    completes_a_job(machine)  # the others' keys are good as before
    is_kept(machine)


def test_an_upgrade_and_a_new_certificate_as_operations_has_them(machine: Machine) -> None:
    newer = "git -C /srv/tandem -c user.name=test -c user.email=test@example.org commit --allow-empty --message=newer"
    machine.type("root", newer)
    on_the_vps, restart, on_a_mac = blocks(OPERATIONS, "Upgrade")
    machine.type("root", on_the_vps)
    assert "newer" in machine.type("root", "git -C /opt/tandem/src log --max-count=1")
    *lines, doctor = restart.splitlines()
    machine.type("root", "\n".join(lines))
    machine.until("root", doctor)  # "after a minute"
    before = main_pid(machine, "tandem-agent", "me")
    machine.type("me", f"cd tandem\n{on_a_mac}")
    assert main_pid(machine, "tandem-agent", "me") not in (0, before)
    digest = "sha256sum /var/lib/tandem/tls/nats.crt"
    old = machine.type("root", digest)
    (renew,) = blocks(OPERATIONS, "Certificates")
    machine.type("root", renew)
    assert machine.type("root", digest) != old
    machine.until("root", DOCTOR)
    machine.until("root", "tandem workers | grep -E '^mini +ready'")
    completes_a_job(machine)
    is_kept(machine)


def test_after_a_reboot_all_is_back_with_nothing_typed(machine: Machine) -> None:
    machine.stop()
    machine.boot()
    machine.until("root", DOCTOR)
    machine.until("root", "tandem workers | grep -E '^mini +ready'")
    completes_a_job(machine)
    is_kept(machine)
    assert "runs (pid" in machine.type("me", "tandem-agent status")
    for unit in SERVICES:
        assert machine.show(unit, "NRestarts") == {"NRestarts": "0"}  # each is started when it can work


def test_what_is_uninstalled_is_gone(machine: Machine) -> None:
    pid = main_pid(machine, "tandem-agent", "me")
    assert "removed" in machine.type("me", "tandem-agent uninstall")
    assert "not installed" in machine.type("me", "tandem-agent status", fails=True)
    left = f"test ! -e /proc/{pid} -a ! -e ~/.config/systemd/user/tandem-agent.service"
    machine.type("me", f"{left} -a ! -e ~/.config/systemd/user/default.target.wants/tandem-agent.service")
    assert "runs (pid" in machine.type("me", "tandem-agent install")
