"""macOS's tools as small programs in a folder that a test puts on PATH: they answer as Apple's do.

Their answers are written by hand in the shape that these tools are known to have; they were recorded on no Mac.

    mac = FakeMac(tmp_path / "mac")
    monkeypatch.setenv("PATH", mac.path)
    mac.power("battery", 55)

pmset, ioreg, notifyutil, defaults, fdesetup, route and vm_stat answer from files; caffeinate waits for its `-w`;
launchctl (`fake_launchctl.py`) keeps its jobs and really starts their programs. Each call is a line in `calls`.
"""

import os
import sys
from pathlib import Path

REPLAY = """#!/bin/sh
echo "{tool} $*" >> "{folder}/calls"
said="{folder}/said/{tool}_$(echo "$*" | tr ' /' '__')"
if [ -f "$said.hangs" ]; then exec sleep 600; fi
if [ -f "$said" ]; then cat "$said"; exit 0; fi
echo "{tool}: nothing recorded for $*" >&2
exit 1
"""
CAFFEINATE = """#!/bin/sh
echo "caffeinate $*" >> "{folder}/calls"
echo $$ >> "{folder}/caffeinated"
while kill -0 "$3" 2>/dev/null; do sleep 0.05; done
"""
TOOLS = ("pmset", "ioreg", "notifyutil", "defaults", "fdesetup", "route", "vm_stat")
LAUNCHCTL = """#!/bin/sh
exec "{python}" "{program}" "{folder}" "$@"
"""

BATT_MAINS = """Now drawing from 'AC Power'
 -InternalBattery-0 (id=22806627)\t{percent}%; {how}; 0:00 remaining present: true
"""
BATT_BATTERY = """Now drawing from 'Battery Power'
 -InternalBattery-0 (id=22806627)\t{percent}%; discharging; 3:45 remaining present: true
"""
BATT_DESKTOP = "Now drawing from 'AC Power'\n"
PMSET_G = """System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 powernap             1
 networkoversleep     0
 disksleep            10
 sleep                1 (sleep prevented by powerd, sharingd)
 hibernatemode        3
 ttyskeepawake        1
 displaysleep         2
 tcpkeepalive         1
 {mode}         {value}
 womp                 0
"""
THERMAL = "com.apple.system.thermalpressurelevel {level}\n"
HID = """+-o IOHIDSystem  <class IOHIDSystem, id 0x100000275, registered, matched, active, busy 0 (0 retain)>
    {{
      "HIDIdleTime" = {ns}
    }}

"""
CUSTOM_MACBOOK = """Battery Power:
 Sleep On Power Button 1
 lowpowermode         0
 standby              1
 ttyskeepawake        1
 hibernatemode        3
 powernap             0
 hibernatefile        /var/vm/sleepimage
 displaysleep         2
 womp                 0
 networkoversleep     0
 sleep                1
 lessbright           1
 tcpkeepalive         1
 disksleep            10
AC Power:
 Sleep On Power Button 1
 lowpowermode         0
 standby              1
 ttyskeepawake        1
 hibernatemode        3
 powernap             1
 hibernatefile        /var/vm/sleepimage
 displaysleep         10
 womp                 1
 networkoversleep     0
 sleep                {sleep}
 tcpkeepalive         1
 disksleep            10
"""
CUSTOM_MINI = """AC Power:
 Sleep On Power Button 1
 autorestart          {autorestart}
 powernap             1
 standby              0
 ttyskeepawake        1
 womp                 1
 networkoversleep     0
 sleep                {sleep}
 tcpkeepalive         1
 displaysleep         10
 disksleep            10
"""


class FakeMac:
    """The tools, what they say, and what they were asked. A MacBook on mains, at rest, unless told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin, self._said = folder / "bin", folder / "said"
        for each in (self._bin, self._said):
            each.mkdir(parents=True)
        (folder / "calls").touch()
        (folder / "caffeinated").touch()
        for tool in TOOLS:
            self._program(tool, REPLAY.format(tool=tool, folder=folder))
        self._program("caffeinate", CAFFEINATE.format(folder=folder))
        program = Path(__file__).with_name("fake_launchctl.py")
        self._program("launchctl", LAUNCHCTL.format(python=sys.executable, program=program, folder=folder))
        self.power("mains", 100)
        self.low_power(on=False)
        self.thermal(0)
        self.idle(3600)
        self.sleep_settings(CUSTOM_MACBOOK.format(sleep=1))
        self.say("defaults", "read /Library/Preferences/com.apple.loginwindow autoLoginUser", None)
        self.say("fdesetup", "status", "FileVault is Off.\n")
        self.say("route", "-n get default", "   route to: default\n    gateway: 192.168.1.1\n  interface: en0\n")

    @property
    def path(self) -> str:
        """PATH with these tools first."""
        return f"{self._bin}:{os.environ['PATH']}"

    def say(self, tool: str, args: str, said: str | None) -> None:
        """Let a tool answer this to these arguments; None: it refuses."""
        file = self._file(tool, args)
        if said is None:
            file.unlink(missing_ok=True)
            return
        draft = file.with_suffix(".draft")
        draft.write_text(said)
        draft.replace(file)

    def hang(self, tool: str, args: str) -> None:
        """Let a tool not answer."""
        self._file(tool, args).with_name(self._file(tool, args).name + ".hangs").touch()

    def power(self, source: str, percent: int | None = None) -> None:
        """Be on `mains` or on `battery`, with so much of it; without a battery if None."""
        if percent is None:
            said = BATT_DESKTOP
        elif source == "mains":
            said = BATT_MAINS.format(percent=percent, how="charged" if percent == 100 else "charging")
        else:
            said = BATT_BATTERY.format(percent=percent)
        self.say("pmset", "-g batt", said)

    def low_power(self, *, on: bool, mode: str = "lowpowermode") -> None:
        self.say("pmset", "-g", PMSET_G.format(mode=mode, value=int(on)))

    def thermal(self, level: int) -> None:
        self.say("notifyutil", "-g com.apple.system.thermalpressurelevel", THERMAL.format(level=level))

    def idle(self, seconds: float) -> None:
        self.say("ioreg", "-c IOHIDSystem -d 4 -r -k HIDIdleTime", HID.format(ns=round(seconds * 1e9)))

    def sleep_settings(self, said: str) -> None:
        self.say("pmset", "-g custom", said)

    @property
    def calls(self) -> list[str]:
        """What was called, in order."""
        return (self.folder / "calls").read_text().splitlines()

    @property
    def caffeinated(self) -> list[int]:
        """The process ids of every caffeinate that was started."""
        return [int(line) for line in (self.folder / "caffeinated").read_text().split()]

    def _file(self, tool: str, args: str) -> Path:
        return self._said / f"{tool}_{args.replace(' ', '_').replace('/', '_')}"

    def _program(self, name: str, text: str) -> None:
        path = self._bin / name
        path.write_text(text)
        path.chmod(0o755)
