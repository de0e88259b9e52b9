"""launchctl as a program: one user's session whose jobs are real processes. `fake_launchctl.py FOLDER VERB ...`

It says what the real one says (macOS 15), with its traps: bootstrap refuses what is loaded and, right after a bootout,
fails with the statuses in `FOLDER/refusals`; a job with `FOLDER/sits` is loaded but starts only at a kickstart; the job
of a bootout is still printed for a while (`FOLDER/lingers`: so many prints). No KeepAlive but at the end of a `kill`.
"""

import json
import os
import plistlib
import signal
import subprocess
import sys
import time
from pathlib import Path

folder, verb, *rest = Path(sys.argv[1]), *sys.argv[2:]
state_file = folder / "launchd.json"
state = json.loads(state_file.read_text()) if state_file.exists() else {}
before = json.dumps(state)
domain = f"gui/{os.getuid()}"
ENDED_S = 30.0


def say(text):
    sys.stdout.write(f"{text}\n")


def end(status, said=""):
    if json.dumps(state) != before:
        draft = state_file.with_suffix(f".{os.getpid()}")  # another call may read meanwhile
        draft.write_text(json.dumps(state))
        draft.replace(state_file)
    if said:
        sys.stderr.write(f"{said}\n")
    sys.exit(status)


def alive(pid):
    """Whether it runs; a zombie has nobody but init to wait for it."""
    try:
        return pid is not None and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def start(job):
    plist = plistlib.loads(Path(job["file"]).read_bytes())
    with Path(plist["StandardErrorPath"]).open("ab") as out:
        process = subprocess.Popen(
            plist["ProgramArguments"],
            env={"HOME": os.environ["HOME"], "XPC_SERVICE_NAME": plist["Label"], **plist["EnvironmentVariables"]},
            cwd=plist["WorkingDirectory"],
            umask=plist["Umask"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    job["pid"], job["runs"] = process.pid, job["runs"] + 1


def stop(pid):
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + ENDED_S
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)


def label_of(target):
    return target.removeprefix(f"{domain}/")


with (folder / "calls").open("a") as calls:
    calls.write(f"launchctl {' '.join([verb, *rest])}\n")

if verb == "print" and (folder / "no_session").exists():
    end(113, f"Could not find domain for user gui: {os.getuid()}")

if verb == "print" and rest == [domain]:
    say(f"{domain} = {{\n\ttype = login\n}}")
    end(0)

if verb == "bootstrap":
    refusals = folder / "refusals"
    left = refusals.read_text().split() if refusals.exists() else []
    if left:
        refusals.write_text(" ".join(left[1:]))
        word = {"5": "Input/output error", "37": "Operation already in progress"}.get(left[0], "Unknown error")
        end(int(left[0]), f"Bootstrap failed: {left[0]}: {word}")
    label = plistlib.loads(Path(rest[1]).read_bytes())["Label"]
    if label in state:
        end(5, "Bootstrap failed: 5: Input/output error")
    state[label] = {"file": rest[1], "pid": None, "runs": 0, "lingers": None}
    if not (folder / "sits").exists():
        start(state[label])
    end(0)

label = label_of(rest[-1])
job = state.get(label)
if verb == "enable":
    end(0)
if job is None or (job["lingers"] is not None and verb != "print"):
    end(
        *(
            (3, "Boot-out failed: 3: No such process")
            if verb == "bootout"
            else (113, f'Could not find service "{label}"')
        )
    )
if verb == "print":
    if job["lingers"] is not None:
        job["lingers"] -= 1
        if job["lingers"] < 0:
            del state[label]
            end(113, f'Could not find service "{label}" in domain for user gui: {os.getuid()}')
    running = alive(job["pid"])
    if not running and job["pid"] is not None:
        job["pid"], job["ended"] = None, True
    say(f"{domain}/{label} = {{\n\tactive count = 1\n\tpath = {job['file']}\n\ttype = LaunchAgent")
    say(f"\tstate = {'running' if running else 'not running'}\n\n\tprogram = {sys.executable}")
    say(f"\truns = {job['runs']}" + (f"\n\tpid = {job['pid']}" if running else ""))
    code = (folder / "exit_code").read_text() if (folder / "exit_code").exists() else "0"
    say(f"\tlast exit code = {code if job.get('ended') else '(never exited)'}\n\n\tspawn type = interactive (4)\n}}")
    end(0)
if verb == "bootout":
    if alive(job["pid"]):
        stop(job["pid"])
    lingers = folder / "lingers"
    job["lingers"] = int(lingers.read_text()) if lingers.exists() else 0
    end(0)
if verb == "kill":
    os.kill(job["pid"], getattr(signal, rest[0]))
    end(0)
if verb == "kickstart":
    if not alive(job["pid"]):
        start(job)
    end(0)
end(64, f"Unrecognized subcommand: {verb}")
