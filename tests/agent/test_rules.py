"""What rules forbid, as tables: hours over midnight and through changes of the clock, power, heat, people."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from agent.machine import read_supplies
from shared.rules import Reading, Rule, Rules, Thermal, forbidden

BERLIN = ZoneInfo("Europe/Berlin")
GOOD = Reading(mains=True, battery=90, idle_s=7200, low_power=False, thermal=Thermal.NOMINAL)


def reasons(rules, reading=GOOD, now=datetime(2026, 11, 30, 12, tzinfo=UTC), zone=UTC):
    return [one.reason for one in forbidden(rules, reading, now, zone)]


def works(hours, local, zone_name="Europe/Berlin"):
    """Whether it works at this time of Berlin's wall clock."""
    now = datetime.fromisoformat(local).replace(tzinfo=BERLIN).astimezone(UTC)
    return not reasons(Rules(hours=hours, time_zone=zone_name), now=now)


def test_without_rules_nothing_is_forbidden_and_nothing_is_asked():
    assert reasons(Rules(), Reading()) == []
    assert Rules().asked() == frozenset()


@pytest.mark.parametrize(
    ("local", "open_"),
    [
        ("2026-11-30T21:59", False),  # a Monday
        ("2026-11-30T22:00", True),
        ("2026-12-01T06:59", True),
        ("2026-12-01T07:00", False),
        ("2026-12-05T03:00", True),  # Saturday, in the window that began on Friday
        ("2026-12-05T23:00", False),
        ("2026-12-07T03:00", False),  # Monday, of a Sunday's window that is none
    ],
)
def test_hours_go_over_midnight_and_belong_to_the_day_on_which_they_begin(local, open_):
    assert works(("mon-fri 22:00-07:00",), local) is open_


@pytest.mark.parametrize(
    ("hours", "local", "open_"),
    [
        (("sat,sun",), "2026-12-05T00:00", True),
        (("sat,sun",), "2026-12-06T23:59", True),
        (("sat,sun",), "2026-12-07T00:00", False),
        (("fri-mon 09:00-10:00",), "2026-12-06T09:30", True),  # a week goes round
        (("fri-mon 09:00-10:00",), "2026-12-08T09:30", False),
        (("22:00-24:00",), "2026-12-08T23:59", True),
        (("22:00-24:00",), "2026-12-08T00:00", False),
        (("08:00-09:00", "Sun 20:00-21:00"), "2026-12-06T20:30", True),
        (("00:00-24:00",), "2026-12-06T00:00", True),
    ],
)
def test_hours_name_days(hours, local, open_):
    assert works(hours, local) is open_


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("sat, sun", "sat,sun"),
        ("22:00-7:00", "22:00-07:00"),
        (" Mon - Fri 9:00 - 24:00 ", "mon-fri 09:00-24:00"),
        ("sat , sun  8:30-9:00", "sat,sun  08:30-09:00"),
    ],
)
def test_hours_may_be_typed_loosely_and_are_kept_as_each_release_reads_them(typed, kept):
    assert Rules(hours=(typed,)).hours == (kept,)


@pytest.mark.parametrize("typed", ["22-7", "22:00", "22:0-7:00", "122:00-7:00", "sat sun", "25:00-7:00", ""])
def test_what_are_no_hours_is_refused(typed):
    with pytest.raises(ValidationError, match="not like 'mon-fri 22:00-07:00'"):
        Rules(hours=(typed,))


def test_hours_are_of_the_wall_clock_when_it_is_put_forward_and_back():
    night = Rules(hours=("02:30-03:30",), time_zone="Europe/Berlin")
    at = lambda text: reasons(night, now=datetime.fromisoformat(text).replace(tzinfo=UTC)) == []  # noqa: E731
    assert [at(f"2026-03-29T{time}") for time in ("00:59", "01:00", "01:29", "01:30")] == [False, True, True, False]
    autumn = ("00:29", "00:30", "00:59", "01:00", "01:29", "01:30", "02:29", "02:30")  # 02:00 to 03:00 comes twice
    assert [at(f"2026-10-25T{time}") for time in autumn] == [False, True, True, False, False, True, True, False]


def test_hours_without_a_zone_are_the_machines():
    rules, now = Rules(hours=("08:00-09:00",)), datetime(2026, 7, 1, 6, 30, tzinfo=UTC)
    assert reasons(rules, now=now, zone=BERLIN) == []
    assert reasons(rules, now=now, zone=UTC) == ["outside_hours"]


@pytest.mark.parametrize(
    ("rules", "reading", "reason"),
    [
        (Rules(on_mains=True), Reading(mains=True), None),
        (Rules(on_mains=True), Reading(mains=False, battery=100), "on_battery"),
        (Rules(on_mains=True), Reading(), "power_unknown"),
        (Rules(battery_above=40), Reading(mains=False, battery=41), None),
        (Rules(battery_above=40), Reading(mains=False, battery=40), "battery_low"),
        (Rules(battery_above=40), Reading(mains=True, battery=5), None),  # it is charging
        (Rules(battery_above=40), Reading(mains=True), None),
        (Rules(battery_above=0), Reading(mains=False, battery=0), "battery_low"),
        (Rules(battery_above=40), Reading(mains=False), "power_unknown"),
        (Rules(no_low_power=True), Reading(low_power=True), "low_power_mode"),
        (Rules(no_low_power=True), Reading(low_power=False), None),
        (Rules(no_low_power=True), Reading(), "power_unknown"),
        (Rules(thermal="moderate"), Reading(thermal=Thermal.MODERATE), None),
        (Rules(thermal="moderate"), Reading(thermal=Thermal.HEAVY), "thermal_pressure"),
        (Rules(thermal="nominal"), Reading(thermal=Thermal.MODERATE), "thermal_pressure"),
        (Rules(thermal="heavy"), Reading(), "thermal_unknown"),
        (Rules(idle_s=600), Reading(idle_s=599.9), "user_active"),
        (Rules(idle_s=600), Reading(idle_s=600), None),
        (Rules(idle_s=600), Reading(), "idle_unknown"),
        (Rules(overflow=True), Reading(), None),
    ],
)
def test_each_rule_and_its_edge(rules, reading, reason):
    assert reasons(rules, reading) == ([reason] if reason else [])


def test_each_rule_that_forbids_is_named_with_its_numbers():
    rules = Rules(on_mains=True, battery_above=50, idle_s=60)
    found = forbidden(rules, Reading(mains=False, battery=31, idle_s=4), datetime.now(UTC))
    assert [one.rule for one in found] == [Rule.ON_MAINS, Rule.BATTERY_ABOVE, Rule.IDLE_S]
    assert found[1].said == "31 %; works on battery above 50 %"


@pytest.mark.parametrize(
    "table",
    [
        {"hours": ["25:00-07:00"]},
        {"hours": ["22:00-22:00"]},
        {"hours": ["moon 22:00-07:00"]},
        {"hours": ["mon-fri 22-7"]},
        {"time_zone": "Europe/Nowhere"},
        {"time_zone": "../../etc/passwd"},
        {"battery_above": 100},
        {"thermal": "warm"},
        {"idle_s": 0},
        {"stops": ["overflow"]},
        {"on_main": True},
    ],
)
def test_rules_that_make_no_sense_are_refused(table):
    with pytest.raises(ValidationError):
        Rules.model_validate(table)


def test_linux_power_supplies_are_read(tmp_path):
    def supply(name, **files):
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(f"{text}\n")

    assert read_supplies(tmp_path / "none") == Reading(mains=True)
    supply("AC", type="Mains", online="0")
    assert read_supplies(tmp_path) == Reading(mains=True)  # no battery: it must be on mains
    supply("BAT0", type="Battery", capacity="57")
    supply("hidpp_battery_0", type="Battery", scope="Device", capacity="5")
    assert read_supplies(tmp_path) == Reading(mains=False, battery=57)
    (tmp_path / "AC" / "online").write_text("1\n")
    assert read_supplies(tmp_path) == Reading(mains=True, battery=57)
    (tmp_path / "AC" / "online").write_text("0\n")
    (tmp_path / "BAT0" / "status").write_text("Charging\n")  # by a plug that is not listed
    assert read_supplies(tmp_path) == Reading(mains=True, battery=57)
    (tmp_path / "BAT0" / "status").write_text("Discharging\n")
    assert read_supplies(tmp_path) == Reading(mains=False, battery=57)
