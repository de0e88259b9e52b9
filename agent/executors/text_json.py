"""Answers that must be JSON: what the model is told, and whether what it said is that. Called by `text`."""

from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from agent.executors.base import Permanent

_MOST_SAID = 300


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
    try:
        validator_for(schema, Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        raise Permanent("bad_spec", f"format is no JSON schema: {error.message[:_MOST_SAID]}") from None


def document(text: str, wanted: str | dict[str, Any]) -> str:
    """Return the JSON document of an answer; ValueError for what is none, or breaks the schema."""
    bare = _without_fence(text.strip())
    try:
        found = orjson.loads(bare)
    except orjson.JSONDecodeError as error:
        msg = f"the answer is no JSON: {error}"
        raise ValueError(msg) from None
    if isinstance(wanted, dict):
        _validate(found, wanted)
    return bare


def _validate(found: Any, schema: dict[str, Any]) -> None:
    try:
        # a registry of its own: by default a $ref to the web would be fetched
        validator_for(schema, Draft202012Validator)(schema, registry=Registry()).validate(found)
    except ValidationError as error:
        msg = f"the answer breaks the schema at {error.json_path}: {error.message[:_MOST_SAID]}"
        raise ValueError(msg) from None
    except Unresolvable as error:
        raise Permanent("bad_spec", f"format refers to what it does not hold: {error.ref[:_MOST_SAID]}") from None


def _without_fence(text: str) -> str:
    """Return what stands in a Markdown fence, if the whole text is one: many models can't do without."""
    if not (text.startswith("```") and text.endswith("```") and "\n" in text):
        return text
    return text[text.index("\n") : -3].strip()
