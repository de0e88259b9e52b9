"""What deploy/grafana asks for is what /metrics tells: names, labels, and queries that Prometheus understands."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # comes with schemathesis

from tests.metrics.reading import base_of

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/tandem.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy/grafana/alerts.yml").read_text())
MONITORING = (ROOT / "docs/monitoring.md").read_text()

_INTERVAL = "$__rate_interval"


def queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"].replace(_INTERVAL, "5m")
    for rule in _rules():
        yield f"alert {rule['alert']}", rule["expr"]


def _rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_asks_for_what_is_told(where: str, query: str, exported: dict[str, set[str]]) -> None:
    asked = set(re.findall(r"\btandem_\w+", query))
    assert asked or "up{" in query
    assert {base_of(name, exported) for name in asked} <= set(exported), where


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_counters_are_asked_for_by_their_rate_and_gauges_are_not(where: str, query: str) -> None:
    for name in re.findall(r"tandem_\w+", query):
        rated = re.search(rf"(rate|increase|changes)\({name}(\{{[^}}]*\}})?\[", query)
        assert bool(rated) == bool(re.search(r"_(total|bucket|count|sum)$", name)), f"{where}: {name}"


def test_every_metric_is_explained_and_every_explained_one_exists(exported: dict[str, set[str]]) -> None:
    explained = set(re.findall(r"^\| `(tandem_\w+)`", MONITORING, re.MULTILINE))
    named = {name if not name.endswith("_total") else name.removesuffix("_total") for name in explained}
    assert named == set(exported)


def test_every_alert_says_what_to_do() -> None:
    headings = set(re.findall(r"^### (Tandem\w+)$", MONITORING, re.MULTILINE))
    assert headings == {rule["alert"] for rule in _rules()}
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in _rules())


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
