"""The chart's dashboard and alerts: valid, and about metrics and labels that exist."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden import metrics

CHART = Path(__file__).parents[3] / "charts" / "rollcall-operator"
_NAME = re.compile(r"\b(rollcall_\w+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")


@functools.cache
def known() -> dict[str, set[str]]:
    """Labels of each metric as Prometheus stores it."""
    found: dict[str, set[str]] = {}
    for name, labels, kind in re.findall(
        r"^(rollcall_\w+)\{(.*)\} <(\w+)>$", metrics.render(), re.MULTILINE
    ):
        own = set(filter(None, labels.split(", ")))
        names = [name]
        if kind in {"histogram", "summary"}:
            names = [f"{name}_sum", f"{name}_count", f"{name}_bucket"]
        for stored in names:
            extra = {"le"} if stored.endswith("_bucket") else set()
            found[stored] = found.get(stored, set()) | own | extra
    return found


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
    return loaded


def expressions() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    variables = [v["query"] for v in dashboard()["templating"]["list"] if v["type"] == "query"]
    template = (CHART / "templates" / "monitoring.yaml").read_text()
    alerts = re.findall(r"^ +expr: (.*)$", template, re.MULTILINE)
    assert len(alerts) >= 3
    return [*panels, *variables, *alerts]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_uses_metrics_and_labels_that_exist(expression: str) -> None:
    used = _NAME.findall(expression)
    assert used, expression
    labels = known()
    for name, selectors in used:
        assert name in labels, expression
        for label in re.findall(r"(\w+) *(?:=~|!~|!=|=)", selectors):
            assert label in labels[name], expression
        for grouped in _GROUPED.findall(expression):
            assert {label.strip() for label in grouped.split(",")} <= labels[name], expression


def panel_targets() -> list[Any]:
    return [
        pytest.param(
            target["expr"], target["legendFormat"], id=f"{panel['title']} {target['refId']}"
        )
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]


@pytest.mark.parametrize(("expression", "legend"), panel_targets())
def test_a_panel_follows_the_choice_of_namespace_and_job(expression: str, legend: str) -> None:
    """And its legend separates jobs of one name in two namespaces."""
    for name, selectors in _NAME.findall(expression):
        for label in {"namespace", "job"} & known()[name]:
            assert f'{label}=~"${label}"' in selectors, expression
    assert ("{{job}}" in legend) <= ("{{namespace}}" in legend)


@pytest.mark.parametrize(("expression", "legend"), panel_targets())
def test_a_line_is_an_aggregate_by_the_labels_of_its_legend(expression: str, legend: str) -> None:
    """Prometheus adds the scraped pod's labels: without an aggregate each pod is a line."""
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    grouped = [set(re.split(", *", by)) for by in _GROUPED.findall(expression)]
    assert len(grouped) == len(_NAME.findall(expression)), expression
    for labels in grouped:
        assert shown <= labels, expression


def test_a_rollout_without_a_sample_hides_no_mean() -> None:
    """Its reward is NaN, and so would be the mean of its pool; a comparison leaves it out."""
    (mean,) = (text for text in expressions() if "rollcall_rollout_reward" in text)
    assert re.search(r"\(rollcall_rollout_reward\{[^}]*\} >= -Inf\)", mean)


def test_every_panel_has_a_title_a_place_and_the_datasource_variable() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(places)
    for panel in panels:
        assert panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
