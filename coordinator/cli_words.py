"""What is wrong with settings, in plain words: the setting by its names, then what it must be."""

# ruff: noqa: PLC0415 - the settings are imported where one is wrong: the other commands don't need them

import re
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_WORDS: Final = {
    "extra_forbidden": "is not a setting",
    "missing": "is needed",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "list_type": "must be a list",
    "set_type": "must be a list",
    "frozen_set_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must not be empty",
    "ip_any_network": "must be a network, like 10.0.0.0/8",
}
"""By pydantic's word for the kind of error, with the bounds that it gives."""

_NO_TOKEN: Final = re.compile(r"tokens: '(\w+)' must be ")
"""What the settings say of a name below [tokens] that is none of a token."""

_NOT_JSON: Final = re.compile(r'error parsing value for field "(\w+)"')


def settings_faults(error: ValidationError) -> str:
    """Return every fault of settings in one line."""
    return "; ".join(_fault(one) for one in error.errors(include_url=False, include_input=False))


def unparsed_setting(error: ValueError) -> str | None:
    """Return which setting in the environment is no JSON where a list or table belongs; None for other errors."""
    found = _NOT_JSON.search(str(error))
    return found and f'{_named((found[1],))} must be JSON: a list like ["a"], a table like {{"a": "b"}}'


def _fault(one: ErrorDetails) -> str:
    words = _WORDS.get(one["type"])
    said = words.format(**one.get("ctx", {})) if words else one["msg"].removeprefix("Value error, ")
    match one["loc"]:
        case ("tokens", str(name)) if _is_setting(name):
            return _below_tokens(name)
        case () if (found := _NO_TOKEN.match(said)) and _is_setting(found[1]):
            return _below_tokens(found[1])
    if not one["loc"]:
        return said  # a rule about several: it names them
    return f"{_named(one['loc'])} {said}" if words else f"{_named(one['loc'])}: {said}"


def _is_setting(name: str) -> bool:
    from coordinator.settings import CoordinatorSettings

    return name in CoordinatorSettings.model_fields


def _below_tokens(name: str) -> str:
    return f"{name} stands below [tokens], and is a setting: put it above [tokens]"


def _named(place: tuple[int | str, ...]) -> str:
    first, *rest = map(str, place)
    return f"{'.'.join([first, *rest])} (TANDEM_{first.upper()})"
