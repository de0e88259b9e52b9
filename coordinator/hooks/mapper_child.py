"""The process that maps the events of one source: reads its rules, then event after event, until its input ends.

A template can loop without end, and multiply text. So each event has CPU_S of computing time (not of the clock: a
machine that is busy must lose no event), and the process a limit of memory where the system keeps one. When the time is
up, the kernel ends the process by SIGPROF, whatever it is at; `mapper.py` starts the next one.

Frames on stdin and stdout: a line `<bytes of the head> <bytes of the body>`, then both. Heads are JSON.
"""

import contextlib
import os
import resource
import signal
import sys
from typing import Any, BinaryIO, Final

import orjson

from coordinator.hooks.mapping import Event, Mapped, map_event
from shared.text import MOST_DEPTH, too_deep

CPU_S: Final = 0.5
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024

_MOST_MEMORY: Final = 1024 * 1024 * 1024


def main() -> None:
    """Serve the one who started this process."""
    with contextlib.suppress(ValueError, OSError):  # macOS keeps no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # What is printed by accident must not stand among the frames.
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    first = _read(given)
    if first is None:
        return
    start = orjson.loads(first[0])
    while (frame := _read(given)) is not None:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        answer = _answer(start["name"], start["rules"], *frame)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(b"%d 0\n" % len(answer) + answer)
        answers.flush()


def _answer(name: str, rules: dict[str, Any], head: bytes, body: bytes) -> bytes:
    try:
        said = orjson.dumps(_map(name, rules, orjson.loads(head), body))
    except (orjson.JSONEncodeError, MemoryError) as error:
        return orjson.dumps(Mapped(faults=[("", f"what it becomes can't be kept: {error or 'it is too large'}")]))
    if len(said) > MOST_ANSWER_BYTES:
        return orjson.dumps(Mapped(faults=[("", f"becomes {len(said)} bytes; at most {MOST_ANSWER_BYTES}")]))
    return said


def _map(name: str, rules: dict[str, Any], headers: dict[str, str], body: bytes) -> Mapped:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return Mapped(faults=[("", f"the body is not JSON: {error}")])
    if too_deep(parsed):
        return Mapped(faults=[("", f"the body is nested more than {MOST_DEPTH} levels deep")])
    return map_event(name, rules, Event(parsed, headers))


def _read(given: BinaryIO) -> tuple[bytes, bytes] | None:
    sizes = given.readline().split()
    if len(sizes) != 2:  # noqa: PLR2004 - the end of the input
        return None
    head, body = given.read(int(sizes[0])), given.read(int(sizes[1]))
    return head, body


if __name__ == "__main__":
    main()
