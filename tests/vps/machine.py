"""A Debian 12 of the test's own, booted by systemd-nspawn; what a person would type in it, a test types.

Its systemd, journald, logind, apt, pip, Postgres and Caddy are real. It has no network but its own loopback, so nothing
of it listens here: `make_tree` fetches packages, wheels and Tandem's files beforehand, into /srv of the machine. What
runs in it ends with the process that booted it, however that ends.
"""

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
HOST = "vps.example.org"
TOOLS = ("debootstrap", "journalctl", "nsenter", "setpriv", "systemd-nspawn", "unshare")
BASE = ("systemd", "systemd-sysv", "dbus", "libpam-systemd", "dbus-user-session", "apt-utils")
"""What a VPS comes with, and apt-utils, which makes a repository of a folder."""
PACKAGED = ("pyproject.toml", "README.md", "nats.conf", "agent", "coordinator", "deploy", "shared")
"""What Tandem is installed from; a checkout need not have its history."""
MOST_BYTES = 4 * 1024**3
"""Of memory, for each process in it: a kernel with cgroups of version 1 gives the machine no say in MemoryMax=."""

POWER_OFF = signal.SIGRTMIN + 4
"""To systemd."""

MAKE_S = 900.0
BOOT_S = 180.0
TYPED_S = 600.0
TRIES = 360
"""Of a condition that is waited for, half a second apart."""

FETCH = """
apt-get update
apt-get install --yes --download-only {packages}
mkdir /srv/debian /srv/wheels
mv /var/cache/apt/archives/*.deb /srv/debian
cd /srv/debian
apt-ftparchive packages . > Packages
rm -r /var/lib/apt/lists
"""

FILES = {
    "etc/hostname": "vps\n",
    "etc/hosts": f"127.0.0.1 localhost vps {HOST}\n",
    "etc/resolv.conf": "",
    "etc/apt/sources.list": "deb [trusted=yes] file:/srv/debian ./\n",
    "etc/gitconfig": "[safe]\n\tdirectory = *\n",  # root's, and a user clones it
}

TYPED = """\
exec 2>&1
cd
test ! -e .typed || . ./.typed
trap 'export -p | grep -E " (PATH|TANDEM_[A-Z]+)=" > ~/.typed' EXIT
set -e -o pipefail
"""
"""Before each block: all blocks of a user are typed in one shell, as far as variables go."""


def missing() -> str:
    """Return what keeps this machine from booting one; empty: nothing."""
    if platform.system() != "Linux":
        return f"systemd-nspawn needs Linux; this is {platform.system()}"
    if os.geteuid() != 0:
        return "systemd-nspawn needs root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)} (.ci/packages installs them)"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False, capture_output=True)
    return f"root may not make namespaces here: {tried.stderr.decode().strip()}" if tried.returncode else ""


def make_tree(tree: Path, packages: Sequence[str]) -> None:
    """Make a minimal Debian in which apt finds these packages, pip what the locks name, git Tandem as it is here."""
    _apart("debootstrap", "--variant=minbase", f"--include={','.join(BASE)}", "bookworm", str(tree))
    _apart("chroot", str(tree), "sh", "-ec", FETCH.format(packages=" ".join(packages)))
    for name, text in FILES.items():
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(text)
    # The kernel's clock is the host's, and nobody in the machine may set it: timedatectl would be asked in vain.
    (tree / "etc/systemd/system/systemd-timedated.service").symlink_to("/dev/null")
    repository = tree / "srv/tandem"
    repository.mkdir()
    for name in PACKAGED:
        source = ROOT / name
        copy = (
            partial(shutil.copytree, ignore=shutil.ignore_patterns("__pycache__")) if source.is_dir() else shutil.copy
        )
        copy(source, repository / name)
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message=as it is here")):
        _run("git", "-C", str(repository), "-c", "user.name=test", "-c", "user.email=test@example.org", *words)
    files = [word for path in (ROOT / "deploy/locks").iterdir() for word in ("--requirement", str(path))]
    fetch = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tree / "srv/wheels"))
    _run(*fetch, "--python-version=3.11", "--require-hashes", *files)


class Machine:
    """One tree, booted."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.console = tree.with_name("console.log")
        self._name = f"tandem-vps-{os.getpid()}"
        self._nspawn: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Boot it, until systemd has started all that it is to start; each unit must have."""
        words = ("setpriv", "--pdeathsig=TERM", "systemd-nspawn", "--quiet", f"--directory={self.tree}", "--boot")
        words += ("--private-network", "--resolv-conf=off", "--console=pipe", "--register=no", "--keep-unit")
        words += (f"--machine={self._name}", f"--rlimit=AS={MOST_BYTES}", "--kill-signal=SIGRTMIN+3")
        with self.console.open("ab") as console:
            self._nspawn = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # Ctrl-C is for the test, which stops it in order
                env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},  # cgroups as on any VPS of today
            )
        until, said = time.monotonic() + BOOT_S, ""
        while said not in ("running", "degraded"):
            assert self._nspawn.poll() is None, self.console.read_text()
            assert time.monotonic() < until, f"{said}\n{self.console.read_text()}"
            time.sleep(0.2)
            if self._leader() is not None:
                said = self._inside("systemctl", "is-system-running").stdout.decode().strip()
        assert said == "running", self._inside("systemctl", "--failed").stdout.decode()

    def stop(self) -> None:
        """Have it power off; end it if it does not."""
        if self._nspawn is None:
            return
        try:
            psutil.Process(self._leader() or self._nspawn.pid).send_signal(POWER_OFF)
            self._nspawn.wait(BOOT_S)
        except (psutil.Error, subprocess.TimeoutExpired):
            self._nspawn.kill()
            self._nspawn.wait()
        self._nspawn = None
        shutil.rmtree(Path("/run/systemd/nspawn/propagate") / self._name, ignore_errors=True)

    def type(self, user: str, block: str, *, fails: bool = False) -> str:
        """Run a block as a user who is logged in; return all that it printed. It must succeed, line by line."""
        words = ("systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--uid={user}", "--property=PAMName=login")
        words += (f"--property=RuntimeMaxSec={TYPED_S:g}", "--setenv=PIP_NO_INDEX=1", "--setenv=COLUMNS=200")
        words += ("--setenv=PIP_FIND_LINKS=/srv/wheels", "--setenv=REPOSITORY=/srv/tandem")
        done = self._inside(*words, "bash", "-c", 'eval "$(cat)"', stdin=TYPED + block)
        said = done.stdout.decode()
        assert (done.returncode != 0) == fails, f"{user}, status {done.returncode}:\n{block}\n{said}"
        return said

    def until(self, user: str, command: str) -> str:
        """Wait until a command succeeds; return what it printed then."""
        return self.type(
            user,
            f"n=0\nuntil said=$({command}); do\n"
            f'  test $((n += 1)) -lt {TRIES} || {{ echo "$said"; exit 1; }}\n  sleep 0.5\ndone\necho "$said"',
        )

    def show(self, unit: str, *names: str, user: str = "root") -> dict[str, str]:
        """Return properties of a unit; of a user's own manager, if it is not root's."""
        manager = "--system" if user == "root" else "--user"
        said = self.type(user, f"systemctl {manager} show --property={','.join(names)} {unit}")
        return dict(line.split("=", 1) for line in said.splitlines())

    def journal(self) -> str:
        """Return its journal since this was called last, the newest of it; also of one that is stopped."""
        folder, cursor = self.tree / "var/log/journal", self.tree.with_name("cursor")
        return _run(
            "journalctl", f"--directory={folder}", f"--cursor-file={cursor}", "--no-pager", "--all", "--lines=400"
        )

    def _leader(self) -> int | None:
        """Return what its PID 1 is here, once that has left our files: what is typed must never be typed here."""
        assert self._nspawn is not None
        for child in psutil.Process(self._nspawn.pid).children():
            with suppress(OSError):  # it ends
                if Path(f"/proc/{child.pid}/root").samefile(self.tree):
                    return child.pid
        return None

    def _inside(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
        leader = self._leader()
        assert leader is not None, self.console.read_text()
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        return subprocess.run(
            ["nsenter", f"--target={leader}", *spaces, *words],
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            check=False,
            timeout=TYPED_S + 60,
        )


@contextmanager
def running(machine: Machine) -> Iterator[Machine]:
    """Boot it; it is stopped afterwards."""
    try:
        machine.boot()
        yield machine
    finally:
        machine.stop()


def _apart(*words: str) -> None:
    """Run a program with mounts and processes of its own: of neither is anything left when it ends or is ended."""
    _run("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *words)


def _run(*words: str) -> str:
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=MAKE_S,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{' '.join(words)}\n{said[-4000:]}"
    return said
