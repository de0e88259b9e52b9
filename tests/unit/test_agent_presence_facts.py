"""What an agent tells of its machine: power and memory, and never waited for long. How they are read: test_rules,
test_mac_tools, test_executor_gpu.
"""

import asyncio

import pytest

from agent import machine, presence_facts
from agent.presence_facts import facts
from tests.support.fake_mac import FakeMac


@pytest.mark.parametrize(
    ("found", "power"),
    [
        ({}, "mains"),
        ({"AC": {"type": "Mains", "online": "1"}}, "mains"),
        ({"AC": {"type": "Mains", "online": "0"},
          "BAT0": {"type": "Battery", "status": "Discharging", "capacity": "73"}}, "battery 73 %"),
        ({"BAT0": {"type": "Battery", "status": "Charging", "capacity": "40"}}, "mains"),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, "battery"),
        ({"hid": {"type": "Battery", "scope": "Device", "status": "Discharging", "capacity": "9"}}, "mains"),
    ],
)  # fmt: skip
async def test_a_linux_machine_tells_its_power_and_memory(tmp_path, monkeypatch, found, power):
    for supply, files in found.items():
        (tmp_path / supply).mkdir()
        for name, content in files.items():
            (tmp_path / supply / name).write_text(f"{content}\n")
    monkeypatch.setattr(machine, "_SUPPLIES", tmp_path)
    told = await facts(tmp_path)
    assert told["power"] == power
    assert 0 < told["memory_free_bytes"] <= told["memory_bytes"]
    assert told["disk_free_bytes"] > 0


@pytest.mark.parametrize(
    ("source", "percent", "power"),
    [("mains", None, "mains"), ("mains", 80, "mains"), ("battery", 73, "battery 73 %")],
)
async def test_a_mac_tells_its_power(tmp_path, monkeypatch, source, percent, power):
    mac = FakeMac(tmp_path / "mac")
    mac.power(source, percent)
    monkeypatch.setenv("PATH", mac.path)
    assert (await facts(tmp_path))["power"] == power


async def test_a_mac_whose_pmset_refuses_tells_the_rest(tmp_path, monkeypatch):
    mac = FakeMac(tmp_path / "mac")
    mac.say("pmset", "-g batt", None)
    monkeypatch.setenv("PATH", mac.path)
    told = await facts(tmp_path)
    assert "power" not in told
    assert told["cpus"]


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
