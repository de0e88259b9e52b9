"""The machine, the README typed in it, and the journal beside whatever fails."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.test_docs_run import README, blocks
from tests.support.fake_system import here
from tests.vps.machine import Machine, make_tree, missing, running

BOOTED = pytest.StashKey[Machine | None]()

CADDY_ROOT = "/var/lib/caddy/.local/share/caddy/pki/authorities/local/root.crt"
TRUST = f"cp {CADDY_ROOT} /usr/local/share/ca-certificates/caddy.crt\nupdate-ca-certificates"
OPTIONS = r"{\n\tlocal_certs\n\tskip_install_trust\n}\n"  # no authority of the internet can be asked from in there
CHANGES = {
    "python3.12": "python3",
    "cp /var/lib/tandem/Caddyfile": f"printf '{OPTIONS}' | cat - /var/lib/tandem/Caddyfile >",
}


class Typed:
    """The README as it was typed: sections 1 and 3 by root, section 2 by the user `me`."""

    def __init__(self, machine: Machine) -> None:
        self.said = ""
        self.lines: dict[str, str] = {}  # of `tandem workers invite`, by worker
        for block in blocks(README, "1."):
            if "tandem doctor" in block:
                machine.until("root", block)  # "after a minute", it says there
            self._type(machine, "root", block)
            if "systemctl reload caddy" in block:
                machine.until("root", f"test -e {CADDY_ROOT}")
                machine.type("root", TRUST)
        machine.type("root", "useradd --create-home --shell /bin/bash me")
        machine.type("me", 'git clone "$REPOSITORY" tandem')
        for block in blocks(README, "2."):
            if "tandem-agent install" in block:
                self.refused = machine.type("me", "tandem-agent install", fails=True)
                machine.type("root", "loginctl enable-linger me")
            self._type(machine, "me", f"cd tandem\n{block}")
        for block in blocks(README, "3."):
            self._type(machine, "root", block)

    def _type(self, machine: Machine, user: str, block: str) -> None:
        line = f"'{self.lines.get('mini')}' --executor sketch --set time_server= --yes"
        said = machine.type(user, here(block, CHANGES | {"'LINE'": line}))
        invited = re.findall(r"^tandem-agent join '(\S+/join/(\w+)#\S+)'", said, re.MULTILINE)
        self.lines |= {worker: line for line, worker in invited}
        self.said += said


@pytest.fixture(scope="session")
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    lacking = missing()
    if lacking:
        say = pytest.fail if os.environ.get("VPS_REQUIRED") else pytest.skip
        say(lacking)
    folder = Path(tempfile.mkdtemp(prefix="tandem-vps-"))
    try:
        installed = re.search(r"^apt-get install -y (.*)$", README.read_text(), re.MULTILINE)
        assert installed is not None
        make_tree(folder / "tree", installed[1].split())
        with running(Machine(folder / "tree")) as booted:
            request.config.stash[BOOTED] = booted
            yield booted
    finally:
        request.config.stash[BOOTED] = None
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def typed(machine: Machine) -> Typed:
    return Typed(machine)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    booted = item.config.stash.get(BOOTED, None)
    if report.failed and booted is not None:
        report.sections.append(("journal of the machine", booted.journal()))
    return report
