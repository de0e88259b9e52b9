"""`GET /openapi.json`: the HTTP interface as OpenAPI 3.1, made from the table of routes and `openapi_docs`.

Open to everyone: it says nothing that the source does not. Pages for people are not part of it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final, TypeAlias

import orjson
from aiohttp import web
from pydantic import BaseModel, TypeAdapter

from coordinator.web.openapi_docs import DOCS, ERROR_STATUSES, OPEN, Doc, Refused
from shared.ids import NAME_PATTERN

Route: TypeAlias = tuple[str, str, Callable[..., Any], Collection[str]]
"""Method, path as aiohttp has it, endpoint, roles: a row of `app.py`'s table."""

_MODELS: Final = "#/components/schemas/{model}"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})+))?\}")
_WORDS: Final = re.compile(r"\w+(?:\|\w+)+")
_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "job_id": {"type": "string", "format": "uuid"},
    "epoch": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "source": {"type": "string", "pattern": NAME_PATTERN},
    "worker": {"type": "string", "pattern": NAME_PATTERN},
}
_ABOUT: Final = (
    "Hands generation jobs to Macs and brings each result back exactly once. Every error has the one form `Refused`. "
    "Roles: publisher (submits; sees and acts on its own source's jobs), viewer (reads everything), admin (everything)."
)


def endpoint(routes: Sequence[Route]) -> Callable[[web.Request], Any]:
    """Return the handler that answers with the document of these routes."""

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=_encoded(tuple(routes)), content_type="application/json")

    return openapi


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for method, path, function, roles in routes:
        if function in DOCS:
            for plain, words in _expanded(path):
                paths.setdefault(plain, {})[method.lower()] = _operation(
                    plain, words, function, DOCS[function], sorted(roles), schemas
                )
    for (method, path), (function, doc) in OPEN.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, (), function, doc, [], schemas)
    paths["/openapi.json"] = {
        "get": {
            "operationId": "openapi",
            "summary": "This document.",
            "responses": {
                "200": {"description": "OK", "content": {"application/json": {"schema": {"type": "object"}}}}
            },
        }
    }
    _link(paths)
    token = {"type": "http", "scheme": "bearer", "description": "A token of the coordinator's settings"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tandem", "version": version("tandem"), "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas.all(), "securitySchemes": {"token": token}},
    }


def _link(paths: Mapping[str, Mapping[str, Any]]) -> None:
    """Say what may be asked of a job that was just submitted: whatever has its id in its path."""
    job = {"job_id": "$response.body#/id"}
    links = {
        one["operationId"]: {"operationId": one["operationId"], "parameters": job}
        for path, ways in paths.items()
        for one in ways.values()
        if path.startswith("/v1/jobs/{job_id}")
    }
    for status in ("200", "201"):
        paths["/v1/jobs"]["post"]["responses"][status]["links"] = links


@lru_cache(maxsize=1)
def _encoded(routes: tuple[Route, ...]) -> bytes:
    return orjson.dumps(document(routes))


class _Schemas:
    """The models in use: asked for while the document is made, filled in at its end."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], TypeAdapter[Any]] = {}
        self._made: dict[str, Any] = {}

    def of(self, model: Any, mode: str) -> dict[str, Any]:
        """Return the schema of a model or a union of models, by reference where it has a name."""
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        schema = adapter.json_schema(mode=mode, ref_template=_MODELS)  # type: ignore[arg-type]
        self._made |= schema.pop("$defs", {})
        if isinstance(model, type) and issubclass(model, BaseModel):
            self._made[model.__name__] = schema
            return {"$ref": _MODELS.format(model=model.__name__)}
        return schema

    def fields_of(self, model: type[BaseModel]) -> dict[str, Any]:
        """Return the schema of each field."""
        schema = model.model_json_schema(ref_template=_MODELS)
        self._made |= schema.pop("$defs", {})
        fields: dict[str, Any] = schema["properties"]
        return fields

    def all(self) -> dict[str, Any]:
        """Return every schema that has a name."""
        return dict(sorted(self._made.items()))


def _expanded(path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the paths that a route stands for, without patterns: one for each word of `{action:cancel|retry}`."""
    choices = [
        (found[0], found[2].split("|")) for found in _PARAMETER.finditer(path) if _WORDS.fullmatch(found[2] or "")
    ]
    if not choices:
        yield _PARAMETER.sub(r"{\1}", path), ()
        return
    [(whole, words)] = choices
    for word in words:
        yield _PARAMETER.sub(r"{\1}", path.replace(whole, word)), (word,)


def _operation(
    path: str, words: tuple[str, ...], function: Callable[..., Any], doc: Doc, roles: Sequence[str], schemas: _Schemas
) -> dict[str, Any]:
    module = function.__module__.rpartition(".")[2]
    made: dict[str, Any] = {
        "operationId": "_".join([module, function.__name__, *words]),
        "tags": [module],
        "summary": (function.__doc__ or "").partition("\n")[0],
        "parameters": _parameters(path, doc, schemas),
        "responses": _responses(path, doc, roles, schemas),
    }
    if roles:
        made |= {"security": [{"token": []}], "x-roles": list(roles)}
    body = doc.body_of(words[0]) if doc.body_of else doc.body
    if body is not None:
        content = {"application/json": {"schema": schemas.of(body, "validation")}}
        made["requestBody"] = {"required": doc.needs_body or _is_needed(body), "content": content}
    elif path.startswith("/v1/uploads"):
        made["requestBody"] = {"required": True, "content": {"*/*": {}}}
    return made


def _is_needed(body: Any) -> bool:
    """Say whether a request without a body is refused: not one that needs to say nothing."""
    if isinstance(body, type) and issubclass(body, BaseModel):
        return any(field.is_required() for field in body.model_fields.values())
    return True


def _parameters(path: str, doc: Doc, schemas: _Schemas) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, _ in _PARAMETER.findall(path):
        named = _PARAMETERS.get(name, {"type": "string", "minLength": 1})
        found.append({"name": name, "in": "path", "required": True, "schema": named})
    for name, about in doc.headers.items():
        text = {"schema": {"type": "string"}, "description": about}
        found.append({"name": name, "in": "header", "required": True, **text})
    for name, schema in (schemas.fields_of(doc.query) if doc.query is not None else {}).items():
        found.append({"name": name, "in": "query", "schema": _without_null(schema)})
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query's value: left out is not null."""
    given = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
    if len(given) != 1:
        return schema
    return {**given[0], **{name: value for name, value in schema.items() if name not in ("anyOf", "default")}}


def _responses(path: str, doc: Doc, roles: Sequence[str], schemas: _Schemas) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for status, model in doc.answers.items():
        made[str(status)] = {"description": "OK" if status < 400 else "Not now"}  # noqa: PLR2004
        if status != 304:  # noqa: PLR2004
            schema = {} if model is None else {"schema": schemas.of(model, "serialization")}
            made[str(status)]["content"] = {doc.media: schema}
        if status in doc.location:
            made[str(status)]["headers"] = {"Location": {"schema": {"type": "string"}}}
    refuses = set(doc.refuses)
    refuses |= {401, 403, 429} if roles else set()
    refuses |= {404} if "{job_id}" in path and roles else set()
    refuses |= {400} if roles or doc.query else set()
    refuses |= {400, 408, 422} if doc.body or doc.body_of else set()
    refuses |= {503} if doc.uses_ledger else set()
    for status in sorted(refuses - set(doc.answers)):
        content = {"application/json": {"schema": schemas.of(Refused, "serialization")}}
        made[str(status)] = {"description": ERROR_STATUSES[status], "content": content}
    return made
