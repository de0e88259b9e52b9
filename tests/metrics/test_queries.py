"""The queries of deploy/grafana in Prometheus's own grammar: they parse, and each label is one that the name has."""

from typing import Any

import pytest

from tests.metrics.reading import base_of
from tests.metrics.test_dashboard import queries

promql = pytest.importorskip("promql_parser")

_ADDED = {"instance", "job", "le"}  # by Prometheus, and by histograms
_OF_PROMETHEUS = {"up"}


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_parses_and_asks_for_what_is_told(where: str, query: str, exported: dict[str, set[str]]) -> None:
    asked: dict[str, set[str]] = {}
    _collect(promql.parse(query), asked)
    assert asked, query
    for name, labels in asked.items():
        base = base_of(name, exported)
        assert base in exported or name in _OF_PROMETHEUS, f"{where}: nobody tells {name}"
        assert labels <= exported.get(base, set()) | _ADDED, f"{where}: {name} has no label of {labels}"


def _collect(node: Any, asked: dict[str, set[str]]) -> None:
    """Note each selector's name and labels, and the labels that an aggregation over it keeps."""
    if isinstance(node, promql.VectorSelector):
        asked.setdefault(node.name, set()).update(m.name for m in node.matchers.matchers)
        return
    if isinstance(node, promql.MatrixSelector):
        _collect(node.vector_selector, asked)
        return
    inner: dict[str, set[str]] = {}
    for child in _children(node):
        _collect(child, inner)
    kept = set()
    if isinstance(node, promql.AggregateExpr) and node.modifier and node.modifier.type == promql.AggModifierType.By:
        kept = set(node.modifier.labels)
    for name, labels in inner.items():
        asked.setdefault(name, set()).update(labels | kept)


def _children(node: Any) -> list[Any]:
    if isinstance(node, promql.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, promql.Call):
        return list(node.args)
    if isinstance(node, promql.AggregateExpr | promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return [node.expr]
    return []
