"""The document at /openapi.json: every endpoint is in it, with its roles, and its schemas are schemas."""

from typing import Any

from aiohttp import web
from jsonschema import Draft202012Validator

from coordinator.web import app as routes
from coordinator.web.jobs import FILTERS
from coordinator.web.openapi import document
from coordinator.web.openapi_docs import DOCS, JobsQuery
from tests.support.web import Web
from tests.web.conftest import guarded, site, web_database, web_dsn

__all__ = ["guarded", "site", "web_database", "web_dsn"]

MACHINES = ("/v1/", "/hooks/", "/status", "/healthz", "/readyz", "/metrics", "/openapi.json")
METHODS = ("get", "post", "put", "patch", "delete")


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    paths = document(routes._ROUTES)["paths"]
    return [(method, path, one) for path, ways in paths.items() for method, one in ways.items()]


def test_every_endpoint_for_programs_is_in_it_and_nothing_else(site: Web) -> None:
    app = site.runner.app
    served = set()
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        if route.method != "HEAD" and path.startswith(MACHINES):
            served.add((route.method, path))

    told = {(method.upper(), _folded(path)) for method, path, _ in operations()}

    assert told == served


def test_every_endpoint_that_is_described_has_a_route() -> None:
    assert set(DOCS) <= {endpoint for _, _, endpoint, _ in routes._ROUTES}


def test_the_roles_are_those_of_the_table() -> None:
    roles = {(way, _canonical(path)): sorted(who) for way, path, endpoint, who in routes._ROUTES if endpoint in DOCS}
    told = {(method.upper(), _folded(path)): one["x-roles"] for method, path, one in operations() if "x-roles" in one}

    assert told == roles


def test_each_operation_has_its_own_name_and_says_what_it_does() -> None:
    names = [one["operationId"] for _, _, one in operations()]

    assert len(set(names)) == len(names)
    assert all(one["summary"].endswith(".") or ":" in one["summary"] for _, _, one in operations())


def test_the_filters_of_the_list_are_all_named() -> None:
    assert set(JobsQuery.model_fields) == FILTERS | {"limit", "cursor"}


def test_its_schemas_are_schemas_and_refer_to_what_is_there() -> None:
    made = document(routes._ROUTES)

    for schema in made["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert set(_references(made)) <= {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
    assert all(method in METHODS for method, _, _ in operations())


async def test_it_is_open_to_everyone(guarded: Web) -> None:
    made = await guarded.call("GET", "/openapi.json")

    assert made["openapi"] == "3.1.0"
    assert made["paths"]["/v1/jobs"]["post"]["x-roles"] == ["admin", "publisher"]


def _canonical(pattern: str) -> str:
    return (web.DynamicResource(pattern) if "{" in pattern else web.PlainResource(pattern)).canonical


def _folded(path: str) -> str:
    """Return a path of the document as the router has it: with a parameter in place of one of its words."""
    if any(path == _canonical(pattern) for _, pattern, _, _ in routes._ROUTES):
        return path
    words = path.split("/")
    for _, pattern, _, _ in routes._ROUTES:
        known = _canonical(pattern)
        parts = known.split("/")
        same = len(parts) == len(words) and all(
            p in (w, "{action}", "{order}") for p, w in zip(parts, words, strict=True)
        )
        if same:
            return known
    return path


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return here + [ref for one in value.values() for ref in _references(one)]
    return [ref for one in value for ref in _references(one)] if isinstance(value, list) else []
