"""Which CMS may send what: the sources file, read once at start, with every fault of it.

`[sources.NAME]` is one source; NAME is the last part of its address (`POST /hooks/NAME`), and the source of the jobs
that its events become. A preset (`presets/*.toml`) is a source's first half: what the file says about the source is
laid over it, table by table, so that one rule, label or template can be replaced. docs/hooks.md explains all of it.

Labels that the presets give and the publisher reads back: `wordpress_post`, the id of the post that asked, where the
result is published. For people: `site` and `document`, which document of which site it was.
"""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from coordinator.hooks.checks import Check
from coordinator.hooks.mapping import TemplateError, compile_template
from coordinator.publishing.config import WordPressSite
from shared.errors import ConfigurationError
from shared.ids import NAME_PATTERN
from shared.submission import Submission
from shared.text import has_nul
from shared.wire import Kind, faults_of

PRESETS: Final = ("contentful", "directus", "ghost", "standard", "strapi", "wordpress")

_FILES_AT: Final = (("check", "secret_files"), ("wordpress", "app_password_file"))
"""Where a source names files; relative ones lie beside the sources file."""


class _Strict(BaseModel):
    """A table of the file: unknown names are faults, and secrets stand in no message."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _is_expression(text: str) -> str:
    try:
        parsed = jmespath.compile(text).parsed
    except JMESPathError as error:
        msg = f"not JMESPath: {' '.join(str(error).split())}"
        raise ValueError(msg) from None
    if _denies_too_little(parsed):
        msg = "!a.b is (!a).b, which nothing is; write !(a.b)"
        raise ValueError(msg)
    return text


def _denies_too_little(node: Any) -> bool:
    """Say whether something below is asked of what was denied, where the whole path was meant."""
    children = node.get("children", [])
    if node.get("type") == "subexpression" and children[0].get("type") == "not_expression":
        return True
    return any(_denies_too_little(child) for child in children if isinstance(child, dict))


def _is_template(text: str) -> str:
    try:
        compile_template(text)
    except TemplateError as error:
        msg = f"not a template: {error}"
        raise ValueError(msg) from None
    return text


def _is_field(path: str) -> str:
    if path.split(".", 1)[0] not in Submission.model_fields.keys() - {"kind", "key", "labels"} or "" in path.split("."):
        msg = f"{path!r} is no field of a submission that can be set here"
        raise ValueError(msg)
    return path


Expression = Annotated[str, AfterValidator(_is_expression)]
TemplateText = Annotated[str, AfterValidator(_is_template)]
FieldPath = Annotated[str, AfterValidator(_is_field)]


class JobRule(_Strict):
    """How an event becomes one job."""

    enabled: bool = True
    when: Expression | None = None  # None = always
    kind: Kind
    key: list[Expression] = Field(min_length=1, max_length=10)  # names the document: site and id
    revision: list[Expression] | None = None  # what makes it another job; None = all that is asked for
    prompt: TemplateText | None = None  # becomes spec.prompt
    fields: dict[FieldPath, Expression] = {}  # what else the event says of the job: `spec.width`, `model`
    submission: dict[FieldPath, Any] = {}  # what every such job has, as in POST /v1/jobs
    labels: dict[Annotated[str, Field(max_length=100)], Expression] = Field(default={}, max_length=50)

    @model_validator(mode="after")
    def _storable(self) -> Self:
        if has_nul(self.submission):
            msg = "submission: text must not contain NUL"
            raise ValueError(msg)
        return self


class Rules(_Strict):
    """Which events count, and what they become."""

    own: list[str] = []  # who writes results back there, as the events name them
    when: Expression | None = None  # an event that counts; None = every one
    ignore: dict[Annotated[str, Field(min_length=1, max_length=200)], Expression] = {}  # reason -> those that don't
    values: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")], Expression] = {}  # names for the rest
    jobs: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")], JobRule] = Field(min_length=1, max_length=20)


class Source(Rules):
    """One CMS that posts here."""

    preset: Literal["contentful", "directus", "ghost", "standard", "strapi", "wordpress"] | None = None
    check: Check
    publish: Literal["wordpress"] | None = None  # where a completed job's result goes back to
    wordpress: WordPressSite | None = None

    @model_validator(mode="after")
    def _publishes_somewhere(self) -> Self:
        if (self.publish == "wordpress") != (self.wordpress is not None):
            msg = 'publish = "wordpress" and the table wordpress go together'
            raise ValueError(msg)
        return self

    def rules(self) -> dict[str, Any]:
        """Return the rules as plain values, without secrets."""
        return self.model_dump(include=set(Rules.model_fields))


class FaultySourcesError(ConfigurationError):
    """The sources file can't be used; `faults` has one line for each reason."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        super().__init__(f"{path}: {'; '.join(faults)}")
        self.faults = faults


def load(path: Path) -> dict[str, Source]:
    """Read a sources file; FaultySourcesError with every fault of every source."""
    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FaultySourcesError(path, [str(error)]) from error
    unknown = [f"{name}: unknown; sources stand in [sources.NAME]" for name in raw if name != "sources"]
    tables = raw.get("sources", {})
    if unknown or not isinstance(tables, dict):
        raise FaultySourcesError(path, unknown or ["sources: must be a table"])
    found: dict[str, Source] = {}
    faults: list[str] = []
    for name, table in tables.items():
        try:
            found[name] = _source(name, table, path.parent)
        except ValidationError as error:
            faults += [f"sources.{name}.{fault.field}: {fault.message}" for fault in faults_of(error)]
        except ConfigurationError as error:
            faults.append(f"sources.{name}: {error}")
    if faults:
        raise FaultySourcesError(path, faults)
    return found


def load_if(path: Path | None) -> dict[str, Source]:
    """Read the sources file that the settings name; no file, no sources."""
    return {} if path is None else load(path)


def preset(name: str) -> dict[str, Any]:
    """Return a preset's tables."""
    return tomllib.loads(files("coordinator.hooks").joinpath(f"presets/{name}.toml").read_text())


def _source(name: str, table: Any, folder: Path) -> Source:
    if not re.fullmatch(NAME_PATTERN, name):
        msg = f"a source's name must match {NAME_PATTERN}"
        raise ConfigurationError(msg)
    if not isinstance(table, dict):
        msg = "must be a table"
        raise ConfigurationError(msg)
    named = table.get("preset")
    whole = _laid_over(preset(named), table) if named in PRESETS else dict(table)
    for part, field in _FILES_AT:
        where = whole.get(part)
        if isinstance(where, dict) and field in where:
            whole[part] = {**where, field: _beside(folder, where[field])}
    return Source.model_validate(whole)


def _beside(folder: Path, given: Any) -> Any:
    """Return a path, or several, as seen from this folder."""
    if isinstance(given, list):
        return [_beside(folder, one) for one in given]
    return str(folder / given) if isinstance(given, str) else given


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay tables over tables, name by name; a check of another kind replaces the whole check."""
    made = dict(below)
    for name, value in above.items():
        under = made.get(name)
        both = isinstance(under, dict) and isinstance(value, dict)
        other = name == "check" and isinstance(value, dict) and value.get("kind") not in (None, below[name]["kind"])
        made[name] = _laid_over(made[name], value) if both and not other else value
    return made
