"""When may an agent take work? Its rules, and what they forbid at a given moment. Pure: no I/O, no clock.

The agent holds them against readings of its machine (`agent/rule_watch.py`); settings and the admin page write them.
`overflow` forbids nothing: it says which lanes are left to others, and for how long.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW: Final = re.compile(r"(?:([a-z,-]+) +)?([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)|(?:([a-z,-]+))")
_HOUR_MINUTES: Final = 60
_DAY_MINUTES: Final = 24 * _HOUR_MINUTES


class Thermal(StrEnum):
    """How hard macOS slows itself down because of heat, least first."""

    NOMINAL = "nominal"  # not at all
    MODERATE = "moderate"  # fans, background work held back
    HEAVY = "heavy"  # the processor is slowed down
    TRAPPING = "trapping"  # slowed down as far as it goes
    SLEEPING = "sleeping"  # about to sleep


class Rule(StrEnum):
    """What can forbid work; the name of its setting."""

    HOURS = "hours"
    ON_MAINS = "on_mains"
    BATTERY_ABOVE = "battery_above"
    IDLE_S = "idle_s"
    NO_LOW_POWER = "no_low_power"
    THERMAL = "thermal"


class Window(NamedTuple):
    """A time of day on some days; with `end` at or before `start` it goes on after midnight."""

    days: frozenset[int]  # on which it begins; 0 = Monday
    start: int  # minutes since midnight
    end: int

    def has(self, local: datetime) -> bool:
        """Say whether it is open at this time of the wall clock."""
        day, minute = local.weekday(), local.hour * _HOUR_MINUTES + local.minute
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        began_today = day in self.days and minute >= self.start
        return began_today or ((day - 1) % 7 in self.days and minute < self.end)


def read_window(text: str) -> Window:
    """Read `22:00-07:00`, `mon-fri 22:00-07:00`, `sat,sun`; ValueError.

    Days are those on which it begins; none = each.
    """
    found = _WINDOW.fullmatch(re.sub(r"-24:00$", "-00:00", _plain(text)))
    if found is None:
        msg = f"not like 'mon-fri 22:00-07:00', '08:00-18:00' or 'sat,sun': {text!r}"
        raise ValueError(msg)
    names, start_h, start_min, end_h, end_min, whole_days = found.groups()
    days = frozenset(_days(names or whole_days, text)) if names or whole_days else frozenset(range(7))
    if whole_days:
        return Window(days, 0, _DAY_MINUTES)
    start, end = int(start_h) * _HOUR_MINUTES + int(start_min), int(end_h) * _HOUR_MINUTES + int(end_min)
    if end == 0:
        end = _DAY_MINUTES
    if start == end:
        msg = f"begins when it ends: {text!r}; for the whole day name only the days"
        raise ValueError(msg)
    return Window(days, start, end)


def _plain(text: str) -> str:
    """Return it as agents of each release read it: `Sat, Sun 9:00 - 12:00` is `sat,sun 09:00-12:00`."""
    said = re.sub(r"\s*([,-])\s*", r"\1", text.strip().lower())
    return re.sub(r"\b(\d:)", r"0\1", said)


def _days(names: str, text: str) -> Iterator[int]:
    for part in names.split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last and last not in _DAYS):
            msg = f"days are {', '.join(_DAYS)}, as in mon-fri or sat,sun: {text!r}"
            raise ValueError(msg)
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        yield from (day % 7 for day in range(begin, end + 1 if end >= begin else end + 8))


def _checked_window(text: str) -> str:
    read_window(text)
    return _plain(text)


def _checked_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        msg = f"unknown time zone {name!r}; they are named like Europe/Berlin"
        raise ValueError(msg) from None
    return name


def _may_repeat(schema: dict[str, Any]) -> None:
    schema.pop("uniqueItems", None)


class Rules(BaseModel):
    """One agent's rules; as they are by default, nothing is forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hours: Annotated[tuple[Annotated[str, AfterValidator(_checked_window)], ...], Field(max_length=50)] = ()
    """When it works, as `mon-fri 22:00-07:00`; none = always."""
    time_zone: Annotated[str, AfterValidator(_checked_zone)] | None = None
    """Of `hours`, as `Europe/Berlin`; None: the machine's."""
    on_mains: bool = False
    """Not on battery."""
    battery_above: int | None = Field(default=None, ge=0, le=99)
    """On battery only while it holds more than so many per cent."""
    idle_s: float | None = Field(default=None, gt=0, le=86400)
    """Only when nobody has touched keyboard or mouse for so long."""
    no_low_power: bool = False
    """Not in Low Power Mode."""
    thermal: Literal["nominal", "moderate", "heavy"] | None = None
    """Up to this thermal pressure; None: whatever it is."""
    overflow: bool = False
    """Take only what agents of a better rank have no free slot for."""
    overflow_after_s: float = Field(default=300, ge=0, le=86400)
    """With `overflow`: but take it too when work has waited for so long."""
    stops: Annotated[frozenset[Rule], Field(json_schema_extra=_may_repeat)] = frozenset()
    """Which rules also give running jobs back; the others only let nothing new begin."""

    def said(self) -> dict[str, Any]:
        """Return what is not as it is by default, as JSON, always the same for the same rules."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        return said | ({"stops": sorted(said["stops"])} if "stops" in said else {})

    def words(self) -> list[str]:
        """Return each rule for people; empty: none is set."""
        zone = f" ({self.time_zone})" if self.time_zone else ""
        each = {
            f"{'; '.join(self.hours)}{zone}": self.hours,
            "on mains only": self.on_mains,
            f"on battery above {self.battery_above} % only": self.battery_above is not None,
            f"when nobody used it for {self.idle_s or 0:g} s": self.idle_s,
            "not in Low Power Mode": self.no_low_power,
            f"up to {self.thermal} thermal pressure": self.thermal,
            f"what others have no slot for, or after {self.overflow_after_s:g} s": self.overflow,
            f"gives running jobs back: {', '.join(sorted(self.stops))}": self.stops,
        }
        return [words for words, is_set in each.items() if is_set]

    def asked(self) -> frozenset[Rule]:
        """Return the rules that are set."""
        fields = type(self).model_fields
        return frozenset(rule for rule in Rule if getattr(self, rule.value) != fields[rule.value].default)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of a machine; None = can't be told."""

    mains: bool | None = None  # True also where there is no battery
    battery: int | None = None  # per cent; None: it has none
    idle_s: float | None = None  # since a person touched it
    low_power: bool | None = None
    thermal: Thermal | None = None


class Forbidden(NamedTuple):
    """One rule that says no: its word for presence, and the numbers for people."""

    rule: Rule
    reason: str
    said: str


def forbidden(rules: Rules, reading: Reading, now: datetime, zone: tzinfo | None = None) -> list[Forbidden]:
    """Return what forbids work now, the first being the one to name; empty: nothing.

    `now` is aware; `zone` is the machine's, for rules that name none (None: this process's). A rule whose reading is
    missing forbids: nobody who said "not on battery" wants to be asked twice.
    """
    asked = rules.asked()
    checks: tuple[tuple[Rule, Callable[[], tuple[str, str] | None]], ...] = (
        (Rule.HOURS, lambda: _hours(rules, now, zone)),
        (Rule.ON_MAINS, lambda: _on_mains(reading)),
        (Rule.BATTERY_ABOVE, lambda: _battery(rules, reading)),
        (Rule.NO_LOW_POWER, lambda: _low_power(reading)),
        (Rule.THERMAL, lambda: _thermal(rules, reading)),
        (Rule.IDLE_S, lambda: _idle(rules, reading)),
    )
    found = ((rule, check()) for rule, check in checks if rule in asked)
    return [Forbidden(rule, *said) for rule, said in found if said is not None]


def _hours(rules: Rules, now: datetime, zone: tzinfo | None) -> tuple[str, str] | None:
    local = now.astimezone(ZoneInfo(rules.time_zone) if rules.time_zone else zone)
    if any(read_window(text).has(local) for text in rules.hours):
        return None
    return "outside_hours", f"it is {_DAYS[local.weekday()]} {local:%H:%M}; works {'; '.join(rules.hours)}"


def _on_mains(reading: Reading) -> tuple[str, str] | None:
    if reading.mains is None:
        return "power_unknown", "what it runs on can't be read"
    return None if reading.mains else ("on_battery", "works on mains only")


def _battery(rules: Rules, reading: Reading) -> tuple[str, str] | None:
    if reading.mains is None or (not reading.mains and reading.battery is None):
        return "power_unknown", "the battery can't be read"
    if reading.mains or reading.battery is None or reading.battery > (rules.battery_above or 0):
        return None
    return "battery_low", f"{reading.battery} %; works on battery above {rules.battery_above} %"


def _low_power(reading: Reading) -> tuple[str, str] | None:
    if reading.low_power is None:
        return "power_unknown", "whether it is in Low Power Mode can't be read"
    return ("low_power_mode", "Low Power Mode is on") if reading.low_power else None


def _thermal(rules: Rules, reading: Reading) -> tuple[str, str] | None:
    if reading.thermal is None:
        return "thermal_unknown", "thermal pressure can't be read"
    order = list(Thermal)
    if order.index(reading.thermal) <= order.index(Thermal(rules.thermal or Thermal.SLEEPING)):
        return None
    return "thermal_pressure", f"{reading.thermal}; works up to {rules.thermal}"


def _idle(rules: Rules, reading: Reading) -> tuple[str, str] | None:
    if reading.idle_s is None:
        return "idle_unknown", "whether somebody uses it can't be read"
    if reading.idle_s >= (rules.idle_s or 0):
        return None
    return "user_active", f"in use {reading.idle_s:.0f} s ago; works after {rules.idle_s:g} s"
