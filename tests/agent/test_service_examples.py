"""The service files in `deploy/` are what `install` writes, and the settings in the docs exist."""

import plistlib
import re
import tomllib
from pathlib import Path

import pytest

from agent.launchd import LABEL, plist_of
from agent.settings import AgentSettings
from agent.supervised import Plan
from agent.systemd_user import UNIT, unit_of
from shared.rules import Rule, Rules

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/agent-service.md").read_text()
RUN = ("-P", "-m", "agent", "run", "--config")


def test_the_example_launch_agent_is_what_install_writes():
    home = Path("/Users/anna")
    logs = home / "Library/Logs/Tandem"
    path = "/opt/homebrew/bin:/opt/homebrew/sbin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    config = f"{home}/.config/tandem-agent/agent.toml"
    plan = Plan(
        [f"{home}/tandem/.venv/bin/python", *RUN, config, "--in-service"],
        {"PATH": path, "TANDEM_AGENT_LOG_FILE": f"{logs}/agent.jsonl"},
        home / ".local/share/tandem-agent",
        logs / "agent.jsonl",
    )
    expected = plist_of(plan, logs / "launchd.log")
    assert plistlib.loads((ROOT / f"deploy/launchd/{LABEL}.plist").read_bytes()) == expected


def test_the_example_unit_is_what_install_writes():
    home = Path("/home/anna")
    data = home / ".local/share/tandem-agent"
    plan = Plan(
        [f"{home}/tandem/.venv/bin/python", *RUN, f"{home}/.config/tandem-agent/agent.toml", "--in-service"],
        {"PATH": "/usr/local/bin:/usr/bin:/bin", "TANDEM_AGENT_LOG_FILE": f"{data}/logs/agent.jsonl"},
        data,
        data / "logs/agent.jsonl",
    )
    assert (ROOT / f"deploy/systemd-user/{UNIT}").read_text() == unit_of(plan)


def test_the_settings_in_the_docs_are_settings():
    blocks = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    assert blocks
    for block in blocks:
        AgentSettings(worker="mini", **tomllib.loads(block))


@pytest.mark.parametrize("name", [*Rules.model_fields])
def test_every_rule_is_explained(name):
    assert f"`{name}`" in DOCS


@pytest.mark.parametrize("rule", [*Rule])
def test_rules_are_named_as_their_settings(rule):
    assert rule in Rules.model_fields
