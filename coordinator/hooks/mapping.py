"""What an event becomes: conditions and fields are JMESPath, the prompt is a Jinja2 template. Pure functions.

An expression sees `{"body", "headers", "source", "own", "values"}`; a template sees the same names. Nothing here bounds
what that may cost: `mapper` runs it in a process of its own. Imports little, since that process has to start quickly.

A submission's key is made from the rule's name, the values of `key`, and a digest of what is asked for (or of the
values of `revision`). So an event that is fired twice, or for a save that changed nothing of what is asked for, names
the same job.
"""

import copy
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jmespath
import orjson
from jinja2 import StrictUndefined, Template, TemplateError, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jmespath.exceptions import JMESPathError

__all__ = ["Event", "Mapped", "TemplateError", "compile_template", "map_event"]

_MOST_NAMED: Final = 120  # characters of a key that name the document; the digest tells apart what is cut off
_DIGITS: Final = 32
_ASKED: Final = ("kind", "model", "models", "spec", "priority", "run_after", "review")


@dataclass(frozen=True, slots=True)
class Event:
    """What a source sent; header names in lower case, without those that prove who it is."""

    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Mapped:
    """What became of it: submissions by the name of their rule, or why it is none, or what is wrong with it."""

    submissions: dict[str, dict[str, Any]] = field(default_factory=dict)
    ignored: str | None = None
    faults: list[tuple[str, str]] = field(default_factory=list)  # (where, what)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Objects of the body have their fields and nothing else: `body.items` is a field, not a method."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Mapping):
            known = isinstance(argument, str) and argument in obj
            return obj[argument] if known else self.undefined(obj=obj, name=str(argument))
        return super().getitem(obj, argument)


@pass_context
def _as_it_is(_: Context, value: Any) -> Any:
    return value


def _sandbox() -> _Sandbox:
    # A prompt is text, not HTML. A name that is not there is a fault, not an empty place in the prompt. Nothing is
    # worked out when a template is compiled, which is not bounded: not optimized, nor written out (a `finalize` that
    # asks for the context keeps Jinja from that).
    made = _Sandbox(
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        finalize=_as_it_is,
    )
    del made.globals["lipsum"], made.filters["random"]  # the same event always makes the same prompt
    return made


_SANDBOX: Final = _sandbox()


class _RuleError(Exception):
    def __init__(self, where: str, what: object) -> None:
        super().__init__(where, str(what))


@functools.lru_cache(maxsize=64)
def compile_template(text: str) -> Template:
    """Compile a template, once; TemplateError if it is none."""
    return _SANDBOX.from_string(text)


def map_event(name: str, rules: Mapping[str, Any], event: Event) -> Mapped:
    """Return what an event of the source `name` becomes by its rules (`config.Rules` as plain values)."""
    seen: dict[str, Any] = {"body": event.body, "headers": dict(event.headers), "source": name, "own": rules["own"]}
    seen["values"] = {}
    try:
        if not _is_true(_search("when", rules["when"], seen, default=True)):
            return Mapped(ignored="not an event that counts here")
        for reason, expression in rules["ignore"].items():
            if _is_true(_search(f"ignore.{reason}", expression, seen)):
                return Mapped(ignored=reason)
        seen["values"] = {key: _search(f"values.{key}", text, seen) for key, text in rules["values"].items()}
    except _RuleError as error:
        return Mapped(faults=[error.args])
    submissions: dict[str, dict[str, Any]] = {}
    faults: list[tuple[str, str]] = []
    for job, rule in rules["jobs"].items():
        try:
            if rule["enabled"] and _is_true(_search(f"jobs.{job}.when", rule["when"], seen, default=True)):
                submissions[job] = _submission(job, rule, seen)
        except _RuleError as error:
            faults.append(error.args)
    if not submissions and not faults:
        return Mapped(ignored="none of the jobs is asked for")
    return Mapped(submissions, faults=faults)


def _submission(job: str, rule: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    where = f"jobs.{job}"
    made: dict[str, Any] = {**copy.deepcopy(rule["submission"]), "kind": rule["kind"]}
    made.setdefault("spec", {})
    for path, expression in rule["fields"].items():
        found = _search(f"{where}.fields.{path}", expression, seen)
        if found is not None:
            _put(made, path, found)
    if rule["prompt"] is not None:
        _put(made, "spec.prompt", _render(f"{where}.prompt", rule["prompt"], seen))
    labels = {key: _search(f"{where}.labels.{key}", text, seen) for key, text in rule["labels"].items()}
    made["labels"] = {
        **made.get("labels", {}),
        **{key: _text(f"{where}.labels.{key}", value) for key, value in labels.items() if value is not None},
    }
    named = [_text(f"{where}.key", _search(f"{where}.key", text, seen)) for text in rule["key"]]
    asked: Any = {part: made[part] for part in _ASKED if part in made}
    if rule["revision"] is not None:
        asked = [_search(f"{where}.revision", text, seen) for text in rule["revision"]]
    made["key"] = _key(job, named, asked)
    return made


def _key(job: str, named: list[str], asked: Any) -> str:
    whole = orjson.dumps([job, named, asked], option=orjson.OPT_SORT_KEYS)
    shown = "/".join(named).replace("\0", "")[:_MOST_NAMED]
    return f"{job}:{shown}:{hashlib.sha256(whole).hexdigest()[:_DIGITS]}"


def _search(where: str, expression: str | None, seen: Mapping[str, Any], *, default: Any = None) -> Any:
    if expression is None:
        return default
    try:
        return jmespath.search(expression, seen)
    except (JMESPathError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise _RuleError(where, error) from None


def _is_true(value: Any) -> bool:
    """Say whether JMESPath takes a value for true; 0 is."""
    return value is not None and value is not False and value not in ("", [], {})


def _render(where: str, text: str, seen: Mapping[str, Any]) -> str:
    try:
        return compile_template(text).render(seen).strip()
    except Exception as error:  # noqa: BLE001 - a template can raise anything that Python can
        raise _RuleError(where, f"{type(error).__name__}: {error}") from None


def _text(where: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool() | int() | float():
            return orjson.dumps(value).decode()
        case None:
            raise _RuleError(where, "the event does not have it")
        case _:
            raise _RuleError(where, f"must be a text or a number, not {type(value).__name__}")


def _put(made: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        inner = made.setdefault(name, {})
        if not isinstance(inner, dict):
            raise _RuleError(path, f"{name} is a {type(inner).__name__} in `submission`")
        made = inner
    made[last] = value
