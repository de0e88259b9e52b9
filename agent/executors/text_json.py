"""Answers that must be JSON: what the model is told, and whether what it said is that. Called by `text`.

A schema is the caller's, and may take exponential time: by its references, or by regular expressions, in which
Python's `re` lets no other thread run, so that no heartbeat would get out. An answer is therefore held against it in a
process of its own (this module, run) with so much of a processor's time and no more.
"""

import re
import resource
import signal
import subprocess
import sys
from typing import Any

import orjson
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from agent.executors.base import Permanent, Transient

_MOST_SAID = 300
_WORK_S = 10
"""How much of a processor's time an answer and a schema may take."""
_WALL_S = 120.0
"""How long that may last on a machine that is busy."""


def instruction(wanted: str | dict[str, Any]) -> str:
    """Return what a model must be told; servers that hold it to JSON by force still need it to come to an end."""
    if wanted == "markdown":
        return ""
    if wanted == "json":
        return "Answer with one JSON document and nothing else."
    return (
        f"Answer with one JSON document and nothing else, valid for this JSON schema: {orjson.dumps(wanted).decode()}"
    )


def check_schema(schema: dict[str, Any]) -> None:
    """Refuse a schema that is none: Permanent."""
    kind = validator_for(schema, Draft202012Validator)
    rules = kind(kind.META_SCHEMA, format_checker=FormatChecker(["regex"]))
    if (error := best_match(rules.iter_errors(schema))) is not None:
        raise Permanent("bad_spec", f"format is no JSON schema: {error.message[:_MOST_SAID]}")


def document(text: str, wanted: str | dict[str, Any]) -> str:
    """Return the JSON document of an answer; ValueError for what is none, or breaks the schema."""
    bare = _without_fence(text.strip())
    try:
        found = orjson.loads(bare)
    except orjson.JSONDecodeError as error:
        msg = f"the answer is no JSON: {error}"
        raise ValueError(msg) from None
    if isinstance(wanted, dict):
        _validate_apart(found, wanted)
    return bare


def _validate_apart(found: Any, schema: dict[str, Any]) -> None:
    """Validate in a process that can be stopped."""
    try:
        ran = subprocess.run(  # noqa: S603 - this module, by the interpreter that runs it
            [sys.executable, "-I", "-m", __name__, str(_WORK_S)],
            input=orjson.dumps([found, schema]),
            capture_output=True,
            timeout=_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Transient("too_busy", f"no time in {_WALL_S:g} s to hold the answer against its schema") from None
    if ran.returncode == -signal.SIGXCPU:
        raise Permanent("bad_spec", f"format takes over {_WORK_S} s of work to hold an answer against it")
    ran.check_returncode()
    verdict = orjson.loads(ran.stdout)
    if verdict["permanent"]:
        raise Permanent("bad_spec", verdict["permanent"])
    if verdict["wrong"]:
        raise ValueError(verdict["wrong"])


def _judge(raw: bytes) -> bytes:
    """Be the process of `_validate_apart`: say what is wrong with the answer, or with the schema."""
    verdict = {"permanent": "", "wrong": ""}
    try:
        _validate(*orjson.loads(raw))
    except Permanent as error:
        verdict["permanent"] = error.message
    except ValueError as error:
        verdict["wrong"] = str(error)
    return orjson.dumps(verdict)


def _validate(found: Any, schema: dict[str, Any]) -> None:
    try:
        # a registry of its own: by default a $ref to the web would be fetched
        validator_for(schema, Draft202012Validator)(schema, registry=Registry()).validate(found)
    except ValidationError as error:
        msg = f"the answer breaks the schema at {error.json_path}: {error.message[:_MOST_SAID]}"
        raise ValueError(msg) from None
    except (RecursionError, re.error) as error:
        msg = f"the answer can't be held against the schema: {type(error).__name__}: {str(error)[:_MOST_SAID]}"
        raise ValueError(msg) from None
    except Unresolvable as error:
        raise Permanent("bad_spec", f"format refers to what it does not hold: {error.ref[:_MOST_SAID]}") from None


def _without_fence(text: str) -> str:
    """Return what stands in a Markdown fence, if the whole text is one: many models can't do without."""
    if not (text.startswith("```") and text.endswith("```") and "\n" in text):
        return text
    return text[text.index("\n") : -3].strip()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1]) + 1))
    sys.stdout.buffer.write(_judge(sys.stdin.buffer.read()))
