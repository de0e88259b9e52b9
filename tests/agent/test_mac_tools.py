"""What macOS's tools say, in their shape, and what becomes of a tool that is missing, hangs or refuses."""

import os

import psutil
import pytest

from agent import mac, tools
from shared.rules import Reading, Rule, Thermal
from tests.support.fake_mac import BATT_DESKTOP, CUSTOM_MACBOOK, CUSTOM_MINI, FakeMac
from tests.support.servers import eventually

ALL = frozenset(Rule)


@pytest.fixture(name="fakes")
def fakes_on_path(tmp_path, monkeypatch):
    fakes = FakeMac(tmp_path / "mac")
    monkeypatch.setenv("PATH", fakes.path)
    return fakes


async def test_a_macbook_is_read(fakes):
    assert await mac.read(ALL) == Reading(
        mains=True, battery=100, idle_s=3600, low_power=False, thermal=Thermal.NOMINAL
    )
    fakes.power("battery", 85)
    fakes.low_power(on=True)
    fakes.thermal(2)
    fakes.idle(0.25)
    assert await mac.read(ALL) == Reading(mains=False, battery=85, idle_s=0.25, low_power=True, thermal=Thermal.HEAVY)
    fakes.low_power(on=True, mode="powermode")  # a Mac that has a High Power Mode too
    assert (await mac.read(ALL)).low_power is True


async def test_only_what_the_rules_need_is_asked(fakes):
    assert await mac.read(frozenset({Rule.ON_MAINS})) == Reading(mains=True, battery=100)
    assert fakes.calls == ["pmset -g batt"]


async def test_a_mac_mini_runs_on_mains_and_has_no_battery(fakes):
    fakes.power("mains")
    assert await mac.read(frozenset({Rule.ON_MAINS})) == Reading(mains=True)
    assert await mac.has_battery() is False


async def test_a_tool_that_refuses_says_nothing(fakes):
    fakes.say("pmset", "-g batt", None)
    fakes.say("ioreg", "-c IOHIDSystem -d 4 -r -k HIDIdleTime", None)
    reading = await mac.read(ALL)
    assert (reading.mains, reading.battery, reading.idle_s) == (None, None, None)
    assert await mac.has_battery() is None


async def test_a_tool_that_hangs_is_ended(fakes):
    fakes.hang("pmset", "-g batt")
    said = await tools.call("pmset", "-g", "batt", within_s=0.2)
    assert (said.status, said.error) == (tools.HUNG, "pmset did not answer within 0.2 s")


async def test_what_a_hanging_tool_started_holds_up_nobody(tmp_path, monkeypatch):
    program, started = tmp_path / "pmset", tmp_path / "started"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {started}\nwait\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = await tools.call("pmset", within_s=1.0)
    assert said.status == tools.HUNG
    await eventually(lambda: _is_dead(int(started.read_text())))


def _is_dead(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # nobody reaps here
    except psutil.NoSuchProcess:
        return True


async def test_a_tool_that_is_missing_is_no_crash(monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    said = await tools.call("no-such-tool-of-apple")
    assert (said.status, said.error) == (tools.MISSING, "no-such-tool-of-apple is not installed")


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (BATT_DESKTOP, (True, None)),
        ("Now drawing from 'UPS Power'\n", (True, None)),
        (
            "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t97%; discharging; (no estimate) present",
            (False, 97),
        ),
        (
            "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t80%; AC attached; not charging present: true\n",
            (True, 80),
        ),
        (
            "Now drawing from 'Battery Power'\n -Mouse-0 (id=1)\t12%; -\n -InternalBattery-0 (id=2)\t100%; discharging",
            (False, 100),
        ),
        ("Now drawing from 'Battery Power'\n", (False, None)),
        ("", (None, None)),
        (f"Now drawing from 'AC Power'\n -InternalBattery-0 {'9' * 6000}%; charging", (True, 999)),
    ],
)
def test_power_is_read(said, read):
    assert mac.power_of(said) == read


def test_sleep_settings_are_read_by_source():
    found = mac.sleep_settings_of(CUSTOM_MACBOOK.format(sleep=7))
    assert list(found) == ["Battery Power", "AC Power"]
    assert (found["AC Power"]["sleep"], found["Battery Power"]["sleep"], found["AC Power"]["womp"]) == ("7", "1", "1")
    assert mac.sleep_settings_of(CUSTOM_MINI.format(sleep=0, autorestart=1))["AC Power"]["autorestart"] == "1"


async def test_who_is_logged_in_at_start_and_file_vault(fakes):
    assert (await mac.auto_login(), await mac.file_vault()) == (None, False)
    fakes.say("defaults", "read /Library/Preferences/com.apple.loginwindow autoLoginUser", "anna\n")
    fakes.say("fdesetup", "status", "FileVault is On.\n")
    assert (await mac.auto_login(), await mac.file_vault()) == ("anna", True)
    assert await mac.default_gateway() == "192.168.1.1"
