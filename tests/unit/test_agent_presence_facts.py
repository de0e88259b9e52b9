"""What an agent tells of its machine: power and memory, read as macOS and Linux say them, and never waited for long."""

import asyncio
import sys

import pytest

from agent import presence_facts
from agent.presence_facts import facts, pmset, supplies

MINI = "Now drawing from 'AC Power'\n"
BOOK = """Now drawing from 'Battery Power'
 -InternalBattery-0 (id=21889123)\t73%; discharging; 4:12 remaining present: true
"""
PLUGGED = """Now drawing from 'AC Power'
 -InternalBattery-0 (id=21889123)\t80%; AC attached; not charging present: true
"""
MOUSE_TOO = """Now drawing from 'Battery Power'
 -Magic Mouse-0 (id=1)\t12%; discharging present: true
 -InternalBattery-0 (id=2)\t100%; discharging; (no estimate) present: true
"""
UPS = "Now drawing from 'UPS Power'\n -Back-UPS (id=3)\t99%; discharging; 0:40 remaining present: true\n"


@pytest.mark.parametrize(
    ("said", "power"),
    [(MINI, "mains"), (BOOK, "battery 73 %"), (PLUGGED, "mains"), (MOUSE_TOO, "battery 100 %"), (UPS, None), ("", None),
     ("Now drawing from 'Battery Power'\n", "battery")],
)  # fmt: skip
def test_a_macs_power_is_read_from_pmset(said, power):
    assert pmset(said) == power


@pytest.mark.parametrize(
    ("found", "power"),
    [
        ({}, None),
        ({"AC": {"type": "Mains", "online": "1"}}, "mains"),
        ({"AC": {"type": "Mains", "online": "0"}}, None),
        ({"AC": {"type": "Mains", "online": "0"},
          "BAT0": {"type": "Battery", "status": "Discharging", "capacity": "73"}}, "battery 73 %"),
        ({"AC": {"type": "Mains", "online": "1"},
          "BAT0": {"type": "Battery", "status": "Discharging", "capacity": "73"}}, "mains"),
        ({"BAT0": {"type": "Battery", "status": "Charging", "capacity": "40"}}, "mains"),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, "battery"),
        ({"hid": {"type": "Battery", "scope": "Device", "status": "Discharging", "capacity": "9"}}, None),
    ],
)  # fmt: skip
def test_a_linux_machines_power_is_read_from_sysfs(tmp_path, found, power):
    for supply, files in found.items():
        (tmp_path / supply).mkdir()
        for name, content in files.items():
            (tmp_path / supply / name).write_text(f"{content}\n")
    assert supplies(tmp_path) == power


async def test_they_are_told_beside_what_is_quick_to_know(tmp_path, monkeypatch):
    (tmp_path / "AC").mkdir()
    (tmp_path / "AC" / "type").write_text("Mains\n")
    (tmp_path / "AC" / "online").write_text("1\n")
    monkeypatch.setattr(presence_facts, "_SUPPLIES", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    told = await facts(tmp_path)
    assert told["power"] == "mains"
    assert 0 < told["memory_free_bytes"] <= told["memory_bytes"]
    assert told["disk_free_bytes"] > 0


async def test_a_question_that_hangs_or_fails_is_left_out(tmp_path, monkeypatch):
    async def hangs():
        await asyncio.Event().wait()

    async def fails():
        raise FileNotFoundError

    monkeypatch.setattr(presence_facts, "_ANSWER_S", 0.05)
    monkeypatch.setattr(presence_facts, "_power", hangs)
    monkeypatch.setattr(presence_facts, "_memory", fails)
    told = await facts(tmp_path)
    assert not {"power", "memory_free_bytes"} & told.keys()
    assert told["cpus"]


async def test_a_mac_is_asked_by_pmset(tmp_path, monkeypatch):
    program = tmp_path / "pmset"
    program.write_text(f"#!/bin/sh\necho \"$@\" >{tmp_path}/asked\ncat <<'END'\n{BOOK}END\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(presence_facts, "_PMSET", str(program))
    assert (await facts(tmp_path))["power"] == "battery 73 %"
    assert (tmp_path / "asked").read_text() == "-g batt\n"


async def test_a_mac_without_pmset_tells_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(presence_facts, "_PMSET", str(tmp_path / "none"))
    told = await facts(tmp_path)
    assert "power" not in told
    assert told["cpus"]
